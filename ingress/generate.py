"""The straight line from body to answer.

    length -> authenticate -> read -> parse -> model -> (once) -> normalise -> reserve -> admit
    -> Generation -> Answer

`once` is for requests with an `Idempotency-Key`: what follows it is done once for all that have the
same. The order is the precedence of errors: the first that applies is the one reported.
Source: error catalogue, "Precedence". A request refused by validation never holds a slot.
"""

from __future__ import annotations

import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingress.accounts.account import Account
from ingress.admission import Slot, check_length, read_json, require_zdr
from ingress.answer import Answer
from ingress.auth import Principal
from ingress.backlog import Overload
from ingress.dialects.base import Dialect, DialectRequest, JobContext, Normalised, Stamp
from ingress.estimate import estimate_tokens
from ingress.generation import Generation
from ingress.idempotency.key import HEADER, keyed_request
from ingress.idempotency.repeated import Asker
from ingress.limits.demand import demand_of
from ingress.limits.limiter import Reservation
from ingress.media import has_links
from ingress.record import RequestRecord
from ingress.services import Services
from schemas.errors import RequestError, ServiceError
from schemas.job import Job
from schemas.model_card import ModelCard


async def generate(request: Request, dialect: Dialect, services: Services) -> Response:
    """Answer one inference request.

    Raises:
        ServingError: It is refused; nothing has been sent and nothing is held.
    """
    settings = services.settings
    check_length(request, max_bytes=settings.max_body_bytes)
    principal = services.authenticator.authenticate(request.scope["headers"])
    terms = principal.terms
    if services.authenticator.required:
        request.state.account = principal.account  # for who is told of errors
    await services.limiter.require_credit(terms)
    body = await read_json(
        request,
        max_bytes=settings.max_body_bytes,
        idle_s=settings.limits.body_s,
        upload_s=settings.limits.upload_s,
    )
    wanted = dialect.parse(body)
    card = services.catalog.lookup(terms.model_named(wanted.model))
    terms.require_access(card)
    zdr = require_zdr(request, terms, card)

    async def start() -> Answer:
        return await _start(services, request, dialect, principal, wanted, card, zdr=zdr)

    same = None if zdr else keyed_request(request, principal.account, dialect.path, body)
    if same is None:
        return await start()
    asker = Asker(
        request_id=request.state.request_id,
        dialect=dialect.name,
        model=card.id,
        principal=principal.name,
        stream=wanted.stream,
        client_retry=_client_retry(request),
    )
    return await services.keyed_requests.once(request, same, asker, start)


async def _start(
    services: Services,
    request: Request,
    dialect: Dialect,
    principal: Principal,
    wanted: DialectRequest,
    card: ModelCard,
    *,
    zdr: bool,
) -> Answer:
    """Begin to answer a request that may use this model.

    Raises:
        ServingError: It is refused; nothing is held.
    """
    settings = services.settings
    request_id: str = request.state.request_id
    now = time.time()
    response_id = secrets.token_hex(16)
    profile = services.profile_of(principal)
    normalised = await _normalise(
        services,
        principal,
        dialect,
        wanted,
        card,
        JobContext(
            job_id=response_id,
            request_id=request_id,
            now=now,
            deadline=now + settings.limits.total_s,
            queue_deadline=services.queue_deadline(card, now),
            profile=profile,
            priorities=principal.terms.priorities,
        ),
    )
    job = msgspec.structs.replace(principal.terms.ranked(normalised.job, card), zdr=zdr)
    stamp = Stamp(
        response_id=response_id,
        created=int(now),
        model=card.id,
        request_id=request_id,
        profile=profile,
        clock=time.time,
    )
    encoder = dialect.encoder(wanted, job, stamp)
    tokens = estimate_tokens(job)
    reservation = await _reserve(services, principal.terms, job, card, tokens)
    try:
        slot = _admit(services, card, tokens)
    except BaseException:
        reservation.give_back()
        raise
    generation = Generation(
        services.dispatcher,
        job,
        settings.limits,
        prepare=services.media.load if has_links(job) else None,
    )
    trace = getattr(request.state, "trace", None)
    record = RequestRecord(
        services,
        dialect,
        principal,
        card,
        generation,
        slot,
        reservation,
        stream=wanted.stream,
        zdr=zdr,
        client_retry=_client_retry(request),
        trace=trace,
    )
    answer = Answer(
        generation=generation,
        encoder=encoder,
        dialect=dialect,
        stream=wanted.stream,
        request_id=request_id,
        limits=settings.limits,
        ignored=(*normalised.ignored, *_without_effect(request, zdr=zdr)),
        headers=dialect.limit_headers(reservation.standings),
        on_phase=record.entered if trace is None else trace.follow(generation, record.entered),
        refine=record.refine,
        on_end=record.end,
    )
    record.answer = answer
    slot.follow(generation.phase)
    services.answers.add(answer)
    services.metrics.in_flight.set(services.admission.in_flight)
    return answer


async def _normalise(
    services: Services,
    principal: Principal,
    dialect: Dialect,
    wanted: DialectRequest,
    card: ModelCard,
    context: JobContext,
) -> Normalised:
    """The Job that is asked for.

    Raises:
        RequestError: The model cannot do it. But whoever is over a limit is told of that: it comes
            first.
    """
    try:
        return dialect.normalise(wanted, card, context)
    except RequestError:
        await services.limiter.require_room(principal.terms)
        raise


async def _reserve(
    services: Services, terms: Account, job: Job, card: ModelCard, tokens: int
) -> Reservation:
    """What a request of `tokens` prompt tokens, about, holds of its account's limits.

    Raises:
        RequestError: They do not allow it now.
    """
    demand = demand_of(
        job,
        card,
        terms.limits,
        input_tokens=tokens,
        by_default=services.settings.accounting.output_tokens,
    )
    try:
        return await services.limiter.reserve(terms, demand)
    except RequestError as error:
        services.metrics.refusals.labels(card.id, error.code).inc()
        raise


def _admit(services: Services, card: ModelCard, tokens: int) -> Slot:
    """The right to run a request of `tokens` prompt tokens, about, now.

    Raises:
        ServiceError: It has to come back later.
    """
    refusals = services.metrics.refusals
    try:
        services.admission.check_open()
        services.catalog.require_worker(card)
        return services.admission.admit(
            card.id, tokens=tokens, free_slots=services.catalog.free_slots(card)
        )
    except Overload as error:
        refusals.labels(card.id, error.reason).inc()
        raise
    except ServiceError as error:
        refusals.labels(card.id, error.code).inc()
        raise


def _without_effect(request: Request, *, zdr: bool) -> tuple[str, ...]:
    """Headers of a request that have none: a key would have something of it written down."""
    return (HEADER,) if zdr and HEADER in request.headers else ()


def _client_retry(request: Request) -> int | None:
    """Which retry of its own this is for the client, as the official clients tell."""
    count = request.headers.get("x-stainless-retry-count", "")
    return int(count) if count.isdecimal() and len(count) < 4 else None
