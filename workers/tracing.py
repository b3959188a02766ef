"""The part of a trace that a worker makes: what became of an attempt, and how long each step took.

    attempt (of the ingress) ─► generate ─► render, prefill, decode

Made when the attempt is settled, from the times that were taken on the way. Imported only where
traces are wanted; sees nothing of what is asked or answered.
"""

from __future__ import annotations

import asyncio
from typing import Final

from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from schemas.job import Job
from schemas.tracing.tracing import Clock, Tracing
from workers.run import Run

_WELL: Final = ("completed", "cancelled", "yielded")


class RunTracing:
    """Makes the spans of runs.

    Args:
        worker_id: Named in them.
    """

    def __init__(self, tracing: Tracing, worker_id: str) -> None:
        self._tracing = tracing
        self._worker_id = worker_id

    def settled(self, run: Run, outcome: str) -> None:
        """A run is over; nothing is made of one whose owner does not trace."""
        job = run.job
        if not isinstance(job.traceparent, str):
            return
        now = asyncio.get_running_loop().time()
        clock, usage = Clock(now), run.usage()
        tracer = self._tracing.tracer
        span = tracer.start_span(
            "generate",
            self._tracing.context({"traceparent": job.traceparent}),
            SpanKind.CONSUMER,
            {
                **_of(job),
                "headrace.worker": self._worker_id,
                "headrace.outcome": outcome,
                "headrace.redelivered": run.delivery.redelivered,
                "headrace.generated_tokens": run.generated(),
            },
            start_time=clock.ns(run.begun_at),
        )
        if outcome not in _WELL:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        steps: tuple[tuple[str, float | None, float | None, dict[str, int]], ...] = (
            ("render", run.begun_at, run.accepted_at, {}),
            (
                "prefill",
                run.accepted_at,
                run.started_at,
                {
                    "headrace.input_tokens": usage.input_tokens,
                    "headrace.cached_tokens": usage.cached_tokens,
                },
            ),
            ("decode", run.started_at, now, {}),
        )
        for name, since, until, more in steps:
            if since is None:
                break
            step = tracer.start_span(name, inside, attributes=more, start_time=clock.ns(since))
            step.end(clock.ns(now if until is None else until))
        span.end(clock.ns(now))


def _of(job: Job) -> dict[str, str | int | bool]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.message.id": job.job_id,
        "gen_ai.request.model": job.model,
        "headrace.attempt": job.attempt,
        "headrace.class": job.job_class,
        "headrace.continues": job.continuation is not None,
    }
