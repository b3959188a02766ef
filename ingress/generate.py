"""The straight line from body to answer.

    length -> authenticate -> read -> parse -> model -> normalise -> admit -> Generation -> Answer

The order is the precedence of errors: the first that applies is the one reported.
Source: error catalogue, "Precedence". A request refused by validation never holds a slot.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Protocol

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from ingress.admission import Admission, Slot, check_length, check_zdr, read_json
from ingress.answer import Answer
from ingress.auth import Authenticator, Principal
from ingress.backlog import Backlog, Overload
from ingress.catalog import Catalog
from ingress.dialects.base import Dialect, JobContext, Stamp
from ingress.dialects.profile import PROFILES, Profile
from ingress.estimate import estimate_tokens
from ingress.generation import Generation, outcome_of
from ingress.media import Media, has_links
from ingress.metrics import IngressMetrics
from ingress.settings import IngressSettings
from ingress.stores.base import BatchStore
from schemas import telemetry
from schemas.blobs.base import BlobStore
from schemas.errors import ErrorInfo, ErrorKind, ModelOverloaded, ServiceError
from schemas.job import Job
from schemas.model_card import ModelCard
from schemas.transport.base import Dispatcher

log = structlog.get_logger()


class UnderWay(Protocol):
    """What a process that ends must wait for or give up."""

    def refuse(self) -> None:
        """The process takes no more work: give it up if it has not begun."""

    def shut_down(self) -> None:
        """The process ends: give it up."""


class Services:
    """What a request needs of the process it runs in.

    Attributes:
        store: Records of files and batches; None where there are none.
        blobs: Their contents; None where there are no files, batches and large Jobs.
        answers: The answers and transfers under way, for shutting down.
    """

    def __init__(
        self,
        *,
        settings: IngressSettings,
        dispatcher: Dispatcher,
        catalog: Catalog,
        authenticator: Authenticator,
        metrics: IngressMetrics,
        media: Media,
        store: BatchStore | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.settings = settings
        self.dispatcher = dispatcher
        self.catalog = catalog
        self.authenticator = authenticator
        self.metrics = metrics
        self.media = media
        self.admission = Admission(
            max_concurrent=settings.max_concurrent, open_backlog=self._open_backlog
        )
        self.answers: set[UnderWay] = set()

    def profile_of(self, principal: Principal) -> Profile:
        """The dialect profile of a principal's requests: the deployment's, for everybody."""
        del principal
        return PROFILES[self.settings.profile]

    def _open_backlog(self, model: str) -> Backlog:
        settings = self.settings
        return Backlog(
            max_requests=settings.max_queued,
            max_tokens=settings.max_queued_tokens,
            max_wait_s=settings.limits.queue_wait_s,
            clock=asyncio.get_running_loop().time,
            on_accepted=self.metrics.queue_wait.labels(model).observe,
        )

    def queue_deadline(self, card: ModelCard, now: float) -> float:
        """Until when a Job may wait, in Unix seconds by the clocks of those who are to judge it."""
        return now + self.settings.limits.queue_wait_s + self.catalog.clock_ahead_s(card)

    def begin_shutdown(self) -> None:
        """Take no more requests, and send those away that no worker has begun; the rest goes on."""
        self.admission.shutting_down = True
        for answer in tuple(self.answers):
            answer.refuse()

    def end_answers(self) -> None:
        """Give up the answers that are still under way."""
        for answer in tuple(self.answers):
            answer.shut_down()


async def generate(request: Request, dialect: Dialect, services: Services) -> Response:
    """Answer one inference request.

    Raises:
        ServingError: It is refused; nothing has been sent and nothing is held.
    """
    settings = services.settings
    request_id: str = request.state.request_id
    check_length(request, max_bytes=settings.max_body_bytes)
    principal = services.authenticator.authenticate(request.scope["headers"])
    body = await read_json(
        request,
        max_bytes=settings.max_body_bytes,
        idle_s=settings.limits.body_s,
        upload_s=settings.limits.upload_s,
    )
    wanted = dialect.parse(body)
    card = services.catalog.lookup(wanted.model)
    check_zdr(request, card)
    now = time.time()
    response_id = secrets.token_hex(16)
    profile = services.profile_of(principal)
    normalised = dialect.normalise(
        wanted,
        card,
        JobContext(
            job_id=response_id,
            request_id=request_id,
            now=now,
            deadline=now + settings.limits.total_s,
            queue_deadline=now
            + settings.limits.queue_wait_s
            + services.catalog.clock_ahead_s(card),
            profile=profile,
        ),
    )
    job = normalised.job
    stamp = Stamp(
        response_id=response_id,
        created=int(now),
        model=card.id,
        request_id=request_id,
        profile=profile,
        clock=time.time,
    )
    encoder = dialect.encoder(wanted, job, stamp)
    slot = _admit(services, job, card)
    generation = Generation(
        services.dispatcher,
        job,
        settings.limits,
        prepare=services.media.load if has_links(job) else None,
    )
    record = _Record(
        services,
        dialect,
        principal,
        generation,
        slot,
        stream=wanted.stream,
        client_retry=_client_retry(request),
    )
    answer = Answer(
        generation=generation,
        encoder=encoder,
        dialect=dialect,
        stream=wanted.stream,
        request_id=request_id,
        limits=settings.limits,
        ignored=normalised.ignored,
        on_phase=slot.follow,
        refine=record.refine,
        on_end=record.end,
    )
    record.answer = answer
    slot.follow(generation.phase)
    services.answers.add(answer)
    services.metrics.in_flight.set(services.admission.in_flight)
    return answer


def _admit(services: Services, job: Job, card: ModelCard) -> Slot:
    """The right to run a request now.

    Raises:
        ServiceError: It has to come back later.
    """
    refusals = services.metrics.refusals
    try:
        services.admission.check_open()
        services.catalog.require_worker(card)
        return services.admission.admit(
            card.id, tokens=estimate_tokens(job), free_slots=services.catalog.free_slots(card)
        )
    except Overload as error:
        refusals.labels(card.id, error.reason).inc()
        raise
    except ServiceError as error:
        refusals.labels(card.id, error.code).inc()
        raise


def _client_retry(request: Request) -> int | None:
    """Which retry of its own this is for the client, as the official clients tell."""
    count = request.headers.get("x-stainless-retry-count", "")
    return int(count) if count.isdecimal() and len(count) < 4 else None


class _Record:
    """Writes the canonical line and the metrics of one request, and gives its slot back."""

    def __init__(
        self,
        services: Services,
        dialect: Dialect,
        principal: Principal,
        generation: Generation,
        slot: Slot,
        *,
        stream: bool,
        client_retry: int | None,
    ) -> None:
        self._services = services
        self._dialect = dialect
        self._principal = principal
        self._generation = generation
        self._slot = slot
        self._stream = stream
        self._client_retry = client_retry
        self._began = time.monotonic()
        self.answer: Answer | None = None

    def refine(self, error: ErrorInfo) -> ErrorInfo:
        """An error that says when to try again, as far as that can be measured."""
        if error.code != ModelOverloaded.code:
            return error
        wait_s = self._services.admission.backlog(self._generation.job.model).retry_after_s()
        return msgspec.structs.replace(error, retry_after_s=wait_s or error.retry_after_s)

    def end(self, status: int, error: ErrorInfo | None) -> None:
        """All is over; called once."""
        services, generation, job = self._services, self._generation, self._generation.job
        self._slot.release()
        if self.answer is not None:
            services.answers.discard(self.answer)
        duration_s = time.monotonic() - self._began
        ttft_s = generation.ttft_s
        usage = generation.usage
        outcome = outcome_of(error)
        metrics = services.metrics
        metrics.in_flight.set(services.admission.in_flight)
        if error is not None and error.kind is ErrorKind.OVERLOADED and status != 200:
            metrics.refusals.labels(job.model, error.code).inc()
        metrics.requests.labels(self._dialect.name, job.model, outcome, str(status)).inc()
        metrics.duration.labels(self._dialect.name, job.model).observe(duration_s)
        if ttft_s is not None:
            metrics.ttft.labels(self._dialect.name, job.model).observe(ttft_s)
        for loss in generation.retries.losses:
            metrics.lost_attempts.labels(job.model, loss).inc()
        metrics.input_tokens.labels(job.model).inc(usage.input_tokens)
        metrics.output_tokens.labels(job.model).inc(usage.output_tokens)
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
            ttft_ms=round(ttft_s * 1000, 1) if ttft_s is not None else None,
            duration_ms=round(duration_s * 1000, 1),
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            attempt=generation.attempt,
            lost_attempts=len(generation.retries.losses),
            worker=generation.worker,
            client_retry=self._client_retry,
        )
