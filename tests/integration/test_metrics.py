"""What a pod and its worker tell Prometheus of requests that end in one way and another."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from schemas.errors import ClientClosedRequest, MissingApiKey
from tests.fixtures.faults import Cut
from tests.fixtures.metrics import Samples
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.timeout(30)

LIVE = {"model": MODEL, "class": "interactive"}
CHAT = {"model": MODEL, "dialect": "chat"}
GONE, NO_KEY = ClientClosedRequest.code, MissingApiKey.code


async def _page(stack: Stack) -> Samples:
    async with httpx.AsyncClient(base_url=stack.url) as http:
        return Samples((await http.get("/metrics")).text)


async def test_a_request_that_is_answered() -> None:
    async with (
        memory_stack() as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        text = "[[think:one two three]][[say:four five]]"
        body = request_body("chat", text, stream=True, reasoning_effort="high")
        assert (await http.post(path_of("chat"), json=body)).status_code == 200
        await until(lambda: not stack.services.answers)
        page, usage = await _page(stack), stack.services.activity.tokens()[0]
        worker = stack.consumers[0]._runner.metrics
        told = Samples.of(worker.registry)
    assert page("headrace_requests_total", CHAT, outcome="completed", status="200") == 1
    assert page("headrace_input_tokens_total", LIVE) == usage.input > 0
    assert page("headrace_output_tokens_total", LIVE) == usage.output >= 3
    assert 0 < page("headrace_reasoning_tokens_total", LIVE) < usage.output
    assert page("headrace_cached_tokens_total", LIVE) == 0
    for histogram in ("time_to_first_token", "inter_token_latency", "longest_token_gap"):
        assert page(f"headrace_{histogram}_seconds_count", CHAT) == 1
    mean = page("headrace_inter_token_latency_seconds_sum", CHAT)
    longest = page("headrace_longest_token_gap_seconds_sum", CHAT)
    assert 0 < mean * (usage.output - 1) <= page("headrace_request_duration_seconds_sum", CHAT)
    assert mean <= longest
    assert page("headrace_queue_wait_seconds_count", LIVE) == 1
    assert page("headrace_slots", model=MODEL, state="free") == worker.slots._value.get() > 0
    assert page("headrace_workers_ready", model=MODEL) == 1
    assert page("headrace_broker_connected") == 1
    assert told("headrace_worker_jobs_total", outcome="completed") == 1
    assert told("headrace_worker_prefill_seconds_count") == 1
    assert told("headrace_worker_input_tokens_total") == usage.input
    assert told("headrace_worker_slots_free") == told("headrace_worker_slots")
    assert told("headrace_worker_info", model=MODEL, engine="scripted") == 1


async def test_requests_that_wait_leave_or_are_refused() -> None:
    cut = Cut(("one", "two"), 1)
    engine = ScriptedEngine(served_id=MODEL, slots=1, script=cut)
    async with (
        memory_stack(engine, api_keys=("a-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        asyncio.TaskGroup() as group,
    ):

        async def ask(dialect: str) -> None:
            body = request_body(dialect)
            await http.post(path_of(dialect), json=body, headers={"x-api-key": "a-key"})

        speaking = group.create_task(ask("chat"))
        await cut.reached.wait()
        waiting = group.create_task(ask("messages"))
        backlog = stack.services.admission.backlog
        await until(lambda: len(backlog(MODEL)) == 1)
        page = await _page(stack)
        assert page("headrace_queued_requests", LIVE) == 1
        assert page("headrace_queued_requests", {**LIVE, "class": "batch"}) == 0
        assert page("headrace_queued_tokens", model=MODEL) > 0
        assert 0 < page("headrace_oldest_queued_seconds", LIVE) < 30
        assert page("headrace_requests_in_flight") == 2
        told = Samples.of(stack.consumers[0]._runner.metrics.registry)
        assert told("headrace_worker_slots_free") == 0

        for leaving in (waiting, speaking):
            leaving.cancel()
        await until(lambda: not stack.services.answers)
        assert (await http.post(path_of("chat"), json=request_body("chat"))).status_code == 401
        page = await _page(stack)
    for dialect, phase in (("chat", "decode"), ("messages", "queued")):
        labels = {"model": MODEL, "dialect": dialect}
        assert page("headrace_client_disconnects_total", labels, phase=phase) == 1
        assert page("headrace_errors_total", dialect=dialect, code=GONE, status="499") == 1
    code = NO_KEY
    assert page("headrace_errors_total", dialect="chat", code=code, status="401") == 1
    assert page("headrace_oldest_queued_seconds", LIVE) == 0
