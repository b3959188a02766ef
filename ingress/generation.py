"""One request's life behind HTTP: dispatch, attempts, limits, figures; closed exactly once.

A Generation turns the reply messages of one Job, over however many attempts, into one grammatical
run of Deltas. It knows neither a dialect nor a socket: a stream, a whole answer and a batch line
drive it the same way. Times are in the event loop's clock.

An attempt that is lost is followed by the next one, which goes on after what has arrived. That is
always correct: the old one is cancelled, and its messages carry a number that nobody listens to any
more. So where it is not certain that a worker is lost, moving on costs computing and nothing else.
What a lost attempt has generated counts as far as it has arrived: the rest is part of no answer.

A request that is given up is cancelled at once. What its engine generated until it heard of that is
learnt a moment later (`last_figures`), from the worker's own last word.

Source: streaming failures, sections 2, 4 and 6.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import structlog

from ingress.figures import Figures
from ingress.retries import Loss, Retries
from ingress.settings import TimeLimits
from schemas import telemetry
from schemas.continuation import Arrived
from schemas.delta import (
    ALIVE,
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    Interrupted,
    ReasoningDelta,
    ReplyMessage,
    SpokenDelta,
    Started,
    TextDelta,
    Usage,
)
from schemas.errors import (
    ErrorInfo,
    GenerationTimeout,
    ModelOverloaded,
    ModelUnavailable,
    ReportedError,
    RequestTooLarge,
    ServiceError,
    ServingError,
    WorkerFailed,
)
from schemas.job import Continuation, Job
from schemas.reply import MessagesMissing, ReplyChecker, SequenceChecker
from schemas.transport.base import Dispatcher, Reply, ReplyLost, ReplySuspended
from schemas.usage_record import UsageOutcome

log = structlog.get_logger()

_PROMPT_TOKENS_PER_SECOND = 2_000
"""Extra time to the first token for long prompts."""

_SPOKEN: Final = (TextDelta, ReasoningDelta, ArgumentsDelta)  # `SpokenDelta`

_SIGNALS = frozenset((Accepted, Started, Finished, Completed, Failed, Interrupted))

_AT_WORK: Final = frozenset(
    (
        "redelivered",
        "silent",
        "stalled",
        "gap",
        "disconnected",
        "unclaimed",
        "duplicated",
        "blocked",
    )
)
"""Losses after which a worker may still be running the attempt."""

Phase: TypeAlias = Literal["preparing", "queued", "prefill", "decode", "ended"]

_Silence: TypeAlias = Literal["silent", "stalled", "redelivered", "unclaimed"]
_Limit: TypeAlias = Literal["total", "queue_wait", "retrying", "first_token"] | _Silence


class Move(NamedTuple):
    """How long it took until another worker went on with a Job, in seconds.

    Attributes:
        waited_s: From when the loss was noticed to the acceptance.
        read_s: From then to the first new token: the prompt, and what was written, are read again.
    """

    waited_s: float
    read_s: float


class TextListener(Protocol):
    """Takes text in the turn of the event loop in which it arrives. It must not raise."""

    def can_take(self, delta: SpokenDelta | None) -> bool:
        """Whether it would take this now; None for a message that only tells of progress."""
        ...

    def take(self, delta: SpokenDelta) -> None: ...


class Generation:
    """One Job and its reply.

    Args:
        prepare: Completes the Job before it is handed over.

    Attributes:
        phase: `preparing` while the Job is not complete, `queued` until a worker accepted it,
            `prefill` until the first token.
        on_phase: Called when another phase, and so another limit, begins.
        on_limit: Called when a nearer limit comes up within a phase.
        on_attempt: Called with the number of each attempt that is about to be sent; says where it
            belongs in a trace.
        attempt: The latest attempt.
        worker: Who runs it, or ran the one before.
        retries: What attempts have been lost.
        moves: How each of them that was followed by another one went on.
        finish_reason: Of the first choice that finished; for the log.
        longest_gap_s: Longest time without anything new after the first token.
        duplicates: Messages left out: they had come before, or were of an attempt that was left.
        first_token_at: Loop time of the first `Started`.
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
        self.on_limit: Callable[[], object] = lambda: None
        self.on_attempt: Callable[[int], str | msgspec.UnsetType] = lambda _: msgspec.UNSET
        self.attempt = job.attempt
        self.retries = Retries(limits.retry_s)
        self.moves: list[Move] = []
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        self.longest_gap_s = 0.0
        self.duplicates = 0
        self.accepted_at: float | None = None
        self.worker: str | None = None
        self._listener: TextListener | None = None
        self._dispatcher = dispatcher
        self._limits = limits
        # It waits in the queue for hours while live requests have all slots, and that is as it
        # should be: nothing follows from it, least of all that a worker hangs with the Job.
        self._is_batch = job.job_class == "batch"
        self._loop = asyncio.get_running_loop()
        self._began_at = self._queued_at = self._loop.time()
        self._heard_at = self._progress_at = self._began_at
        self._dispatching: asyncio.Task[Reply] | None = None
        self._reply: Reply | None = None
        self._lost_attempt = 0  # nothing more counts of this one
        self._sequence = SequenceChecker(job.attempt)
        self._checker = ReplyChecker(job.choices)
        self._arrived = Arrived(job.choices)
        self._tokens_before = 0  # of earlier attempts
        self._spoken = 0  # Deltas that an engine told no ids of: about one token each
        self._answered = False  # something of the answer has been delivered
        self._error: ServingError | None = None
        self._loss: Loss | None = None  # the attempt is lost, the next one is not yet sent
        self._waiting = False  # for messages; else the reader is busy with what it has
        self._sent_at = (
            self._began_at
        )  # the latest attempt; or when it was last found to be all right
        self._suspected_at: float | None = None
        self._alone = True  # no other suspect runs beside this one
        self._given_up_for: _Silence | Literal["blocked"] | None = None
        self._refusal: ServiceError | None = None  # why the next attempt is not on its way
        self._figures = Figures()
        self._lost_at: float | None = None  # the last attempt, if this one has not begun to answer
        self._accepted_last_at = self._began_at

    @property
    def usage(self) -> Usage:
        """Tokens as far as known; final once the reply has ended."""
        return self._figures.so_far(self._output_tokens)

    @property
    def _output_tokens(self) -> int:
        return self._arrived.tokens or self._spoken

    @property
    def is_final(self) -> bool:
        """Whether `usage` is final: nothing more that counts can arrive."""
        if self._figures.final is not None or self._loss is not None:
            return True
        if self._reply is None:
            return self._dispatching is None
        return self._lost_attempt == self.attempt

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, if it came."""
        return None if self.first_token_at is None else self.first_token_at - self._began_at

    @property
    def queue_s(self) -> float | None:
        """Seconds until a worker accepted it, if one did."""
        return None if self.accepted_at is None else self.accepted_at - self._began_at

    @property
    def token_latency_s(self) -> float | None:
        """Mean seconds between two tokens of one choice; None if there were no two."""
        choices = self.job.choices
        if self.first_token_at is None or (gaps := self.usage.output_tokens - choices) <= 0:
            return None
        return (self._progress_at - self.first_token_at) * choices / gaps

    @property
    def queued_for_s(self) -> float:
        """Seconds since it last began to wait for a worker."""
        return self._loop.time() - self._queued_at

    async def start(self) -> None:
        """Complete the Job and hand it over.

        Raises:
            ServingError: It was refused.
        """
        if self._prepare is not None:
            self.job = await self._prepare(self.job)
            self._queued_at = self._loop.time()
            self._enter("queued")
        self._sent_at = self._loop.time()
        # Who waits for it may be cancelled, and yet a worker may have the Job already.
        self._dispatching = asyncio.create_task(self._dispatcher.dispatch(self._next_job(None)))
        try:
            self._reply = await asyncio.shield(self._dispatching)
        except Exception:
            self._dispatching = None  # it was refused
            raise
        self._dispatching = None
        if self._listener is not None:
            self._reply.listen(self._hear_text)

    def listen(self, listener: TextListener) -> None:
        """Hand text to `listener` rather than to who waits in `receive`, where that is possible.

        It is called before `start`.
        """
        self._listener = listener

    async def receive(self) -> Sequence[Delta]:
        """The Deltas that have arrived; waits for some. The last batch ends with `Completed`.

        `Accepted` and `Started` are delivered once, whatever the number of attempts. An attempt
        that was lost is followed by the next one only when the reader asks for more: one who does
        not read holds no worker.

        Raises:
            ServingError: The reply ended in an error.
        """
        while True:
            if self._error is not None:
                raise self._error
            deltas: list[Delta] = []
            try:
                if self._loss is not None:
                    await self._move(self._loss)
                await self._hear(deltas)
            except ServingError as error:
                # What came before it is still the reader's.
                self._error = error
            if deltas:
                return deltas

    async def _hear(self, deltas: list[Delta]) -> None:
        """Take what arrives next; sets `_loss` if that was the last of this attempt."""
        assert self._reply is not None, "start() comes first"
        self._waiting = True
        try:
            messages = await self._reply.receive()
        except ReplySuspended:
            self._loss = "suspended"
            return
        except ReplyLost:
            self._loss = self._given_up_for or "disconnected"
            return
        finally:
            self._waiting = False
        now = self._loop.time()
        if self.first_token_at is not None:
            self._see_gap(now)
        try:
            for message in messages:
                if message.seq < 0:
                    self._hear_aside(message, now)
                elif self._sequence.accept(message):
                    self._heard_at = self._progress_at = now
                    self._suspected_at = None
                    self._take(message, deltas)
                elif self._is_twin(message):
                    self._loss = "duplicated"
                else:
                    self.duplicates += 1
                if self._loss is not None:
                    return
        except MessagesMissing as error:
            log.warning("reply.gap", job_id=self.job.job_id, diagnostic=error.diagnostic)
            self._loss = "gap"

    def _hear_text(self, message: ReplyMessage) -> bool:
        """Take a message from the midst of an answer, while the reader waits for one.

        Nearly all are such: the next piece of a text, in its order. Waking the reader for it costs
        more than all that is done with it. Whatever else it is, the reader is woken as ever, and
        here nothing has changed.
        """
        listener, deltas = self._listener, message.deltas
        if (
            listener is None
            or self.phase != "decode"
            or message.seq != self._sequence.next_seq
            or message.attempt != self.attempt
            or len(deltas) > 1
        ):
            return False
        delta: SpokenDelta | None = None
        if deltas:
            (only,) = deltas
            if not isinstance(only, _SPOKEN):
                return False
            delta = only
        if not listener.can_take(delta) or (delta is not None and not self._checker.passes(delta)):
            return False
        self._sequence.next_seq += 1
        now = self._loop.time()
        self._see_gap(now)
        self._heard_at = self._progress_at = now
        self._suspected_at = None
        self._count(message)
        if delta is not None:
            self._arrived.add(delta)
            self._answered = True
            listener.take(delta)
        return True

    def _see_gap(self, now: float) -> None:
        if now - self._progress_at > self.longest_gap_s:
            self.longest_gap_s = now - self._progress_at

    def _is_twin(self, message: ReplyMessage) -> bool:
        """Whether another worker has begun the same attempt: its Job was there twice.

        The first message tells, before any other could be mixed with those of the one that is
        listened to.
        """
        return (
            message.attempt == self.attempt
            and self.phase in ("prefill", "decode")
            and any(
                type(delta) is Accepted and delta.worker != self.worker for delta in message.deltas
            )
        )

    def _hear_aside(self, message: ReplyMessage, now: float) -> None:
        """A sign of life; or another worker got the Job again, so this attempt seems to be lost.

        Its worker may only have lost its channel and still be speaking. One that had accepted the
        Job is asked, and gets a moment to answer.
        """
        if message.attempt != self.attempt or self.phase == "ended":
            return
        if message.seq == ALIVE:
            self._heard_at = now
            self._suspected_at = None
            if message.deltas:
                self._alone = False
        elif self.phase == "queued":
            self._loss = "redelivered"
        elif self._suspected_at is None:
            assert self._reply is not None
            self._suspected_at = now
            self._reply.probe()
            self.on_limit()

    def _take(self, message: ReplyMessage, deltas: list[Delta]) -> None:
        arrived, feed = self._arrived, self._checker.feed
        self._count(message)
        for delta in message.deltas:
            feed(delta)
            if type(delta) in _SIGNALS:
                self._signal(delta, deltas)
            else:
                arrived.add(delta)
                deltas.append(delta)
                self._answered = True

    def _signal(self, delta: Delta, deltas: list[Delta]) -> None:
        """Take a Delta that changes how things stand."""
        match delta:
            case Accepted():
                self._accepted(delta, deltas)
            case Started():
                self._started(delta, deltas)
            case Interrupted(reason=loss):
                self._loss = loss
            case Failed(error=error, usage=usage):
                self.phase = "ended"
                self._figures.broke_off(self.attempt, usage, self._output_tokens)
                raise ReportedError(error)
            case Completed(usage=usage):
                self.phase = "ended"
                deltas.append(Completed(self._figures.complete(self.attempt, usage)))
            case Finished(reason=reason):
                self.finish_reason = self.finish_reason or reason
                self._answered = True
                self._arrived.add(delta)
                deltas.append(delta)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.on_phase()

    def _accepted(self, delta: Accepted, deltas: list[Delta]) -> None:
        self.worker = delta.worker
        self._alone = delta.alone
        self._accepted_last_at = self._loop.time()
        if self._is_batch:
            self.retries.excuse(self._loop.time() - self._sent_at)
        self._figures.accepted(delta.input_tokens)
        if self.accepted_at is None:
            self.accepted_at = self._loop.time()
            deltas.append(delta)
        self._enter("prefill")

    def _started(self, delta: Started, deltas: list[Delta]) -> None:
        if self._lost_at is not None:
            at = self._accepted_last_at
            self.moves.append(Move(at - self._lost_at, self._loop.time() - at))
            self._lost_at = None
        if self.first_token_at is None:
            self.first_token_at = self._loop.time()
            self._figures.started(self.attempt, delta.input_tokens, delta.cached_tokens)
            deltas.append(delta)
        self._enter("decode")

    async def _move(self, loss: Loss) -> None:
        """Follow a lost attempt by the next one.

        Raises:
            WorkerFailed: Part of the answer is out and cannot be continued; or it is enough.
            GenerationFailed: Too many workers were lost with this Job.
        """
        assert self._reply is not None
        self._loss = None
        self._lost_attempt = self.attempt
        now = self._loop.time()
        if self._lost_at is None:
            self._lost_at = now
        accepted = self.phase != "queued"
        tokens = self._arrived.tokens
        progressed = tokens > self._tokens_before
        self.retries.lost(
            loss, accepted=accepted, progressed=progressed, alone=self._alone, now=now
        )
        say = log.info if loss == "yielded" else log.warning
        say(
            telemetry.JOB_INTERRUPTED,
            job_id=self.job.job_id,
            attempt=self.attempt,
            reason=loss,
            worker=self.worker if accepted else None,
            strikes=self.retries.strikes,
            tokens=tokens,
        )
        self.retries.check(now)
        continuation = self._arrived.continuation(self.job)
        if continuation is None:
            if self._answered:
                raise WorkerFailed("The worker that was answering this request was lost.")
            self._arrived = Arrived(self.job.choices)
            self._spoken = 0
        self._tokens_before = self._arrived.tokens
        self._checker.begin_attempt(continued=continuation is not None)
        if loss in _AT_WORK:
            await self._reply.cancel()
        if accepted:
            self._queued_at = now
        self._enter("queued")
        await self._redispatch(continuation)

    async def _redispatch(self, continuation: Continuation | None) -> None:
        """Send the next attempt; what refuses it may pass, until the limits end the wait.

        Every try has a number of its own: one that seemed to be refused may yet turn up at a
        worker.
        """
        assert self._reply is not None
        while True:
            if delay_s := self.retries.next_delay_s():
                await asyncio.sleep(delay_s)
            self.attempt += 1
            self._sequence.begin_attempt(self.attempt)
            self._suspected_at = self._given_up_for = None
            self._sent_at = self._loop.time()
            try:
                await self._reply.redispatch(self._next_job(continuation))
            except (ModelUnavailable, ModelOverloaded) as refusal:
                self._refusal = refusal
                continue
            except RequestTooLarge as error:
                raise WorkerFailed(
                    "The worker that was answering this request was lost.",
                    diagnostic=f"the continuation is too large: {error.diagnostic}",
                ) from None
            self._refusal = None
            return

    def _next_job(self, continuation: Continuation | None) -> Job:
        """The Job as the latest attempt of it."""
        return msgspec.structs.replace(
            self.job,
            attempt=self.attempt,
            queue_deadline=self._queue_deadline(),
            continuation=continuation,
            suspect=self.retries.strikes > 0,
            exclusive=self.retries.in_doubt,
            traceparent=self.on_attempt(self.attempt),
        )

    def _queue_deadline(self) -> float:
        """A lost live Job may wait as long again as one that is new; a batch has one end."""
        waited_s = 0.0 if self._is_batch else self._queued_at - self._began_at
        return self.job.queue_deadline + waited_s

    def due_at(self) -> float:
        """When `on_due` is to be called, unless `on_phase` or `on_limit` says otherwise."""
        return self._next_limit()[0]

    def on_due(self) -> None:
        """Act on a limit that has passed: give up the attempt, or the request.

        Raises:
            ServingError: The request ends with this error.
        """
        at, limit = self._next_limit()
        if self._loop.time() < at:
            return
        match limit:
            case "total":
                raise GenerationTimeout("The request took longer than allowed.")
            case "queue_wait":
                raise self._refusal or ModelOverloaded(
                    "The request waited too long for a free worker."
                )
            case "retrying":
                raise WorkerFailed("The worker that was answering this request was lost.")
            case "first_token":
                raise GenerationTimeout("The model did not begin to answer in time.")
            case "unclaimed" if self._suspected_at is None:
                self._wonder()
            case "silent" | "stalled" | "redelivered" | "unclaimed":
                assert self._reply is not None
                # Where nobody can be heard, silence is nobody's fault.
                loss = "blocked" if self._dispatcher.blocked() else limit
                self._given_up_for = loss
                self._reply.interrupt(loss)

    def _wonder(self) -> None:
        """Ask who has the attempt, if workers have room and still none has accepted it.

        One that hangs has its messages for as long as the broker believes in its connection.
        """
        assert self._reply is not None
        self._sent_at = self._loop.time()
        if any(
            worker.card.id == self.job.model and worker.live_room
            for worker in self._dispatcher.workers()
        ):
            self._suspected_at = self._sent_at
            self._reply.probe()

    def _next_limit(self) -> tuple[float, _Limit]:
        """The nearest limit of the present phase.

        A worker's time runs only while it is waited for: what it has sent may not be read yet.
        """
        limits, now = self._limits, self._loop.time()
        waiting = self._waiting and self._given_up_for is None
        heard_at, progress_at = (self._heard_at, self._progress_at) if waiting else (now, now)
        found: list[tuple[float, _Limit]] = [(self._began_at + limits.total_s, "total")]
        match self.phase:
            case "queued":
                found.append((self._queued_at + limits.queue_wait_s, "queue_wait"))
                if not self._is_batch:
                    found.append((self.retries.ends_at, "retrying"))
                    sent_at = self._sent_at if waiting else now
                    found.append((sent_at + limits.silence_s, "unclaimed"))
            case "prefill":
                tokens = self._figures.input_tokens + self._tokens_before
                extra_s = tokens / _PROMPT_TOKENS_PER_SECOND
                found.append((progress_at + limits.first_token_s + extra_s, "first_token"))
                found.append((heard_at + limits.silence_s, "silent"))
            case "decode":
                found.append((progress_at + limits.stall_s, "stalled"))
                found.append((heard_at + limits.silence_s, "silent"))
        if self._suspected_at is not None:
            suspected_at = self._suspected_at if waiting else now
            if self.phase == "queued":  # nobody who reads waits for the next word: no hurry
                patience_s = max(limits.last_words_s, limits.silence_s / 5)
                found.append((suspected_at + patience_s, "unclaimed"))
            else:
                found.append((suspected_at + limits.last_words_s, "redelivered"))
        return min(found)

    async def cancel(self) -> None:
        """Give the reply up: one that has not ended is cancelled at once. Idempotent.

        Nothing is received any more.
        """
        ended, self.phase = self.phase == "ended", "ended"
        self.on_phase = self.on_limit = lambda: None
        self._listener = None
        if self._reply is not None and not ended:
            await self._cancel(self._reply)

    async def last_figures(self) -> None:
        """After `cancel`, wait until `usage` is final, but not for long."""
        # What is not known in the end stays at what has arrived.
        with contextlib.suppress(TimeoutError, ServingError):
            async with asyncio.timeout(self._limits.last_figure_s):
                await self._cancel_dispatched()
                while self._reply is not None and not self.is_final:
                    for message in await self._reply.receive():
                        self._hear_figures(message)

    async def close(self) -> None:
        """Give back what the reply holds; one that has not ended is cancelled. Idempotent."""
        await self.cancel()
        if self._dispatching is not None:
            self._dispatching.cancel()  # the dispatcher cancels the Job then
        await self._cancel_dispatched()
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.close()

    async def _cancel_dispatched(self) -> None:
        """Cancel the reply whose dispatch nobody has waited for, once that has been made."""
        if (dispatching := self._dispatching) is None:
            return
        await asyncio.wait({dispatching})
        self._dispatching = None
        if not dispatching.cancelled() and dispatching.exception() is None:
            self._reply = dispatching.result()
            await self._cancel(self._reply)

    async def _cancel(self, reply: Reply) -> None:
        try:
            await reply.cancel()
        except ServiceError as error:
            # The broker is away; so is the Job's worker from us, and its queue deadline ends it.
            log.warning(telemetry.JOB_CANCELLED, job_id=self.job.job_id, diagnostic=error.message)

    def _hear_figures(self, message: ReplyMessage) -> None:
        """Take the figures of a message that nobody reads any more."""
        figures = self._figures
        if message.seq < 0 or figures.final is not None or not self._sequence.accept(message):
            return
        self._count(message)
        for delta in message.deltas:
            match delta:
                case Accepted():
                    figures.accepted(delta.input_tokens)
                case Started():
                    figures.started(self.attempt, delta.input_tokens, delta.cached_tokens)
                case Failed(usage=usage) | Completed(usage=usage):
                    figures.broke_off(self.attempt, usage, self._output_tokens)
                case Interrupted():
                    self._lost_attempt = self.attempt

    def _count(self, message: ReplyMessage) -> None:
        """Count the tokens of a message."""
        if message.token_ids:
            self._arrived.add_ids(message)
        else:
            self._spoken += sum(type(delta) in _SPOKEN for delta in message.deltas)


def outcome_of(error: ErrorInfo | None) -> UsageOutcome:
    """For logs, metrics and usage: `completed`, `cancelled` or `failed`."""
    if error is None:
        return "completed"
    return "cancelled" if error.code == "client_closed_request" else "failed"
