"""One batch in the hands of one batcher, from its claim to its end or until it is let go.

    validate ─► run the lines that have no result ─► finalise

Every step may be left at any moment and taken up again, by this process or another: what counts is
what the store has. While the steps go on, two more tasks hold the lease and see whether somebody
wants the batch cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from ingress.batch import lifecycle
from ingress.batch.access import terms_of_batch
from ingress.batch.capacity import Capacity
from ingress.batch.commits import Commits
from ingress.batch.endings import cancelled
from ingress.batch.finalise import Finaliser
from ingress.batch.input_check import Finding
from ingress.batch.line_run import LineRunner
from ingress.batch.line_runs import LineRuns
from ingress.batch.metrics import BatcherMetrics
from ingress.batch.patience import persistently
from ingress.batch.settings import BatcherSettings
from ingress.batch.validation import validate
from ingress.batch.window import Window
from ingress.dialects.registry import DIALECTS
from ingress.services import Services
from ingress.stores.base import BatchStore, LeaseLost, StoreUnavailable
from schemas import telemetry
from schemas.batch import Batch
from schemas.blobs.base import BlobStore
from schemas.usage_record import UsageRecord

log = structlog.get_logger(__name__)


class BatchRun:
    """Runs one claimed batch.

    Args:
        owner: Of the lease.
        leased_at: When the lease began at the earliest, by the clock of the event loop.
        clock: Gives Unix seconds.

    Attributes:
        batch: As it was last seen.
    """

    def __init__(
        self,
        batch: Batch,
        owner: str,
        *,
        leased_at: float,
        services: Services,
        store: BatchStore,
        blobs: BlobStore,
        capacity: Capacity,
        window: Window,
        settings: BatcherSettings,
        metrics: BatcherMetrics,
        clock: Callable[[], float],
    ) -> None:
        self.batch = batch
        self._owner = owner
        self._leased_at = leased_at
        self._services = services
        self._store = store
        self._blobs = blobs
        self._capacity = capacity
        self._window = window
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._began = time.monotonic()
        self._lines: LineRuns | None = None
        self._working: asyncio.Task[None] | None = None
        self._leaving = False

    async def run(self) -> None:
        """Bring the batch as far as it gets, and let it go.

        Raises:
            LeaseLost: It is somebody else's.
        """
        log.info(telemetry.BATCH_CLAIMED, batch_id=self.batch.batch_id, status=self.batch.status)
        self._working = asyncio.create_task(self._work())
        asides = [asyncio.create_task(self._hold()), asyncio.create_task(self._watch())]
        try:
            await asyncio.wait({self._working, *asides}, return_when=asyncio.FIRST_COMPLETED)
            for aside in asides:
                if aside.done():
                    aside.result()  # none of them ends but by failing
            if not (self._leaving and self._working.cancelled()):
                self._working.result()
        finally:
            await cancelled(self._working, *asides)
        with suppress(StoreUnavailable):  # then the lease runs out by itself
            await self._store.release(self.batch.batch_id, self._owner)

    def leave(self) -> None:
        """Begin nothing any more; `run` ends with the lines that run now."""
        self._leaving = True
        if self._lines is not None:
            self._lines.stop()
        elif self._working is not None:
            self._working.cancel()  # what it does can be done again

    def hurry(self) -> None:
        """After `leave`: give up the lines that still run."""
        if self._lines is not None:
            self._lines.abort()
        elif self._working is not None:
            self._working.cancel()

    async def _hold(self) -> None:
        """Hold the lease.

        It is counted from when it was asked for: a store that was slow to give it gave less of it.

        Raises:
            LeaseLost: It is somebody else's, or gone.
        """
        loop, lease_s = asyncio.get_running_loop(), self._settings.lease_s
        batch_id = self.batch.batch_id
        while True:
            await asyncio.sleep(self._leased_at + lease_s / 3 - loop.time())
            asked_at = loop.time()
            try:
                batch = await self._store.renew(
                    batch_id, self._owner, now=self._clock(), lease_s=lease_s
                )
            except StoreUnavailable as error:
                # Whoever can reach it takes the batch in the end, and then nothing is stored here.
                log.warning("batch.not_renewed", batch_id=batch_id, diagnostic=error.diagnostic)
                await asyncio.sleep(min(self._settings.poll_s, lease_s / 3))
                continue
            self._leased_at = asked_at
            self._see(batch)

    async def _watch(self) -> None:
        """See soon that the batch was cancelled; apart, for the lease must not wait for that.

        Raises:
            LeaseLost: It is gone.
        """
        while True:
            await asyncio.sleep(self._settings.poll_s)
            with suppress(StoreUnavailable):  # who renews the lease tells it
                batch = await self._store.batch(self.batch.account, self.batch.batch_id)
                if batch is None:
                    raise LeaseLost
                self._see(batch)

    def _see(self, batch: Batch) -> None:
        if batch.status == "cancelling" and self._lines is not None:
            self._lines.abort()

    # --- The steps --------------------------------------------------------------------------------

    async def _work(self) -> None:
        directory, account = self._services.directory, self.batch.account
        await persistently(lambda: directory.require_known(account), what="look its account up")
        if self._needs_validation():
            await self._validate()
        if self.batch.status == "in_progress" and not self._leaving:
            await self._run_lines()
        if self.batch.status in ("cancelling", "finalizing") and not self._leaving:
            await self._finalise()

    def _needs_validation(self) -> bool:
        """A batch that was cancelled before it was read is read all the same, for its ids."""
        status, total = self.batch.status, self.batch.counts.total
        return status == "validating" or (status == "cancelling" and not total)

    async def _validate(self) -> None:
        services = self._services
        terms = terms_of_batch(services.directory, self.batch)
        finding = await persistently(
            lambda: validate(self.batch, self._blobs, services.catalog, self._capacity, terms),
            what="validate",
        )
        await self._change(lambda batch: self._validated(batch, finding))
        log.info(
            telemetry.BATCH_VALIDATED,
            batch_id=self.batch.batch_id,
            lines=finding.total,
            errors=len(finding.errors),
        )
        if finding.errors:
            self._tell_end()

    def _validated(self, batch: Batch, finding: Finding) -> Batch:
        if finding.errors:
            return lifecycle.invalid(batch, finding.errors, self._clock())
        return lifecycle.valid(batch, total=finding.total, model=finding.model, now=self._clock())

    async def _run_lines(self) -> None:
        """Run all lines; what is left when the batch is cancelled or its time is over is left."""
        left_s = self.batch.expires_at - self._clock()
        if left_s > 0 and not await self._ran_lines(left_s) and self._leaving:
            return
        await self._change(lambda batch: lifecycle.finalizing(batch, self._clock()))

    async def _ran_lines(self, left_s: float) -> bool:
        """Whether every line has a result."""
        services, settings = self._services, self._settings
        dialect = next(d for d in DIALECTS.values() if d.path == self.batch.endpoint)
        self._lines = LineRuns(
            self.batch,
            LineRunner(services, self.batch, dialect, self._capacity, settings, self._clock),
            store=self._store,
            blobs=self._blobs,
            commits=Commits(
                self._store,
                self.batch.batch_id,
                self._owner,
                settings,
                self._metrics,
                services.usage,
                self._charge,
            ),
            capacity=self._capacity,
            window=self._window,
            look_s=settings.look_s,
        )
        over = asyncio.get_running_loop().call_later(left_s, self._lines.abort)
        try:
            return await self._lines.run()
        finally:
            over.cancel()
            self._lines = None

    def _charge(self, record: UsageRecord) -> None:
        """Count a line, and have it paid for by the batch's account, if that is still there."""
        if record.queue_ms is not None:  # a worker had it
            metrics = self._services.metrics
            metrics.count_tokens(record.model, "batch", record.usage)
            metrics.queue_wait.labels(record.model, "batch").observe(record.queue_ms / 1000)
        account = self._services.directory.account(self.batch.account)
        if account is not None:
            self._services.limiter.charge(account, record.usage, record.microcents)

    async def _finalise(self) -> None:
        await self._change(lambda batch: batch)  # its counts, as they are in the end
        finaliser = Finaliser(self._store, self._blobs, self._owner, self._clock)
        self.batch = await persistently(lambda: finaliser.finalise(self.batch), what="finalise")
        self._tell_end()
        await persistently(self._clear_away, what="clear away")

    async def _clear_away(self) -> None:
        """What an ended batch does not need any more; a sweep does it for one that was killed."""
        await self._store.drop_results(self.batch.batch_id)
        if self.batch.shape == "messages":
            await self._blobs.delete(self.batch.input_blob)

    async def _change(self, change: Callable[[Batch], Batch]) -> None:
        """Have the batch changed, unless it has ended.

        Raises:
            LeaseLost: It is somebody else's, or gone.
        """

        def unless_ended(batch: Batch) -> Batch:
            return batch if batch.status in lifecycle.ENDED else change(batch)

        changed = await persistently(
            lambda: self._store.change_batch(self.batch.batch_id, unless_ended, owner=self._owner),
            what="change the batch",
        )
        if changed is None:
            raise LeaseLost
        self.batch = changed

    def _tell_end(self) -> None:
        batch = self.batch
        self._metrics.ended.labels(batch.status).inc()
        log.info(
            telemetry.BATCH_FINISHED,
            batch_id=batch.batch_id,
            shape=batch.shape,
            endpoint=batch.endpoint,
            model=batch.model,
            status=batch.status,
            lines=batch.counts.total,
            succeeded=batch.counts.succeeded,
            errored=batch.counts.errored,
            cancelled=batch.counts.cancelled,
            expired=batch.counts.expired,
            input_tokens=batch.usage.input_tokens,
            output_tokens=batch.usage.output_tokens,
            age_s=round(self._clock() - batch.created_at, 3),
            duration_s=round(time.monotonic() - self._began, 3),
        )
