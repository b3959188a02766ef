"""One Delivery from start to settlement: render, generate, parse, reply, ack.

The worker owns nothing: whatever happens here ends in a Delta that tells the owner, and in a
settled Delivery. A Job that was handed out before is not run again but reported, because only its
owner knows what its reader has already seen.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import structlog

from schemas import telemetry
from schemas.delta import (
    OUT_OF_BAND,
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    Interrupted,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import (
    EndpointNotSupported,
    GenerationFailed,
    ModelOverloaded,
    ServingError,
)
from schemas.job import ChatPrompt, TokenPrompt
from schemas.sampling import Constraint
from schemas.transport.base import Delivery
from workers.constraint import calls_allowed, effective_constraint
from workers.engines.base import Engine, EngineChunk, EngineFinish, EngineRequest
from workers.metrics import WorkerMetrics
from workers.parsing.base import PartDelta
from workers.parsing.harmony import BEFORE_FINAL, HARMONY_NAME
from workers.parsing.pipeline import ChoiceParser, build_parser
from workers.parsing.reasoning import REASONING_FORMATS
from workers.parsing.tools import ToolFormat
from workers.pending_logprobs import PendingLogprobs
from workers.prompt import fit_output_limit, length, render
from workers.repetition import until_repeating
from workers.token_report import TokenReport

log = structlog.get_logger()

_THREAD_DECODE_TOKENS = 8_192
"""Prompts of more tokens than this, all together, are decoded off the event loop."""

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class _Cancelled(Exception):
    """Nobody waits for this reply any more."""


class Runner:
    """Runs Deliveries on one engine.

    Args:
        engine: Started.
        worker_id: Named in `Accepted` and `Started`.
        reasoning_format: How this model marks its reasoning; None if it does not reason.
        tool_format: How this model writes tool calls; None if it does not, or not as text.
        repetition_window: Tokens of nothing but repetition that end an answer; 0 for never.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        worker_id: str,
        metrics: WorkerMetrics,
        reasoning_format: str | None = None,
        hidden_reasoning: bool = False,
        tool_format: ToolFormat | None = None,
        repetition_window: int = 0,
    ) -> None:
        self.engine = engine
        self.worker_id = worker_id
        self.metrics = metrics
        self.reasoning_format = reasoning_format
        self.hidden_reasoning = hidden_reasoning
        self.tool_format = tool_format
        self.repetition_window = repetition_window

    async def run(self, delivery: Delivery) -> None:
        """Serve one Delivery and settle it. Raises nothing but `CancelledError`.

        Cancelling this coroutine hands the Job back: its owner is told `Interrupted`.
        """
        run = _Run(self, delivery)
        outcome = "failed"
        try:
            outcome = await run.serve()
        except ServingError as error:
            run.fail(error)
        except asyncio.CancelledError:
            outcome = "interrupted"
            run.send((Interrupted("draining"),))
            raise
        except Exception as error:
            # A fault of ours: no other worker would fare better. Set it aside with its reason.
            log.exception(telemetry.JOB_FAILED, job_id=delivery.job.job_id)
            run.fail(
                GenerationFailed("The model failed to answer.", diagnostic=type(error).__name__)
            )
            await asyncio.shield(delivery.dead_letter(f"worker raised {type(error).__name__}"))
        finally:
            await asyncio.shield(delivery.ack())
            self.metrics.jobs.labels(outcome=outcome).inc()
            log.info(
                f"job.{outcome}",
                job_id=delivery.job.job_id,
                attempt=delivery.job.attempt,
                input_tokens=run.usage().input_tokens,
                output_tokens=run.usage().output_tokens,
            )


class _Run:
    """The state of one Delivery while it runs."""

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._delivery = delivery
        self._job = delivery.job
        self._seq = 0
        self._started = False
        self._input_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._reasoning_tokens = 0
        self._engine_reasoning: dict[int, int] = {}  # per choice, where the engine counts itself
        self._cached: set[int] = set()  # prompts whose cached tokens are counted
        self._echoes: list[str] = []  # text of each prompt, where it was asked for
        self._places = asyncio.Semaphore(max(1, runner.engine.slots // 2))

    def usage(self) -> Usage:
        """Tokens so far. A part is never more than the whole, whatever an engine says."""
        return Usage(
            self._input_tokens,
            min(self._cached_tokens, self._input_tokens),
            self._output_tokens,
            min(self._reasoning_tokens, self._output_tokens),
        )

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

    def _report(self, interrupted: Interrupted) -> None:
        """Tell the owner about an attempt that is, or was, another worker's."""
        job = self._job
        self._delivery.send(ReplyMessage(job.job_id, job.attempt, OUT_OF_BAND, (interrupted,)))

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

    async def serve(self) -> str:
        """Run the Job; returns the outcome for the log.

        Raises:
            ServingError: The reply must end with this error.
        """
        job, delivery = self._job, self._delivery
        if delivery.cancelled.is_set():
            return "cancelled"
        if delivery.redelivered:
            log.info(telemetry.JOB_REDELIVERED, job_id=job.job_id, attempt=job.attempt)
            self._report(Interrupted("redelivered"))
            return "interrupted"
        if time.time() > job.queue_deadline:
            raise ModelOverloaded("The request waited too long for a free worker.")
        prompts, reasoning_open = await self._render()
        lengths = [await self._length(prompt) for prompt in prompts]
        requests = self._requests(prompts, lengths, reasoning_open)
        self._input_tokens = sum(lengths)
        for request in requests[:: job.sampling.n]:
            await self._engine.check(request)
        if delivery.cancelled.is_set():
            return "cancelled"
        self.send((Accepted(self._runner.worker_id, self._input_tokens),))
        if isinstance(job.prompt, TokenPrompt) and job.prompt.echo:
            self._echoes = await self._decode(prompts)
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(requests))
                choices = [group.create_task(self._in_turn(request)) for request in requests]
                await asyncio.wait(choices)
                watcher.cancel()
        except BaseExceptionGroup as group_error:
            first = _first(group_error)
            if isinstance(first, _Cancelled):
                return "cancelled"
            raise first from None
        self.send((Completed(self.usage()),))
        self._runner.metrics.output_tokens.inc(self._output_tokens)
        return "completed"

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
        constraint, stops = self._constraint(reasoning_open), self._engine_stops()
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
                    max_tokens=max_tokens,
                    stop_strings=stops,
                    reasoning_open=reasoning_open,
                    constraint=constraint,
                )
                for choice in range(number * n, (number + 1) * n)
            ]
        return requests

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

    def _parser(self, request: EngineRequest) -> ChoiceParser:
        job = self._job
        chat = job.prompt if isinstance(job.prompt, ChatPrompt) else None
        return build_parser(
            request.choice,
            reasoning_format=self._runner.reasoning_format
            if chat and not chat.continue_last
            else None,
            starts_inside=request.reasoning_open,
            visible=chat is None or chat.reasoning.visible,
            stop=job.sampling.stop,
            template_stops=self._engine.template_stop_strings if chat else (),
            turned_off=chat is not None and chat.reasoning.effort == "none",
            hidden_when_off=self._runner.hidden_reasoning
            and chat is not None
            and not chat.reasoning.enabled,
            tool_format=self._runner.tool_format if calls_allowed(job) else None,
            tools=chat.tools if chat else (),
            single_call=chat is not None and not chat.tool_choice.parallel,
        )

    def _constraint(self, reasoning_open: bool) -> Constraint | None:
        """What restricts the output of an engine that writes raw text."""
        if not self._engine.takes_token_ids:
            return None
        markers = REASONING_FORMATS.get(self._runner.reasoning_format or "")
        if self._runner.reasoning_format == HARMONY_NAME and not calls_allowed(self._job):
            markers = BEFORE_FINAL  # calls bring their own room for reasoning
        return effective_constraint(
            self._job,
            tool_format=self._runner.tool_format,
            reasoning_format=markers,
            reasoning_open=reasoning_open,
        )

    def _engine_stops(self) -> tuple[str, ...]:
        """Stop strings for the engine to end at.

        Only where all text is answer text: they must not act inside reasoning or tool calls. Nor
        before a minimum of tokens, which engines apply to token ids only. The parser looks for
        them in any case and cuts them off.
        """
        chat = self._job.prompt if isinstance(self._job.prompt, ChatPrompt) else None
        if chat is not None and (chat.tools or self._runner.reasoning_format):
            return ()
        if self._job.sampling.limit.min_tokens:
            return ()
        template = self._engine.template_stop_strings if chat else ()
        return self._job.sampling.stop.strings + template

    async def _watch(self, requests: Sequence[EngineRequest]) -> None:
        await self._delivery.cancelled.wait()
        for request in requests:
            # Abort before the iterators are cancelled: the engine then frees the slot at once.
            await self._engine.abort(request.engine_request_id)
        raise _Cancelled

    async def _in_turn(self, request: EngineRequest) -> None:
        """Run one choice as soon as the Job has a place: it leaves half of the slots to others."""
        async with self._places:
            await self._choice(request)

    async def _choice(self, request: EngineRequest) -> None:
        """Run one choice and put its Deltas into the reply."""
        job, choice = self._job, request.choice
        parser = self._parser(request)
        min_tokens, produced = job.sampling.limit.min_tokens, 0
        logprobs = PendingLogprobs() if job.sampling.logprobs else None
        report = self._report_of(choice)
        raw = isinstance(job.prompt, TokenPrompt)
        calls = False
        async with aclosing(self._chunks(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                in_reasoning, in_call = parser.in_reasoning, parser.in_call
                produced += chunk.output_tokens
                parser.stops_armed = produced >= min_tokens
                parts: Sequence[PartDelta] = chunk.deltas or (
                    parser.feed(chunk.text) if chunk.text else ()
                )
                if chunk.finish is not None and not parser.stopped:
                    cut = chunk.finish.reason == "length"
                    parts = (*parts, *parser.finish(cut=cut))
                if logprobs is not None:
                    in_call = in_call or parser.in_call
                    in_answer = not in_reasoning and (not in_call or _has_text(parts))
                    parts = logprobs.attach(
                        chunk.logprobs,
                        parts,
                        in_answer=in_answer,
                        kept_back=parser.kept_back,
                    )
                    ended = chunk.finish is not None or parser.stopped
                    at_limit = chunk.finish is not None and chunk.finish.reason == "length"
                    if ended and (raw or (at_limit and not parser.stopped)):
                        parts = (*parts, *logprobs.rest(choice))
                calls = calls or any(type(part) is ToolCallStarted for part in parts)
                self._count(chunk, choice, parts, in_reasoning)
                finished = self._finished(chunk, choice, parser, calls)
                if report is None:
                    self._write(chunk, choice, parts, finished)
                else:
                    for piece in report.prompt(chunk):
                        self.send((*self._opening(), piece))
                        await asyncio.sleep(0)  # a message of its own, or the reader is overrun
                        await self._delivery.writable()
                    self._write(chunk, choice, report.around(chunk, parts), finished)
                if chunk.finish is not None:
                    return
                if parser.stopped:
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
        return until_repeating(chunks, window)

    def _count(
        self, chunk: EngineChunk, choice: int, parts: Sequence[PartDelta], in_reasoning: bool
    ) -> None:
        self._output_tokens += chunk.output_tokens
        if chunk.reasoning_tokens is not None:
            before = self._engine_reasoning.get(choice, 0)
            self._engine_reasoning[choice] = chunk.reasoning_tokens
            self._reasoning_tokens += chunk.reasoning_tokens - before
        elif self._reasoning_visible:
            self._reasoning_tokens += _thought(chunk, parts, in_reasoning)
        if chunk.input_tokens is not None and isinstance(self._job.prompt, ChatPrompt):
            self._input_tokens = chunk.input_tokens
        prompt = choice // self._job.sampling.n
        if chunk.cached_tokens is not None and prompt not in self._cached:
            self._cached.add(prompt)
            self._cached_tokens += chunk.cached_tokens

    @property
    def _reasoning_visible(self) -> bool:
        prompt = self._job.prompt
        return isinstance(prompt, ChatPrompt) and prompt.reasoning.visible

    def _write(
        self,
        chunk: EngineChunk,
        choice: int,
        parts: Sequence[Delta],
        finished: Finished | None,
    ) -> None:
        ids = ((choice, chunk.token_ids),) if chunk.token_ids else ()
        if self._started and finished is None:
            if parts or ids:
                self.send(parts, ids)
            return
        deltas = [*self._opening(), *parts]
        if finished is not None:
            deltas.append(finished)
        self.send(deltas, ids)

    def _opening(self) -> Sequence[Delta]:
        if self._started:
            return ()
        self._started = True
        usage = self.usage()
        return (Started(self._runner.worker_id, usage.input_tokens, usage.cached_tokens),)

    def _report_of(self, choice: int) -> TokenReport | None:
        if not TokenReport.wanted(self._job):
            return None
        echo = self._echoes[choice // self._job.sampling.n] if self._echoes else ""
        return TokenReport(choice, echo, self._job)

    def _finished(
        self, chunk: EngineChunk, choice: int, parser: ChoiceParser, calls: bool
    ) -> Finished | None:
        matched: str | int | None
        if parser.stopped:
            reason, matched = FinishReason.STOP, parser.matched
        elif chunk.finish is None:
            return None
        else:
            reason, matched = self._reason(chunk.finish), chunk.finish.matched
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return Finished(choice, reason, matched)

    def _reason(self, finish: EngineFinish) -> FinishReason:
        if reason := _FINISH.get(finish.reason):
            return reason
        if self._delivery.cancelled.is_set():
            raise _Cancelled
        raise GenerationFailed("The model failed to answer.", diagnostic=f"engine: {finish.reason}")


def _thought(chunk: EngineChunk, parts: Sequence[PartDelta], in_reasoning: bool) -> int:
    """Tokens of a chunk that are reasoning; of several it is their text that tells."""
    if chunk.output_tokens > 1:
        reasoning = sum(len(p.text) for p in parts if isinstance(p, ReasoningDelta))
        answer = sum(len(p.text) for p in parts if isinstance(p, TextDelta | ArgumentsDelta))
        if told := reasoning + answer:
            return round(chunk.output_tokens * reasoning / told)
    return chunk.output_tokens if in_reasoning else 0


def _has_text(parts: Sequence[PartDelta]) -> bool:
    return any(isinstance(part, TextDelta) for part in parts)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
