"""The port of usage: where records of requests go. Never blocks a request, and loses none."""

from __future__ import annotations

from typing import Protocol

from schemas.usage_record import UsageRecord


class Recorder(Protocol):
    """Takes records."""

    def record(self, record: UsageRecord) -> None:
        """Keep it, now or as soon as that is possible. Never blocks."""
        ...

    async def close(self) -> None:
        """Bring away what is left."""
        ...


class NoRecorder:
    """A `Recorder` of a deployment that keeps none."""

    def record(self, record: UsageRecord) -> None:
        del record

    async def close(self) -> None:
        pass
