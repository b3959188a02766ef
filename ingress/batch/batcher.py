"""Takes batches on, several at a time, and shares the workers among their lines.

Any number of batchers work on the same store: a batch is one's by its lease. `headrace batcher` is
this in a process of its own, `headrace up` beside everything else.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from ingress.batch.capacity import Capacity
from ingress.batch.endings import cancelled
from ingress.batch.metrics import BatcherMetrics
from ingress.batch.runner import BatchRun
from ingress.batch.settings import BatcherSettings
from ingress.batch.sweeper import Sweeper
from ingress.batch.window import Window
from ingress.services import Services
from ingress.stores.base import LeaseLost, StoreUnavailable
from schemas.batch import UNFINISHED

log = structlog.get_logger(__name__)


class Batcher:
    """Runs batches until it is told to stop.

    Args:
        services: With `store` and `blobs`; whatever serves HTTP of them is left alone.
        clock: Gives Unix seconds.
    """

    def __init__(
        self,
        services: Services,
        settings: BatcherSettings,
        metrics: BatcherMetrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if services.store is None or services.blobs is None:
            raise ValueError("a batcher needs a store and blobs")
        self._services = services
        self._store = services.store
        self._blobs = services.blobs
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._capacity = Capacity(services.catalog, services.dispatcher, settings)
        self._window = Window(self._capacity.limit, max_bytes=settings.max_window_bytes)
        self._sweeper = Sweeper(
            self._store,
            self._blobs,
            clock,
            usage=services.usage.store,
            usage_days=settings.usage_days,
        )
        self._runs: dict[asyncio.Task[None], BatchRun] = {}
        self._ended = asyncio.Event()  # a batch has
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Claim and run batches until `stop`, then until those in hand have been let go."""
        settings = self._settings
        asides = [
            asyncio.create_task(self._look_regularly()),
            asyncio.create_task(
                self._sweeper.run(settings.sweep_s, orphans_every_s=settings.orphans_s)
            ),
            asyncio.create_task(self._claim_regularly()),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({stopping, *asides}, return_when=asyncio.FIRST_COMPLETED)
            for aside in asides:
                if aside.done():
                    aside.result()  # none of them ends but by a fault of ours
            await cancelled(asides.pop())
            self.stop()  # what was claimed at the last moment, too
            if self._runs:
                await asyncio.wait(self._runs)
        finally:
            try:
                await cancelled(stopping, *asides)
            finally:
                await cancelled(*self._runs)

    def stop(self) -> None:
        """Take nothing on any more; lines that run may go on until `hurry`."""
        self._stopping.set()
        for run in self._runs.values():
            run.leave()

    def hurry(self) -> None:
        """After `stop`: give up the lines that still run."""
        for run in self._runs.values():
            run.hurry()

    @property
    def batches(self) -> int:
        """How many it has in hand."""
        return len(self._runs)

    async def _claim_regularly(self) -> None:
        while True:
            try:
                while len(self._runs) < self._settings.max_batches and await self._claim():
                    pass
            except StoreUnavailable as error:
                log.warning("batch.not_claimed", diagnostic=error.diagnostic)
            except Exception as error:  # a fault of ours must not end all other batches
                log.error("batch.claim_crashed", error=type(error).__name__, exc_info=error)
            self._ended.clear()
            try:
                async with asyncio.timeout(self._settings.claim_s):
                    await self._ended.wait()
            except TimeoutError:
                pass

    async def _claim(self) -> bool:
        owner = secrets.token_hex(16)
        asked_at = asyncio.get_running_loop().time()
        # A lease of ours may have run out, where the store was slow to renew it. The batch is in
        # good hands all the same, and would be taken from them.
        batch = await self._store.claim(
            owner,
            now=self._clock(),
            lease_s=self._settings.lease_s,
            without={run.batch.batch_id for run in self._runs.values()},
        )
        if batch is None:
            return False
        run = BatchRun(
            batch,
            owner,
            leased_at=asked_at,
            services=self._services,
            store=self._store,
            blobs=self._blobs,
            capacity=self._capacity,
            window=self._window,
            settings=self._settings,
            metrics=self._metrics,
            clock=self._clock,
        )
        task = asyncio.create_task(self._run(run))
        self._runs[task] = run
        task.add_done_callback(self._let_go)
        return True

    def _let_go(self, task: asyncio.Task[None]) -> None:
        del self._runs[task]
        self._ended.set()

    async def _run(self, run: BatchRun) -> None:
        batch_id = run.batch.batch_id
        try:
            await run.run()
        except LeaseLost:
            log.warning("batch.lease_lost", batch_id=batch_id)
        except Exception as error:
            # The lease is kept: it runs out by itself, and nobody tries again at once.
            log.error(
                "batch.crashed", batch_id=batch_id, error=type(error).__name__, exc_info=error
            )

    async def _look_regularly(self) -> None:
        while True:
            self._capacity.look()
            self._window.refresh()
            self._metrics.running.set(len(self._window))
            statuses = Counter(run.batch.status for run in self._runs.values())
            for status in UNFINISHED:
                self._metrics.active.labels(status).set(statuses[status])
            await asyncio.sleep(self._settings.look_s)


@asynccontextmanager
async def batching(
    services: Services,
    settings: BatcherSettings,
    metrics: BatcherMetrics | None = None,
) -> AsyncIterator[Batcher]:
    """A batcher that runs while the block does; on leaving it lets go of everything at once."""
    batcher = Batcher(services, settings, metrics or BatcherMetrics())
    running = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        batcher.stop()
        await drained(batcher, running)


async def drained(batcher: Batcher, running: asyncio.Task[None]) -> None:
    """Wait until a stopped batcher has let go of its batches; lines run no longer for that."""
    while not running.done():
        batcher.hurry()
        await asyncio.wait({running}, timeout=0.1)
    running.result()
