"""Where the usage of a process goes, and where it can be looked up: by what the process was given.

Records go to the database at once, or through the broker's queue to whoever keeps them there; and
to a file, if one was named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ingress.usage.log_file import LogFile
from ingress.usage.metrics import UsageMetrics
from ingress.usage.outbox import Outbox, Send
from ingress.usage.recorder import NoRecorder, Recorder
from ingress.usage.store import UsageStore
from schemas.codec import encode_records
from schemas.transport.base import RecordQueue
from schemas.usage_record import UsageRecord


class Metering:
    """A `Recorder` of everything that a process answers.

    Args:
        recorder: Brings records to the store.
        log: Appends them to a file.

    Attributes:
        store: Where they are kept in the end; None where there is no database.
    """

    def __init__(
        self,
        *,
        store: UsageStore | None = None,
        recorder: Recorder | None = None,
        log: Recorder | None = None,
    ) -> None:
        self.store = store
        self._recorder = recorder or NoRecorder()
        self._log = log or NoRecorder()

    @classmethod
    def open(
        cls,
        metrics: UsageMetrics,
        *,
        store: UsageStore | None,
        queue: RecordQueue | None,
        log: Path | None,
    ) -> Metering:
        """With what there is of these; without `queue` the store is written at once."""
        recorder = None
        if queue is not None:
            recorder = Outbox(_puts(queue), to="broker", metrics=metrics)
        elif store is not None:
            recorder = Outbox(store.add, to="store", metrics=metrics)
        return cls(
            store=store,
            recorder=recorder,
            log=None if log is None else Outbox(LogFile(log).append, to="file", metrics=metrics),
        )

    def record(self, record: UsageRecord) -> None:
        """Keep it, now or as soon as that is possible. Never blocks."""
        self._recorder.record(record)
        self._log.record(record)

    def has_stored(self, record: UsageRecord) -> None:
        """Of one that came into the store together with what it is about."""
        self._log.record(record)

    async def close(self) -> None:
        """Bring away what is left."""
        await self._recorder.close()
        await self._log.close()


def _puts(queue: RecordQueue) -> Send:
    async def put(records: Sequence[UsageRecord]) -> None:
        await queue.put(encode_records(records))

    return put
