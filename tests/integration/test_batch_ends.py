"""How a batch ends before all of its lines are done: cancelled, expired, let go, taken over."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingress.batch.finalise import Finaliser, blobs_at_end
from ingress.batch.lifecycle import cancel
from ingress.batch.sweeper import RESULTS_KEPT_S, Sweeper
from ingress.stores.base import BatchStore, LeaseLost
from schemas.batch import Batch, Shape
from schemas.blobs.base import BlobStore
from schemas.blobs.orphans import FOLDERS, YOUNGEST_S
from tests.fixtures.batches import (
    add_batch,
    ended,
    errors,
    ids,
    messages_line,
    openai_line,
    output,
    run_batcher,
)
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text

pytestmark = pytest.mark.timeout(90)

FAST_ONES, SLOW_ONES = 5, 20


class Slow:
    """An engine some of whose answers never end by themselves.

    Attributes:
        gate: Opened, they do.
        runs: How often each prompt was run.
    """

    def __init__(self, slots: int = 8) -> None:
        self.gate = asyncio.Event()
        self.runs: Counter[str] = Counter()
        self.engine = ScriptedEngine(served_id=MODEL, script=self._script, slots=slots)

    def _script(self, request: EngineRequest) -> Iterator[Step]:
        name = bytes(i for i in request.prompt_ids if i < 256).decode().split()[1]
        self.runs[name] += 1
        yield Text("begun ")
        if name.startswith("slow"):
            yield Gate(self.gate)
        yield Text(name)


def mixed_lines(shape: Shape) -> list[bytes]:
    names = [f"fast{n}" for n in range(FAST_ONES)] + [f"slow{n}" for n in range(SLOW_ONES)]
    make: Any = messages_line if shape == "messages" else openai_line
    return [make(name, name) for name in names]


def stores(stack: Stack) -> tuple[BatchStore, BlobStore]:
    assert stack.services.store is not None
    assert stack.services.blobs is not None
    return stack.services.store, stack.services.blobs


async def done(store: BatchStore, batch: Batch, lines: int) -> bool:
    found = await store.batch(batch.account, batch.batch_id)
    return found is not None and found.counts.succeeded >= lines


@pytest.mark.rule("batch.cancelled", "batch.expired")
@pytest.mark.parametrize("shape", ["openai", "messages"])
@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_what_is_done_stays_and_the_rest_is_told(
    tmp_path: Path, shape: Shape, how: str
) -> None:
    slow = Slow()
    async with (
        memory_stack(slow.engine, files=tmp_path) as stack,
        run_batcher(stack.services),
    ):
        store, blobs = stores(stack)
        lasts_s = 2.0 if how == "expired" else 1000.0
        added = await add_batch(store, blobs, mixed_lines(shape), shape=shape, lasts_s=lasts_s)
        await until(lambda: done(store, added, FAST_ONES))
        began = time.monotonic()
        if how == "cancelled":
            await store.change_batch(added.batch_id, lambda batch: cancel(batch, time.time()))
        batch = await ended(store, added)
        took_s = time.monotonic() - began
        await until(lambda: not slow.engine._running)  # its workers have let go of it
        results, bad = await output(blobs, batch), await errors(blobs, batch)
    counts = batch.counts
    assert batch.status == how
    assert counts.succeeded == FAST_ONES
    assert (counts.cancelled, counts.expired) == (
        (SLOW_ONES, 0) if how == "cancelled" else (0, SLOW_ONES)
    )
    assert took_s < 4.0
    if shape == "openai":
        assert {line["error"]["code"] for line in bad} == {f"batch_{how}"}
        assert all(line["response"] is None for line in bad)
    else:
        kinds = Counter(line["result"]["type"] for line in results)
        told = "canceled" if how == "cancelled" else "expired"
        assert kinds == {"succeeded": FAST_ONES, told: SLOW_ONES}
        results, bad = results[:FAST_ONES], results[FAST_ONES:]
    assert sorted(ids(results)) == [f"fast{n}" for n in range(FAST_ONES)]
    assert sorted(ids(bad)) == sorted(f"slow{n}" for n in range(SLOW_ONES))


@pytest.mark.rule("batch.cancelled")
async def test_a_batch_cancelled_before_it_was_read_names_every_line(tmp_path: Path) -> None:
    async with memory_stack(Slow().engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        sound = await add_batch(store, blobs, mixed_lines("openai"))
        unsound = await add_batch(store, blobs, [b"{"])
        for batch in (sound, unsound):
            await store.change_batch(batch.batch_id, lambda batch: cancel(batch, time.time()))
        async with run_batcher(stack.services):
            sound, unsound = await ended(store, sound), await ended(store, unsound)
        bad = await errors(blobs, sound)
    assert (sound.status, sound.output_file_id) == ("cancelled", None)
    assert len(bad) == sound.counts.cancelled == FAST_ONES + SLOW_ONES
    assert unsound.status == "failed"


@pytest.mark.rule("batch.one-owner")
async def test_a_batch_is_run_by_one_batcher_and_taken_over_from_one_that_leaves(
    tmp_path: Path,
) -> None:
    slow = Slow(slots=100)
    async with memory_stack(slow.engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        added = [await add_batch(store, blobs, mixed_lines("openai")) for _ in range(4)]
        async with run_batcher(stack.services, max_batches=2) as first:
            async with run_batcher(stack.services, max_batches=2) as second:
                await until(lambda: first.batches == second.batches == 2)
                for batch in added:
                    await until(lambda batch=batch: done(store, batch, FAST_ONES))
                slow.gate.set()
                await until(lambda: done(store, added[0], FAST_ONES + 1))
            # The second has left in the middle, and the first takes on what it had.
            batches = [await ended(store, batch) for batch in added]
    assert [batch.counts.succeeded for batch in batches] == [FAST_ONES + SLOW_ONES] * 4
    # What was stored ran once, whoever did it.
    assert all(slow.runs[f"fast{n}"] == 4 for n in range(FAST_ONES))


@pytest.mark.rule("batch.one-owner")
@pytest.mark.parametrize("shape", ["openai", "messages"])
async def test_one_who_wakes_up_late_does_not_touch_what_another_has_ended(
    tmp_path: Path, shape: Shape
) -> None:
    slow = Slow()
    async with memory_stack(slow.engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        lines = mixed_lines(shape)[:FAST_ONES]
        added = await add_batch(store, blobs, lines, shape=shape)
        # It fell asleep before it read anything; its lease ran out.
        seen = await store.claim("sleeper", now=0, lease_s=1)
        assert seen is not None
        sleeper = Finaliser(store, blobs, "sleeper", time.time)
        async with run_batcher(stack.services):
            batch = await ended(store, added)
            await until(lambda: _dropped(store, batch))
        results = await output(blobs, batch)
        counts = msgspec.structs.replace(batch.counts, total=FAST_ONES)
        late = msgspec.structs.replace(seen, status="finalizing", counts=counts)
        with pytest.raises(LeaseLost):
            await sleeper.finalise(late)
        # Not even if it had begun in time.
        sleeper._ours = lambda batch: _asleep(batch, sleeper)  # type: ignore[method-assign]
        with pytest.raises(LeaseLost):
            await sleeper.finalise(late)
        assert len(results) == FAST_ONES
        assert await output(blobs, batch) == results
        assert await errors(blobs, batch) == []


async def _dropped(store: BatchStore, batch: Batch) -> bool:
    return not [line async for line in store.committed(batch.batch_id)]


async def _asleep(batch: Batch, sleeper: Finaliser) -> Batch:
    """What it was told before it fell asleep; from then on the truth."""
    del sleeper._ours
    return batch


@pytest.mark.rule("batch.leaves")
async def test_a_batcher_that_is_told_to_leave_lets_running_lines_end(tmp_path: Path) -> None:
    slow = Slow(slots=3)
    lines = [openai_line(f"slow{n}", f"slow{n}") for n in range(10)]
    async with memory_stack(slow.engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        added = await add_batch(store, blobs, lines)
        async with run_batcher(stack.services, window=3) as batcher:
            await until(lambda: len(slow.runs) == 3)
            batcher.stop()
            slow.gate.set()
            await until(lambda: done(store, added, 3))
            await until(lambda: not batcher.batches)
        found = await store.batch(added.account, added.batch_id)
        claimed = await store.claim("another", now=time.time(), lease_s=1)
    assert found is not None
    assert (found.status, found.counts.succeeded) == ("in_progress", 3)
    assert claimed is not None, "the lease was not given back"


@pytest.mark.rule("batch.swept")
async def test_what_nobody_may_have_any_more_is_deleted(tmp_path: Path) -> None:
    async with memory_stack(Slow().engine, files=tmp_path) as stack:
        store, blobs = stores(stack)
        async with run_batcher(stack.services):
            files = await add_batch(
                store, blobs, [openai_line("a", "fast")], output_expires_after_s=3600
            )
            results = await add_batch(store, blobs, [messages_line("a", "fast")], shape="messages")
            files, results = await ended(store, files), await ended(store, results)
        assert files.output_file_id is not None
        found = await store.file(files.account, files.output_file_id, time.time())
        assert found is not None
        assert found.filename == f"{files.batch_id}_output.jsonl"
        assert found.expires_at == found.created_at + 3600
        assert found.size == len(await blobs.get(found.blob))
        await Sweeper(store, blobs, time.time).sweep()  # the batcher had no time to clear away
        assert not await Sweeper(store, blobs, time.time).sweep()
        later = time.time() + RESULTS_KEPT_S + 60
        assert await Sweeper(store, blobs, lambda: later).sweep() == 2
        assert not await blobs.list("results")
        assert found.blob not in await blobs.list("files")
        after = await store.batch(results.account, results.batch_id)
    assert after is not None
    assert after == msgspec.structs.replace(results, results_blob=None, archived_at=later)


@pytest.mark.rule("batch.orphans")
async def test_blobs_of_nobody_are_deleted_and_those_of_others_stay(tmp_path: Path) -> None:
    slow = Slow()
    async with memory_stack(slow.engine, files=tmp_path) as stack:
        store, blobs = stores(stack)

        async def left(at: float) -> set[str]:
            """What lies there after two batchers have swept at once."""
            sweepers = [Sweeper(store, blobs, lambda: at) for _ in range(2)]
            await asyncio.gather(*(sweeper.sweep_orphans() for sweeper in sweepers))
            return {key for folder in FOLDERS for key in await blobs.list(folder)}

        async with run_batcher(stack.services):
            fast = [openai_line("a", "fast")]
            over = await ended(store, await add_batch(store, blobs, fast))
            told = await ended(
                store,
                await add_batch(store, blobs, [messages_line("a", "fast")], shape="messages"),
            )
            running = await add_batch(store, blobs, mixed_lines("openai"))
            message = await add_batch(store, blobs, mixed_lines("messages"), shape="messages")
            await until(lambda: done(store, running, FAST_ONES))
            assert told.results_blob is not None
            needed = {over.input_blob, f"files/{over.output_file_id}", told.results_blob}
            needed |= {running.input_blob, message.input_blob}
            # Of a batcher that was killed while it wrote the files; they are written once more.
            needed |= {*blobs_at_end(running.batch_id), *blobs_at_end(message.batch_id)}
            orphans = {"files/file-00", "batches/msgbatch_00", "results/msgbatch_00"}
            orphans |= {blobs_at_end(over.batch_id)[1], told.input_blob}
            for key in {*orphans, *needed}:
                if not (tmp_path / "blobs" / key).exists():
                    await blobs.put(key, b"x")
            assert await left(time.time()) == needed | orphans  # they are too young
            assert await left(time.time() + YOUNGEST_S + 60) == needed
            for key in orphans:
                await blobs.put(key, b"x")
                os.utime(tmp_path / "blobs" / key, (1, 1))
            async with run_batcher(stack.services, sweep_s=0.05, orphans_s=0.05):
                await until(lambda: _are_gone(blobs, orphans))


async def _are_gone(blobs: BlobStore, keys: set[str]) -> bool:
    return not keys & {key for folder in FOLDERS for key in await blobs.list(folder)}
