"""Which Jobs were cancelled lately: a cancel may come before the Job it is meant for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from schemas.codec import Cancel, StoredJob
from schemas.job import Job

MOST_REMEMBERED: Final = 50_000


class CancelMemory:
    """Which Jobs were cancelled lately, up to which attempt."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._attempts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, cancel: Cancel, now: float) -> None:
        attempt, _ = self._attempts.pop(cancel.job_id, (0, now))
        self._attempts[cancel.job_id] = (max(attempt, cancel.attempt), now)
        while len(self._attempts) > MOST_REMEMBERED or self._oldest() < now - self._keep_s:
            self._attempts.popitem(last=False)

    def covers(self, job: Job | StoredJob) -> bool:
        attempt, _ = self._attempts.get(job.job_id, (0, 0.0))
        return job.attempt <= attempt

    def _oldest(self) -> float:
        return next(iter(self._attempts.values()))[1]
