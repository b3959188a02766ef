"""What is written down of one request when it is over: the canonical line, metrics and usage.

All of it once, with the same final figures. Where a request was given up while its engine was still
at work, they are known a moment after the answer's end; what it held is free at once all the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from ingress.admission import Slot
from ingress.answer import Answer
from ingress.auth import Principal
from ingress.console.activity import Live
from ingress.dialects.base import Dialect
from ingress.generation import Generation, Phase, outcome_of
from ingress.limits.limiter import Reservation
from ingress.services import Services
from ingress.usage.prices import cost_microcents
from schemas import telemetry
from schemas.errors import ErrorInfo, ErrorKind, ModelOverloaded
from schemas.model_card import ModelCard
from schemas.usage_record import UsageRecord

if TYPE_CHECKING:
    from ingress.tracing import RequestTrace

log = structlog.get_logger()


class RequestRecord:
    """Writes all of it, and gives back what the request holds: its slot and its reservation."""

    def __init__(
        self,
        services: Services,
        dialect: Dialect,
        principal: Principal,
        card: ModelCard,
        generation: Generation,
        slot: Slot,
        reservation: Reservation,
        *,
        stream: bool,
        zdr: bool,
        client_retry: int | None,
        trace: RequestTrace | None = None,
    ) -> None:
        self._services = services
        self._dialect = dialect
        self._principal = principal
        self._card = card
        self._generation = generation
        self._slot = slot
        self._reservation = reservation
        self._stream = stream
        self._zdr = zdr
        self._client_retry = client_retry
        self._trace = trace
        self._began = time.monotonic()
        self._began_at = time.time()
        self._phase = generation.phase  # when the answer ended
        self._losses = 0  # counted so far
        self.answer: Answer | None = None
        self._live = Live(
            generation,
            dialect=dialect.name,
            account=principal.account if services.authenticator.required else None,
            stream=stream,
            began_at=self._began_at,
        )
        services.activity.begin(self._live)

    def refine(self, error: ErrorInfo) -> ErrorInfo:
        """An error that says when to try again, as far as that can be measured."""
        if error.code != ModelOverloaded.code:
            return error
        wait_s = self._services.admission.backlog(self._generation.job.model).retry_after_s()
        return msgspec.structs.replace(error, retry_after_s=wait_s or error.retry_after_s)

    def entered(self, phase: Phase) -> None:
        """Another phase has begun; `queued` once more after a loss, which is told at once."""
        self._slot.follow(phase)
        if phase == "queued":
            self._count_losses()

    def _count_losses(self) -> None:
        losses = self._generation.retries.losses
        for loss in losses[self._losses :]:
            self._services.metrics.lost_attempts.labels(self._generation.job.model, loss).inc()
        self._losses = len(losses)

    async def end(self, status: int, error: ErrorInfo | None) -> None:
        """The answer is over; called once."""
        services, generation = self._services, self._generation
        self._phase = generation.phase
        self._slot.release()
        self._reservation.leave()
        services.metrics.in_flight.set(services.admission.in_flight)
        if error is not None and error.kind is ErrorKind.OVERLOADED and status != 200:
            services.metrics.refusals.labels(generation.job.model, error.code).inc()
        if error is not None:
            services.activity.failed(
                error.code,
                status if status != 200 else error.status,
                request_id=generation.job.request_id,
                dialect=self._dialect.name,
                model=generation.job.model,
                account=self._live.account,
            )
        duration_s = time.monotonic() - self._began
        await generation.cancel()
        if generation.is_final:
            await self._settle(status, error, duration_s)
        else:
            services.settle(self._settle(status, error, duration_s))

    async def _settle(self, status: int, error: ErrorInfo | None, duration_s: float) -> None:
        """Write it all down, once the figures are final."""
        try:
            await self._generation.last_figures()
            await self._generation.close()
        finally:
            self._write(status, error, duration_s)

    def _write(self, status: int, error: ErrorInfo | None, duration_s: float) -> None:
        services, generation, job = self._services, self._generation, self._generation.job
        services.activity.end(self._live)
        usage = generation.usage
        microcents = cost_microcents(usage, self._card.pricing)
        self._reservation.settle(usage, microcents)
        if self.answer is not None:
            services.answers.discard(self.answer)
        ttft_s = generation.ttft_s
        outcome = outcome_of(error)
        metrics = services.metrics
        metrics.requests.labels(self._dialect.name, job.model, outcome, str(status)).inc()
        metrics.duration.labels(self._dialect.name, job.model).observe(duration_s)
        if ttft_s is not None:
            metrics.ttft.labels(self._dialect.name, job.model).observe(ttft_s)
        if error is None and (latency_s := generation.token_latency_s) is not None:
            metrics.token_latency.labels(self._dialect.name, job.model).observe(latency_s)
            gap_s = generation.longest_gap_s
            metrics.longest_gap.labels(self._dialect.name, job.model).observe(gap_s)
        if outcome == "cancelled":
            metrics.disconnects.labels(self._dialect.name, job.model, self._phase).inc()
        metrics.duplicates.labels(job.model).inc(generation.duplicates)
        metrics.continuations.labels(job.model).inc(len(generation.moves))
        self._count_losses()
        for move in generation.moves:
            metrics.move_wait.labels(job.model).observe(move.waited_s)
            metrics.move_read.labels(job.model).observe(move.read_s)
        metrics.count_tokens(job.model, job.job_class, usage)
        log.info(
            telemetry.REQUEST_COMPLETED,
            request_id=job.request_id,
            job_id=job.job_id,
            dialect=self._dialect.name,
            model=job.model,
            principal=self._principal.name,
            stream=self._stream,
            status=status,
            outcome=outcome,
            code=error.code if error is not None else None,
            finish_reason=generation.finish_reason,
            ttft_ms=_ms(ttft_s),
            duration_ms=round(duration_s * 1000, 1),
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            attempt=generation.attempt,
            lost_attempts=len(generation.retries.losses),
            moves=[[_ms(move.waited_s), _ms(move.read_s)] for move in generation.moves] or None,
            worker=generation.worker,
            client_retry=self._client_retry,
            microcents=microcents,
            **({} if self._trace is None else {"trace_id": self._trace.trace_id}),
        )
        record = UsageRecord(
            record_id=job.job_id,
            request_id=job.request_id,
            account=self._principal.account,
            key=self._principal.name,
            model=job.model,
            dialect=self._dialect.name,
            stream=self._stream,
            zdr=self._zdr,
            began_at=self._began_at,
            status=status,
            outcome=outcome,
            code=error.code if error is not None else None,
            finish_reason=generation.finish_reason,
            ttft_ms=_ms(ttft_s),
            queue_ms=_ms(generation.queue_s),
            duration_ms=round(duration_s * 1000, 1),
            usage=usage,
            microcents=microcents,
            attempts=generation.attempt,
            worker=generation.worker,
        )
        services.usage.record(record)
        if self._trace is not None:
            self._trace.settle(record)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
