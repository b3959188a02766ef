"""One trace from the client's own through HTTP and the queue to the worker, and nothing of content.

The spans are those of the real SDK, kept in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from structlog.testing import capture_logs

from schemas.tracing.tracing import Tracing
from tests.fixtures.broker import Broker
from tests.fixtures.faults import Cut
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import memory_stack, rabbit_stack, until
from workers.engines.scripted import ScriptedEngine

CANARY = "heron-7731"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"


class Spans:
    """What was told so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.all() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def children(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        return {
            span.name: span
            for span in self.all()
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        }


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.tracing.close()


@pytest.mark.broker
async def test_one_trace_shows_every_hop_of_a_reply_that_moved(
    broker: Broker, model: str, spans: Spans
) -> None:
    cut = Cut((f"{CANARY} ", "and ", "more"), 2)
    engines = [ScriptedEngine(served_id=model, slots=4, script=cut) for _ in range(2)]
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "baggage": f"note={CANARY}"}
    async with (
        rabbit_stack(broker.url, engines, tracing=spans.tracing) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        body = request_body("chat", CANARY, model=model, user=CANARY)
        with capture_logs() as lines:
            asking = asyncio.create_task(http.post(path_of("chat"), json=body, headers=headers))
            await cut.reached.wait()
            (generation,) = [answer._generation for answer in stack.services.answers]
            await until(lambda: generation.usage.output_tokens == 2)
            (holder,) = [worker for worker in stack.consumers if worker.info().running]
            leaving = asyncio.create_task(holder.drain(0))
            await until(lambda: generation.attempt == 2)
            cut.gate.set()
            response = await asking
            await leaving
            await until(lambda: not stack.services.answers)
        request_id = response.headers["x-request-id"]
        assert response.json()["choices"][0]["message"]["content"] == f"{CANARY} and more"
        await until(lambda: len(spans.named("decode")) == 2)
        await until(lambda: spans.named("POST /v1/chat/completions"))
    assert [line["trace_id"] for line in lines if line["event"] == "request.completed"] == [
        TRACE_ID
    ]

    assert {f"{span.context.trace_id:032x}" for span in spans.all()} == {TRACE_ID}
    (request,) = spans.named("POST /v1/chat/completions")
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT_ID
    told = dict(request.attributes or {})
    assert told["http.response.status_code"] == 200
    assert told["headrace.request_id"] == request_id
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == model
    usage = response.json()["usage"]
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 3
    assert told["gen_ai.response.finish_reasons"] == ("stop",)

    first, second = spans.named("attempt")
    assert first.parent == second.parent == request.context
    assert first.status.status_code is StatusCode.ERROR
    assert (first.attributes or {})["error.type"] == "draining"
    assert second.status.status_code is StatusCode.UNSET
    assert [link.context for link in second.links] == [first.context]
    assert not first.links
    workers = set()
    for attempt in (first, second):
        hops = spans.children(attempt)
        assert set(hops) == {"queue", "generate"}
        steps = spans.children(hops["generate"])
        assert set(steps) == {"render", "prefill", "decode"}
        workers.add((hops["generate"].attributes or {})["headrace.worker"])
        assert attempt.start_time <= hops["queue"].start_time <= hops["queue"].end_time
        assert steps["render"].start_time <= steps["prefill"].start_time
        assert steps["prefill"].end_time <= steps["decode"].start_time + 1_000_000
    assert workers == {"worker-1", "worker-2"}
    assert all(CANARY not in span.to_json() for span in spans.all())


async def test_what_is_refused_unknown_or_not_sampled(spans: Spans) -> None:
    async with (
        memory_stack(api_keys=("a-key",), tracing=spans.tracing) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        await http.get("/metrics")
        await http.get(f"/v1/{CANARY}?q={CANARY}")
        await http.post(path_of("chat"), json=request_body("chat", CANARY))
        one = ("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-00")
        headers = [("x-api-key", "a-key"), one]
        answer = await http.post(path_of("chat"), json=request_body("chat"), headers=headers)
        assert answer.status_code == 200
        two = await http.get("/v1/models", headers=[*headers, one])
        assert two.status_code == 200
        await until(lambda: len(spans.all()) == 3)
    unknown, refused, ambiguous = spans.all()
    assert (unknown.name, unknown.attributes["http.response.status_code"]) == ("GET", 404)
    assert refused.name == "POST /v1/chat/completions"
    assert refused.attributes["http.response.status_code"] == 401
    assert refused.status.status_code is StatusCode.UNSET
    assert ambiguous.parent is None
    assert all(CANARY not in span.to_json() for span in spans.all())
