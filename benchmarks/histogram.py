"""Many durations in little room: counts of buckets whose widths grow by the same share. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

_GROWTH = 1.02
_LEAST_S = 1e-6
_LOG = math.log(_GROWTH)


class Histogram:
    """Durations in seconds, good to one part in a hundred; what is below a microsecond is one."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts: Counter[int] = Counter(counts or {})

    @classmethod
    def of(cls, values: Iterable[float]) -> Histogram:
        made = cls()
        for value in values:
            made.add(value)
        return made

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, seconds: float) -> None:
        bucket = int(math.log(seconds / _LEAST_S) / _LOG) if seconds > _LEAST_S else 0
        self._counts[bucket] += 1

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self._counts + other._counts)

    def percentile(self, share: float) -> float:
        """The value below which `share` of them lie; not a number if there is none."""
        left = len(self) * share
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left < 0:
                return float(_LEAST_S * _GROWTH ** (bucket + 0.5))
        if not self._counts:
            return math.nan
        return float(_LEAST_S * _GROWTH ** (max(self._counts) + 0.5))

    def counts(self) -> dict[int, int]:
        """For a file; the constructor takes it back."""
        return dict(sorted(self._counts.items()))
