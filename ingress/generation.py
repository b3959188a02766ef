"""One request's life behind HTTP: dispatch, attempts, limits, figures; closed exactly once.

A Generation turns the reply messages of one Job, over however many attempts, into one grammatical
run of Deltas. It knows neither a dialect nor a socket: a stream, a whole answer and a batch line
drive it the same way. Times are in the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
import structlog

from ingress.settings import TimeLimits
from schemas import telemetry
from schemas.delta import (
    OUT_OF_BAND,
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    Interrupted,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    Usage,
)
from schemas.errors import (
    ErrorInfo,
    GenerationFailed,
    GenerationTimeout,
    ModelOverloaded,
    ReportedError,
    ServiceError,
    ServingError,
    WorkerFailed,
)
from schemas.job import Job
from schemas.reply import ReplyChecker, SequenceChecker
from schemas.transport.base import Dispatcher, Reply

log = structlog.get_logger()

MAX_STRIKES = 2
"""A Job that was lost with this many workers is not tried on another one."""

_PROMPT_TOKENS_PER_SECOND = 2_000
"""Extra time to the first token for long prompts."""

_SPOKEN = frozenset((TextDelta, ReasoningDelta, ArgumentsDelta))

Phase: TypeAlias = Literal["preparing", "queued", "prefill", "decode", "ended"]


class Generation:
    """One Job and its reply.

    Args:
        prepare: Completes the Job before it is handed over.

    Attributes:
        phase: `preparing` while the Job is not complete, `queued` until a worker accepted it,
            `prefill` until the first token.
        on_phase: Called when another phase, and so another limit, begins.
        attempt: The attempt whose Deltas are being delivered.
        finish_reason: Of the first choice that finished; for the log.
        first_token_at: Loop time of `Started`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        job: Job,
        limits: TimeLimits,
        *,
        prepare: Callable[[Job], Awaitable[Job]] | None = None,
    ) -> None:
        self.job = job
        self.phase: Phase = "queued" if prepare is None else "preparing"
        self._prepare = prepare
        self.on_phase: Callable[[], object] = lambda: None
        self.attempt = job.attempt
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        self.accepted_at: float | None = None
        self.worker: str | None = None
        self._dispatcher = dispatcher
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._began_at = self._queued_at = self._progress_at = self._loop.time()
        self._reply: Reply | None = None
        self._sequence = SequenceChecker(job.attempt)
        self._checker = ReplyChecker(job.choices)
        self._answered = False  # something of the answer has been delivered
        self._error: ServingError | None = None
        self._strikes = 0
        self._believed_lost = False
        self._input_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._usage: Usage | None = None  # the worker's own figures, at the end

    @property
    def usage(self) -> Usage:
        """Tokens as far as known; final once the reply has ended."""
        if self._usage is not None:
            return self._usage
        return Usage(self._input_tokens, self._cached_tokens, self._output_tokens, 0)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, if it came."""
        return None if self.first_token_at is None else self.first_token_at - self._began_at

    async def start(self) -> None:
        """Complete the Job and hand it over.

        Raises:
            ServingError: It was refused.
        """
        if self._prepare is not None:
            self.job = await self._prepare(self.job)
            self._queued_at = self._loop.time()
            self._enter("queued")
        self._reply = await self._dispatcher.dispatch(self.job)

    async def receive(self) -> Sequence[Delta]:
        """The Deltas that have arrived; waits for some. The last batch ends with `Completed`.

        `Accepted` and `Started` are delivered once, whatever the number of attempts.

        Raises:
            ServingError: The reply ended in an error.
        """
        assert self._reply is not None, "start() comes first"
        while True:
            if self._error is not None:
                raise self._error
            deltas: list[Delta] = []
            try:
                for message in await self._messages():
                    if message.seq == OUT_OF_BAND:
                        await self._hear_of(message)
                    elif self._sequence.accept(message):
                        self._believed_lost = False
                        interrupted = self._take(message, deltas)
                        if interrupted is not None:
                            await self._retry(interrupted)
            except ServingError as error:
                # What came before it is still the reader's.
                self._error = error
            self._progress_at = self._loop.time()
            if deltas:
                return deltas

    async def _messages(self) -> Sequence[ReplyMessage]:
        assert self._reply is not None
        if not self._believed_lost:
            return await self._reply.receive()
        try:
            async with asyncio.timeout(self._limits.last_words_s):
                return await self._reply.receive()
        except TimeoutError:
            raise WorkerFailed("The worker that was answering this request was lost.") from None

    async def _hear_of(self, message: ReplyMessage) -> None:
        """Another worker got the Job again: the one that runs this attempt seems to be lost.

        It may only have lost its channel and still be speaking. Where nothing of the answer is out,
        a fresh attempt is cheap, and this one is cancelled; else it gets a moment to prove itself.
        """
        assert self._reply is not None
        if message.attempt != self.attempt or not isinstance(message.deltas[0], Interrupted):
            return
        if self._answered:
            self._believed_lost = True
            return
        await self._reply.cancel()
        await self._retry(message.deltas[0])

    def _take(self, message: ReplyMessage, deltas: list[Delta]) -> Interrupted | None:
        for _, ids in message.token_ids:
            self._output_tokens += len(ids)
        if not message.token_ids:  # engines that do not tell them say about one token at a time
            self._output_tokens += sum(type(delta) in _SPOKEN for delta in message.deltas)
        for delta in message.deltas:
            self._checker.feed(delta)
            match delta:
                case Accepted():
                    self._accepted(delta, deltas)
                case Started():
                    self._started(delta, deltas)
                case Interrupted():
                    return delta
                case Failed(error=error, usage=usage):
                    self.phase = "ended"
                    self._usage = _larger(self.usage, usage)
                    raise ReportedError(error)
                case Completed(usage=usage):
                    self.phase = "ended"
                    self._usage = usage
                    deltas.append(delta)
                case Finished(reason=reason):
                    self._answered = True
                    self.finish_reason = self.finish_reason or reason
                    deltas.append(delta)
                case _:
                    self._answered = True
                    deltas.append(delta)
        return None

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.on_phase()

    def _accepted(self, delta: Accepted, deltas: list[Delta]) -> None:
        self.worker = delta.worker
        self._input_tokens = delta.input_tokens
        if self.accepted_at is None:
            self.accepted_at = self._loop.time()
            deltas.append(delta)
        self._enter("prefill")

    def _started(self, delta: Started, deltas: list[Delta]) -> None:
        self._enter("decode")
        self._input_tokens = delta.input_tokens
        self._cached_tokens = delta.cached_tokens
        if self.first_token_at is None:
            self.first_token_at = self._loop.time()
            deltas.append(delta)

    async def _retry(self, interrupted: Interrupted) -> None:
        """Dispatch the next attempt, unless the answer has begun or the Job seems to be poison.

        Raises:
            WorkerFailed: Part of the answer is out and cannot be taken back.
            GenerationFailed: Too many workers were lost with this Job.
        """
        assert self._reply is not None
        log.warning(
            telemetry.JOB_INTERRUPTED,
            job_id=self.job.job_id,
            attempt=self.attempt,
            reason=interrupted.reason,
            worker=self.worker,
        )
        if interrupted.reason == "redelivered" and self.phase != "queued":
            self._strikes += 1
        if self._answered:
            raise WorkerFailed("The worker that was answering this request was lost.")
        if self._strikes >= MAX_STRIKES:
            raise GenerationFailed("This request could not be completed on any worker.")
        self.attempt += 1
        self._queued_at = self._loop.time()
        self._enter("queued")
        self._output_tokens = 0
        self._checker = ReplyChecker(self.job.choices)
        self._sequence.begin_attempt(self.attempt)
        await self._reply.redispatch(
            msgspec.structs.replace(
                self.job,
                attempt=self.attempt,
                queue_deadline=self.job.queue_deadline + self._queued_at - self._began_at,
            )
        )

    def limit(self) -> tuple[float, ServingError]:
        """When the present phase must have ended at the latest, and the error if it has not."""
        limits = self._limits
        total = (
            self._began_at + limits.total_s,
            GenerationTimeout("The request took longer than allowed."),
        )
        at: float
        error: ServingError
        at, error = total
        match self.phase:
            case "queued":
                at = self._queued_at + limits.queue_wait_s
                error = ModelOverloaded("The request waited too long for a free worker.")
            case "prefill":
                at = self._progress_at + limits.first_token_s
                at += self._input_tokens / _PROMPT_TOKENS_PER_SECOND
                error = GenerationTimeout("The model did not begin to answer in time.")
            case "decode":
                at = self._progress_at + limits.stall_s
                error = WorkerFailed("The worker that was answering this request fell silent.")
        return (at, error) if at < total[0] else total

    async def close(self) -> None:
        """Give back what the reply holds; a reply that has not ended is cancelled. Idempotent."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        try:
            if self.phase != "ended":
                self.phase = "ended"
                await reply.cancel()
        except ServiceError as error:
            # The broker is away; so is the Job's worker from us, and its queue deadline ends it.
            log.warning(telemetry.JOB_CANCELLED, job_id=self.job.job_id, diagnostic=error.message)
        finally:
            await reply.close()


def _larger(a: Usage, b: Usage) -> Usage:
    """Field by field: a worker's own count may lag behind, or be missing."""
    return Usage(
        max(a.input_tokens, b.input_tokens),
        max(a.cached_tokens, b.cached_tokens),
        max(a.output_tokens, b.output_tokens),
        max(a.reasoning_tokens, b.reasoning_tokens),
    )


def outcome_of(error: ErrorInfo | None) -> str:
    """For the log and metrics: `completed`, `cancelled` or `failed`."""
    if error is None:
        return "completed"
    return "cancelled" if error.code == "client_closed_request" else "failed"
