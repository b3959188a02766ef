"""One choice of a Job: what the engine yields in, what the reply says out.

It parses, brings log probabilities to their text, counts tokens and knows how the choice ended. A
choice that goes on after an earlier attempt first takes that attempt's ids through the very same
steps (`replay`), which puts everything here into the state that the lost worker was in; what has
arrived already is then left out of what is said.

Chunks carry no meaning: however an engine cuts a choice into chunks, the same is said and counted.
It must not know the transport, and it never waits.

Source: Chat Completions, section 2; Tokenized completions, sections 2 and 4.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from schemas.continuation import Remaining
from schemas.delta import (
    ArgumentsDelta,
    Delta,
    Finished,
    FinishReason,
    PromptDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallStarted,
)
from schemas.errors import GenerationFailed
from schemas.job import ChatPrompt, ChoicePrefix, TokenPrompt
from workers.engines.base import Engine, EngineChunk, EngineFinish, EngineRequest
from workers.parsing.base import PartDelta
from workers.parsing.pipeline import ChoiceParser
from workers.pending_logprobs import PendingLogprobs
from workers.token_report import TokenReport

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class Said(msgspec.Struct, frozen=True):
    """What a chunk adds to the reply.

    Attributes:
        token_ids: Those that the owner may now believe in: nothing of them is held back.
        finished: The choice has ended; the last Delta says how.
    """

    deltas: Sequence[Delta]
    token_ids: tuple[int, ...] = ()
    finished: bool = False


class Choice:
    """The state of one choice.

    Args:
        engine: Tells the tokens of a chunk apart where that matters.
        request: What the engine is asked for.
        parser: Of this choice.
        prefix: What of it earlier attempts have brought to the owner.
        echo: Text of the prompt; empty if it was not asked for.

    Attributes:
        before: Tokens of earlier attempts; they are among `output_tokens` once they are replayed.
        output_tokens: Generated so far, those of earlier attempts included.
        reasoning_tokens: Those of them that are returned as reasoning.
        generated: Tokens of this attempt alone.
    """

    def __init__(
        self,
        engine: Engine,
        request: EngineRequest,
        parser: ChoiceParser,
        *,
        prefix: ChoicePrefix,
        echo: str = "",
    ) -> None:
        job = request.job
        self._engine = engine
        self._request = request
        self._parser = parser
        self._remaining = Remaining(prefix)
        self._number = request.choice
        self._min_tokens = job.sampling.limit.min_tokens
        self._raw = isinstance(job.prompt, TokenPrompt)
        self._visible = isinstance(job.prompt, ChatPrompt) and job.prompt.reasoning.visible
        self._logprobs = PendingLogprobs() if job.sampling.logprobs else None
        wants_report = TokenReport.wanted(job)
        self._report = TokenReport(self._number, echo, job) if wants_report else None
        self._ids = array("I")
        self._told = 0  # of the ids, how many the owner has
        self._left: list[Delta] = []  # what the replay has brought beyond what had arrived
        self._calls = False
        self.before = len(prefix.token_ids)
        self.output_tokens = 0
        self.reasoning_tokens = 0
        self.generated = 0

    def replay(self) -> None:
        """Take what earlier attempts generated. CPU work: some 60 µs an id; any thread will do."""
        for chunk in self._engine.replay(self._request):
            self._ids.extend(chunk.token_ids)
            self._left += self._remaining.of(self._parse(chunk))
        self._told = len(self._ids)

    def prompt(self, chunk: EngineChunk) -> Iterator[PromptDelta]:
        """What the first chunk tells of the prompt and has not arrived yet; a message for each."""
        if self._report is None:
            return
        for piece in self._report.prompt(chunk):
            if self._remaining.prompt_part():
                yield piece

    def feed(self, chunk: EngineChunk) -> Said:
        """Take what the engine yields next.

        Raises:
            ServingError: The choice has failed, or cannot be reported.
        """
        self.generated += chunk.output_tokens
        parts: list[Delta] = []
        if self._must_split(chunk):
            for piece in self._by_token(chunk):
                parts += self._parse(piece)
        else:
            parts += self._parse(chunk)
        self._ids.extend(chunk.token_ids)
        finished = self._finished(chunk)
        if self._logprobs is not None and finished is not None:
            at_limit = chunk.finish is not None and chunk.finish.reason == "length"
            if self._raw or (at_limit and not self._parser.stopped):
                parts += self._logprobs.rest(self._number)
        if self._left:
            parts, self._left = [*self._left, *self._remaining.of(parts)], []
        else:
            parts = [*self._remaining.of(parts)]
        token_ids = self._released(finished is not None)
        deltas: Sequence[Delta] = parts
        if self._report is not None:
            deltas = self._report.around(chunk, token_ids, parts)
        if finished is not None:
            deltas = (*deltas, finished)
        return Said(deltas, token_ids, finished is not None)

    def count(self, chunk: EngineChunk) -> None:
        """Take the last chunk of a choice that was aborted: tokens of which nothing is said."""
        self.generated += chunk.output_tokens
        self.output_tokens += chunk.output_tokens
        if chunk.reasoning_tokens is not None:
            self.reasoning_tokens = chunk.reasoning_tokens
        elif self._visible and self._parser.in_reasoning:
            self.reasoning_tokens += chunk.output_tokens

    def _released(self, finished: bool) -> tuple[int, ...]:
        """The ids whose log probabilities have gone out, or will not.

        Whoever continues the choice generates the others again, with theirs.
        """
        end = len(self._ids)
        if self._logprobs is not None and not finished:
            end = max(self._told, end - len(self._logprobs))
        token_ids = tuple(self._ids[self._told : end])
        self._told = end
        return token_ids

    def _parse(self, chunk: EngineChunk) -> Sequence[PartDelta]:
        """What a chunk says, as far as that is certain."""
        parser = self._parser
        in_reasoning, in_call = parser.in_reasoning, parser.in_call
        self.output_tokens += chunk.output_tokens
        parser.stops_armed = self.output_tokens >= self._min_tokens
        parts: Sequence[PartDelta] = chunk.deltas or (parser.feed(chunk.text) if chunk.text else ())
        if chunk.finish is not None and not parser.stopped:
            parts = (*parts, *parser.finish(cut=chunk.finish.reason == "length"))
        if self._logprobs is not None:
            in_call = in_call or parser.in_call
            parts = self._logprobs.attach(
                chunk.logprobs,
                parts,
                in_answer=not in_reasoning and (not in_call or _has_text(parts)),
                kept_back=parser.kept_back,
            )
        self._calls = self._calls or any(type(part) is ToolCallStarted for part in parts)
        if chunk.reasoning_tokens is not None:
            self.reasoning_tokens = chunk.reasoning_tokens
        elif self._visible:
            self.reasoning_tokens += _thought(chunk, parts, in_reasoning)
        return parts

    def _must_split(self, chunk: EngineChunk) -> bool:
        """Whether the place of something within a chunk of several tokens matters.

        That is: where reasoning begins or ends, which log probabilities go with which text, and
        from where on a stop string ends the choice.
        """
        tokens = len(chunk.token_ids)
        if tokens < 2 or self._parser.transparent:
            return False
        return (
            self._logprobs is not None
            or self.output_tokens < self._min_tokens < self.output_tokens + tokens
            or (self._visible and self._parser.may_turn(chunk.text))
        )

    def _by_token(self, chunk: EngineChunk) -> Sequence[EngineChunk]:
        """A chunk as one per token, which is how whoever continues the choice will see it."""
        before = len(self._ids)
        prefix_ids = (*self._ids, *chunk.token_ids)
        request = msgspec.structs.replace(self._request, prefix_ids=prefix_ids)
        pieces = self._engine.replay(request, before)
        texts = [piece.text for piece in pieces]
        told = "".join(texts)
        if len(pieces) != len(chunk.token_ids) or not chunk.text.startswith(told):
            return (chunk,)
        texts[-1] += chunk.text[len(told) :]  # at its end an engine lets go what it had kept
        each_logprob = len(chunk.logprobs) == len(pieces)
        split = [
            EngineChunk(
                text=text,
                token_ids=piece.token_ids,
                output_tokens=1,
                logprobs=chunk.logprobs[at : at + 1] if each_logprob else (),
            )
            for at, (text, piece) in enumerate(zip(texts, pieces, strict=True))
        ]
        split[-1] = msgspec.structs.replace(
            split[-1],
            output_tokens=chunk.output_tokens - len(split) + 1,
            reasoning_tokens=chunk.reasoning_tokens,
            finish=chunk.finish,
        )
        return split

    def _finished(self, chunk: EngineChunk) -> Finished | None:
        matched: str | int | None
        if self._parser.stopped:
            reason, matched = FinishReason.STOP, self._parser.matched
        elif chunk.finish is None:
            return None
        else:
            reason, matched = _reason(chunk.finish), chunk.finish.matched
        if self._calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return Finished(self._number, reason, matched)


def _reason(finish: EngineFinish) -> FinishReason:
    if reason := _FINISH.get(finish.reason):
        return reason
    raise GenerationFailed("The model failed to answer.", diagnostic=f"engine: {finish.reason}")


def _thought(chunk: EngineChunk, parts: Sequence[PartDelta], in_reasoning: bool) -> int:
    """Tokens of a chunk that are reasoning.

    Several that cannot be told apart are divided as their text is.
    """
    if chunk.output_tokens > 1 and not chunk.token_ids:
        reasoning = sum(len(p.text) for p in parts if isinstance(p, ReasoningDelta))
        answer = sum(len(p.text) for p in parts if isinstance(p, TextDelta | ArgumentsDelta))
        if told := reasoning + answer:
            return round(chunk.output_tokens * reasoning / told)
    return chunk.output_tokens if in_reasoning else 0


def _has_text(parts: Sequence[PartDelta]) -> bool:
    return any(isinstance(part, TextDelta) for part in parts)
