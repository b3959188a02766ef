"""A batcher that is killed, at every step there is; another one finishes what it had begun.

A killed process does nothing any more, so its ends of the stores hang from the fatal call on, and
whatever of it still runs is cut off from the world. Each kill has a store of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ingress.app import build_services
from ingress.batch.batcher import Batcher
from ingress.batch.endings import closing
from ingress.batch.lifecycle import cancel
from ingress.batch.metrics import BatcherMetrics
from ingress.batch.sweeper import Sweeper
from ingress.settings import IngressSettings
from ingress.stores.sql import SqlStore
from schemas.batch import Batch, Shape
from schemas.blobs.base import BlobStore
from schemas.blobs.directory import DirectoryStore
from schemas.transport.base import Dispatcher
from tests.fixtures.batches import (
    FAST,
    add_batch,
    ended,
    errors,
    ids,
    messages_line,
    openai_line,
    output,
    run_batcher,
    said,
)
from tests.fixtures.stack import MODEL, memory_stack, until
from tests.integration.test_batch_ends import Slow, done, stores
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

LEASE_S = 0.2
AT_ONCE = 6
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where there is no disk to wait for: kills are of processes here, not of machines."""
NAMES = [f"r{n}" for n in range(4)]


class Fate:
    """When a process dies: before the so-manieth thing that it does.

    After one is before the next: what of it has an effect is the same.

    Attributes:
        died: It has.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self.died = asyncio.Event()

    async def act(self, *, steps: bool = True) -> None:
        """Something is about to be done; does not return to one who is dead."""
        self._left -= steps
        if self._left <= 0:
            self.died.set()
        if self.died.is_set():
            await asyncio.Event().wait()


class DoomedStore:
    """A store as a doomed process sees it. What has no effect and comes by the clock is no step."""

    _STEPS = ("change_batch", "commit", "drop_results", "release")
    _READS = ("committed", "results")

    def __init__(self, store: SqlStore, fate: Fate) -> None:
        self._store = store
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name in self._READS:
            return lambda *args: doomed_items(method(*args), self._fate)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._fate.act(steps=name in self._STEPS)
            return await method(*args, **kwargs)

        return call


class DoomedBlobs:
    """The same for blobs."""

    def __init__(self, blobs: DirectoryStore, fate: Fate) -> None:
        self._blobs = blobs
        self._fate = fate

    def read(self, key: str) -> AsyncIterator[bytes]:
        return doomed_items(self._blobs.read(key), self._fate)

    async def write(self, key: str, pieces: AsyncIterable[bytes]) -> int:
        await self._fate.act()
        return await self._blobs.write(key, doomed_items(pieces, self._fate, steps=True))

    async def delete(self, key: str) -> None:
        await self._fate.act()
        await self._blobs.delete(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


async def doomed_items(
    items: AsyncIterable[Any], fate: Fate, *, steps: bool = False
) -> AsyncIterator[Any]:
    """What is read or written in parts; `steps` if a part is one, as it is of what is written."""
    async with closing(aiter(items)) as held:
        async for item in held:
            await fate.act(steps=steps)
            yield item
    await fate.act(steps=steps)


def lines_of(shape: Shape) -> list[bytes]:
    """Four, of which the last is refused."""
    make: Callable[..., bytes] = messages_line if shape == "messages" else openai_line
    good = [make(name, said(name)) for name in NAMES[:3]]
    return good + [make(name, said(name), temperature=-1) for name in NAMES[3:]]


class Kill:
    """One batch whose batcher is killed, and what becomes of it."""

    def __init__(self, dispatcher: Dispatcher, store: SqlStore, directory: Path, step: int) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._directory = directory
        self._fate = Fate(step)

    @classmethod
    async def planned(cls, dispatcher: Dispatcher, directory: Path, step: int) -> Kill:
        """With a store of its own."""
        store = await SqlStore.open(f"sqlite:///{directory / 'headrace.db'}")
        return cls(dispatcher, store, directory, step)

    async def happened(self, shape: Shape, *, cancelled: bool) -> bool:
        """Do it; returns whether there was such a step."""
        store, blobs = self._store, DirectoryStore.open(self._directory / "blobs")
        try:
            batch = await add_batch(store, blobs, lines_of(shape), shape=shape)
            if cancelled:
                await store.change_batch(batch.batch_id, lambda b: cancel(b, b.created_at))
            died = await self._is_killed(store, blobs, batch)
            services = self._services(store, blobs)
            async with run_batcher(services, max_batches=1, lease_s=10.0):
                batch = await ended(store, batch)
            await Sweeper(store, blobs, lambda: 0.0).sweep()
            assert not {line async for line in store.committed(batch.batch_id)}
            await self._check(blobs, batch, cancelled=cancelled)
            return died
        finally:
            await store.close()

    async def _is_killed(self, store: SqlStore, blobs: DirectoryStore, batch: Batch) -> bool:
        """Run a batcher until it dies or has ended the batch."""
        fate = self._fate
        services = self._services(DoomedStore(store, fate), DoomedBlobs(blobs, fate))
        settings = FAST.model_copy(update={"lease_s": LEASE_S, "max_batches": 1})
        running = asyncio.create_task(Batcher(services, settings, BatcherMetrics()).run())
        over = asyncio.create_task(ended(store, batch))
        died = asyncio.create_task(fate.died.wait())
        try:
            await asyncio.wait({over, died}, return_when=asyncio.FIRST_COMPLETED)
            if not died.done():  # it has some steps left after the end
                await asyncio.wait({died}, timeout=0.1)
            return died.done()
        finally:
            fate.died.set()
            for task in (running, over, died):
                task.cancel()
            await asyncio.gather(running, over, died, return_exceptions=True)

    def _services(self, store: Any, blobs: Any) -> Any:
        settings = IngressSettings(model=MODEL)
        return build_services(settings, self._dispatcher, store=store, blobs=blobs)

    async def _check(self, blobs: BlobStore, batch: Batch, *, cancelled: bool) -> None:
        results, bad = await output(blobs, batch), await errors(blobs, batch)
        assert sorted(ids(results) + ids(bad)) == NAMES
        counts = batch.counts
        if cancelled:
            assert batch.status == "cancelled"
            assert (counts.cancelled, counts.total, counts.succeeded) == (4, 4, 0)
            return
        assert batch.status == "completed"
        assert (counts.total, counts.succeeded, counts.errored) == (4, 3, 1)
        if batch.shape == "openai":
            assert (ids(results), ids(bad)) == (NAMES[:3], NAMES[3:])


@pytest.mark.rule("batch.killed")
@pytest.mark.parametrize(("shape", "wish"), [("openai", "none"), ("messages", "cancelled")])
async def test_killed_at_any_step_it_ends_all_the_same(shape: Shape, wish: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        async with memory_stack(ScriptedEngine(served_id=MODEL)) as stack:
            dispatcher = stack.services.dispatcher
            step, died = 1, True
            while died:
                kills = [
                    await Kill.planned(dispatcher, Path(directory) / f"{step + n}", step + n)
                    for n in range(AT_ONCE)
                ]
                async with asyncio.TaskGroup() as group:
                    done = [
                        group.create_task(kill.happened(shape, cancelled=wish == "cancelled"))
                        for kill in kills
                    ]
                died = all(task.result() for task in done)
                step += AT_ONCE
    assert step > AT_ONCE  # a batch has more steps than a few


@pytest.mark.rule("batch.killed", "batch.one-owner")
async def test_what_was_stored_before_a_kill_does_not_run_again(tmp_path: Path) -> None:
    slow, fate = Slow(), Fate(10**9)
    names = [f"fast{n}" for n in range(60)] + [f"slow{n}" for n in range(40)]
    async with memory_stack(slow.engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        batch = await add_batch(store, blobs, [openai_line(name, name) for name in names])
        doomed = build_services(
            IngressSettings(model=MODEL),
            stack.services.dispatcher,
            store=DoomedStore(store, fate),  # type: ignore[arg-type]
            blobs=DoomedBlobs(blobs, fate),  # type: ignore[arg-type]
        )
        settings = FAST.model_copy(update={"lease_s": LEASE_S})
        running = asyncio.create_task(Batcher(doomed, settings, BatcherMetrics()).run())
        await until(lambda: done(store, batch, 60))
        await until(lambda: slow.runs.total() > 60)
        fate.died.set()
        running.cancel()
        await asyncio.wait({running})
        slow.gate.set()
        async with run_batcher(stack.services), run_batcher(stack.services):
            batch = await ended(store, batch)
        assert ids(await output(blobs, batch)) == names
    assert (batch.status, batch.counts.succeeded, batch.counts.errored) == ("completed", 100, 0)
    assert {slow.runs[name] for name in names[:60]} == {1}
    again = [name for name in names if slow.runs[name] > 1]
    assert 0 < len(again) <= slow.engine.slots  # those that ran when it was killed
