"""One Delivery from start to settlement: render, generate, reply, ack.

The worker owns nothing: whatever happens here ends in a Delta that tells the owner, and in a
settled Delivery. A Job that was handed out before is not run again but reported, because only its
owner knows what its reader has already seen; the owner then sends it again with what is known of
it, and it goes on from there. What is said of a choice is `workers.choice`'s to know.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from schemas import telemetry
from schemas.delta import (
    ALIVE,
    OUT_OF_BAND,
    Accepted,
    Completed,
    Delta,
    Failed,
    Interrupted,
    ReplyMessage,
    Started,
    Usage,
)
from schemas.errors import (
    ClientClosedRequest,
    EndpointNotSupported,
    GenerationFailed,
    ModelOverloaded,
    ServingError,
)
from schemas.job import ChatPrompt, ChoicePrefix, Job, TokenPrompt
from schemas.transport.base import Delivery
from workers.choice import Choice
from workers.engines.base import Engine, EngineChunk, EngineFinish, EngineRequest
from workers.metrics import WorkerMetrics
from workers.output_format import OutputFormat
from workers.prompt import fit_output_limit, length, render
from workers.repetition import until_repeating
from workers.suspects import Suspect, Suspects

if TYPE_CHECKING:
    from workers.tracing import RunTracing

log = structlog.get_logger()

_THREAD_DECODE_TOKENS = 8_192
"""Prompts of more tokens than this, all together, are decoded off the event loop."""

_THREAD_REPLAY_TOKENS = 256
"""Prefixes of more tokens than this are replayed off the event loop; some 15 ms."""


_LAST_CHUNKS_S = 0.5
"""How long an engine has to end what was aborted, and to say how much it had become by then."""


class _Cancelled(Exception):
    """Nobody waits for this reply any more."""


class Runner:
    """Runs Deliveries on one engine.

    Args:
        engine: Started.
        worker_id: Named in `Accepted` and `Started`.
        output_format: How the engine's model writes reasoning and calls.
        repetition_window: Tokens of nothing but repetition that end an answer; 0 for never.
        tracing: Makes spans of runs; None where nobody wants any.

    Attributes:
        engine_lost: The engine generates no more. Set it before the runs are cancelled, so that
            each tells its owner.
        suspects: Where Jobs that may have cost another worker its life are tested.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        worker_id: str,
        metrics: WorkerMetrics,
        output_format: OutputFormat,
        repetition_window: int = 0,
        tracing: RunTracing | None = None,
    ) -> None:
        self.engine = engine
        self.worker_id = worker_id
        self.metrics = metrics
        self.output_format = output_format
        self.repetition_window = repetition_window
        self.tracing = tracing
        self.engine_lost = False
        self.suspects = Suspects()
        self.accepted: set[Run] = set()

    def begin(self, delivery: Delivery) -> Run:
        """The run of a Delivery, for `drive`."""
        return Run(self, delivery)

    async def run(self, delivery: Delivery) -> None:
        """Serve one Delivery and settle it. Raises nothing but `CancelledError`."""
        await self.drive(self.begin(delivery))

    async def drive(self, run: Run) -> None:
        """Serve a Delivery and settle it. Raises nothing but `CancelledError`.

        Cancelling this coroutine hands the Job back: its owner is told `Interrupted`.
        """
        delivery = run.delivery
        outcome = "failed"
        try:
            outcome = await run.serve()
        except asyncio.CancelledError:
            outcome = "yielded" if run.gives_way else "interrupted"
            run.interrupt()
            raise
        except Exception as error:
            if self.engine_lost:  # whatever it was, the engine was dying
                outcome = "interrupted"
                run.interrupt()
            elif isinstance(error, ServingError):
                run.fail(error)
            else:
                await _set_aside(run, delivery, error)
        finally:
            run.close()
            await asyncio.shield(delivery.ack())
            if self.tracing is not None:
                self.tracing.settled(run, outcome)
            self.metrics.settled(
                outcome, run.usage(), generated=run.generated(), prefill_s=run.prefill_s
            )
            log.info(
                f"job.{outcome}",
                job_id=delivery.job.job_id,
                attempt=delivery.job.attempt,
                input_tokens=run.usage().input_tokens,
                output_tokens=run.usage().output_tokens,
            )

    def show_alive(self) -> None:
        """Have every Job say that it is well that has said nothing since the last call."""
        for run in self.accepted:
            run.show_alive()


async def _set_aside(run: Run, delivery: Delivery, error: Exception) -> None:
    """A fault of ours: no other worker would fare better. Keep it with its reason."""
    log.exception(telemetry.JOB_FAILED, job_id=delivery.job.job_id)
    run.fail(GenerationFailed("The model failed to answer.", diagnostic=type(error).__name__))
    await asyncio.shield(delivery.dead_letter(f"worker raised {type(error).__name__}"))


class Run:
    """The state of one Delivery while it runs.

    Attributes:
        gives_way: It was told to end for the sake of a live Job.
        begun_at, accepted_at, started_at: When it came, when it was accepted, and when its first
            token came, in the event loop's time.
    """

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._delivery = delivery
        self._job = delivery.job
        self._task: asyncio.Task[object] | None = None
        self._ended = False
        self.gives_way = False
        self._seq = 0
        self._started = False
        self._silent = False  # nothing was said since this was set
        self._generated_before = 0  # tokens, when it was set
        self._suspect: Suspect | None = None  # while it is tested
        self._input_tokens = 0
        self._cached_tokens = 0
        self._cached: set[int] = set()  # prompts whose cached tokens are counted
        self._echoes: list[str] = []  # text of each prompt, where it was asked for
        self._choices: list[Choice] = []
        self._turns: list[asyncio.Task[None]] = []  # one per choice, once they have begun
        self._aborted = False  # a choice has ended early, for nobody waits for it
        # Batch work takes no more of the engine than the one slot it is counted as.
        places = 1 if self._job.job_class == "batch" else max(1, runner.engine.slots // 2)
        self._places = asyncio.Semaphore(places)
        self.begun_at = asyncio.get_running_loop().time()
        self.accepted_at: float | None = None
        self.started_at: float | None = None

    @property
    def prefill_s(self) -> float | None:
        """Seconds from its acceptance to its first token, if that came."""
        if self.accepted_at is None or self.started_at is None:
            return None
        return self.started_at - self.accepted_at

    @property
    def delivery(self) -> Delivery:
        return self._delivery

    @property
    def job(self) -> Job:
        return self._job

    def at_stake(self) -> int:
        """Tokens that the engine has worked on: prompt and output, once it has generated some."""
        if not self.generated():
            return 0
        return self._input_tokens + sum(choice.output_tokens for choice in self._choices)

    def waits(self, since: float) -> bool:
        """Whether it was accepted before then and its engine has not begun to answer."""
        return self.accepted_at is not None and self.accepted_at < since and not self._started

    def give_way(self) -> None:
        """End this attempt; it may go on later, after what its owner has. Idempotent."""
        if not self.gives_way and not self._ended:
            self.gives_way = True
            if self._task is not None:  # else it has not begun, and will not
                self._task.cancel()

    def usage(self) -> Usage:
        """Tokens so far, those of earlier attempts included.

        A part is never more than the whole, whatever an engine says.
        """
        output_tokens = sum(max(choice.output_tokens, choice.before) for choice in self._choices)
        reasoning_tokens = sum(choice.reasoning_tokens for choice in self._choices)
        return Usage(
            self._input_tokens,
            min(self._cached_tokens, self._input_tokens),
            output_tokens,
            min(reasoning_tokens, output_tokens),
        )

    def generated(self) -> int:
        """Tokens that this worker has generated."""
        return sum(choice.generated for choice in self._choices)

    def send(
        self,
        deltas: Sequence[Delta],
        token_ids: tuple[tuple[int, tuple[int, ...]], ...] = (),
    ) -> None:
        """Put Deltas into the reply."""
        job = self._job
        self._delivery.send(
            ReplyMessage(job.job_id, job.attempt, self._seq, tuple(deltas), token_ids)
        )
        self._seq += 1
        self._silent = False

    def show_alive(self) -> None:
        """Say that all is well, if nothing was said since the last call.

        Where tokens come of which nothing can be said yet, a message in order tells of progress.
        """
        generated = self.generated()
        if self._silent and generated > self._generated_before:
            self.send(())
        elif self._silent:
            self._delivery.send(ReplyMessage(self._job.job_id, self._job.attempt, ALIVE, ()))
        self._generated_before = generated
        self._silent = True

    def _report(self, interrupted: Interrupted) -> None:
        """Tell the owner about an attempt that is, or was, another worker's."""
        job = self._job
        self._delivery.send(ReplyMessage(job.job_id, job.attempt, OUT_OF_BAND, (interrupted,)))

    def interrupt(self) -> None:
        """End the reply as one that is to go on elsewhere."""
        # A Job that never reached the engine has no part in its end.
        lost = self._runner.engine_lost and self in self._runner.accepted
        if lost:
            self.send((Interrupted("engine_lost"),))
        else:
            self.send((Interrupted("yielded" if self.gives_way else "draining"),))

    def fail(self, error: ServingError) -> None:
        """End the reply with an error."""
        if error.diagnostic:
            log.warning(
                telemetry.JOB_FAILED,
                job_id=self._job.job_id,
                code=error.info().code,
                diagnostic=error.diagnostic,
            )
        self.send((Failed(error.info(), self.usage()),))

    def _cancel(self) -> str:
        """End a reply that nobody waits for; its owner may still want to know what it took."""
        self.send((Failed(_CLIENT_CLOSED, self.usage()),))
        return "cancelled"

    def close(self) -> None:
        """The reply has ended. Idempotent."""
        self._ended = True
        self._runner.accepted.discard(self)
        self._clear()

    async def serve(self) -> str:
        """Run the Job; returns the outcome for the log.

        Raises:
            ServingError: The reply must end with this error.
        """
        job, delivery = self._job, self._delivery
        self._task = asyncio.current_task()
        if self.gives_way:
            raise asyncio.CancelledError
        if delivery.cancelled.is_set():
            return self._cancel()
        if delivery.redelivered:
            log.info(telemetry.JOB_REDELIVERED, job_id=job.job_id, attempt=job.attempt)
            self._report(Interrupted("redelivered"))
            return "interrupted"
        if time.time() > job.queue_deadline:
            raise _too_late()
        prompts, reasoning_open = await self._render()
        lengths = [await self._length(prompt) for prompt in prompts]
        requests = self._requests(prompts, lengths, reasoning_open)
        self._input_tokens = sum(lengths)
        if job.continuation is None:  # else it was found good before, and is half answered
            for request in requests[:: job.sampling.n]:
                await self._engine.check(request)
        if delivery.cancelled.is_set():
            return self._cancel()
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(requests))
                await self._generate(requests, prompts)
                watcher.cancel()
        except BaseExceptionGroup as group_error:
            first = _first(group_error)
            if isinstance(first, _Cancelled):
                return self._cancel()
            raise first from None
        if self._aborted:
            return self._cancel()
        self.send((*self._opening(), Completed(self.usage())))
        self._ended = True
        return "completed"

    async def _generate(
        self, requests: Sequence[EngineRequest], prompts: Sequence[tuple[int, ...]]
    ) -> None:
        """Accept the Job and run all its choices."""
        job = self._job
        if job.suspect:
            await self._wait_for_test()
        self.send((self._acceptance(),))
        self.accepted_at = asyncio.get_running_loop().time()
        self._runner.accepted.add(self)
        if isinstance(job.prompt, TokenPrompt) and job.prompt.echo:
            self._echoes = await self._decode(prompts)
        self._choices = [self._choice(request) for request in requests]
        async with asyncio.TaskGroup() as group:
            self._turns = [
                group.create_task(self._in_turn(request, choice))
                for request, choice in zip(requests, self._choices, strict=True)
            ]

    async def _wait_for_test(self) -> None:
        """Wait until no other suspect may be about to take this worker down.

        Raises:
            ModelOverloaded: That took longer than the Job may wait.
        """
        suspect = Suspect(exclusive=self._job.exclusive, on_company=self._tell_of_company)
        try:
            async with asyncio.timeout(self._job.queue_deadline - time.time()):
                await self._runner.suspects.test(suspect)
        except TimeoutError:
            raise _too_late() from None
        self._suspect = suspect

    def _acceptance(self) -> Accepted:
        alone = self._suspect is None or self._suspect.alone
        return Accepted(self._runner.worker_id, self._input_tokens, alone)

    def _tell_of_company(self) -> None:
        job = self._job
        self._delivery.send(ReplyMessage(job.job_id, job.attempt, ALIVE, (self._acceptance(),)))

    def _clear(self) -> None:
        if self._suspect is not None:
            self._runner.suspects.clear(self._suspect)
            self._suspect = None

    async def _length(self, prompt_ids: tuple[int, ...]) -> int:
        """Tokens of a prompt; without its images where those are not known yet."""
        tokens = await length(self._engine, self._job, prompt_ids)
        return len(prompt_ids) if tokens is None else tokens

    def _requests(
        self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], reasoning_open: bool
    ) -> list[EngineRequest]:
        """One per prompt and choice, in the order of `Job.choices`."""
        job, n = self._job, self._job.sampling.n
        limit, label = job.sampling.limit, job.sampling.engine.label
        name = f"{job.job_id}.{job.attempt}"
        constraint = None
        if self._engine.takes_token_ids:
            output_format = self._runner.output_format
            constraint = output_format.constraint(job, reasoning_open=reasoning_open)
        stops = self._runner.output_format.engine_stops(job)
        requests = []
        for number, (prompt_ids, prompt_tokens) in enumerate(zip(prompts, lengths, strict=True)):
            max_tokens = limit.max_tokens + limit.headroom
            if self._engine.takes_token_ids:
                window = self._engine.card.context_length
                max_tokens = fit_output_limit(limit, prompt_tokens, window)
            requests += [
                EngineRequest(
                    engine_request_id=f"{name}.{choice}:{label}" if label else f"{name}.{choice}",
                    job=job,
                    choice=choice,
                    prompt_ids=prompt_ids,
                    prefix_ids=self._prefix(choice).token_ids,
                    max_tokens=max_tokens,
                    stop_strings=stops,
                    reasoning_open=reasoning_open,
                    constraint=constraint,
                )
                for choice in range(number * n, (number + 1) * n)
            ]
        return requests

    def _prefix(self, choice: int) -> ChoicePrefix:
        """What earlier attempts have brought to the owner of a choice."""
        continuation = self._job.continuation
        return ChoicePrefix() if continuation is None else continuation.choices[choice]

    async def _render(self) -> tuple[tuple[tuple[int, ...], ...], bool]:
        """The prompts as token ids, and whether they end inside an open reasoning part."""
        if not self._engine.takes_token_ids:
            if isinstance(self._job.prompt, TokenPrompt):
                raise EndpointNotSupported("This model has no text completions.", param="model")
            return ((),), False
        tokenizer = self._engine.tokenizer
        assert tokenizer is not None, "an engine that takes token ids has a tokenizer"
        match self._job.prompt:
            case TokenPrompt(prompts=prompts):
                return prompts, False
            case ChatPrompt():
                ids, reasoning_open = await render(tokenizer, self._job)
                return (ids,), reasoning_open

    async def _decode(self, prompts: Sequence[tuple[int, ...]]) -> list[str]:
        """The text of each prompt."""
        tokenizer, sampling = self._engine.tokenizer, self._job.sampling
        assert tokenizer is not None, "an engine that takes token ids has a tokenizer"
        decode = functools.partial(
            tokenizer.decode,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        if sum(map(len, prompts)) > _THREAD_DECODE_TOKENS:
            return [await asyncio.to_thread(decode, prompt) for prompt in prompts]
        return [decode(prompt) for prompt in prompts]

    async def _watch(self, requests: Sequence[EngineRequest]) -> None:
        await self._delivery.cancelled.wait()
        for request in requests:
            # Abort before the iterators are cancelled: the engine then frees the slot at once.
            await self._engine.abort(request.engine_request_id)
        if self._turns:  # what the engine has generated until then is on its way, and counts
            await asyncio.wait(self._turns, timeout=_LAST_CHUNKS_S)
        raise _Cancelled

    def _choice(self, request: EngineRequest) -> Choice:
        echo = self._echoes[request.choice // self._job.sampling.n] if self._echoes else ""
        return Choice(
            self._engine,
            request,
            self._runner.output_format.parser(request),
            prefix=self._prefix(request.choice),
            echo=echo,
        )

    async def _in_turn(self, request: EngineRequest, choice: Choice) -> None:
        """Run one choice as soon as the Job has a place: it leaves most of the slots to others."""
        async with self._places:
            if len(request.prefix_ids) > _THREAD_REPLAY_TOKENS:
                await asyncio.to_thread(choice.replay)
            elif request.prefix_ids:
                choice.replay()
            if self._prefix(request.choice).finished:
                return
            if self._delivery.cancelled.is_set():
                self._aborted = True
                return
            await self._run(request, choice)

    async def _run(self, request: EngineRequest, choice: Choice) -> None:
        """Run one choice and put its Deltas into the reply."""
        async with aclosing(self._chunks(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                self._read_figures(chunk, request.choice)
                if self._is_aborted(chunk.finish):
                    choice.count(chunk)
                    self._aborted = True
                    return
                for piece in choice.prompt(chunk):
                    self.send((*self._opening(), piece))
                    await asyncio.sleep(0)  # a message of its own, or the reader is overrun
                    await self._delivery.writable()
                said = choice.feed(chunk)
                ids = ((request.choice, said.token_ids),) if said.token_ids else ()
                if said.deltas or ids or not self._started:
                    self.send((*self._opening(), *said.deltas), ids)
                if chunk.output_tokens:
                    self._clear()
                if said.finished:
                    if chunk.finish is None:
                        await self._engine.abort(request.engine_request_id)
                    return
                await self._delivery.writable()
        raise GenerationFailed("The model failed to answer.", diagnostic="engine ended mid-choice")

    def _chunks(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """What the engine yields, ended where a conversation's answer only repeats itself.

        A constraint may ask for just that.
        """
        chunks = self._engine.generate(request)
        window = self._runner.repetition_window
        if not window or request.constraint or isinstance(self._job.prompt, TokenPrompt):
            return chunks
        return until_repeating(chunks, window, request.prefix_ids)

    def _is_aborted(self, finish: EngineFinish | None) -> bool:
        aborted = finish is not None and finish.reason == "abort"
        return aborted and self._delivery.cancelled.is_set()

    def _read_figures(self, chunk: EngineChunk, choice: int) -> None:
        """Take what a chunk tells of the prompt."""
        if chunk.input_tokens is not None and isinstance(self._job.prompt, ChatPrompt):
            self._input_tokens = chunk.input_tokens
        prompt = choice // self._job.sampling.n
        if chunk.cached_tokens is not None and prompt not in self._cached:
            self._cached.add(prompt)
            self._cached_tokens += chunk.cached_tokens

    def _opening(self) -> Sequence[Delta]:
        if self._started:
            return ()
        self._started = True
        self.started_at = asyncio.get_running_loop().time()
        usage = self.usage()
        return (Started(self._runner.worker_id, usage.input_tokens, usage.cached_tokens),)


_CLIENT_CLOSED = ClientClosedRequest("The request was cancelled.").info()


def _too_late() -> ModelOverloaded:
    return ModelOverloaded("The request waited too long for a free worker.")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
