"""JobSource to bounded concurrent runs; signs of life; draining; the end of a lost engine.

The source bounds how many Jobs are held, so there is nothing to throttle here: every Delivery gets
a task at once, and `workers.sharing` has batch work give way where that makes too many. Counting
Jobs are no load that an announcement tells of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog

from schemas import telemetry
from schemas.model_card import WorkerInfo
from schemas.transport.base import Delivery, JobSource
from workers.count import TokenCounter
from workers.run import Run, Runner
from workers.sharing import Shares, Sharing

log = structlog.get_logger()

_LAST_WORDS_S = 5.0
"""How long Jobs may take to be settled once the engine is lost; the broker may be gone, too."""

_STOP_TAKING_S = 0.3
"""How long they wait for the broker to hear that no more are taken: their readers wait as well."""


class EngineLost(Exception):
    """The engine can generate no more, and every Job has been told. The process must end.

    Attributes:
        status: Exit status of such a process.
    """

    status = 70


class Consumer:
    """Takes Jobs from a source and runs them.

    Args:
        announce_interval_s: How often the worker tells of itself.
        heartbeat_s: How often a running Job that says nothing shows that it is well.
        shares: How live and batch Jobs share the slots; by default batch has what live leaves.

    Attributes:
        sharing: What of live and batch work runs.
    """

    def __init__(
        self,
        source: JobSource,
        runner: Runner,
        counter: TokenCounter,
        *,
        announce_interval_s: float = 5.0,
        heartbeat_s: float = 1.0,
        shares: Shares | None = None,
    ) -> None:
        self._source = source
        slots = runner.engine.slots
        self.sharing = Sharing(source, shares or Shares(slots=slots, beside_live=slots))
        self._runner = runner
        self._counter = counter
        self._announce_interval_s = announce_interval_s
        self._heartbeat_s = heartbeat_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts: set[asyncio.Task[None]] = set()
        self._draining = False

    async def run(self) -> None:
        """Serve until the source is drained, then until what is held has ended.

        Raises:
            EngineLost: The engine is gone; nothing is held any more.
        """
        beside = (
            asyncio.create_task(self._announce_regularly()),
            asyncio.create_task(self._beat()),
        )
        serving = asyncio.create_task(self._serve())
        failing = asyncio.create_task(self._runner.engine.failed())
        try:
            await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                serving.cancel()
                await self._give_up(failing.result())
            await serving
        finally:
            held = self._tasks | self._counts
            self.sharing.close()
            for task in (*beside, failing, serving, *held):
                task.cancel()
            await asyncio.wait((*beside, failing, serving, *held))

    async def _serve(self) -> None:
        async for delivery in self._source.deliveries():
            if delivery.job.job_class == "count":
                _hold(self._counts, self._counter.run(delivery))
                continue
            self._begin(delivery)
        if held := self._tasks | self._counts:
            await asyncio.wait(held)

    def _begin(self, delivery: Delivery) -> None:
        run = self._runner.begin(delivery)
        task = _hold(self._tasks, self._runner.drive(run))
        if not delivery.redelivered:  # else it is only reported, which takes no slot
            self.sharing.began(run)
            task.add_done_callback(lambda _: self._ended(run))
        self._show_running()

    def _ended(self, run: Run) -> None:
        self.sharing.ended(run)
        self._show_running()

    def _show_running(self) -> None:
        metrics = self._runner.metrics
        metrics.running.set(len(self._tasks))
        metrics.slots_free.set(max(0, self._runner.engine.slots - len(self._tasks)))
        metrics.draining.set(self._draining)
        metrics.running_batch.set(self.sharing.batch)

    async def _give_up(self, reason: str) -> None:
        """Tell every owner that its Job must go on elsewhere, and take no more.

        Raises:
            EngineLost: Always.
        """
        log.error(telemetry.ENGINE_LOST, reason=reason, running=len(self._tasks))
        self._runner.engine_lost = True
        self._draining = True
        held = self._tasks | self._counts
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                # First of all, or what is handed back now would come straight here again.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_TAKING_S):
                        await self._source.drain()
                for task in held:
                    task.cancel()
                if held:
                    await asyncio.wait(held)
                await self._announce()
        except TimeoutError:
            log.warning("worker.last_words_lost")
        raise EngineLost(reason)

    async def drain(self, grace_s: float) -> None:
        """Take no more Jobs; finish what ends within the grace time, hand the rest back.

        Called again with less grace it ends sooner.
        """
        log.info(telemetry.WORKER_DRAINING, running=len(self._tasks), grace_s=grace_s)
        self._draining = True
        await self._announce()
        await self._source.drain()
        if held := self._tasks | self._counts:
            _, late = await asyncio.wait(held, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def info(self) -> WorkerInfo:
        """What the worker announces now."""
        engine = self._runner.engine
        return WorkerInfo(
            worker_id=self._runner.worker_id,
            card=engine.card,
            engine=engine.name,
            slots=engine.slots,
            running=len(self._tasks),
            running_batch=self.sharing.batch,
            batch_floor=self.sharing.shares.floor,
            draining=self._draining,
            sent_at=time.time(),
        )

    async def _announce(self) -> None:
        info = self.info()
        self._show_running()
        self._runner.metrics.slots.set(info.slots)
        try:
            await self._source.announce(info)
            if not self._runner.engine_lost:
                self._runner.metrics.engine_running.set(await self._runner.engine.running())
        except Exception as error:  # the next announcement tells the same
            log.warning("worker.announce_failed", error=type(error).__name__)

    async def _announce_regularly(self) -> None:
        while True:
            await self._announce()
            await asyncio.sleep(self._announce_interval_s)

    async def _beat(self) -> None:
        """One task for all Jobs; a silent one is heard after at most two beats."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._runner.show_alive()
            self.sharing.look()


def _hold(tasks: set[asyncio.Task[None]], run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(run)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
