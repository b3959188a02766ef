"""How long streams stood still: around an injury, and without any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Percentiles of the longest silence of each stream, in seconds."""

    streams: int
    p50: float
    p95: float
    longest: float


def gaps(silences_s: Sequence[float]) -> Gaps:
    """Of so many streams; all zero if there were none."""
    ordered = sorted(silences_s)
    if not ordered:
        return Gaps(streams=0, p50=0.0, p95=0.0, longest=0.0)
    return Gaps(
        streams=len(ordered),
        p50=_quantile(ordered, 0.50),
        p95=_quantile(ordered, 0.95),
        longest=round(ordered[-1], 3),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: one of the values, never between two."""
    rank = max(1, -(-len(ordered) * share // 1))
    return round(ordered[int(rank) - 1], 3)


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope of (x, y); robust enough where the samples are many."""
    if len(samples) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    if not spread:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
