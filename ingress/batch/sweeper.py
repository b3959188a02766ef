"""Deletes what nobody may have any more, or nobody can know of.

Content goes first and its record after it, so a sweep that is killed leaves nothing that the next
one does not find. Several batchers may sweep at the same time.

Source: wire reference of the batch APIs, "Files" (expiry) and section 3 (results kept 29 days).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from ingress.batch import lifecycle
from ingress.batch.patience import AWAY, reason_of
from ingress.stores.base import BatchStore
from schemas.blobs.base import BlobStore
from schemas.blobs.orphans import sweep_unfinished

log = structlog.get_logger(__name__)

RESULTS_KEPT_S: Final = 29 * 86_400

_AT_ONCE = 100


class Sweeper:
    """Sweeps one store and its blobs.

    Args:
        clock: Gives Unix seconds.
    """

    def __init__(self, store: BatchStore, blobs: BlobStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock

    async def run(self, every_s: float) -> None:
        """Sweep again and again, several batchers not in step; until cancelled."""
        while True:
            try:
                if swept := await self.sweep():
                    log.info("batch.swept", deleted=swept)
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
            + await sweep_unfinished(self._blobs, self._clock())
        )

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

    async def _undropped(self) -> int:
        dropped = 0
        while batch_ids := await self._store.undropped(_AT_ONCE):
            for batch_id in batch_ids:
                await self._store.drop_results(batch_id)
                dropped += 1
        return dropped
