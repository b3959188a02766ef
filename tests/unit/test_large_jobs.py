"""Jobs by reference: what goes where, when it is deleted, and what a reader makes of trouble."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from schemas.blobs.base import BlobMissing, BlobStoreUnavailable
from schemas.blobs.jobs import MARGIN_S, JobReader, JobUnavailable, JobWriter, sweep, swept
from schemas.codec import StoredJob, decode_job
from schemas.delta import Failed, Interrupted
from schemas.errors import ErrorInfo
from schemas.job import ChoicePrefix, Continuation, Job, TokenPrompt
from tests.contract.transport_suite import a_job
from tests.fixtures.stack import until


class Shelf:
    """A store in memory, which can be held up or away, and says how often it was used."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.puts = self.gets = self.lists = 0
        self.away = False
        self.open = asyncio.Event()
        self.open.set()

    async def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        await self.open.wait()
        self._check()
        self.blobs[key] = data

    async def get(self, key: str) -> bytes:
        self.gets += 1
        self._check()
        if key not in self.blobs:
            raise BlobMissing
        return self.blobs[key]

    async def delete(self, key: str) -> None:
        self._check()
        self.blobs.pop(key, None)

    async def list(self, folder: str) -> list[str]:
        self.lists += 1
        self._check()
        return [key for key in self.blobs if key.startswith(f"{folder}/")]

    def _check(self) -> None:
        if self.away:
            raise BlobStoreUnavailable("Input/output error")


def large(**changes: Any) -> Job:
    job = msgspec.structs.replace(a_job("m"), prompt=TokenPrompt(prompts=((70_000,) * 1_000,)))
    return msgspec.structs.replace(job, **changes)


def attempt(job: Job, number: int, ids: int = 3) -> Job:
    prefix = ChoicePrefix(tuple(range(100_000, 100_000 + ids)), 9)
    continuation = Continuation(choices=(prefix,))
    return msgspec.structs.replace(job, attempt=number, continuation=continuation, suspect=True)


async def read(body: bytes, shelf: Shelf | None, *, patience_s: float = 0.3) -> Job:
    return await JobReader(shelf, patience_s=patience_s).read(body)


async def answer_without(body: bytes, shelf: Shelf | None) -> Failed | Interrupted:
    with pytest.raises(JobUnavailable) as caught:
        await read(body, shelf)
    return caught.value.answer


async def error_without(body: bytes, shelf: Shelf | None) -> ErrorInfo:
    answer = await answer_without(body, shelf)
    assert isinstance(answer, Failed)
    return answer.error


async def test_small_jobs_and_jobs_without_a_store_stay_in_their_messages() -> None:
    shelf, job = Shelf(), large()
    for store, limit in ((None, 10), (shelf, 100_000)):
        body = await JobWriter(store, limit).write(job)
        assert decode_job(body) == job
        assert await read(body, None) == job
    assert shelf.puts == 0


async def test_a_long_continuation_makes_no_large_job() -> None:
    shelf, job = Shelf(), attempt(a_job("m"), 2, ids=8_000)
    body = await JobWriter(shelf, 1_000).write(job)
    assert len(body) > 1_000
    assert decode_job(body) == job
    assert shelf.puts == 0


async def test_the_large_part_is_written_once_for_all_attempts() -> None:
    shelf, job = Shelf(), large()
    writer = JobWriter(shelf, 1_000)
    for number in range(1, 4):
        job = attempt(job, number) if number > 1 else job
        body = await writer.write(job)
        assert len(body) < 1_000
        assert await read(body, shelf) == job
    assert (shelf.puts, shelf.gets, len(shelf.blobs)) == (1, 3, 1)
    writer.release(job.job_id)
    writer.release(job.job_id)
    await until(lambda: not shelf.blobs)


async def test_a_dispatch_given_up_while_it_writes_leaves_nothing() -> None:
    shelf, job = Shelf(), large()
    shelf.open.clear()
    writer = JobWriter(shelf, 1_000)
    writing = asyncio.create_task(writer.write(job))
    await until(lambda: shelf.puts == 1)
    writing.cancel()
    await asyncio.wait({writing})
    writer.release(job.job_id)
    await asyncio.sleep(0)
    shelf.open.set()
    await writer.close()
    assert shelf.blobs == {}


async def test_closing_deletes_what_is_left() -> None:
    shelf = Shelf()
    writer = JobWriter(shelf, 1_000)
    for _ in range(3):
        await writer.write(large())
    assert len(shelf.blobs) == 3
    await writer.close()
    assert shelf.blobs == {}


async def test_a_store_that_fails_the_writer_is_gone_round() -> None:
    shelf, job = Shelf(), large()
    shelf.away = True
    writer = JobWriter(shelf, 1_000)
    assert decode_job(await writer.write(job)) == job
    writer.release(job.job_id)
    shelf.away = False
    assert isinstance(decode_job(await writer.write(attempt(job, 2))), StoredJob)
    shelf.away = True  # deleting fails, and is left to a sweep
    await writer.close()
    assert len(shelf.blobs) == 1


async def written(shelf: Shelf, job: Job) -> bytes:
    return await JobWriter(shelf, 1_000).write(job)


async def test_a_blob_that_is_gone_ends_the_request() -> None:
    shelf = Shelf()
    body = await written(shelf, large())
    shelf.blobs.clear()
    assert (await error_without(body, shelf)).code == "internal_error"
    assert shelf.gets == 1, "what is gone does not come back"


async def test_a_worker_without_a_store_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    error = await error_without(await written(Shelf(), large()), None)
    assert error.code == "internal_error"
    assert "HEADRACE" not in error.message
    assert "HEADRACE_BLOBS" in capsys.readouterr().out


async def test_a_job_that_waited_too_long_is_not_fetched() -> None:
    shelf = Shelf()
    body = await written(shelf, large(queue_deadline=time.time() - 1))
    assert (await error_without(body, shelf)).code == "model_overloaded"
    assert shelf.gets == 0


async def test_a_store_that_is_away_for_a_moment_costs_a_moment() -> None:
    shelf, job = Shelf(), large()
    body = await written(shelf, job)
    shelf.away = True
    reading = asyncio.create_task(read(body, shelf, patience_s=30))
    await until(lambda: shelf.gets == 2)
    shelf.away = False
    assert await reading == job


async def test_a_store_that_stays_away_is_reported_after_a_while() -> None:
    shelf = Shelf()
    body = await written(shelf, large())
    shelf.away = True
    began = time.monotonic()
    assert await answer_without(body, shelf) == Interrupted("unreadable")
    assert time.monotonic() - began > 0.1, "no hot loop"
    assert 1 < shelf.gets < 6


async def test_a_sweep_deletes_what_nobody_waits_for() -> None:
    shelf, now = Shelf(), 1_760_000_000.0
    keep = [f"jobs/{int(now - MARGIN_S + 1)}-a", f"jobs/{int(now + 9)}-b", "jobs/probe-1", "jobs/x"]
    gone = [f"jobs/{int(now - MARGIN_S - 1)}-a", "jobs/1-b", "jobs/1-c.0a1b.part"]
    shelf.blobs = dict.fromkeys((*keep, *gone), b"")
    assert await sweep(shelf, now) == len(gone)
    assert list(shelf.blobs) == keep
    assert await sweep(shelf, now) == 0


async def test_every_key_of_the_writer_is_swept_after_its_deadline() -> None:
    shelf, job = Shelf(), large()
    await written(shelf, job)
    assert await sweep(shelf, job.deadline + MARGIN_S - 2) == 0
    assert await sweep(shelf, job.deadline + MARGIN_S + 2) == 1


async def test_sweeping_begins_at_once_and_survives_a_store_that_is_away() -> None:
    shelf = Shelf()
    shelf.away, shelf.blobs = True, {"jobs/1-left": b""}
    async with swept(shelf, every_s=0.01):
        await until(lambda: shelf.lists >= 2)
        shelf.away = False
        await until(lambda: not shelf.blobs)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "it ends with the block"
