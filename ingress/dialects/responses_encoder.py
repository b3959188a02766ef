"""Deltas -> Responses events, or one response object.

The encoder decides which item a part becomes and when the response ends; what an item looks like is
its own business.

Source: Responses, sections 5 to 8; dialect profiles, #2, #3 and #5; failures, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ingress.dialects import sse
from ingress.dialects.base import Frame, Stamp
from ingress.dialects.parts import Closed, Grew, Opened, Part, PartEvent, Parts
from ingress.dialects.responses_builtins import BUILTINS
from ingress.dialects.responses_object import ResponseObject, call_id, item_id, status_of
from ingress.dialects.responses_output import (
    BuiltinCallItem,
    CustomCallItem,
    Events,
    FunctionCallItem,
    GrowingItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from ingress.dialects.responses_request import ResponsesRequest
from ingress.dialects.responses_tools import Tool
from schemas.delta import (
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ErrorInfo

_NO_FRAMES: Final[tuple[Frame, ...]] = ()

_SILENCES: Final = 4
"""After so many of 15 s each there is an event: some readers do not count comments."""


class ResponsesEncoder:
    """One reply in the Responses dialect.

    Args:
        request: What the response echoes, and how it wants its text and reasoning.
        stamp: Ids and clock.
        tools: Those offered, by the name that the model knows.
        top_logprobs: How many alternatives to show with each log probability; None shows none of
            either.
    """

    def __init__(
        self,
        request: ResponsesRequest,
        stamp: Stamp,
        *,
        tools: Mapping[str, Tool],
        top_logprobs: int | None,
    ) -> None:
        form = request.text_format
        profile = stamp.profile
        self._response_id = stamp.response_id
        self._clock: Callable[[], float] | None = stamp.clock
        self._response = ResponseObject(request, stamp)
        self._tools = tools
        self._top_logprobs = top_logprobs
        self._whole = profile.whole_json_schema and form is not None and form.type == "json_schema"
        self._shows_reasoning = profile.reasoning_items and request.wants_reasoning
        self._incomplete_event = profile.incomplete_event

        self._events = Events()
        self._parts = Parts()
        self._item: OutputItem | None = None  # the open one
        self._growing: GrowingItem | None = None  # the same, while a Delta can only add to it
        self._opened = 0
        self._output: list[bytes] = []  # items that have ended
        self._reason = FinishReason.STOP
        self._body: bytes | None = None
        self._silences = 0
        self._sent_before_silence = 0

    # --- The stream ------------------------------------------------------------------------------

    def open(self) -> Sequence[Frame]:
        announced = b'"response":' + self._response.in_progress()
        created = self._events.event("response.created", announced)
        return (created, self._events.event("response.in_progress", announced))

    def feed(self, delta: Delta) -> Sequence[Frame]:
        if (item := self._growing) is not None:
            if type(delta) is item.grows_by:
                return item.extend(delta.text)  # type: ignore[union-attr]  # `is` does not narrow
            self._growing = None  # perhaps not any more: the parts tell
        match delta:
            case TextDelta() | ReasoningDelta() | ToolCallStarted() | ArgumentsDelta():
                return self._follow(self._parts.feed(delta))
            case Finished(reason=reason):
                status_of(reason)
                self._reason = reason
                return self._follow(self._parts.finish(reason))
            case Completed(usage=usage):
                return self._completed(usage)
            case Failed(error=error, usage=usage):
                return self.fail(error, usage)
        return _NO_FRAMES

    def keep_alive(self) -> Sequence[Frame]:
        if self._events.sent != self._sent_before_silence:
            self._sent_before_silence = self._events.sent
            self._silences = 0
        self._silences += 1
        if self._silences < _SILENCES:
            return (sse.KEEP_ALIVE,)
        progress = b'"response":' + self._response.in_progress()
        return (self._events.event("response.in_progress", progress),)

    def fail(self, error: ErrorInfo, usage: Usage | None = None) -> Sequence[Frame]:
        """What had ended, and what was open as incomplete; it never is called done."""
        output = [*self._output]
        if self._item is not None:
            output.append(self._item.snapshot())
        failed = self._response.failed(output, error=error, usage=usage)
        return (self._events.event("response.failed", b'"response":' + failed),)

    def body(self) -> bytes:
        if self._body is None:
            raise RuntimeError("a body was asked for before the reply was complete")
        return self._body

    # --- Parts to items --------------------------------------------------------------------------

    def _follow(self, events: Sequence[PartEvent]) -> Sequence[Frame]:
        frames: list[Frame] = []
        for event in events:
            match event:
                case Opened(part=part):
                    self._item = self._new_item(part)
                    if self._item is not None:
                        frames += self._item.open()
                case Grew(text=text, logprobs=logprobs):
                    if self._item is not None:
                        frames += self._item.grow(text, logprobs)
                    self._growing = _plain(self._item)
                case Closed():
                    if self._item is not None:
                        frames += self._item.close()
                        self._output.append(self._item.snapshot())
                    self._item = self._growing = None
        return frames

    def _new_item(self, part: Part) -> OutputItem | None:
        if part.kind == "reasoning" and not self._shows_reasoning:
            return None
        index = self._opened
        self._opened += 1
        if part.kind == "reasoning":
            return ReasoningItem(self._events, part, index, self._id("rs_", index))
        if part.kind == "call":
            return self._new_call(part, index)
        return MessageItem(
            self._events,
            part,
            index,
            self._id("msg_", index),
            top_logprobs=self._top_logprobs,
            whole=self._whole,
        )

    def _new_call(self, part: Part, index: int) -> OutputItem:
        events, tool = self._events, self._tools.get(part.name)
        call = call_id(self._response_id, part.call)
        if tool is not None and tool.kind == "custom":
            own_id = self._id("ctc_", index)
            return CustomCallItem(events, part, index, own_id, tool=tool, call_id=call)
        own_id = self._id("fc_", index)
        plain = FunctionCallItem(events, part, index, own_id, tool=tool, call_id=call)
        if tool is None or tool.kind not in BUILTINS:
            return plain
        builtin = BUILTINS[tool.kind]
        own_id = self._id(builtin.id_prefix, index)
        return BuiltinCallItem(
            events, part, index, own_id, builtin=builtin, call_id=call, plain=plain
        )

    def _id(self, prefix: str, index: int) -> str:
        return item_id(prefix, self._response_id, index)

    # --- Ends ------------------------------------------------------------------------------------

    def _completed(self, usage: Usage) -> Sequence[Frame]:
        self._body = self._response.finished(
            self._output,
            reason=self._reason,
            usage=usage,
            completed_at=int(self._clock()) if self._clock is not None else None,
        )
        cut = self._incomplete_event and status_of(self._reason) == "incomplete"
        kind = "response.incomplete" if cut else "response.completed"
        return (self._events.event(kind, b'"response":' + self._body),)


def _plain(item: OutputItem | None) -> GrowingItem | None:
    return item if isinstance(item, GrowingItem) and item.plain else None
