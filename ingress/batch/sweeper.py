"""Deletes what nobody may have any more, or nobody can know of.

What a record names is looked for often. Blobs that none names are looked for rarely: they come only
from processes that were killed, and every blob there is has to be asked for.

Content goes first and its record after it, so a sweep that is killed leaves nothing that the next
one does not find. Several batchers may sweep at the same time.

Source: wire reference of the batch APIs, "Files" (expiry) and section 3 (results kept 29 days).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from ingress.batch import lifecycle
from ingress.batch.finalise import blobs_at_end
from ingress.batch.patience import AWAY, reason_of
from ingress.stores.base import BatchStore
from ingress.usage.store import UsageStore
from schemas.blobs.base import BlobStore
from schemas.blobs.orphans import sweep_orphans, sweep_unfinished

log = structlog.get_logger(__name__)

RESULTS_KEPT_S: Final = 29 * 86_400

_AT_ONCE = 100


class Sweeper:
    """Sweeps one store and its blobs.

    Args:
        clock: Gives Unix seconds.
        usage: Records of requests, if there are any.
        usage_days: How long those are kept.
    """

    def __init__(
        self,
        store: BatchStore,
        blobs: BlobStore,
        clock: Callable[[], float],
        *,
        usage: UsageStore | None = None,
        usage_days: int = 400,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._usage = usage
        self._usage_days = usage_days

    async def run(self, every_s: float, *, orphans_every_s: float) -> None:
        """Sweep again and again, several batchers not in step; until cancelled."""
        loop = asyncio.get_running_loop()
        orphans_at = loop.time() + orphans_every_s * random.random()
        while True:
            try:
                if swept := await self.sweep():
                    log.info("batch.swept", deleted=swept)
                if loop.time() >= orphans_at:
                    orphans_at = loop.time() + orphans_every_s * random.uniform(0.8, 1.2)
                    if swept := await self.sweep_orphans():
                        log.info("batch.orphans_swept", deleted=swept)
            except AWAY as error:
                log.warning("batch.not_swept", reason=reason_of(error))
            except Exception as error:
                log.error("batch.sweep_crashed", error=type(error).__name__, exc_info=error)
            await asyncio.sleep(every_s * random.uniform(0.8, 1.2))

    async def sweep(self) -> int:
        """Delete all that is due; returns how much that was.

        Raises:
            StoreUnavailable, BlobStoreUnavailable: Some may be left.
        """
        return (
            await self._expired_files()
            + await self._old_results()
            + await self._undropped()
            + await self._old_usage()
            + await sweep_unfinished(self._blobs, self._clock())
        )

    async def sweep_orphans(self) -> int:
        """Delete the blobs that are nobody's; returns how many.

        Raises:
            StoreUnavailable, BlobStoreUnavailable: Some may be left.
        """
        return await sweep_orphans(self._blobs, self._clock(), self._owned)

    async def _owned(self, keys: Sequence[str]) -> Collection[str]:
        """Which of them a record names, or may name when an unfinished batch has ended."""
        owned = set(await self._store.named_blobs(keys))
        unknown = set(keys) - owned
        if unknown:
            # In this order: of a batch that ends in between, the records name what it has written.
            async for batch_id in self._store.unfinished():
                owned.update(unknown.intersection(blobs_at_end(batch_id)))
            owned.update(await self._store.named_blobs(unknown))
        return owned

    async def _expired_files(self) -> int:
        deleted = 0
        while files := await self._store.expired_files(self._clock(), _AT_ONCE):
            for file in files:
                await self._blobs.delete(file.blob)
                await self._store.forget_file(file.file_id)
                deleted += 1
        return deleted

    async def _old_results(self) -> int:
        deleted = 0
        before = self._clock() - RESULTS_KEPT_S
        while batches := await self._store.archivable(before, _AT_ONCE):
            for batch in batches:
                assert batch.results_blob is not None
                await self._blobs.delete(batch.results_blob)
                await self._store.change_batch(
                    batch.batch_id, lambda batch: lifecycle.archived(batch, self._clock())
                )
                deleted += 1
        return deleted

    async def _old_usage(self) -> int:
        if self._usage is None:
            return 0
        return await self._usage.forget(self._clock() - self._usage_days * 86_400)

    async def _undropped(self) -> int:
        dropped = 0
        while batch_ids := await self._store.undropped(_AT_ONCE):
            for batch_id in batch_ids:
                await self._store.drop_results(batch_id)
                dropped += 1
        return dropped
