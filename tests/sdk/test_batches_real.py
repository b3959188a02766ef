"""Batches by the official clients through everything there is: broker, database and real engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import openai
import orjson
import pytest
import pytest_asyncio
from anthropic.types.messages import MessageBatchIndividualResponse
from jsonschema import Draft202012Validator
from openai.types import Batch, BatchError, Completion, FileObject
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from ingress.stores import schema
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from schemas.blobs.directory import DirectoryStore
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource
from tests.fixtures.batches import FAST, run_batcher
from tests.fixtures.broker import Broker
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.postgres import Postgres
from tests.fixtures.stack import Stack, ready, run_worker, serve_pod, until
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.sglang, pytest.mark.broker, SESSION_LOOP, pytest.mark.timeout(300)]

SCHEMA = {
    "type": "object",
    "properties": {"state": {"enum": ["稼働", "fermé"]}, "tags": {"type": "boolean"}},
    "required": ["state", "tags"],
    "additionalProperties": False,
}
DICE = {
    "type": "object",
    "properties": {"sides": {"type": "integer", "enum": [6, 20]}},
    "required": ["sides"],
    "additionalProperties": False,
}
ASK: Any = [{"role": "user", "content": "Well?"}]
PROMPT = [1300, 1301, 1302, 1303]
KEYS = (
    "test_batches_of_every_dialect",
    "test_live_requests_beside_a_batch_that_is_cancelled",
    "test_message_batches",
)
ENDED = ("completed", "failed", "cancelled", "expired")
TYPES: dict[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": Response,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(
    sglang_engine: SglangEngine,
    broker: Broker,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Stack]:
    """Two pods, a batcher and a worker, each with connections and stores of its own."""
    url = postgres.new_database()
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
    model = sglang_engine.card.id
    directory = tmp_path_factory.mktemp("blobs")
    async with AsyncExitStack() as exits:
        exits.callback(postgres.drop_database, url)

        async def services(name: str) -> dict[str, Any]:
            store = await SqlStore.open(url)
            exits.push_async_callback(store.close)
            blobs = DirectoryStore.open(directory)
            dispatcher = await RabbitDispatcher.connect(broker.url, name=name, blobs=blobs)
            exits.push_async_callback(dispatcher.close)
            return {"dispatcher": dispatcher, "store": store, "blobs": blobs}

        stack = Stack(engine=sglang_engine)
        for name in ("ingress", "ingress", "batcher"):
            pod = serve_pod(**await services(name), model=model, api_keys=KEYS)
            stack.pods.append(await exits.enter_async_context(pod))
        source = await RabbitJobSource.connect(
            broker.url,
            model=model,
            slots=sglang_engine.slots,
            name="worker-1",
            blobs=DirectoryStore.open(directory),
        )
        exits.push_async_callback(source.close)
        worker = run_worker(sglang_engine, source, announce_interval_s=0.5)
        await exits.enter_async_context(worker)
        for pod_ready in stack.pods:
            await ready(pod_ready.services)
        batcher = run_batcher(stack.pods.pop().services, FAST, lease_s=30.0, poll_s=0.1)
        await exits.enter_async_context(batcher)
        yield stack


@pytest_asyncio.fixture(loop_scope="session")
async def clients(
    stack: Stack, request: pytest.FixtureRequest
) -> AsyncIterator[Sequence[openai.AsyncOpenAI]]:
    """One for each pod, of an account that no other test has."""
    async with AsyncExitStack() as exits:
        yield [
            await exits.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=f"{pod.url}/v1", api_key=request.function.__name__, max_retries=0
                )
            )
            for pod in stack.pods
        ]


def lines_of(endpoint: str, bodies: dict[str, dict[str, Any]], model: str) -> bytes:
    requests = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": endpoint,
            "body": {"model": model, **body},
        }
        for custom_id, body in bodies.items()
    ]
    return b"".join(orjson.dumps(request) + b"\n" for request in requests)


def chat_bodies(window: int) -> dict[str, dict[str, Any]]:
    exact = {"temperature": 0, "reasoning_effort": "none"}
    ask = {"messages": ASK, "max_tokens": 8}
    named = {"name": "s", "strict": True, "schema": SCHEMA}
    roll = {"name": "roll", "parameters": DICE}
    return {
        "plain": ask,
        "twice \u2028 😀": {**ask, "n": 2},
        "json": {
            **exact,
            "messages": ASK,
            "max_tokens": 300,
            "response_format": {"type": "json_schema", "json_schema": named},
        },
        "tool": {
            **exact,
            "messages": ASK,
            "max_tokens": 300,
            "tools": [{"type": "function", "function": roll}],
            "tool_choice": {"type": "function", "function": {"name": "roll"}},
        },
        "reasoning": {**ask, "reasoning_effort": "high"},
        "bad temperature": {**ask, "temperature": 9},
        "bad context": {"messages": [{"role": "user", "content": "word " * window}]},
        "bad stream": {**ask, "stream": True},
        "bad messages": {"messages": "Well?"},
    }


def response_bodies(window: int) -> dict[str, dict[str, Any]]:
    ask = {"input": "Well?", "max_output_tokens": 8}
    exact = {
        **ask,
        "max_output_tokens": 300,
        "temperature": 0,
        "reasoning": {"effort": "none"},
    }
    form = {"type": "json_schema", "name": "s", "strict": True, "schema": SCHEMA}
    roll = {"type": "function", "name": "roll", "strict": True, "parameters": DICE}
    return {
        "plain": ask,
        "json": {**exact, "text": {"format": form}},
        "tool": {
            **exact,
            "tools": [roll],
            "tool_choice": {"type": "function", "name": "roll"},
        },
        "reasoning": {**ask, "reasoning": {"effort": "high"}},
        "bad temperature": {**ask, "temperature": "warm"},
        "bad context": {**ask, "input": "word " * window},
        "bad stream": {**ask, "stream": True},
    }


def completion_bodies(window: int) -> dict[str, dict[str, Any]]:
    ask = {"prompt": PROMPT, "max_tokens": 8}
    return {
        "plain": ask,
        "json": {**ask, "json_schema": SCHEMA, "max_tokens": 300, "temperature": 0},
        "two": {**ask, "prompt": [PROMPT, [970]]},
        "bad temperature": {**ask, "temperature": -1},
        "bad context": {**ask, "prompt": [1300] * (window + 1)},
        "bad stream": {**ask, "stream": True},
    }


BODIES: dict[str, Callable[[int], dict[str, dict[str, Any]]]] = {
    "/v1/chat/completions": chat_bodies,
    "/v1/responses": response_bodies,
    "/v1/completions": completion_bodies,
}


async def made(client: openai.AsyncOpenAI, endpoint: Any, data: bytes) -> Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    FileObject.model_validate(file.to_dict())
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h"
    )


async def polled(
    client: openai.AsyncOpenAI, batch: Batch, until_is: Callable[[Batch], bool]
) -> Batch:
    """The batch as soon as it is so."""

    async def look() -> bool:
        nonlocal batch
        batch = await client.batches.retrieve(batch.id)
        return until_is(batch)

    await until(look, timeout_s=120)
    Batch.model_validate(batch.to_dict())
    return batch


def has_ended(batch: Batch) -> bool:
    return batch.status in ENDED


async def fetched(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = (await client.files.content(file_id)).content
    return [orjson.loads(line) for line in content.split(b"\n")[:-1]]


def used(bodies: Sequence[dict[str, Any]], *names: str) -> int:
    """What they tell of their usage, by whichever of two names their dialect has for it."""
    return sum(usage.get(names[0], usage.get(names[-1])) for usage in (b["usage"] for b in bodies))


@pytest.mark.rule("batch.as-live", "batch.line-errors", "batches.usage", "batches.output-line")
@pytest.mark.rule("batches.error-line", "batch.validated", "batch.no-stream")
async def test_batches_of_every_dialect(
    stack: Stack, clients: Sequence[openai.AsyncOpenAI]
) -> None:
    client, other = clients
    card = stack.engine.card
    bodies = {endpoint: make(card.context_length) for endpoint, make in BODIES.items()}
    batches = [
        await made(client, endpoint, lines_of(endpoint, wanted, card.id))
        for endpoint, wanted in bodies.items()
    ]
    unknown = lines_of("/v1/responses", {"a": {"input": "x"}}, card.id) + lines_of(
        "/v1/responses", {"b": {"input": "x"}}, "nobody-has-it"
    )
    failing = await made(client, "/v1/responses", unknown)
    for batch in batches:
        ended = await polled(other, batch, has_ended)
        wanted = bodies[batch.endpoint]
        bad_ones = {name for name in wanted if name.startswith("bad")}
        good = await fetched(other, ended.output_file_id)
        bad = await fetched(other, ended.error_file_id)
        assert ended.status == "completed"
        assert ended.model == card.id
        assert sorted(line["custom_id"] for line in good) == sorted(wanted.keys() - bad_ones)
        assert sorted(line["custom_id"] for line in bad) == sorted(bad_ones)
        counts = ended.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (
            len(wanted),
            len(good),
            len(bad),
        )
        check_answers(batch.endpoint, good)
        for line in bad:
            answer = line["response"]
            assert (answer["status_code"], line["error"]) == (400, None)
            assert answer["body"]["error"]["type"] == "invalid_request_error"
        answers = [line["response"]["body"] for line in good]
        usage = ended.usage
        assert usage is not None
        assert usage.input_tokens == used(answers, "input_tokens", "prompt_tokens") > 0
        assert usage.output_tokens == used(answers, "output_tokens", "completion_tokens") > 0
        assert usage.total_tokens == used(answers, "total_tokens")
    failed = await polled(other, failing, has_ended)
    assert failed.status == "failed"
    assert failed.errors is not None
    assert [(e.line, e.code) for e in _errors(failed)] == [(2, "model_not_found")]

    listed = [found.id async for found in other.batches.list(limit=1)]
    assert listed == [batch.id for batch in (failing, *reversed(batches))]
    files = {file.id async for file in other.files.list(limit=2)}
    for file_id in files:
        assert (await other.files.delete(file_id)).deleted
    assert [file async for file in client.files.list()] == []
    with pytest.raises(openai.NotFoundError):
        await client.files.content(batches[0].input_file_id)


def _errors(batch: Batch) -> Sequence[BatchError]:
    assert batch.errors is not None
    return batch.errors.data or ()


def check_answers(endpoint: str, lines: Sequence[dict[str, Any]]) -> None:
    """They are what the client's own types are, and what was forced is so."""
    for line in lines:
        answer = line["response"]
        assert (answer["status_code"], line["error"]) == (200, None)
        body = TYPES[endpoint].model_validate(answer["body"])
        if line["custom_id"] == "json":
            assert Draft202012Validator(SCHEMA).is_valid(orjson.loads(said(body)))
        elif line["custom_id"] == "tool":
            assert orjson.loads(arguments(body)) in ({"sides": 6}, {"sides": 20})


def said(body: ChatCompletion | Completion | Response) -> str:
    match body:
        case ChatCompletion():
            return body.choices[0].message.content or ""
        case Completion():
            return body.choices[0].text
        case Response():
            return body.output_text


def arguments(body: ChatCompletion | Response) -> str:
    """Of the only call."""
    if isinstance(body, Response):
        (called,) = (item for item in body.output if item.type == "function_call")
        return called.arguments
    calls = body.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.type == "function"
    return call.function.arguments


LONG = {"messages": ASK, "regex": "(xy ?){900}", "max_tokens": 1500}


@pytest.mark.rule("batch.cancelled", "sharing.live-first", "batches.cancel")
async def test_live_requests_beside_a_batch_that_is_cancelled(
    stack: Stack, clients: Sequence[openai.AsyncOpenAI]
) -> None:
    client, live = clients
    model = stack.engine.card.id
    bodies = {
        **{f"short {n}": {"messages": ASK, "max_tokens": 2} for n in range(3)},
        **{f"long {n}": LONG for n in range(9)},
    }
    endpoint = "/v1/chat/completions"
    added = await made(client, endpoint, lines_of(endpoint, bodies, model))
    await polled(client, added, lambda batch: _completed(batch) == 3)
    for _ in range(2):
        answer = await live.chat.completions.create(model=model, messages=ASK, max_tokens=2)
        assert answer.usage is not None
    now = await live.batches.retrieve(added.id)
    assert (now.status, _completed(now)) == ("in_progress", 3)  # its lines had to wait
    cancelling = await live.batches.cancel(added.id)
    assert cancelling.status == "cancelling"
    batch = await polled(client, added, has_ended)
    good = await fetched(client, batch.output_file_id)
    bad = await fetched(client, batch.error_file_id)
    assert batch.status == "cancelled"
    assert [line["custom_id"] for line in good] == [f"short {n}" for n in range(3)]
    assert [line["custom_id"] for line in bad] == [f"long {n}" for n in range(9)]
    assert {line["error"]["code"] for line in bad} == {"batch_cancelled"}
    answer = await live.chat.completions.create(model=model, messages=ASK, max_tokens=2)
    assert answer.choices[0].finish_reason


def _completed(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


@pytest.mark.rule("batch.results", "message-batches.result-line", "message-batches.results-url")
async def test_message_batches(stack: Stack) -> None:
    card = stack.engine.card
    ask: Any = {"model": card.id, "max_tokens": 8, "messages": ASK}
    params: dict[str, Any] = {
        "plain": ask,
        "json": {
            **ask,
            "max_tokens": 300,
            "temperature": 0,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        "tool": {
            **ask,
            "max_tokens": 300,
            "tools": [{"name": "roll", "input_schema": DICE}],
            "tool_choice": {"type": "tool", "name": "roll"},
        },
        "thinking": {**ask, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "bad-temperature": {**ask, "temperature": 9},
        "bad-stream": {**ask, "stream": True},
        "bad-context": {
            **ask,
            "messages": [{"role": "user", "content": "word " * card.context_length}],
        },
        "bad-model": {**ask, "model": "nobody-has-it"},
    }
    async with anthropic.AsyncAnthropic(
        base_url=stack.pods[1].url, api_key="test_message_batches", max_retries=0
    ) as client:
        batches = client.messages.batches
        added = [
            await batches.create(
                requests=[{"custom_id": name, "params": wanted} for name, wanted in params.items()]
            )
            for _ in range(2)
        ]
        long: Any = {**ask, "max_tokens": 1500}
        doomed = await batches.create(
            requests=[{"custom_id": f"long{n}", "params": long} for n in range(9)]
        )
        await batches.cancel(doomed.id)
        for batch in added:
            results = await results_of(batches, batch.id)
            by_id = {result.custom_id: result.result for result in results}
            assert len(results) == len(by_id) == len(params)
            assert by_id.keys() == params.keys()
            for name, result in by_id.items():
                if not name.startswith("bad"):
                    assert result.type == "succeeded"
                    assert result.message.usage.output_tokens > 0
                    if name == "tool":
                        (call,) = result.message.content
                        assert call.type == "tool_use"
                        assert call.input in ({"sides": 6}, {"sides": 20})
                    continue
                assert result.type == "errored"
                wrong = "not_found_error" if name == "bad-model" else "invalid_request_error"
                assert result.error.error.type == wrong
            counts = (await batches.retrieve(batch.id)).request_counts
            assert (counts.succeeded, counts.errored, counts.processing) == (4, 4, 0)
        kinds = Counter(result.result.type for result in await results_of(batches, doomed.id))
        assert kinds["canceled"] + kinds["succeeded"] == 9
        assert [batch.id async for batch in batches.list(limit=1)] == [
            doomed.id,
            *(batch.id for batch in reversed(added)),
        ]
        for batch in (doomed, *added):
            assert (await batches.delete(batch.id)).type == "message_batch_deleted"
        assert [batch async for batch in batches.list()] == []


async def results_of(batches: Any, batch_id: str) -> list[MessageBatchIndividualResponse]:
    """The results of a batch once it has ended."""

    async def look() -> bool:
        found = await batches.retrieve(batch_id)
        return bool(found.processing_status == "ended")

    await until(look, timeout_s=120)
    results = [result async for result in await batches.results(batch_id)]
    for result in results:
        MessageBatchIndividualResponse.model_validate(result.to_dict())
    return results
