"""How the Jobs of a worker share its slots: live requests first, batch work in what they leave.

`Shares` decides and knows no clock; `Sharing` keeps the count of what runs, has batch runs give way
when a live Job finds no slot, and tells the job source how many batch Jobs it may hold.

A run that gives way loses nothing that its owner has; what is lost is the engine's work on its
prompt and on the tokens so far, as far as the prefix cache forgets it. So whoever has least there
goes first, and a slot that a live Job has left is kept for the next one for a moment: to leave it
empty for about as long as giving way costs is never much worse than knowing the future.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from schemas.job import Job
from schemas.transport.base import JobSource

CALM_S: Final = 1.0
"""How long a slot that a live Job has left stays free of batch work: about what it costs to stop a
run, queue it again and read its prompt once more."""


_PATIENCE_S: Final = 1.0
"""A live Job that the engine has not begun after this lacks something other than a slot."""


class BatchRun(Protocol):
    """A Job that runs here."""

    @property
    def job(self) -> Job: ...

    def at_stake(self) -> int:
        """Tokens that the engine has worked on and would have to read again; 0 before the first."""
        ...

    def waits(self, since: float) -> bool:
        """Whether it was accepted before then and the engine has not begun to answer."""
        ...

    def give_way(self) -> None:
        """End this attempt; the owner is told `yielded`."""
        ...


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of sharing.

    Attributes:
        slots: Jobs run at once.
        beside_live: Batch Jobs that may run while any live one does.
        floor: Slots that live Jobs never take.
    """

    slots: int
    beside_live: int
    floor: int = 0

    @classmethod
    def of(cls, slots: int, *, share: float, floor: int) -> Shares:
        """From the settings; at least one slot is left to live Jobs."""
        floor = min(floor, slots - 1)
        return cls(slots=slots, beside_live=max(int(share * slots), floor), floor=floor)

    def batch_limit(self, live: int) -> int:
        """How many batch Jobs may run beside so many live ones."""
        if live == 0:
            return self.slots
        return max(self.floor, min(self.beside_live, self.slots - live))


def least_to_lose(
    runs: Iterable[BatchRun], count: int, *, started_first: bool = False
) -> Sequence[BatchRun]:
    """Which runs give way: those with least at stake; of equals the one that gave way less often,
    then the youngest. A suspect never does: it must show what it is by running.

    Args:
        runs: The oldest first.
        count: How many at most.
        started_first: Rather one that has begun, whose memory in the engine is wanted.
    """
    willing = [
        (started_first and not run.at_stake(), run.at_stake(), run.job.attempt, -age, run)
        for age, run in enumerate(runs)
        if not run.job.suspect
    ]
    willing.sort(key=lambda entry: entry[:4])
    return [run for *_, run in willing[:count]]


class LatePeak:
    """The highest level of a moment ago: a level counts until some time after it was left."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._left: deque[tuple[float, int]] = deque()  # (until when, level), falling levels
        self._level = 0

    def set(self, level: int, now: float) -> None:
        """The level is this from now on."""
        if level < self._level:
            self._left.append((now + self._keep_s, self._level))
        while self._left and self._left[-1][1] <= level:
            self._left.pop()
        self._level = level

    def at(self, now: float) -> int:
        """The peak as it counts now."""
        while self._left and self._left[0][0] <= now:
            self._left.popleft()
        return max(self._level, self._left[0][1]) if self._left else self._level

    def falls_at(self) -> float | None:
        """When it will be lower if nothing happens; None if it will not."""
        return self._left[0][0] if self._left else None


class Sharing:
    """Counts the Jobs that run on one worker and keeps the rules.

    Args:
        source: Told how many batch Jobs it may hold.
        calm_s: See `CALM_S`.

    Attributes:
        shares: The rules.
        yielded: Runs that had to give way, ever.
    """

    def __init__(self, source: JobSource, shares: Shares, *, calm_s: float = CALM_S) -> None:
        self.shares = shares
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._peak = LatePeak(calm_s)
        self._timer: asyncio.TimerHandle | None = None
        self._live: set[BatchRun] = set()
        self._batch: dict[BatchRun, None] = {}  # the oldest first
        self._leaving: set[BatchRun] = set()
        self._limit = -1
        self._cap = shares.slots
        self._step = 0
        self.yielded = 0
        self._settle()

    @property
    def live(self) -> int:
        """Live Jobs that run now."""
        return len(self._live)

    @property
    def batch(self) -> int:
        """Batch Jobs that run now, those about to leave included."""
        return len(self._batch)

    def began(self, run: BatchRun) -> None:
        """A Job has come that is to be run."""
        if run.job.job_class == "batch":
            self._batch[run] = None
        else:
            self._live.add(run)
        self._settle()

    def ended(self, run: BatchRun) -> None:
        """It runs no more."""
        if run.job.job_class == "batch":
            self._batch.pop(run, None)
            self._leaving.discard(run)
        else:
            self._live.discard(run)
        self._settle()

    def look(self) -> None:
        """Called about once a second: see whether live Jobs wait although they have slots.

        The engine lacks memory then, or is busy with long prompts. So batch work gets less, twice
        as much less each time, and gets it back bit by bit.
        """
        since = self._loop.time() - _PATIENCE_S
        slots = self.shares.slots
        if self._batch and any(run.waits(since) for run in self._live):
            self._step = max(1, 2 * self._step)
            self._cap = max(0, len(self._batch) - len(self._leaving) - self._step)
        elif self._cap < slots:
            self._step = 0
            self._cap = min(self._cap + max(1, slots // 16), slots)
        else:
            return
        self._settle(started_first=True)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _batch_limit(self, live: int) -> int:
        return max(min(self.shares.batch_limit(live), self._cap), self.shares.floor)

    def _settle(self, *, started_first: bool = False) -> None:
        """Make things as they are to be with what runs now."""
        now = self._loop.time()
        self._peak.set(self.live, now)
        limit = self._batch_limit(self._peak.at(now))
        if limit != self._limit:
            self._limit = limit
            self._source.limit_batch(limit)
        self._make_room(started_first)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (falls_at := self._peak.falls_at()) is not None:
            self._timer = self._loop.call_at(falls_at, self._settle)

    def _make_room(self, started_first: bool) -> None:
        staying = [run for run in self._batch if run not in self._leaving]
        excess = len(staying) - self._batch_limit(self.live)
        if excess <= 0:
            return
        for run in least_to_lose(staying, excess, started_first=started_first):
            self.yielded += 1
            self._leaving.add(run)
            run.give_way()
