"""One line of a batch from its body to its result.

    parse -> model -> normalise -> Job -> Generation -> encoder -> result line

The same dialect, the same limits and the same errors as a live request of that body, with three
differences: a line does not stream, it waits for a worker as long as the batch may last, and what
fails for a passing reason is tried again.

Source: wire reference of the batch APIs, "Shared behaviour"; error catalogue.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from ingress.accounts.account import Account
from ingress.batch import result_lines
from ingress.batch.access import terms_of_batch
from ingress.batch.capacity import Capacity
from ingress.batch.completion import complete
from ingress.batch.lines import InputLine
from ingress.batch.patience import Pauses
from ingress.batch.settings import BatcherSettings
from ingress.batch.tried import Tried
from ingress.console.activity import Live
from ingress.dialects.base import Dialect, DialectRequest, Encoder, JobContext, Stamp
from ingress.dialects.profile import PROFILES
from ingress.errors import encodable
from ingress.generation import Generation
from ingress.media import has_links
from ingress.request_id import new_request_id
from ingress.retries import MAX_STRIKES
from ingress.services import Services
from ingress.settings import TimeLimits
from schemas.batch import Batch, LineResult
from schemas.delta import Usage
from schemas.errors import (
    ErrorInfo,
    ErrorKind,
    InternalError,
    ServingError,
    UnsupportedValue,
)
from schemas.model_card import ModelCard

log = structlog.get_logger(__name__)

_PASSING: Final = (ErrorKind.INTERNAL, ErrorKind.OVERLOADED, ErrorKind.TIMEOUT)
_CRASH: Final = InternalError("Something went wrong in the server.")
_LONGEST_PAUSE_S: Final = 15.0

_AFTER_THE_END_S: Final = 60.0
"""A line's own limits are so much later than the end of its batch, which ends it first: a line that
was too late was not executed, and that is no failure of it."""


class Request:
    """A line that has been understood.

    Attributes:
        wanted: The dialect's request.
        model: What the catalogue is to look for.
    """

    __slots__ = ("custom_id", "line", "model", "request_id", "wanted")

    def __init__(
        self, line: InputLine, request_id: str, wanted: DialectRequest, model: str
    ) -> None:
        self.line = line.line
        self.custom_id = line.custom_id
        self.request_id = request_id
        self.wanted = wanted
        self.model = model


class LineRunner:
    """Runs the lines of one batch.

    Args:
        clock: Gives Unix seconds.
    """

    def __init__(
        self,
        services: Services,
        batch: Batch,
        dialect: Dialect,
        capacity: Capacity,
        settings: BatcherSettings,
        clock: Callable[[], float],
    ) -> None:
        self._services = services
        self._batch = batch
        self._dialect = dialect
        self._capacity = capacity
        self._settings = settings
        self._clock = clock

    @property
    def _terms(self) -> Account:
        """Of the batch's account, as they are now."""
        return terms_of_batch(self._services.directory, self._batch)

    def understand(self, line: InputLine) -> Request | LineResult:
        """What a line asks for; or its result, if that is nothing that could be executed."""
        request_id = new_request_id()
        try:
            terms = self._terms
            terms.require_enabled()
            wanted = self._dialect.parse(line.body)
            if wanted.stream:
                raise UnsupportedValue("A request of a batch cannot stream.", param="stream")
            return Request(line, request_id, wanted, terms.model_named(wanted.model))
        except ServingError as error:
            info = error.info()
        except Exception as error:
            self._crashed(line.line, request_id, error)
            info = _CRASH.info()
        tried = Tried(request_id, self._clock())
        return self._errored(line.line, line.custom_id, info, tried)

    def refuse(self, request: Request, error: ServingError) -> LineResult:
        """The result of a line that is not executed because of this error."""
        tried = Tried(request.request_id, self._clock(), model=request.model)
        return self._errored(request.line, request.custom_id, error.info(), tried)

    async def run(self, request: Request, card: ModelCard) -> LineResult:
        """The result of a line; does not end before there is one."""
        tried = Tried(request.request_id, self._clock(), model=card.id, pricing=card.pricing)
        try:
            self._terms.require_access(card)
            body, usage = await self._answer(request, card, tried)
        except ServingError as error:
            return self._errored(request.line, request.custom_id, error.info(), tried)
        except Exception as error:
            self._crashed(request.line, request.request_id, error)
            return self._errored(request.line, request.custom_id, _CRASH.info(), tried)
        text = result_lines.succeeded(
            self._batch.shape,
            custom_id=request.custom_id,
            result_id=result_lines.result_id(self._batch.batch_id, request.line),
            request_id=request.request_id,
            body=body,
        )
        return LineResult(
            line=request.line,
            outcome="succeeded",
            text=text,
            usage=usage,
            record=tried.record(self._batch, request.line, self._dialect.name, now=self._clock()),
        )

    async def _answer(self, request: Request, card: ModelCard, tried: Tried) -> tuple[bytes, Usage]:
        """The answer and its usage, of whichever try brings it.

        Raises:
            ServingError: None does.
        """
        tries, services = 0, self._services
        pauses = Pauses(self._settings.retry_first_s, _LONGEST_PAUSE_S)
        while True:
            generation, encoder = self._generation(request, card)
            tried.generation = generation
            try:
                with services.activity.following(self._live(generation)):
                    await complete(generation, encoder)
                return encoder.body(), generation.usage
            except ServingError as error:
                info = error.info()
                if not _may_pass(info) or generation.retries.strikes >= MAX_STRIKES:
                    raise
                # What no worker has accepted was not tried, and costs nothing to offer again.
                tries += generation.accepted_at is not None or info.kind is not ErrorKind.OVERLOADED
                if tries > self._settings.retries:
                    raise
                log.info(
                    "batch.line_retried",
                    batch_id=self._batch.batch_id,
                    line=request.line,
                    request_id=request.request_id,
                    code=info.code,
                    tries=tries,
                )
            del generation, encoder
            await pauses.pause()
            while not self._capacity.open(card):
                await pauses.pause()

    def _live(self, generation: Generation) -> Live:
        return Live(
            generation,
            dialect=self._dialect.name,
            account=self._batch.account if self._services.authenticator.required else None,
            stream=False,
            began_at=self._clock(),
        )

    def _generation(self, request: Request, card: ModelCard) -> tuple[Generation, Encoder]:
        """A Job of its own for every try: a stray message of an earlier one must fit nowhere."""
        services, dialect = self._services, self._dialect
        now = self._clock()
        terms = self._terms
        profile = PROFILES[terms.profile or services.settings.profile]
        response_id = secrets.token_hex(16)
        ends_at = self._batch.expires_at
        normalised = dialect.normalise(
            request.wanted,
            card,
            JobContext(
                job_id=response_id,
                request_id=request.request_id,
                now=now,
                deadline=ends_at + _AFTER_THE_END_S,
                queue_deadline=ends_at + services.catalog.clock_ahead_s(card),
                profile=profile,
                priorities=terms.priorities,
            ),
        )
        job = msgspec.structs.replace(terms.ranked(normalised.job, card), job_class="batch")
        stamp = Stamp(
            response_id=response_id,
            created=int(now),
            model=card.id,
            request_id=request.request_id,
            profile=profile,
            clock=self._clock,
        )
        encoder = dialect.encoder(request.wanted, job, stamp)
        generation = Generation(
            services.dispatcher,
            job,
            _limits(services.settings.limits, ends_at - now),
            prepare=services.media.load if has_links(job) else None,
        )
        return generation, encoder

    def _errored(self, line: int, custom_id: str, error: ErrorInfo, tried: Tried) -> LineResult:
        error = encodable(error)
        status, request_id = self._dialect.error_status(error), tried.request_id
        text = result_lines.errored(
            self._batch.shape,
            custom_id=custom_id,
            result_id=result_lines.result_id(self._batch.batch_id, line),
            request_id=request_id,
            status=status,
            body=self._dialect.error_body(error, request_id),
        )
        record = tried.record(
            self._batch, line, self._dialect.name, status=status, error=error, now=self._clock()
        )
        return LineResult(line=line, outcome="errored", text=text, record=record)

    def _crashed(self, line: int, request_id: str, error: Exception) -> None:
        log.error(
            "batch.line_crashed",
            batch_id=self._batch.batch_id,
            line=line,
            request_id=request_id,
            error=type(error).__name__,
            exc_info=error,
        )


def _may_pass(error: ErrorInfo) -> bool:
    return error.kind in _PASSING and error.retryable is not False


def _limits(live: TimeLimits, left_s: float) -> TimeLimits:
    """Those of a live request, but for the ones that are about waiting for a worker."""
    as_long_as_needed = max(left_s, 0.0) + _AFTER_THE_END_S
    return live.model_copy(
        update={
            "queue_wait_s": as_long_as_needed,
            "retry_s": as_long_as_needed,
            "total_s": as_long_as_needed,
        }
    )
