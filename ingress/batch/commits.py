"""Results on their way to the store: in groups, each stored once, in bounded memory.

Until a result is stored its line has not been executed, whatever a worker did for it: a process
that dies before loses it, and the line runs again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ingress.batch.metrics import BatcherMetrics
from ingress.batch.patience import persistently
from ingress.batch.settings import BatcherSettings
from ingress.stores.base import BatchStore
from ingress.usage.metering import Metering
from schemas.batch import LineResult
from schemas.usage_record import UsageRecord

_UNSTORED_GROUPS = 8
"""So many groups may wait while the store is slow; then the lines wait, and so their workers."""


class Commits:
    """Stores the results of one batch.

    Args:
        charge: Called once for each line whose result has been stored.
    """

    def __init__(
        self,
        store: BatchStore,
        batch_id: str,
        owner: str,
        settings: BatcherSettings,
        metrics: BatcherMetrics,
        usage: Metering,
        charge: Callable[[UsageRecord], None],
    ) -> None:
        self._store = store
        self._batch_id = batch_id
        self._owner = owner
        self._settings = settings
        self._metrics = metrics
        self._usage = usage
        self._charge = charge
        self._waiting: list[LineResult] = []
        self._size = 0
        self._some = asyncio.Event()  # there is something to store
        self._due = asyncio.Event()  # and it is enough, or somebody waits for it
        self._room = asyncio.Event()
        self._empty = asyncio.Event()  # all is stored
        self._room.set()
        self._empty.set()

    def add(self, result: LineResult) -> None:
        """Have a result stored soon. It cannot be lost on the way, only with the process."""
        self._waiting.append(result)
        self._size += len(result.text)
        self._empty.clear()
        self._some.set()
        if self._holds(1):
            self._due.set()
        if self._holds(_UNSTORED_GROUPS):
            self._room.clear()

    async def room(self) -> None:
        """Wait while too much is not stored yet."""
        await self._room.wait()

    async def flush(self) -> None:
        """Wait until all that was added is stored."""
        self._due.set()
        await self._empty.wait()

    async def run(self) -> None:
        """Store what is added, until cancelled.

        Raises:
            LeaseLost: The batch is somebody else's now, and nothing more was stored.
        """
        while True:
            await self._some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.commit_s):
                    await self._due.wait()
            while self._waiting:
                await self._commit(self._take())
                if not self._holds(_UNSTORED_GROUPS):
                    self._room.set()
            self._some.clear()
            self._due.clear()
            self._empty.set()

    async def _commit(self, group: list[LineResult]) -> None:
        began = time.monotonic()
        await persistently(
            lambda: self._store.commit(self._batch_id, self._owner, group), what="commit"
        )
        self._metrics.commit.observe(time.monotonic() - began)
        for result in group:
            self._metrics.lines.labels(result.outcome).inc()
            if result.record is not None:
                self._usage.has_stored(result.record)
                self._charge(result.record)

    def _take(self) -> list[LineResult]:
        """The next group, which has at least one result."""
        taken = size = 0
        for result in self._waiting[: self._settings.commit_lines]:
            if taken and size + len(result.text) > self._settings.commit_bytes:
                break
            taken += 1
            size += len(result.text)
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._size -= size
        return group

    def _holds(self, groups: int) -> bool:
        settings = self._settings
        lines, size = settings.commit_lines * groups, settings.commit_bytes * groups
        return len(self._waiting) >= lines or self._size >= size
