"""Deltas -> Chat Completions chunks, or one chat completion.

On the path of every text and reasoning Delta nothing is built but the bytes themselves: all that
does not change between two chunks is encoded beforehand.

Whitespace that only separates a tool call from its surroundings is dropped: a text part (text
between two parts of another kind) with nothing but whitespace in it that comes right before a call
or anywhere after one. So whitespace is held back until it is known what it is.

That rule is also in `parts.py`. It is kept here a second time because most Deltas are text, and a
chunk of text needs no part: with `Parts` in between, not half as many Deltas pass per second.

Source: Chat Completions, sections 6 (body), 7 (stream), 8 (tool calls) and 9 (log probabilities);
dialect profiles, #9; failures, sections 1 and 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from ingress.dialects import envelope, sse, wire_json
from ingress.dialects.base import Frame, Stamp
from ingress.dialects.chat_calls import Call, CustomCall, FunctionCall, LegacyCall
from ingress.dialects.logprobs import entries as logprob_entries
from schemas.delta import (
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ErrorInfo, ProtocolViolation
from schemas.job import Job

_NO_FRAMES: tuple[Frame, ...] = ()

_END_OF_CHOICE = b',"finish_reason":null,"logprobs":null}'


class _Choice:
    """What has become of one choice so far.

    Attributes:
        part: What was fed last. `blank` is a text part with only whitespace so far, held back.
        head, text_head, reasoning_head: How a chunk of this choice begins, up to the value of
            `delta`, of `delta.content`, of `delta.reasoning_content`.
    """

    __slots__ = (
        "calls",
        "content",
        "finish_reason",
        "head",
        "held",
        "held_logprobs",
        "index",
        "logprobs",
        "matched",
        "part",
        "reasoning",
        "reasoning_head",
        "text_head",
    )

    def __init__(self, index: int, chunk_head: bytes) -> None:
        self.index = index
        self.head = chunk_head + b'{"index":%d,"delta":' % index
        self.text_head = self.head + b'{"content":'
        self.reasoning_head = self.head + b'{"reasoning_content":'
        self.part: Literal["none", "text", "blank", "reasoning", "call"] = "none"
        self.held: list[str] = []
        self.held_logprobs: list[TokenLogprob] = []
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[Call] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.matched: str | int | None = None


class ChatEncoder:
    """One reply in the Chat Completions dialect.

    Args:
        job: How many choices there are, and whether log probabilities were asked for.
        stamp: Ids and clock.
        include_usage: The request asked for usage in the stream.
        service_tier: Echoed, if the request set one.
        custom_tools: Names of the tools whose calls are written as custom ones.
        legacy_calls: A call is written as `function_call`, which has room for one.
    """

    def __init__(
        self,
        job: Job,
        stamp: Stamp,
        *,
        include_usage: bool,
        service_tier: str | None,
        custom_tools: frozenset[str],
        legacy_calls: bool,
    ) -> None:
        self._stamp = stamp
        self._with_logprobs = job.sampling.logprobs
        self._top_logprobs = job.sampling.top_logprobs
        self._sends_usage = include_usage or stamp.profile.usage_unasked
        self._service_tier = service_tier
        self._custom_tools = custom_tools
        self._legacy_calls = legacy_calls
        self._usage: Usage | None = None

        fields = self._fields("chat.completion.chunk")
        # Everything up to the first choice: the object without its brace, and the open array.
        self._chunk_head = sse.DATA + wire_json.encode(fields)[:-1] + b',"choices":['
        self._chunk_end = b'],"usage":null}' + sse.END if include_usage else b"]}" + sse.END
        # After a value inside `delta`, and after `delta` itself.
        self._value_end = b"}" + _END_OF_CHOICE + self._chunk_end
        self._delta_end = _END_OF_CHOICE + self._chunk_end
        self._choices = [_Choice(index, self._chunk_head) for index in range(job.sampling.n)]

    def _fields(self, kind: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": self._stamp.response_id,
            "object": kind,
            "created": self._stamp.created,
            "model": self._stamp.model,
        }
        if self._service_tier is not None:
            fields["service_tier"] = self._service_tier
        return fields

    # --- The stream ------------------------------------------------------------------------------

    def open(self) -> Sequence[Frame]:
        return tuple(
            choice.head + b'{"role":"assistant","content":""}' + self._delta_end
            for choice in self._choices
        )

    def feed(self, delta: Delta) -> Sequence[Frame]:
        kind = type(delta)
        if kind is TextDelta:
            return self._text(delta)  # type: ignore[arg-type]  # `is` on types does not narrow
        if kind is ReasoningDelta:
            return self._reasoning(delta)  # type: ignore[arg-type]  # as above
        match delta:
            case ArgumentsDelta():
                return self._arguments(delta)
            case ToolCallStarted():
                return self._tool_call(delta)
            case Finished():
                return self._finished(delta)
            case Completed():
                return self._completed(delta)
            case Failed():
                return self.fail(delta.error)
        return _NO_FRAMES

    def fail(self, error: ErrorInfo, usage: Usage | None = None) -> Sequence[Frame]:
        return (envelope.error_record(error, self._stamp.request_id),)

    def keep_alive(self) -> Sequence[Frame]:
        return (sse.KEEP_ALIVE,)

    # --- Text and reasoning ----------------------------------------------------------------------

    def _text(self, delta: TextDelta) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        text = delta.text
        if choice.part != "text":
            choice.part = "blank"
            choice.held.append(text)
            choice.held_logprobs.extend(delta.logprobs)
            if not text or text.isspace():
                return _NO_FRAMES
            choice.part = "text"
            return (*self._end_call(choice, complete=True), *self._release(choice))
        return self._emit_text(choice, text, delta.logprobs)

    def _reasoning(self, delta: ReasoningDelta) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        text = delta.text
        if not text:
            return _NO_FRAMES
        settled = _NO_FRAMES
        if choice.part != "reasoning":
            settled = (*self._settle(choice), *self._end_call(choice, complete=True))
            choice.part = "reasoning"
        choice.reasoning.append(text)
        frame = choice.reasoning_head + wire_json.encode_text(text) + self._value_end
        return (*settled, frame) if settled else (frame,)

    def _settle(self, choice: _Choice) -> tuple[Frame, ...]:
        """Ends the current part because one other than a tool call follows, or nothing."""
        if choice.part != "blank":
            return _NO_FRAMES
        if choice.calls:
            self._drop(choice)
            return _NO_FRAMES
        return self._release(choice)

    def _release(self, choice: _Choice) -> tuple[Frame, ...]:
        text, logprobs = "".join(choice.held), tuple(choice.held_logprobs)
        self._drop(choice)
        return self._emit_text(choice, text, logprobs)

    def _drop(self, choice: _Choice) -> None:
        choice.held.clear()
        choice.held_logprobs.clear()

    def _emit_text(
        self, choice: _Choice, text: str, logprobs: tuple[TokenLogprob, ...]
    ) -> tuple[Frame, ...]:
        if not self._with_logprobs or not logprobs:
            if not text:
                return _NO_FRAMES
            choice.content.append(text)
            return (choice.text_head + wire_json.encode_text(text) + self._value_end,)
        entries = logprob_entries(logprobs, self._top_logprobs)
        choice.content.append(text)
        choice.logprobs.extend(entries)
        end = b'},"finish_reason":null,"logprobs":%b}' % wire_json.encode(_logprobs(entries))
        return (choice.text_head + wire_json.encode_text(text) + end + self._chunk_end,)

    # --- Tool calls ------------------------------------------------------------------------------

    def _tool_call(self, delta: ToolCallStarted) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        self._drop(choice)
        choice.part = "call"
        ended = self._end_call(choice, complete=True)
        if self._legacy_calls and choice.calls:
            return ended
        call = self._new_call(delta)
        choice.calls.append(call)
        return (*ended, *self._chunk(choice, call.open()))

    def _new_call(self, delta: ToolCallStarted) -> Call:
        if self._legacy_calls:
            return LegacyCall(delta.name)
        call_id = _call_id(self._stamp.response_id, delta.choice, delta.call)
        style = CustomCall if delta.name in self._custom_tools else FunctionCall
        return style(call_id, delta.call, delta.name)

    def _arguments(self, delta: ArgumentsDelta) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        if not delta.text or delta.call >= len(choice.calls):
            return _NO_FRAMES
        return self._chunk(choice, choice.calls[delta.call].grow(delta.text))

    def _end_call(self, choice: _Choice, *, complete: bool) -> tuple[Frame, ...]:
        """The latest call has ended, or was cut off; does nothing the second time."""
        return self._chunk(
            choice, choice.calls[-1].close(complete=complete) if choice.calls else None
        )

    def _chunk(self, choice: _Choice, delta: bytes | None) -> tuple[Frame, ...]:
        return (choice.head + delta + self._delta_end,) if delta else _NO_FRAMES

    # --- Ends ------------------------------------------------------------------------------------

    def _finished(self, delta: Finished) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        called = "function_call" if self._legacy_calls else "tool_calls"
        choice.finish_reason = _finish_reason(delta.reason, called if choice.calls else "stop")
        choice.matched = delta.matched
        ending = [*self._settle(choice)]
        ending += self._end_call(choice, complete=choice.finish_reason == called)
        ending.append(
            b'%b{},"finish_reason":"%b","logprobs":null,"matched_stop":%b}%b'
            % (
                choice.head,
                choice.finish_reason.encode(),
                wire_json.encode(choice.matched),
                self._chunk_end,
            )
        )
        return ending

    def _completed(self, delta: Completed) -> Sequence[Frame]:
        self._usage = delta.usage
        if not self._sends_usage:
            return (sse.DONE,)
        usage = wire_json.encode(envelope.usage_object(delta.usage))
        return (self._chunk_head + b'],"usage":' + usage + b"}" + sse.END, sse.DONE)

    def body(self) -> bytes:
        if self._usage is None:
            raise RuntimeError("a body was asked for before the reply was complete")
        return wire_json.encode(
            {
                **self._fields("chat.completion"),
                "choices": [self._choice_object(choice) for choice in self._choices],
                "usage": envelope.usage_object(self._usage),
            }
        )

    def _choice_object(self, choice: _Choice) -> dict[str, Any]:
        calls = [call.written() for call in choice.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(choice.content),
            "reasoning_content": "".join(choice.reasoning) or None,
            "tool_calls": None if self._legacy_calls else calls or None,
            "refusal": None,
        }
        if self._legacy_calls:
            message["function_call"] = calls[0] if calls else None
        return {
            "index": choice.index,
            "message": message,
            "logprobs": _logprobs(choice.logprobs) if self._with_logprobs else None,
            "finish_reason": choice.finish_reason,
            "matched_stop": choice.matched,
        }


def _finish_reason(reason: FinishReason, whole: str) -> str:
    """The dialect's word.

    Args:
        reason: Why the choice ended. A call that was cut off is not a finished call, whoever made
            it.
        whole: The word for an end that is not a cut.
    """
    match reason:
        case FinishReason.STOP | FinishReason.TOOL_CALLS:
            return whole
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.CONTENT_FILTER:
            return "content_filter"
        case FinishReason.CANCELLED:
            raise ProtocolViolation(
                "The answer was cut short.", diagnostic="a cancelled choice in a successful reply"
            )


def _call_id(response_id: str, choice: int, call: int) -> str:
    name = f"{response_id}/{choice}/{call}".encode()
    return "call_" + hashlib.blake2b(name, digest_size=12).hexdigest()


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}
