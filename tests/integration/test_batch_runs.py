"""What becomes of the lines of a batch: every one ends once, as a live request would have."""

from __future__ import annotations

import asyncio
import json  # noqa: TID251 - the encoder that writes half a surrogate pair
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingress.batch.finalise import file_id
from ingress.stores.base import BatchStore
from schemas.blobs.base import BlobStore
from tests.fixtures.batches import (
    add_batch,
    answer_of,
    ended,
    errors,
    ids,
    messages_line,
    openai_line,
    output,
    run_batcher,
    said,
)
from tests.fixtures.requests import ALL, answered_text, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, run_worker, until
from workers.engines.base import Engine, EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text, Trouble, script_from_markers

pytestmark = pytest.mark.timeout(90)


@asynccontextmanager
async def batch_stack(
    directory: Path, engine: Engine | None = None, *, worker: bool = True, **settings: Any
) -> AsyncIterator[tuple[Stack, BatchStore, BlobStore]]:
    """A service with a batcher, and its stores."""
    async with (
        memory_stack(engine, files=directory, worker=worker) as stack,
        run_batcher(stack.services, **settings),
    ):
        assert stack.services.store is not None
        assert stack.services.blobs is not None
        yield stack, stack.services.store, stack.services.blobs


async def _is_empty(blobs: BlobStore, folder: str) -> bool:
    return not await blobs.list(folder)


@pytest.mark.rule("batch.as-live")
@pytest.mark.parametrize("dialect", [name for name in ALL if name != "messages"])
async def test_lines_are_answered_as_live_requests_are(tmp_path: Path, dialect: str) -> None:
    lines = [openai_line(f"r{n}", said(f"answer {n}"), dialect) for n in range(20)]
    async with batch_stack(tmp_path) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines, dialect=dialect))
        results = await output(blobs, batch)
    assert batch.status == "completed"
    assert (batch.counts.total, batch.counts.succeeded, batch.counts.errored) == (20, 20, 0)
    assert batch.model == MODEL
    assert batch.error_file_id is None
    assert ids(results) == [f"r{n}" for n in range(20)]
    used = 0
    for n, line in enumerate(results):
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"].startswith("req_")
        body = line["response"]["body"]
        assert answered_text(dialect, body) == f"answer {n}"
        usage = body["usage"]
        used += usage.get("output_tokens") or usage["completion_tokens"]
    assert batch.usage.output_tokens == used > 0


@pytest.mark.rule("batch.results")
async def test_a_message_batch_has_its_results_in_one_place(tmp_path: Path) -> None:
    lines = [messages_line("a", said("one")), messages_line("b", said("two"), max_tokens=0)]
    async with batch_stack(tmp_path) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines, shape="messages"))
        results = await output(blobs, batch)
        await until(lambda: _is_empty(blobs, "batches"))  # the input is needed no more
    assert [line["result"]["type"] for line in results] == ["succeeded", "errored"]
    assert results[0]["result"]["message"]["content"][0]["text"] == "one"
    error = results[1]["result"]["error"]
    assert error["error"]["type"] == "invalid_request_error"
    assert error["request_id"].startswith("req_")
    assert (batch.counts.succeeded, batch.counts.errored) == (1, 1)


@pytest.mark.rule("batch.line-errors", "batch.no-stream")
async def test_a_refused_line_is_told_as_live_and_harms_no_other(tmp_path: Path) -> None:
    lines = [
        openai_line("good", said("fine")),
        openai_line("streams", said("x"), stream=True),
        openai_line("hot", said("x"), temperature=9),
        openai_line("long", "x" * 500),
        openai_line("failing", "[[fail:start]]"),
    ]
    engine = ScriptedEngine(served_id=MODEL, context_length=400)
    async with batch_stack(tmp_path, engine) as (stack, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines))
        good, bad = await output(blobs, batch), await errors(blobs, batch)
        async with httpx.AsyncClient(base_url=stack.v1) as http:
            hot = await http.post("/chat/completions", json=request_body("chat", temperature=9))
    assert batch.status == "completed"
    assert (batch.counts.succeeded, batch.counts.errored) == (1, 4)
    assert ids(good) == ["good"]
    told = {line["custom_id"]: line["response"] for line in bad}
    codes = {name: response["body"]["error"]["code"] for name, response in told.items()}
    assert codes == {
        "streams": "unsupported_value",
        "hot": "unsupported_value",
        "long": "context_length_exceeded",
        "failing": "generation_failed",
    }
    assert {name: response["status_code"] for name, response in told.items()} == {
        "streams": 400,
        "hot": 400,
        "long": 400,
        "failing": 500,
    }
    live, line = hot.json()["error"], told["hot"]["body"]["error"]
    assert {**line, "request_id": ""} == {**live, "request_id": ""}
    assert line["request_id"] == told["hot"]["request_id"]
    assert batch.output_file_id == file_id(batch.batch_id, "output")
    assert batch.error_file_id == file_id(batch.batch_id, "error")


@pytest.mark.rule("batch.retries")
async def test_a_passing_failure_is_tried_again_and_a_lasting_one_five_times(
    tmp_path: Path,
) -> None:
    tries: Counter[str] = Counter()

    def script(request: EngineRequest) -> Iterator[Step]:
        name = bytes(i for i in request.prompt_ids if i < 256).decode().split()[1]
        tries[name] += 1
        if name == "lasting" or tries[name] <= 3:
            yield Trouble("fail")
        yield Text("there")

    engine = ScriptedEngine(served_id=MODEL, script=script)
    lines = [openai_line("p", "passing"), openai_line("l", "lasting")]
    async with batch_stack(tmp_path, engine) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines))
        good, bad = await output(blobs, batch), await errors(blobs, batch)
    assert tries == {"passing": 4, "lasting": 6}
    assert answer_of(good[0]) == "there"
    assert bad[0]["response"]["body"]["error"]["code"] == "generation_failed"


@pytest.mark.rule("batch.waits-for-workers")
async def test_lines_wait_for_a_worker_that_is_not_there_yet(tmp_path: Path) -> None:
    engine = ScriptedEngine(served_id=MODEL)
    async with batch_stack(tmp_path, engine, worker=False) as (stack, store, blobs):
        added = await add_batch(store, blobs, [openai_line("a", said("late"))])
        await until(lambda: _has_status(store, added, "in_progress"))
        transport = stack.services.dispatcher._transport  # type: ignore[attr-defined]
        source = transport.job_source(model=MODEL, slots=4)
        async with run_worker(engine, source):
            batch = await ended(store, added)
            results = await output(blobs, batch)
        await source.close()
    assert answer_of(results[0]) == "late"


@pytest.mark.rule("batch.models-apart")
async def test_a_model_without_workers_holds_up_no_other(tmp_path: Path) -> None:
    lines = [openai_line(f"{n}", said("x"), model=MODEL if n % 2 else "absent") for n in range(10)]
    engine = ScriptedEngine(served_id=MODEL)
    absent = ScriptedEngine(served_id="absent")
    async with memory_stack(engine, files=tmp_path, model="absent") as stack:
        store, blobs = stack.services.store, stack.services.blobs
        assert store is not None
        assert blobs is not None
        async with run_batcher(stack.services):
            added = await add_batch(store, blobs, lines)
            await until(lambda: _has_done(store, added, 5))
            transport = stack.services.dispatcher._transport  # type: ignore[attr-defined]
            source = transport.job_source(model="absent", slots=4)
            async with run_worker(absent, source, name="other"):
                batch = await ended(store, added)
            await source.close()
        results = await output(blobs, batch)
    assert batch.model is None
    assert batch.counts.succeeded == 10
    models = {line["custom_id"]: line["response"]["body"]["model"] for line in results}
    assert models == {f"{n}": MODEL if n % 2 else "absent" for n in range(10)}


@pytest.mark.rule("batch.fair")
async def test_a_short_batch_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    gate = asyncio.Event()
    order: list[str] = []

    def script(request: EngineRequest) -> Iterator[Step]:
        order.append(bytes(i for i in request.prompt_ids if i < 256).decode().split()[1])
        yield Gate(gate)
        yield Text("x")

    engine = ScriptedEngine(served_id=MODEL, script=script, slots=1)
    async with batch_stack(tmp_path, engine, window=2) as (_, store, blobs):
        long = await add_batch(store, blobs, [openai_line(f"{n}", "long") for n in range(40)])
        await until(lambda: len(order) == 1)
        short = await add_batch(store, blobs, [openai_line(f"{n}", "short") for n in range(5)])
        await until(lambda: _has_status(store, short, "in_progress"))
        gate.set()
        await ended(store, short)
        await ended(store, long)
    # In turn: one that ran, two that were in the window, and then no more than its share.
    assert order.count("short") == 5
    assert order[: order.index("short") + 9].count("short") >= 4


@pytest.mark.rule("batch.validated")
async def test_an_unsound_input_fails_and_nothing_runs(tmp_path: Path) -> None:
    runs: list[EngineRequest] = []

    def script(request: EngineRequest) -> Iterator[Step]:
        runs.append(request)
        return iter(script_from_markers(request))

    engine = ScriptedEngine(served_id=MODEL, script=script)
    lines = [
        openai_line("a", said("x")),
        b"[1,2,3]",
        b"null",
        b"{not json",
        openai_line("a", said("x")),
        openai_line("b", said("x"), model="nobody-knows-it"),
    ]
    async with batch_stack(tmp_path, engine) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines))
        empty = await ended(store, await add_batch(store, blobs, [b"", b"  "]))
    assert batch.status == empty.status == "failed"
    assert [(error.line, error.code) for error in batch.errors] == [
        (2, "invalid_json_line"),
        (3, "invalid_json_line"),
        (4, "invalid_json_line"),
        (5, "duplicate_custom_id"),
        (6, "model_not_found"),
    ]
    assert [error.code for error in empty.errors] == ["empty_file"]
    assert not runs


@pytest.mark.rule("batch.same-reader", "batch.custom-ids")
async def test_ids_and_lines_are_read_exactly(tmp_path: Path) -> None:
    odd = json.dumps({**json.loads(openai_line("", said("half"))), "custom_id": "\ud83d"}).encode()
    lines = [
        b"\xef\xbb\xbf" + openai_line("bom", said("one")) + b"\r",
        b"",
        openai_line("sep\u2028arated", said("two\u2028lines")) + b"\r",
        odd,
        openai_line("a" * 512, said("long id")),
        b"\r",
    ]
    async with batch_stack(tmp_path) as (_, store, blobs):
        first = await add_batch(store, blobs, lines)
        again = await add_batch(store, blobs, lines)  # the same ids at the same time
        for added in (first, again):
            batch = await ended(store, added)
            results = await output(blobs, batch)
            raw = await blobs.get(f"files/{batch.output_file_id}")
            assert batch.counts.total == batch.counts.succeeded == 4
            assert ids([json.loads(line) for line in raw.splitlines() if line]) == [
                "bom",
                "sep\u2028arated",
                "\ud83d",
                "a" * 512,
            ]
            assert [answer_of(line) for line in results] == [
                "one",
                "two\u2028lines",
                "half",
                "long id",
            ]


@pytest.mark.rule("batch.custom-ids")
async def test_batches_with_the_same_ids_have_their_own_answers(tmp_path: Path) -> None:
    names = [f"same-{n}" for n in range(8)]
    async with batch_stack(tmp_path, ScriptedEngine(served_id=MODEL, slots=3)) as (_, store, blobs):
        added = [
            await add_batch(
                store, blobs, [openai_line(name, said(f"{batch} {name}")) for name in names]
            )
            for batch in ("one", "two", "three")
        ]
        for which, batch in zip(("one", "two", "three"), added, strict=True):
            results = await output(blobs, await ended(store, batch))
            assert ids(results) == names
            assert [answer_of(line) for line in results] == [f"{which} {name}" for name in names]


@pytest.mark.rule("batch.input-gone")
async def test_an_input_that_is_gone_fails_its_batch_and_keeps_what_was_done(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()

    def script(request: EngineRequest) -> Iterator[Step]:
        if b"wait" in bytes(i for i in request.prompt_ids if i < 256):
            yield Gate(gate)
        yield Text("x")

    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with batch_stack(tmp_path, engine) as (_, store, blobs):
        never = await add_batch(store, blobs, [openai_line("a", "x")])
        await blobs.delete(never.input_blob)
    async with batch_stack(tmp_path, engine) as (_, store, blobs):
        never = await ended(store, never)
        lines = [openai_line("a", "x"), openai_line("b", "wait")]
        added = await add_batch(store, blobs, lines, lasts_s=1.5)
        await until(lambda: _has_done(store, added, 1))
        await blobs.delete(added.input_blob)
        partly = await ended(store, added)
        results = await output(blobs, partly)
    assert never.status == partly.status == "failed"
    assert [error.code for error in (*never.errors, *partly.errors)] == ["file_not_found"] * 2
    assert ids(results) == ["a"]
    assert (partly.counts.total, partly.counts.succeeded, partly.counts.errored) == (2, 1, 1)


async def _has_status(store: BatchStore, batch: Any, status: str) -> bool:
    found = await store.batch(batch.account, batch.batch_id)
    return found is not None and found.status == status


async def _has_done(store: BatchStore, batch: Any, lines: int) -> bool:
    found = await store.batch(batch.account, batch.batch_id)
    return found is not None and found.counts.succeeded >= lines
