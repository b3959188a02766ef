"""The part of a trace that the ingress makes: the request, and each attempt to have it answered.

    request (server) ─► attempt ─► queue
                           └─────► generate, prefill, decode (of the worker, see `workers.tracing`)

An attempt that goes on after another one is linked to it. Imported only where traces are wanted.
Must not know a dialect, and sees nothing of what is asked or answered.

Source: OpenTelemetry semantic conventions, "HTTP server", "Messaging" and "Generative AI".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from ingress.generation import Generation, Phase
from schemas.job import ChatPrompt, Job
from schemas.tracing.tracing import Tracing, known
from schemas.transport import topology
from schemas.usage_record import UsageRecord

_TRACED: Final = "/v1/"
_ACCEPTED: Final = ("prefill", "decode")
_CARRIERS: Final = (b"traceparent", b"tracestate")


class RequestTrace:
    """The spans of one request.

    Args:
        headers: What of the request's headers says where it belongs.

    Attributes:
        status: Of the response that left.
        trace_id: For the log.
    """

    def __init__(self, tracing: Tracing, method: str, scheme: str, headers: dict[str, str]) -> None:
        self._tracing = tracing
        self._span = tracing.tracer.start_span(
            method,
            tracing.context(headers),
            SpanKind.SERVER,
            {"http.request.method": method, "url.scheme": scheme},
        )
        self._method = method
        self._here = set_span_in_context(self._span)
        self._generation: Generation | None = None
        self._attempt: Span | None = None
        self._queue: Span | None = None
        self._before: SpanContext | None = None
        self._answered_ns: int | None = None
        self._settled = False
        self.status: int | None = None
        self.trace_id = f"{self._span.get_span_context().trace_id:032x}"

    def follow(
        self, generation: Generation, on_phase: Callable[[Phase], object]
    ) -> Callable[[Phase], object]:
        """Be told of the attempts of a Generation. Returns what is to be told of its phases."""
        self._generation = generation
        generation.on_attempt = self._begin_attempt

        def entered(phase: Phase) -> None:
            on_phase(phase)
            if phase in _ACCEPTED and self._queue is not None:
                self._queue.end()
                self._queue = None

        return entered

    def _begin_attempt(self, number: int) -> str:
        assert self._generation is not None
        job, losses = self._generation.job, self._generation.retries.losses
        self._end_attempt(losses[-1] if losses else None)
        links = [] if self._before is None else [Link(self._before)]
        self._attempt = self._tracing.tracer.start_span(
            "attempt", self._here, attributes={"headrace.attempt": number}, links=links
        )
        self._before = self._attempt.get_span_context()
        self._queue = self._tracing.tracer.start_span(
            "queue",
            set_span_in_context(self._attempt),
            SpanKind.PRODUCER,
            {
                "messaging.system": "rabbitmq",
                "messaging.operation.type": "send",
                "messaging.destination.name": topology.job_queue(
                    job.model, topology.queue_kind(job)
                ),
                "messaging.message.id": job.job_id,
            },
        )
        return self._tracing.traceparent(self._attempt)

    def _end_attempt(self, lost: str | None) -> None:
        for span in (self._queue, self._attempt):
            if span is not None:
                if lost is not None:
                    span.set_attribute("error.type", lost)
                    span.set_status(Status(StatusCode.ERROR))
                span.end()
        self._queue = self._attempt = None

    def settle(self, record: UsageRecord) -> None:
        """The request's figures are final."""
        assert self._generation is not None
        self._end_attempt(record.code)
        self._span.set_attributes(_asked(self._generation.job, stream=record.stream))
        self._span.set_attributes(_answered(record))
        if record.outcome == "failed":
            self._span.set_status(Status(StatusCode.ERROR))
        if self.status is None:
            self._span.set_attribute("http.response.status_code", record.status)
        self._settled = True
        if self._answered_ns is not None:
            self._span.end(self._answered_ns)

    def answered(self, route: str | None, request_id: str | None) -> None:
        """Whatever was to leave has left."""
        self._answered_ns = time.time_ns()
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes(
            known(
                {
                    "http.route": route,
                    "http.response.status_code": self.status,
                    "headrace.request_id": request_id,
                }
            )
        )
        if self.status is not None and self.status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        if self._generation is None or self._settled:
            self._span.end(self._answered_ns)


def _asked(job: Job, *, stream: bool) -> dict[str, Any]:
    sampling = job.sampling
    converses = isinstance(job.prompt, ChatPrompt)
    return known(
        {
            "gen_ai.operation.name": "chat" if converses else "text_completion",
            "gen_ai.provider.name": "headrace",
            "gen_ai.request.model": job.model,
            "gen_ai.request.max_tokens": sampling.limit.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sampling.n if sampling.n != 1 else None,
            "gen_ai.request.stream": stream,
            "headrace.job_id": job.job_id,
        }
    )


def _answered(record: UsageRecord) -> dict[str, Any]:
    usage = record.usage
    return known(
        {
            "gen_ai.response.model": record.model,
            "gen_ai.response.finish_reasons": record.finish_reason and (record.finish_reason,),
            "gen_ai.response.time_to_first_chunk": _seconds(record.ttft_ms),
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            "error.type": record.code,
            "headrace.dialect": record.dialect,
            "headrace.outcome": record.outcome,
            "headrace.attempts": record.attempts,
            "headrace.queue_wait": _seconds(record.queue_ms),
        }
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


class TracedApp:
    """An app whose API requests are traced: `scope["state"]["trace"]` is theirs."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        carried = [(name, value) for name, value in scope["headers"] if name in _CARRIERS]
        headers = {name.decode(): value.decode("latin-1") for name, value in carried}
        if len(headers) < len(carried):  # two of one kind tell nothing
            headers = {}
        trace = RequestTrace(self._tracing, scope["method"], scope["scheme"], headers)
        state = scope.setdefault("state", {})
        state["trace"] = trace
        try:
            await self._app(scope, receive, send)
        finally:
            route = getattr(scope.get("route"), "path", None)
            trace.answered(route, state.get("request_id"))
