"""The records of an upstream's answer to engine chunks.

Servers that call themselves compatible differ in small things, so reading is tolerant wherever one
meaning is certain, and strict where a failure could be taken for an answer. No network here.

Source: the Chat Completions API; fields of vLLM and SGLang beyond it where named.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from schemas.delta import ReasoningDelta, TextDelta, TokenLogprob, TopLogprob
from schemas.job import ChatPrompt
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.upstream_calls import CallFragment, CallSequence
from workers.engines.upstream_errors import failed, reported_error
from workers.parsing.base import PartDelta
from workers.parsing.stop import StopScanner

UNKNOWN_TOKEN_ID: Final = -1
"""Stands in log probabilities, where such servers tell a token's text only."""


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallFragment] | None = None


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Logprob(_TopLogprob):
    top_logprobs: list[_TopLogprob] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    stop_reason: str | int | None = None  # vLLM: the stop string or token id
    matched_stop: str | int | None = None  # SGLang: the same


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    reasoning_tokens: int | None = None  # SGLang


class _Record(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None


_record: Final = msgspec.json.Decoder(_Record)

_FINISH: Final = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "abort": "abort",
}
"""By the API's words, and those of servers that keep their engine's own."""


class ReplyReader:
    """One reply's records to engine chunks.

    Args:
        request: What was asked; says which Deltas' choice it is and what ends it.

    Attributes:
        finish: How the choice ended, once that is known.
        stopped: We have ended it ourselves, at a stop string; nothing more need be read.
        done: The server has said that nothing follows.
    """

    def __init__(self, request: EngineRequest) -> None:
        prompt = request.job.prompt
        self._choice = request.choice
        self._stop = request.job.sampling.stop
        self._visible = not isinstance(prompt, ChatPrompt) or prompt.reasoning.visible
        self._scanner = StopScanner(self._stop)
        self._calls = CallSequence(request.choice)
        self._deltas: list[PartDelta] = []
        self._behind: list[PartDelta] = []  # text and reasoning that waits for a call's end
        self._logprobs: list[TokenLogprob] = []
        self._counted = 0
        self._reasoned = 0
        self._taken = 0
        self._usage: _Usage | None = None
        self.finish: EngineFinish | None = None
        self.stopped = False
        self.done = False

    def feed(self, data: bytes) -> None:
        """Take one record.

        Raises:
            ServingError: It tells a failure, or is not what it should be.
        """
        if self.done or self.stopped:
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            record = _record.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if self.finish is not None:  # the answer is whole, whatever this was to be
                self.done = True
                return
            raise failed(f"upstream record: {type(error).__name__}") from None
        if record.error or record.object == "error":
            raise reported_error(data)
        if record.usage is not None:
            self._usage = record.usage
        for choice in record.choices or ():
            if choice.delta is not None:
                self._part(choice.delta, choice.logprobs)
            if choice.finish_reason and not self.stopped:
                self._finish(choice)

    def take(self) -> EngineChunk | None:
        """What has come since the last call; None if nothing."""
        if not self._deltas and self._counted == self._taken:
            return None
        chunk = EngineChunk(
            deltas=tuple(self._deltas),
            logprobs=tuple(self._logprobs),
            output_tokens=self._counted - self._taken,
        )
        self._deltas.clear()
        self._logprobs.clear()
        self._taken = self._counted
        return chunk

    def last(self) -> EngineChunk:
        """The last chunk, with the end and the server's own figures where it gave them.

        Raises:
            GenerationFailed: The stream ended without an end of the choice.
        """
        if self.finish is None:
            raise failed("upstream ended its stream without a finish_reason")
        if not self.stopped:
            self._flush_text()
            self._deltas += self._calls.finish()
        self._deltas += self._behind
        usage = self._usage or _Usage()
        total = self._counted if usage.completion_tokens is None else usage.completion_tokens
        reasoning = usage.reasoning_tokens
        if usage.completion_tokens_details is not None:
            reasoning = usage.completion_tokens_details.reasoning_tokens
        if reasoning is None:
            reasoning = min(self._reasoned, total)
        cached = usage.prompt_tokens_details
        return EngineChunk(
            deltas=tuple(self._deltas),
            logprobs=tuple(self._logprobs),
            output_tokens=total - self._taken,
            input_tokens=usage.prompt_tokens,
            cached_tokens=cached.cached_tokens if cached else None,
            reasoning_tokens=reasoning if self._visible else 0,
            finish=self.finish,
        )

    def _part(self, delta: _Delta, logprobs: _Logprobs | None) -> None:
        # Some servers send the same text under both names.
        reasoning = delta.reasoning_content or delta.reasoning
        text = delta.content or delta.refusal
        if reasoning or text or delta.tool_calls:
            # As good as every server sends one token per record; `last` puts it right.
            self._counted += 1
            self._reasoned += bool(reasoning)
        if reasoning and self._visible:
            self._flush_text()
            self._emit(ReasoningDelta(self._choice, reasoning))
        if text:
            self._logprobs += _token_logprobs(logprobs)
            self._text(self._scanner.feed(text))
            if self._scanner.stopped:
                self.stopped = True
                self.finish = EngineFinish(reason="stop", matched=self._scanner.matched)
                return
        if delta.tool_calls:
            self._flush_text()
            for call in delta.tool_calls:
                self._deltas += self._calls.feed(call)
            if self._behind and not self._calls.unfinished:
                self._deltas += self._behind
                self._behind.clear()
                self._calls.close()

    def _finish(self, choice: _Choice) -> None:
        reason = _FINISH.get(choice.finish_reason or "")
        if reason is None:
            raise failed("upstream ended with an unknown finish_reason")
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if self._calls else "stop"
        matched = choice.matched_stop if choice.stop_reason is None else choice.stop_reason
        if matched not in self._stop.strings and matched not in self._stop.token_ids:
            matched = None
        self.finish = EngineFinish(reason=reason, matched=matched)

    def _text(self, text: str) -> None:
        if text:
            self._emit(TextDelta(self._choice, text))

    def _emit(self, delta: TextDelta | ReasoningDelta) -> None:
        """Pass text or reasoning on, unless it came amid a call."""
        if self._behind or self._calls.unfinished:
            self._behind.append(delta)
        else:
            self._deltas.append(delta)
            self._calls.close()

    def _flush_text(self) -> None:
        self._text(self._scanner.finish())


def _token_logprobs(logprobs: _Logprobs | None) -> list[TokenLogprob]:
    def raw(token: _TopLogprob) -> bytes:
        return token.token.encode() if token.bytes is None else bytes(token.bytes)

    if logprobs is None:
        return []
    return [
        TokenLogprob(
            UNKNOWN_TOKEN_ID,
            token.token,
            raw(token),
            token.logprob,
            tuple(
                TopLogprob(UNKNOWN_TOKEN_ID, top.token, raw(top), top.logprob)
                for top in token.top_logprobs or ()
            ),
        )
        for token in logprobs.content or ()
    ]
