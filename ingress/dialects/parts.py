"""Deltas of one choice -> parts that open, grow and close, one at a time (pure).

What dialects with blocks or items need and chat's flat message hides: where one part ends and the
next begins. It knows no dialect.

* A part is contiguous text, reasoning, or one tool call. Only one is open at a time.
* White space that only separates a call from its surroundings is no part: text with nothing but
  white space in it that comes right before a call or anywhere after one. So it is held back until
  it is known what it is.
* A call without arguments has the arguments `{}`: clients parse what they are sent. Not so one
  that was cut off.

Source: Chat Completions, sections 7 and 8; Messages, section 7; Responses, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from schemas.delta import (
    ArgumentsDelta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallStarted,
)

Kind: TypeAlias = Literal["text", "reasoning", "call"]


class Part:
    """One part of a choice.

    Attributes:
        index: Counts the parts of the choice from 0.
        call: Counts its calls from 0; -1 for other kinds.
        name: Of the tool called; empty for other kinds.
        complete: Closed, and not cut off.
    """

    __slots__ = ("_texts", "call", "complete", "index", "kind", "logprobs", "name")

    def __init__(self, index: int, kind: Kind, *, call: int = -1, name: str = "") -> None:
        self.index = index
        self.kind: Kind = kind
        self.call = call
        self.name = name
        self.complete = False
        self.logprobs: list[TokenLogprob] = []
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Its text or reasoning, or the argument JSON of a call, so far."""
        return "".join(self._texts)

    def grow(self, text: str) -> None:
        self._texts.append(text)


class Opened(NamedTuple):
    """A part begins; it is empty yet."""

    part: Part


class Grew(NamedTuple):
    """Text was added to the open part."""

    part: Part
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Closed(NamedTuple):
    """The open part has ended."""

    part: Part


PartEvent: TypeAlias = Opened | Grew | Closed


class Parts:
    """The parts of one choice.

    Attributes:
        parts: Those opened so far, in order.
        open: The one that is open now.
    """

    __slots__ = ("_calls", "_held", "_held_logprobs", "open", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.open: Part | None = None
        self._calls = 0
        self._held: list[str] = []
        self._held_logprobs: list[TokenLogprob] = []

    def feed(
        self, delta: TextDelta | ReasoningDelta | ToolCallStarted | ArgumentsDelta
    ) -> Sequence[PartEvent]:
        """What a Delta of this choice does."""
        match delta:
            case TextDelta():
                return self._text(delta)
            case ReasoningDelta(text=text):
                return self._reasoning(text) if text else ()
            case ArgumentsDelta(text=text):
                return self._grow(text) if text else ()
            case ToolCallStarted(name=name):
                self._drop()
                events = self._close(complete=True)
                part = Part(len(self.parts), "call", call=self._calls, name=name)
                self._calls += 1
                return (*events, self._opened(part))

    def finish(self, reason: FinishReason) -> Sequence[PartEvent]:
        """The choice has ended."""
        events: tuple[PartEvent, ...] = self._settle()
        complete = reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)
        return (*events, *self._close(complete=complete))

    def _text(self, delta: TextDelta) -> Sequence[PartEvent]:
        if self.open is not None and self.open.kind == "text":
            return self._grow(delta.text, delta.logprobs)
        self._held.append(delta.text)
        self._held_logprobs.extend(delta.logprobs)
        if not delta.text or delta.text.isspace():
            return ()
        return self._release()

    def _reasoning(self, text: str) -> Sequence[PartEvent]:
        if self.open is not None and self.open.kind == "reasoning" and not self._held:
            return self._grow(text)
        events = self._settle()
        closed = self._close(complete=True)
        opened = self._opened(Part(len(self.parts), "reasoning"))
        return (*events, *closed, opened, *self._grow(text))

    def _settle(self) -> tuple[PartEvent, ...]:
        """Decide on held white space: something other than a call follows, or nothing."""
        if not self._held:
            return ()
        if self._calls or not any(self._held):
            self._drop()
            return ()
        return self._release()

    def _release(self) -> tuple[PartEvent, ...]:
        text, logprobs = "".join(self._held), tuple(self._held_logprobs)
        self._drop()
        closed = self._close(complete=True)
        opened = self._opened(Part(len(self.parts), "text"))
        return (*closed, opened, *self._grow(text, logprobs))

    def _drop(self) -> None:
        self._held.clear()
        self._held_logprobs.clear()

    def _opened(self, part: Part) -> Opened:
        self.parts.append(part)
        self.open = part
        return Opened(part)

    def _grow(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> tuple[PartEvent, ...]:
        part = self.open
        assert part is not None, "the reply grammar opens a part before it grows"
        part.grow(text)
        part.logprobs.extend(logprobs)
        return (Grew(part, text, logprobs),) if text or logprobs else ()

    def _close(self, *, complete: bool) -> tuple[PartEvent, ...]:
        part, self.open = self.open, None
        if part is None:
            return ()
        part.complete = complete
        if not (complete and part.kind == "call" and not part.text.strip()):
            return (Closed(part),)
        part.grow("{}")
        return (Grew(part, "{}"), Closed(part))
