"""Whether a process can answer requests, for who decides whether it gets any."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ingress.services import Services


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """How a process stands.

    Attributes:
        broker: It can send Jobs.
        worker: A model can answer.
        shutting_down: It takes no more requests.
    """

    broker: bool
    worker: bool
    shutting_down: bool

    @classmethod
    def of(cls, services: Services) -> Readiness:
        """How the process with these services stands."""
        return cls(
            broker=services.dispatcher.connected(),
            worker=services.catalog.ready(),
            shutting_down=services.admission.shutting_down,
        )

    @classmethod
    def of_all(cls, several: Iterable[Readiness]) -> Readiness:
        """How they stand together, where any may get the next request."""
        found = list(several)
        return cls(
            broker=all(one.broker for one in found),
            worker=all(one.worker for one in found),
            shutting_down=any(one.shutting_down for one in found),
        )

    @property
    def ready(self) -> bool:
        """Whether it should get requests."""
        return self.broker and self.worker and not self.shutting_down
