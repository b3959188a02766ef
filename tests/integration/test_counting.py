"""Counting tokens: the worker's own figure, apart from generation; an estimate without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from schemas.errors import ModelRequestRejected
from schemas.job import Job
from schemas.model_card import ModelCard, WorkerInfo
from schemas.transport.memory import MemoryJobSource, MemoryTransport
from tests.fixtures.broker import Broker
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import (
    MODEL,
    Pod,
    Stack,
    memory_stack,
    rabbit_stack,
    ready,
    run_worker,
    serve_pod,
    until,
)
from workers.engines.scripted import ScriptedEngine, ScriptedTokenizer
from workers.engines.sglang import SglangEngine

COUNT = "/v1/messages/count_tokens"
ESTIMATED = "x-wafer-input-tokens-estimated"

TOOL = {
    "name": "convert",
    "input_schema": {
        "type": "object",
        "properties": {"value": {"type": "number"}, "unit": {"type": "string"}},
        "required": ["value"],
    },
}
TOOL_SCHEMA = {"name": TOOL["name"], "parameters": TOOL["input_schema"]}
QUESTION = [{"role": "user", "content": "5 miles?"}]
BODIES: dict[str, dict[str, Any]] = {
    "text": {"messages": QUESTION},
    "system": {
        "system": [{"type": "text", "text": "You are terse."}, {"type": "text", "text": "Metric."}],
        "messages": QUESTION,
    },
    "tools": {"system": "You are terse.", "tools": [TOOL], "messages": QUESTION},
    "no tools": {"tools": [], "messages": QUESTION},
    "tool choice": {"tools": [TOOL], "tool_choice": {"type": "none"}, "messages": QUESTION},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": QUESTION},
    "history": {
        "tools": [TOOL],
        "messages": [
            *QUESTION,
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "convert", "input": {"value": 5}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "8.05 km"},
                    {"type": "text", "text": "And ½ of it, 半分? 🧮"},
                ],
            },
        ],
    },
}


def client(stack: Stack | Pod) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, timeout=30)


async def count(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """The exact figure."""
    answer = await http.post(COUNT, json=body)
    assert answer.status_code == 200, answer.text
    assert ESTIMATED not in answer.headers
    assert list(answer.json()) == ["input_tokens"]
    return int(answer.json()["input_tokens"])


async def used(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    answer = await http.post("/v1/messages", json={**body, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["input_tokens"])


async def all_bodies_agree(http: httpx.AsyncClient, model: str) -> None:
    for name, fields in BODIES.items():
        body = {"model": model, **fields}
        assert await count(http, body) == await used(http, body), name


@pytest.mark.rule("counting.equals-usage", "counting.no-max-tokens")
async def test_a_count_is_the_usage_of_the_request() -> None:
    async with memory_stack() as stack, client(stack) as http:
        await all_bodies_agree(http, MODEL)
        # What only generating needs is not needed, and does no harm.
        body = {"model": MODEL, "messages": QUESTION}
        assert await count(http, {**body, "max_tokens": 5}) == await count(http, body)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "5 miles?"},
        {"input": "5 miles?", "instructions": "You are terse.", "reasoning": {"effort": "high"}},
        {"input": "5 miles?", "tools": [{"type": "function", **TOOL_SCHEMA}]},
    ],
)
async def test_responses_counts_too(fields: dict[str, Any]) -> None:
    async with memory_stack() as stack, client(stack) as http:
        body = {"model": MODEL, **fields}
        counted = await http.post("/v1/responses/input_tokens", json=body)
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        assert counted.json() == {
            "object": "response.input_tokens",
            "input_tokens": answer.json()["usage"]["input_tokens"],
        }
        assert ESTIMATED not in counted.headers


@pytest.mark.broker
@pytest.mark.rule("counting.equals-usage")
async def test_a_count_is_the_usage_over_a_broker(broker: Broker, model: str) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine]) as stack, client(stack) as http:
        await all_bodies_agree(http, model)


@pytest.mark.sglang
@SESSION_LOOP
@pytest.mark.rule("counting.equals-usage")
async def test_a_count_is_the_usage_of_the_real_engine(sglang_engine: SglangEngine) -> None:
    async with memory_stack(sglang_engine) as stack, client(stack) as http:
        await all_bodies_agree(http, sglang_engine.card.id)


def over_memory(_: Broker, model: str) -> AbstractAsyncContextManager[Stack]:
    return memory_stack(ScriptedEngine(served_id=model, slots=1), max_concurrent=2)


def over_rabbit(broker: Broker, model: str) -> AbstractAsyncContextManager[Stack]:
    engine = ScriptedEngine(served_id=model, slots=1)
    return rabbit_stack(broker.url, [engine], max_concurrent=2)


@pytest.mark.broker
@pytest.mark.parametrize("open_stack", [over_memory, over_rabbit])
@pytest.mark.rule("counting.no-slot")
async def test_counts_need_no_slot(open_stack: Any, broker: Broker, model: str) -> None:
    async with open_stack(broker, model) as stack, client(stack) as http:
        hanging = {"model": model, "messages": [{"role": "user", "content": "[[hang:0]]"}]}
        # One fills the worker, the other the queue and the ingress's own limit.
        stuck = [asyncio.create_task(used(http, hanging)) for _ in range(2)]
        await until(lambda: stack.services.admission.in_flight == 2)
        await until(lambda: stack.consumers[0].info().running == 1)
        body = {"model": model, "tools": [], "messages": QUESTION}
        figures = await asyncio.gather(*(count(http, body) for _ in range(26)))
        assert len(set(figures)) == 1
        assert stack.services.admission.in_flight == 2
        assert stack.consumers[0].info().running == 1
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def estimated(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    answer = await http.post(COUNT, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers[ESTIMATED] == "true"
    return int(answer.json()["input_tokens"])


@pytest.mark.rule("counting.estimate-header")
async def test_without_a_worker_there_is_an_estimate() -> None:
    async with memory_stack(worker=False) as stack, client(stack) as http:
        short = await estimated(http, {"model": MODEL, "messages": QUESTION})
        assert short > 0
        with_tool = {"model": MODEL, "tools": [TOOL], "messages": QUESTION}
        assert await estimated(http, with_tool) > short


@asynccontextmanager
async def deaf_worker(**settings: Any) -> AsyncIterator[tuple[Pod, MemoryJobSource]]:
    """A pod, and a worker that takes Jobs and never answers."""
    memory = MemoryTransport()
    dispatcher, source = memory.dispatcher(), memory.job_source(model=MODEL, slots=1)
    card = ModelCard(id=MODEL, context_length=4096)
    await source.announce(WorkerInfo(worker_id="deaf", card=card, engine="scripted", slots=1))
    async with serve_pod(dispatcher, model=MODEL, **settings) as pod:
        await ready(pod.services)
        yield pod, source
    await source.close()
    await dispatcher.close()


@pytest.mark.rule("counting.estimate-header")
async def test_a_worker_that_is_late_is_not_waited_for() -> None:
    async with deaf_worker(limits={"count_s": 0.05}) as (pod, source), client(pod) as http:
        with capture_logs() as logs:
            tokens = await estimated(http, {"model": MODEL, "messages": QUESTION})
        delivery = await anext(source.deliveries())
        assert delivery.cancelled.is_set()
        (line,) = [line for line in logs if line["event"] == "count.completed"]
        assert line["outcome"] == "estimated"
        assert line["inexact"] == "no answer in time"
        assert line["input_tokens"] == tokens
        counted = pod.services.metrics.counts.labels("messages", MODEL, "estimated")
        assert counted._value.get() == 1


async def test_a_count_that_cost_a_worker_is_not_tried_on_the_next() -> None:
    memory = MemoryTransport()
    dispatcher, doomed = memory.dispatcher(), memory.job_source(model=MODEL, slots=1)
    engine = ScriptedEngine(served_id=MODEL)
    await doomed.announce(
        WorkerInfo(worker_id="doomed", card=engine.card, engine="scripted", slots=1)
    )
    async with serve_pod(dispatcher, model=MODEL) as pod, client(pod) as http:
        counting = asyncio.create_task(estimated(http, {"model": MODEL, "messages": QUESTION}))
        async with asyncio.timeout(5):
            await anext(doomed.deliveries())
        heir = memory.job_source(model=MODEL, slots=1)
        async with run_worker(engine, heir):
            with capture_logs() as logs:
                await doomed.close()
                assert await counting > 0
        assert [line["inexact"] for line in logs if line["event"] == "count.completed"] == [
            "the worker cannot tell"
        ]
        await heir.close()
    await dispatcher.close()


@pytest.mark.rule("counting.estimate-header")
async def test_a_worker_without_the_tokenizer_says_so() -> None:
    class Blind(ScriptedEngine):
        takes_token_ids = False
        tokenizer = None  # type: ignore[assignment]

    async with memory_stack(Blind(served_id=MODEL)) as stack, client(stack) as http:
        assert await estimated(http, {"model": MODEL, "messages": QUESTION}) > 0


class Refusing(ScriptedTokenizer):
    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        raise ModelRequestRejected("The template does not accept this.", param="messages")


class Breaking(ScriptedTokenizer):
    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        raise ZeroDivisionError("a secret of the prompt")


async def test_what_the_template_refuses_is_refused() -> None:
    engine = ScriptedEngine(served_id=MODEL)
    engine._tokenizer = Refusing()
    async with memory_stack(engine) as stack, client(stack) as http:
        body = {"model": MODEL, "messages": QUESTION}
        refused = await http.post(COUNT, json=body)
        real = await http.post("/v1/messages", json={**body, "max_tokens": 1})
        assert refused.status_code == real.status_code == 400
        for answer in (refused, real):
            assert answer.json()["error"]["code"] == "model_request_rejected"
            assert answer.json()["error"]["param"] == "messages"


async def test_a_prompt_that_breaks_the_tokenizer_is_estimated_and_harms_nobody() -> None:
    engine = ScriptedEngine(served_id=MODEL)
    sound, engine._tokenizer = engine._tokenizer, Breaking()
    async with memory_stack(engine) as stack, client(stack) as http:
        body = {"model": MODEL, "messages": QUESTION}
        assert await estimated(http, body) > 0
        engine._tokenizer = sound
        assert await count(http, body) > 0


async def test_a_client_that_leaves_takes_its_count_along() -> None:
    async with deaf_worker(limits={"count_s": 600}) as (pod, source):
        body = orjson.dumps({"model": MODEL, "messages": QUESTION})
        host, port = pod.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        with capture_logs() as logs:
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (COUNT.encode(), len(body), body)
            )
            async with asyncio.timeout(5):
                delivery = await anext(source.deliveries())
                assert not delivery.cancelled.is_set()
                writer.transport.abort()
                await delivery.cancelled.wait()
            await until(lambda: any(line["event"] == "count.completed" for line in logs))
        (line,) = [line for line in logs if line["event"] == "count.completed"]
        assert (line["outcome"], line["status"]) == ("cancelled", 499)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json_request"),
        (orjson.dumps({"model": MODEL}), 400, "schema_validation_failed"),
        (orjson.dumps({"model": "claude-x", "messages": QUESTION}), 404, "model_not_found"),
    ],
)
async def test_bad_requests_are_refused_in_the_dialects_own_shape(
    body: bytes, status: int, code: str
) -> None:
    async with memory_stack() as stack, client(stack) as http:
        answer = await http.post(COUNT, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == code


async def test_counting_needs_a_key_and_minds_secrecy() -> None:
    async with memory_stack(api_keys=("secret-key",)) as stack, client(stack) as http:
        body = {"model": MODEL, "messages": QUESTION}
        assert (await http.post(COUNT, json=body)).status_code == 401
        key = {"authorization": "Bearer secret-key"}
        assert (await http.post(COUNT, json=body, headers=key)).status_code == 200
        secret = await http.post(COUNT, json=body, headers={**key, "wafer-zdr": "required"})
        assert secret.json()["error"]["code"] == "model_zdr_not_supported"


async def test_a_process_that_ends_takes_no_more_counts() -> None:
    async with memory_stack() as stack, client(stack) as http:
        stack.services.begin_shutdown()
        answer = await http.post(COUNT, json={"model": MODEL, "messages": QUESTION})
        assert answer.json()["error"]["code"] == "server_shutting_down"
