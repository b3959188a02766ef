"""Counting the tokens of a prompt: the straight line from body to figure.

    length -> authenticate -> read -> parse -> model -> normalise -> ask a worker -> answer

The worker renders the Job with the code that renders a real one, so the figure is the later usage.
Where no worker tells it in time there is an estimate, and a header that says so. Counting takes no
slot, neither here nor in a worker.

Source: Messages, "Count tokens"; Responses, "input_tokens".
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from ingress.admission import check_length, read_json, require_zdr
from ingress.dialects.base import CountingDialect, JobContext
from ingress.disconnect import while_connected
from ingress.estimate import estimate_tokens
from ingress.generation import outcome_of
from ingress.services import Services
from schemas import telemetry
from schemas.delta import Counted, Failed
from schemas.errors import (
    ClientClosedRequest,
    ModelUnavailable,
    ReportedError,
    ServiceError,
    ServingError,
    WorkerFailed,
)
from schemas.job import Job
from schemas.model_card import Capabilities, ModelCard
from schemas.reply import ReplyChecker
from schemas.transport.base import Dispatcher, Reply

log = structlog.get_logger()

ESTIMATED_HEADER: Final = "x-wafer-input-tokens-estimated"

_UNKNOWN_MODEL: Final = ModelCard(
    id="unknown", context_length=1 << 40, capabilities=Capabilities(vision=True, tools=True)
)
"""Stands for a model that nobody has told about yet; enough for an estimate."""


class _Inexact(Exception):
    """No worker told the exact figure; the text says why, for the log."""


async def count_tokens(request: Request, dialect: CountingDialect, services: Services) -> Response:
    """Answer one request to count.

    Raises:
        ServingError: It is refused, for a reason that generating would be refused for as well.
    """
    settings = services.settings
    request_id: str = request.state.request_id
    check_length(request, max_bytes=settings.max_body_bytes)
    principal = services.authenticator.authenticate(request.scope["headers"])
    terms = principal.terms
    body = await read_json(
        request,
        max_bytes=settings.max_body_bytes,
        idle_s=settings.limits.body_s,
        upload_s=settings.limits.upload_s,
    )
    wanted = dialect.parse_count(body)
    zdr = False
    try:
        card = services.catalog.lookup(terms.model_named(wanted.model))
    except ModelUnavailable:
        card = _UNKNOWN_MODEL  # nobody is asked
    else:
        terms.require_access(card)
        zdr = require_zdr(request, terms, card)
    now = time.time()
    context = JobContext(
        job_id=secrets.token_hex(16),
        request_id=request_id,
        now=now,
        deadline=now + settings.limits.total_s,
        queue_deadline=services.queue_deadline(card, now),
        profile=services.profile_of(principal),
    )
    normalised = dialect.normalise(wanted, card, context)
    job = msgspec.structs.replace(normalised.job, job_class="count", zdr=zdr)
    services.admission.check_open()
    count = _Count(services, dialect.name, job, card, principal.name)
    tokens = await while_connected(request.receive, count.run())
    return Response(
        dialect.count_body(tokens),
        media_type="application/json",
        headers={ESTIMATED_HEADER: "true"} if count.inexact else None,
    )


class _Count:
    """One count: asks, estimates if need be, and writes its line and metric.

    Attributes:
        inexact: Why the figure is an estimate; None if it is not.
    """

    def __init__(
        self, services: Services, dialect: str, job: Job, card: ModelCard, principal: str
    ) -> None:
        self.inexact: str | None = None
        self._services = services
        self._dialect = dialect
        self._job = job
        self._card = card
        self._principal = principal
        self._began = time.monotonic()

    async def run(self) -> int:
        """The figure.

        Raises:
            ServingError: The worker cannot render the prompt.
        """
        try:
            tokens = await self._count()
        except ServingError as error:
            self._record(None, error)
            raise
        except asyncio.CancelledError:
            self._record(None, ClientClosedRequest("The client went away."))
            raise
        self._record(tokens, None)
        return tokens

    async def _count(self) -> int:
        services = self._services
        try:
            if not services.catalog.available(self._card):
                raise _Inexact("no worker")
            job = await services.media.load(self._job)
            return await _ask(services.dispatcher, job, services.settings.limits.count_s)
        except _Inexact as inexact:
            self.inexact = str(inexact)
            return estimate_tokens(self._job)

    def _record(self, tokens: int | None, raised: ServingError | None) -> None:
        error = raised.info() if raised else None
        outcome: str = outcome_of(error)
        if outcome == "completed":
            outcome = "estimated" if self.inexact else "exact"
        self._services.metrics.counts.labels(self._dialect, self._job.model, outcome).inc()
        log.info(
            telemetry.COUNT_COMPLETED,
            request_id=self._job.request_id,
            job_id=self._job.job_id,
            dialect=self._dialect,
            model=self._job.model,
            principal=self._principal,
            status=error.status if error else 200,
            outcome=outcome,
            code=error.code if error else None,
            inexact=self.inexact,
            input_tokens=tokens,
            duration_ms=round((time.monotonic() - self._began) * 1000, 1),
        )


async def _ask(dispatcher: Dispatcher, job: Job, patience_s: float) -> int:
    """A worker's answer.

    Raises:
        ReportedError: The worker refuses the prompt.
        RequestError: The transport does.
        _Inexact: There is no exact answer, or none in time.
    """
    reply: Reply | None = None
    answered = False
    try:
        async with asyncio.timeout(patience_s):
            reply = await dispatcher.dispatch(job)
            delta = await _only_delta(reply)
        answered = True
    except TimeoutError:
        raise _Inexact("no answer in time") from None
    except ServiceError as error:
        raise _Inexact(type(error).__name__) from error
    finally:
        if reply is not None:
            if not answered:
                await reply.cancel()
            await reply.close()
    if isinstance(delta, Failed):
        if delta.error.status < 500:
            raise ReportedError(delta.error)
        raise _Inexact(delta.error.code)
    if delta.input_tokens is None:
        raise _Inexact("the worker cannot tell")
    return delta.input_tokens


async def _only_delta(reply: Reply) -> Counted | Failed:
    """What the worker says; a count that cost one is not tried on the next."""
    checker = ReplyChecker(0)
    while True:
        for message in await reply.receive():
            for delta in message.deltas:  # a sign of life has none
                checker.feed(delta)
                if isinstance(delta, Counted | Failed):
                    return delta
                raise WorkerFailed("The worker that was counting was lost.")
