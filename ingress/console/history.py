"""What a console shows of the last minutes: rates, first tokens, and workers that are gone.

It is shown one moment after the other and remembers what the next one needs. Pure: the time comes
with the moments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from ingress.console.status import FirstToken, PodStatus
from schemas.model_card import WorkerInfo

KEPT_S: Final = 600.0

MOST_FIRST_TOKENS: Final = 1500

SILENT_S: Final = 8.0
"""Workers tell of themselves every few seconds; one that has not for so long is not well."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One moment: tokens per second, and what waits.

    Attributes:
        at: Unix seconds.
        live, batch: Output tokens per second, by class.
        prompt: Input tokens per second of both.
    """

    at: float
    live: float
    batch: float
    prompt: float
    waiting: int
    waiting_batch: int
    in_flight: int


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was there.

    Attributes:
        how: `left` of its own accord, or was `lost`: it fell silent.
        at: When it was last heard of, in Unix seconds.
    """

    worker: str
    model: str
    how: Literal["left", "lost"]
    at: float


def heard_at(worker: WorkerInfo) -> float:
    """When a worker was last heard of, by our own clock, in Unix seconds."""
    return worker.sent_at - worker.clock_ahead_s


class _Meter:
    """Turns the counts of one process into rates."""

    __slots__ = ("_before", "rates")

    def __init__(self, status: PodStatus) -> None:
        self._before = status
        self.rates = (0.0, 0.0, 0.0)

    def move(self, status: PodStatus) -> None:
        elapsed_s = status.at - self._before.at
        if elapsed_s <= 0:
            return  # it has not been heard of since
        pairs = zip(_sums(status), _sums(self._before), strict=True)
        live, batch, prompt = (max(0, now - before) / elapsed_s for now, before in pairs)
        self.rates = (live, batch, prompt)
        self._before = status


def _sums(status: PodStatus) -> tuple[int, int, int]:
    live = sum(tokens.output for tokens in status.tokens if tokens.job_class == "interactive")
    batch = sum(tokens.output for tokens in status.tokens if tokens.job_class == "batch")
    return live, batch, sum(tokens.input for tokens in status.tokens)


class History:
    """The last ten minutes, as far as somebody watched.

    Attributes:
        samples: The oldest first.
        first_tokens: The same.
        fresh: Those of them that the last moment brought.
        gone: Workers, the latest first.
    """

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()
        self.first_tokens: deque[FirstToken] = deque(maxlen=MOST_FIRST_TOKENS)
        self.fresh: Sequence[FirstToken] = ()
        self.gone: deque[Gone] = deque(maxlen=20)
        self._meters: dict[str, _Meter] = {}
        self._known: dict[str, float] = {}  # first tokens, by request
        self._workers: dict[str, WorkerInfo] = {}
        self._at = 0.0

    def move(
        self, now: float, statuses: Sequence[PodStatus], workers: Iterable[WorkerInfo]
    ) -> Sample:
        """One moment later."""
        sample = self._sample(now, statuses)
        self.samples.append(sample)
        while self.samples[0].at < now - KEPT_S:
            self.samples.popleft()
        self._take_first_tokens(now, statuses)
        self._take_workers(now, workers)
        self._at = now
        return sample

    def _sample(self, now: float, statuses: Sequence[PodStatus]) -> Sample:
        present = {status.pod for status in statuses}
        self._meters = {pod: meter for pod, meter in self._meters.items() if pod in present}
        for status in statuses:
            self._meters.setdefault(status.pod, _Meter(status)).move(status)
        rates = [meter.rates for meter in self._meters.values()]
        waiting = [waiting for status in statuses for waiting in status.waiting]
        return Sample(
            at=now,
            live=sum(live for live, _, _ in rates),
            batch=sum(batch for _, batch, _ in rates),
            prompt=sum(prompt for _, _, prompt in rates),
            waiting=sum(one.count for one in waiting if one.job_class != "batch"),
            waiting_batch=sum(one.count for one in waiting if one.job_class == "batch"),
            in_flight=sum(status.in_flight for status in statuses),
        )

    def _take_first_tokens(self, now: float, statuses: Sequence[PodStatus]) -> None:
        told = (first for status in statuses for first in status.first_tokens)
        fresh = [first for first in told if first.id not in self._known]
        self._known.update((first.id, now) for first in fresh)
        oldest = now - KEPT_S
        self._known = {known: at for known, at in self._known.items() if at > oldest}
        self.fresh = sorted(fresh, key=lambda first: first.at)
        self.first_tokens.extend(self.fresh)
        while self.first_tokens and self.first_tokens[0].at < oldest:
            self.first_tokens.popleft()

    def _take_workers(self, now: float, workers: Iterable[WorkerInfo]) -> None:
        present = {worker.worker_id: worker for worker in workers}
        for name, worker in self._workers.items():
            if name in present:
                continue
            # One that leaves says so. One that does not is forgotten when it has been silent.
            was_silent = self._at - heard_at(worker) > SILENT_S and not worker.draining
            self.gone.appendleft(
                Gone(
                    worker=name,
                    model=worker.card.id,
                    how="lost" if was_silent else "left",
                    at=heard_at(worker) if was_silent else now,
                )
            )
        self._workers = present
        kept = [one for one in self.gone if one.at > now - KEPT_S and one.worker not in present]
        self.gone = deque(kept, maxlen=self.gone.maxlen)
