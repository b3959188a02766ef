"""Memory of processes over time: samples of what is resident, and whether it grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psutil

from tests.chaos.fleet import Fleet, Unit
from tests.chaos.gaps import slope

_EVERY_S = 2.0
_WARM_UP = 0.25
"""Share of the time after which growth counts: caches and arenas have filled by then."""

_FLAT_SHARE, _FLAT_MB = 0.05, 16.0
"""Growth over the measured time, of the mean or at least in MB, that still counts as flat."""

Sample = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One process's memory after its warm-up, in MB."""

    name: str
    first_mb: float
    last_mb: float
    mb_per_hour: float
    growth_mb: float

    @property
    def flat(self) -> bool:
        return self.growth_mb <= max(_FLAT_MB, _FLAT_SHARE * self.first_mb)

    def row(self) -> list[str]:
        return [
            self.name,
            f"{self.first_mb:.0f} MB",
            f"{self.last_mb:.0f} MB",
            f"{self.mb_per_hour:+.1f} MB/h",
        ]


class Memory:
    """Samples the processes that nobody injures.

    Args:
        spared: Workers that are left alone.
    """

    def __init__(self, fleet: Fleet, *, spared: Sequence[Unit]) -> None:
        self._processes: dict[str, psutil.Process] = {"broker": fleet.broker_process()}
        for unit in [*fleet.pods, *spared]:
            for part, process in unit.processes().items():
                self._processes[f"{unit.name}/{part}"] = process
        self._samples: dict[str, list[Sample]] = {name: [] for name in self._processes}

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _sample(self) -> None:
        while True:
            now = time.monotonic()
            for name, process in self._processes.items():
                with suppress(psutil.Error):
                    self._samples[name].append((now, process.memory_info().rss / 1e6))
            await asyncio.sleep(_EVERY_S)

    def trends(self) -> list[Trend]:
        return [trend(name, samples) for name, samples in self._samples.items() if samples]


def trend(name: str, samples: Sequence[Sample]) -> Trend:
    """How one process's memory has developed once it was warm."""
    warm = samples[int(len(samples) * _WARM_UP) :]
    per_second = slope(warm)
    return Trend(
        name=name,
        first_mb=warm[0][1],
        last_mb=warm[-1][1],
        mb_per_hour=per_second * 3600,
        growth_mb=per_second * (warm[-1][0] - warm[0][0]),
    )
