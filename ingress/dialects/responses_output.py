"""Output items: how each kind opens, grows and ends in a stream, and what it is in the body.

Only one item is open at a time. On the path of every Delta nothing is built but the bytes
themselves: all of an event that does not change between two deltas is encoded beforehand.

Source: Responses, sections 5 (output items) and 7 (events); dialect profiles, #5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ingress.dialects import sse, wire_json
from ingress.dialects.base import Frame
from ingress.dialects.custom_tools import InputUnwrapper
from ingress.dialects.logprobs import entries as logprob_entries
from ingress.dialects.parts import Part
from ingress.dialects.responses_builtins import Builtin
from ingress.dialects.responses_tools import Tool
from schemas.delta import ArgumentsDelta, Delta, ReasoningDelta, TextDelta, TokenLogprob

_NO_FRAMES: tuple[Frame, ...] = ()


class Events:
    """Numbers the events of one stream.

    Attributes:
        sent: How many there were.
    """

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = 0

    def number(self) -> int:
        """The next `sequence_number`."""
        number = self.sent
        self.sent += 1
        return number

    def event(self, kind: str, fields: bytes) -> Frame:
        """A whole event; `fields` are the inside of its JSON object, without type and number."""
        return b"%b%b%b" % (head(kind), fields, self.end())

    def end(self) -> bytes:
        """How every event ends."""
        return b',"sequence_number":%d}%b' % (self.number(), sse.END)


def head(kind: str) -> bytes:
    """How an event begins, up to its own fields."""
    return f'event: {kind}\ndata: {{"type":"{kind}",'.encode()


def inside(fields: dict[str, Any]) -> bytes:
    """The JSON of these fields without its braces."""
    return wire_json.encode(fields)[1:-1]


class OutputItem(Protocol):
    """One item of `output`, from opening to end."""

    def open(self) -> Sequence[Frame]: ...

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Sequence[Frame]: ...

    def close(self) -> Sequence[Frame]:
        """The part has ended; it says itself whether it is complete."""
        ...

    def snapshot(self) -> bytes:
        """The item as it is now, in JSON."""
        ...


class _Item:
    """What all kinds share.

    Args:
        part: What it shows.
        index: Its place in `output`.
        item_id: Its id.
    """

    def __init__(self, events: Events, part: Part, index: int, item_id: str) -> None:
        self._events = events
        self._part = part
        self._index = index
        self._id = item_id
        # How the fields of an event about this item begin.
        self._at = inside({"item_id": item_id, "output_index": index})

    @property
    def _status(self) -> str:
        return "completed" if self._part.complete else "incomplete"

    def _added(self, item: dict[str, Any]) -> Frame:
        fields = b'"output_index":%d,"item":%b' % (self._index, wire_json.encode(item))
        return self._events.event("response.output_item.added", fields)

    def _done(self, item: bytes) -> Frame:
        fields = b'"output_index":%d,"item":%b' % (self._index, item)
        return self._events.event("response.output_item.done", fields)

    def _about(self, kind: str, fields: dict[str, Any]) -> Frame:
        return self._events.event(kind, self._at + b"," + inside(fields))


class GrowingItem(_Item):
    """An item that tells each piece of its text in an event of its own.

    Attributes:
        grows_by: The type of the Deltas that have the pieces.
    """

    grows_by: ClassVar[type[Delta]]
    _delta_kind: ClassVar[str]
    _delta_fields: ClassVar[bytes] = b""  # between the item's place and the text

    def __init__(self, events: Events, part: Part, index: int, item_id: str) -> None:
        super().__init__(events, part, index, item_id)
        self._delta_head = head(self._delta_kind) + self._at + self._delta_fields + b',"delta":'

    @property
    def plain(self) -> bool:
        """A piece is told as it comes, and there is nothing else to say of it."""
        return True

    def extend(self, text: str) -> Sequence[Frame]:
        """Adds a piece to the part of a plain item. On the path of every Delta."""
        self._part.grow(text)
        return (self._delta(text),) if text else _NO_FRAMES

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Sequence[Frame]:
        return (self._delta(text),)

    def _delta(self, text: str) -> Frame:
        return self._delta_head + wire_json.encode_text(text) + self._events.end()


class MessageItem(GrowingItem):
    """Text.

    Args:
        top_logprobs: How many alternatives to show with each log probability; None shows none of
            either.
        whole: The text comes in one delta, right before the item ends.
    """

    grows_by = TextDelta
    _delta_kind = "response.output_text.delta"
    _delta_fields = b',"content_index":0,"logprobs":[]'

    def __init__(
        self,
        events: Events,
        part: Part,
        index: int,
        item_id: str,
        *,
        top_logprobs: int | None,
        whole: bool,
    ) -> None:
        super().__init__(events, part, index, item_id)
        self._top_logprobs = top_logprobs
        self._whole = whole

    @property
    def plain(self) -> bool:
        return self._top_logprobs is None and not self._whole

    def open(self) -> Sequence[Frame]:
        item = {
            "type": "message",
            "id": self._id,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return (
            self._added(item),
            self._about("response.content_part.added", {"content_index": 0, "part": part}),
        )

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Sequence[Frame]:
        if self._whole:
            return _NO_FRAMES
        return (self._explained(text, logprobs),)

    def _explained(self, text: str, logprobs: Sequence[TokenLogprob]) -> Frame:
        """A piece with the log probabilities of its tokens, where they were asked for."""
        if self._top_logprobs is None or not logprobs:
            return self._delta(text)
        entries = logprob_entries(logprobs, self._top_logprobs)
        return self._about(
            self._delta_kind, {"content_index": 0, "delta": text, "logprobs": entries}
        )

    def close(self) -> Sequence[Frame]:
        text, part = self._part.text, self._content()
        whole = (self._explained(text, self._part.logprobs),) if self._whole else _NO_FRAMES
        done = {"content_index": 0, "text": text, "logprobs": part["logprobs"]}
        return (
            *whole,
            self._about("response.output_text.done", done),
            self._about("response.content_part.done", {"content_index": 0, "part": part}),
            self._done(self.snapshot()),
        )

    def snapshot(self) -> bytes:
        return wire_json.encode(
            {
                "type": "message",
                "id": self._id,
                "status": self._status,
                "role": "assistant",
                "content": [self._content()],
            }
        )

    def _content(self) -> dict[str, Any]:
        top = self._top_logprobs
        logprobs = [] if top is None else logprob_entries(self._part.logprobs, top)
        return {
            "type": "output_text",
            "text": self._part.text,
            "annotations": [],
            "logprobs": logprobs,
        }


class ReasoningItem(GrowingItem):
    """Reasoning text, where it is shown."""

    grows_by = ReasoningDelta
    _delta_kind = "response.reasoning_text.delta"
    _delta_fields = b',"content_index":0'

    def open(self) -> Sequence[Frame]:
        part = {"type": "reasoning_text", "text": ""}
        return (
            self._added(self._fields("in_progress", content=[])),
            self._about("response.content_part.added", {"content_index": 0, "part": part}),
        )

    def close(self) -> Sequence[Frame]:
        text = self._part.text
        part = {"type": "reasoning_text", "text": text}
        return (
            self._about("response.reasoning_text.done", {"content_index": 0, "text": text}),
            self._about("response.content_part.done", {"content_index": 0, "part": part}),
            self._done(self.snapshot()),
        )

    def snapshot(self) -> bytes:
        content = [{"type": "reasoning_text", "text": self._part.text}]
        return wire_json.encode(self._fields(self._status, content=content))

    def _fields(self, status: str, *, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "type": "reasoning",
            "id": self._id,
            "summary": [],
            "content": content,
            "encrypted_content": None,
            "status": status,
        }


class FunctionCallItem(GrowingItem):
    """A call of a function.

    Args:
        tool: What was offered under the part's name; None if nothing was.
        call_id: What links its result to it.
    """

    grows_by = ArgumentsDelta
    _delta_kind = "response.function_call_arguments.delta"

    def __init__(
        self,
        events: Events,
        part: Part,
        index: int,
        item_id: str,
        *,
        tool: Tool | None,
        call_id: str,
    ) -> None:
        super().__init__(events, part, index, item_id)
        self._name = part.name if tool is None else tool.name
        self._namespace = None if tool is None else tool.namespace
        self._call_id = call_id

    def open(self) -> Sequence[Frame]:
        return (self._added(self._fields("in_progress", "")),)

    def close(self) -> Sequence[Frame]:
        whole: Sequence[Frame] = _NO_FRAMES
        if self._part.complete:  # some clients act on arguments as soon as they are called done
            fields = {"arguments": self._part.text, "name": self._name}
            whole = (self._about("response.function_call_arguments.done", fields),)
        return (*whole, self._done(self.snapshot()))

    def snapshot(self) -> bytes:
        return wire_json.encode(self._fields(self._status, self._part.text))

    def _fields(self, status: str, arguments: str) -> dict[str, Any]:
        fields = {
            "type": "function_call",
            "id": self._id,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": arguments,
            "status": status,
        }
        return fields | ({"namespace": self._namespace} if self._namespace else {})


class CustomCallItem(GrowingItem):
    """A call of a custom tool: its input is unwrapped from the arguments."""

    grows_by = ArgumentsDelta
    _delta_kind = "response.custom_tool_call_input.delta"

    def __init__(
        self, events: Events, part: Part, index: int, item_id: str, *, tool: Tool, call_id: str
    ) -> None:
        super().__init__(events, part, index, item_id)
        self._tool = tool
        self._call_id = call_id
        self._unwrapper = InputUnwrapper()
        self._input: list[str] = []

    def extend(self, text: str) -> Sequence[Frame]:
        self._part.grow(text)
        return self._grown(self._unwrapper.feed(text))

    def open(self) -> Sequence[Frame]:
        return (self._added(self._fields("in_progress", "")),)

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Sequence[Frame]:
        return self._grown(self._unwrapper.feed(text))

    def _grown(self, text: str) -> Sequence[Frame]:
        if not text:
            return _NO_FRAMES
        self._input.append(text)
        return (self._delta(text),)

    def close(self) -> Sequence[Frame]:
        rest = self._grown(self._unwrapper.finish())
        whole: Sequence[Frame] = _NO_FRAMES
        if self._part.complete:
            fields = {"input": "".join(self._input)}
            whole = (self._about("response.custom_tool_call_input.done", fields),)
        return (*rest, *whole, self._done(self.snapshot()))

    def snapshot(self) -> bytes:
        return wire_json.encode(self._fields(self._status, "".join(self._input)))

    def _fields(self, status: str, text: str) -> dict[str, Any]:
        fields = {
            "type": "custom_tool_call",
            "id": self._id,
            "call_id": self._call_id,
            "name": self._tool.name,
            "input": text,
            "status": status,
        }
        return fields | ({"namespace": self._tool.namespace} if self._tool.namespace else {})


class BuiltinCallItem(_Item):
    """A call of a tool with an item type of its own, which has no events for its growing.

    So it appears when it is whole; and if it is cut off, or fits the type badly, as the function
    call that it is.

    Args:
        plain: That function call.
    """

    def __init__(
        self,
        events: Events,
        part: Part,
        index: int,
        item_id: str,
        *,
        builtin: Builtin,
        call_id: str,
        plain: FunctionCallItem,
    ) -> None:
        super().__init__(events, part, index, item_id)
        self._builtin = builtin
        self._call_id = call_id
        self._plain = plain

    def open(self) -> Sequence[Frame]:
        return _NO_FRAMES

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Sequence[Frame]:
        return _NO_FRAMES

    def close(self) -> Sequence[Frame]:
        own = self._own()
        if own is None:
            opened = self._plain.open()
            grown = self._plain.grow(self._part.text, ()) if self._part.text else _NO_FRAMES
            return (*opened, *grown, *self._plain.close())
        return (self._added({**own, "status": "in_progress"}), self._done(wire_json.encode(own)))

    def snapshot(self) -> bytes:
        own = self._own()
        return self._plain.snapshot() if own is None else wire_json.encode(own)

    def _own(self) -> dict[str, Any] | None:
        if not self._part.complete:
            return None
        fields = self._builtin.item_fields(self._part.text)
        if fields is None:
            return None
        return {
            "type": self._builtin.item_type,
            "id": self._id,
            "call_id": self._call_id,
            **fields,
            "status": self._status,
        }
