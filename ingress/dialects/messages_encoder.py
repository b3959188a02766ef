"""Deltas -> Messages events, or one message.

A part of the reply is a content block; one is open at a time and their indexes have no gaps. On the
path of every Delta of text, reasoning or arguments nothing is built but the bytes themselves: what
does not change within a block is encoded when it opens.

Source: Messages, sections 6 (response) and 7 (streaming); dialect profiles, #11, #12 and #13;
failures, section 2.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

from ingress.dialects import messages_errors, sse, wire_json
from ingress.dialects.base import Frame, Stamp
from ingress.dialects.parts import Closed, Grew, Kind, Opened, Part, PartEvent, Parts
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ErrorInfo, ProtocolViolation
from schemas.job import Job

INVALID_JSON: Final = "INVALID_JSON"
"""Where a body, which has no place for text that is not JSON, keeps the arguments of a call that
was cut off: in an object, so that clients can read it, and unlike any the tool would take."""

_NO_FRAMES: tuple[Frame, ...] = ()
_PING: Final[Frame] = sse.event("ping", b'{"type":"ping"}')
_STOP: Final[Frame] = sse.event("message_stop", b'{"type":"message_stop"}')

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_TOOL_ID_LENGTH: Final = 24

# Per kind of part: what adds to it, the type of its deltas, and the field that holds their text.
_DELTAS: Final[dict[Kind, tuple[type[TextDelta | ReasoningDelta | ArgumentsDelta], str, str]]] = {
    "text": (TextDelta, "text_delta", "text"),
    "reasoning": (ReasoningDelta, "thinking_delta", "thinking"),
    "call": (ArgumentsDelta, "input_json_delta", "partial_json"),
}


class MessagesEncoder:
    """One reply in the Messages dialect.

    Args:
        job: Its stop strings are the caller's stop sequences.
        stamp: Ids and profile.
        omit_thinking: Thinking blocks are empty.
    """

    def __init__(self, job: Job, stamp: Stamp, *, omit_thinking: bool) -> None:
        self._stamp = stamp
        self._profile = stamp.profile
        self._stop_sequences = job.sampling.stop.strings
        self._omit_thinking = omit_thinking
        self._parts = Parts()
        self._head = self._tail = b""  # of each delta of the open block
        self._growing: Part | None = None  # the open part, while a Delta can only add to it
        self._grows_by: type[Delta] = TextDelta
        self._begun = Usage()
        self._usage: Usage | None = None
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    # --- The stream ------------------------------------------------------------------------------

    def open(self) -> Sequence[Frame]:
        # The whole reply may have been fed by now; what begins a stream does not know its end.
        usage = self._begun if self._profile.usage_at_start else Usage()
        message = self._message(content=[], stop_reason=None, stop_sequence=None, usage=usage)
        start = sse.event(
            "message_start", wire_json.encode({"type": "message_start", "message": message})
        )
        return (start, _PING) if self._profile.pings else (start,)

    def feed(self, delta: Delta) -> Sequence[Frame]:
        if (part := self._growing) is not None:
            if type(delta) is self._grows_by:
                text: str = delta.text  # type: ignore[union-attr]  # `is` does not narrow
                part.grow(text)
                return (self._head + wire_json.encode_text(text) + self._tail,) if text else ()
            self._growing = None  # perhaps not any more: the parts tell
        match delta:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta() | ToolCallStarted():
                return self._frames(self._parts.feed(delta))
            case Accepted(input_tokens=input_tokens):
                self._begun = Usage(input_tokens)
            case Started(input_tokens=input_tokens, cached_tokens=cached_tokens):
                self._begun = Usage(input_tokens, cached_tokens)
            case Finished():
                return self._finished(delta)
            case Completed(usage=usage):
                self._usage = usage
                return (self._message_delta(usage), _STOP)
            case Failed(error=error):
                return self.fail(error)
        return _NO_FRAMES

    def fail(self, error: ErrorInfo, usage: Usage | None = None) -> Sequence[Frame]:
        return (messages_errors.error_record(error, self._stamp.request_id),)

    def keep_alive(self) -> Sequence[Frame]:
        return (_PING,) if self._profile.pings else (sse.KEEP_ALIVE,)

    def _frames(self, events: Sequence[PartEvent]) -> Sequence[Frame]:
        frames: list[Frame] = []
        for event in events:
            match event:
                case Opened(part=part):
                    frames.append(self._open_block(part))
                case Grew(part=part):
                    frames += self._grow(part, event.text)
                case Closed(part=part):
                    self._growing = None
                    frames.append(
                        sse.event(
                            "content_block_stop",
                            b'{"type":"content_block_stop","index":%d}' % part.index,
                        )
                    )
        return frames

    def _grow(self, part: Part, text: str) -> Sequence[Frame]:
        if not text or (self._omit_thinking and part.kind == "reasoning"):
            return _NO_FRAMES
        self._growing = part
        return (self._head + wire_json.encode_text(text) + self._tail,)

    def _open_block(self, part: Part) -> Frame:
        self._grows_by, kind, field = _DELTAS[part.kind]
        frame = sse.event(
            "content_block_delta",
            b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":\0}}'
            % (part.index, kind.encode(), field.encode()),
        )
        self._head, self._tail = frame.split(b"\0")
        block = wire_json.encode(self._empty_block(part))
        return sse.event(
            "content_block_start",
            b'{"type":"content_block_start","index":%d,"content_block":%b}' % (part.index, block),
        )

    # --- Ends ------------------------------------------------------------------------------------

    def _finished(self, delta: Finished) -> Sequence[Frame]:
        frames = self._frames(self._parts.finish(delta.reason))
        called = any(part.kind == "call" for part in self._parts.parts)
        self._stop_reason = self._reason(delta, called=called)
        if self._stop_reason == "stop_sequence":
            assert isinstance(delta.matched, str), "only text is a stop sequence"
            self._stop_sequence = delta.matched
        return frames

    def _reason(self, delta: Finished, *, called: bool) -> str:
        """The dialect's word. A call that was cut off is not one to be run, whoever made it."""
        match delta.reason:
            case FinishReason.STOP | FinishReason.TOOL_CALLS:
                if called:
                    return "tool_use"
                return "stop_sequence" if delta.matched in self._stop_sequences else "end_turn"
            case FinishReason.LENGTH:
                return "max_tokens"
            case FinishReason.CONTENT_FILTER:
                return "refusal"
            case FinishReason.CANCELLED:
                raise ProtocolViolation(
                    "The answer was cut short.", diagnostic="a cancelled choice in a success"
                )

    def _message_delta(self, usage: Usage) -> Frame:
        return sse.event(
            "message_delta",
            wire_json.encode(
                {
                    "type": "message_delta",
                    "delta": {
                        "stop_reason": self._stop_reason,
                        "stop_sequence": self._stop_sequence,
                    },
                    "usage": self._usage_object(usage),
                }
            ),
        )

    # --- Objects ---------------------------------------------------------------------------------

    def body(self) -> bytes:
        if self._usage is None:
            raise RuntimeError("a body was asked for before the reply was complete")
        message = self._message(
            content=[self._block(part) for part in self._parts.parts],
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self._usage,
        )
        return wire_json.encode(message)

    def _message(
        self,
        *,
        content: list[dict[str, Any]],
        stop_reason: str | None,
        stop_sequence: str | None,
        usage: Usage,
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._stamp.response_id}",
            "type": "message",
            "role": "assistant",
            "model": self._stamp.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": self._usage_object(usage),
        }

    def _usage_object(self, usage: Usage) -> dict[str, int]:
        input_tokens = usage.input_tokens
        if not self._profile.input_includes_cached:
            input_tokens -= usage.cached_tokens
        return {
            "input_tokens": input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
        }

    def _empty_block(self, part: Part) -> dict[str, Any]:
        match part.kind:
            case "text":
                return {"type": "text", "text": ""}
            case "reasoning":
                return {"type": "thinking", "thinking": "", "signature": ""}
            case "call":
                call_id = _tool_id(self._stamp.response_id, part.call)
                return {"type": "tool_use", "id": call_id, "name": part.name, "input": {}}

    def _block(self, part: Part) -> dict[str, Any]:
        block = self._empty_block(part)
        match part.kind:
            case "text":
                block["text"] = part.text
            case "reasoning":
                block["thinking"] = "" if self._omit_thinking else part.text
            case "call":
                block["input"] = _input(part.text)
        return block


def _input(arguments: str) -> Any:
    """Arguments as an object, which they are unless they were cut off.

    It is the very text that a stream has, for decoding and encoding it would round large numbers.
    """
    if not arguments.strip():
        return {}
    try:
        _object.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_JSON: arguments}
    return orjson.Fragment(arguments)


def _tool_id(response_id: str, call: int) -> str:
    digest = hashlib.blake2b(f"{response_id}/{call}".encode(), digest_size=18).digest()
    number = int.from_bytes(digest, "big")
    letters = []
    for _ in range(_TOOL_ID_LENGTH):
        number, letter = divmod(number, len(_BASE62))
        letters.append(_BASE62[letter])
    return "toolu_" + "".join(letters)
