"""What a batcher does for usage: it writes the records that come over the broker to the store.

A group is acknowledged when it is committed, and not before: so none is lost with a process or
while the database is away, and one that comes twice is kept once, by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from ingress.batch.endings import cancelled
from ingress.batch.patience import persistently
from ingress.usage.metrics import UsageMetrics
from ingress.usage.store import UsageStore
from schemas.codec import CodecError, decode_records
from schemas.transport.base import RecordQueue
from schemas.usage_record import UsageRecord


class Keeper:
    """Keeps what is in a record queue.

    Args:
        store: Waited for as long as it is away; meanwhile the queue holds what comes.
    """

    def __init__(self, queue: RecordQueue, store: UsageStore, metrics: UsageMetrics) -> None:
        self._queue = queue
        self._store = store
        self._metrics = metrics

    async def run(self) -> None:
        """Keep what comes, until cancelled."""
        await self._queue.take(self._keep)

    async def _keep(self, bodies: Sequence[bytes]) -> Mapping[int, str]:
        records: list[UsageRecord] = []
        senseless: dict[int, str] = {}
        for number, body in enumerate(bodies):
            try:
                records += decode_records(body)
            except CodecError as error:
                senseless[number] = str(error)
        await persistently(lambda: self._store.add(records), what="keep usage records")
        self._metrics.records.labels("store", "sent").inc(len(records))
        return senseless


@asynccontextmanager
async def keeping(keeper: Keeper) -> AsyncIterator[None]:
    """A keeper that runs while the block does."""
    running = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        await cancelled(running)
