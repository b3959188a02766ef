"""The output parser: generated text of one choice in, Deltas out.

`feed(text)` may hold text back while it could still become a marker or a stop string; `finish()`
releases what is left. It is told whether the model was cut off before it had come to an end: a call
that was only beginning is no text then. Chunk boundaries carry no meaning: any re-chunking of the
same text gives Deltas that join to the same answer. There is no second method for complete text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted

PartDelta: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ArgumentsDelta


class OutputParser(Protocol):
    """Splits one choice's text."""

    def feed(self, text: str) -> Sequence[PartDelta]: ...

    def finish(self, *, cut: bool = False) -> Sequence[PartDelta]: ...


class CallParser(OutputParser, Protocol):
    """Splits answer text into text and tool calls, and reasoning where the format has it, too."""

    @property
    def in_call(self) -> bool:
        """Whether the text fed last belongs to a call, as far as is known."""
        ...

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed last was reasoning, as far as is known."""
        ...


class ChoiceParser(OutputParser, Protocol):
    """An output parser together with what a run must know of its state.

    Attributes:
        stops_armed: Whether stop strings end the choice. Set it to False while a minimum number of
            tokens has not been generated.
        kept_back: Characters of the answer that were fed and not passed on; once the choice is
            stopped, those that were cut off.
        transparent: All text is answer text at once, whatever it is.
    """

    stops_armed: bool
    kept_back: int
    transparent: bool

    @property
    def stopped(self) -> bool:
        """A stop string has ended the choice; all further text is dropped."""
        ...

    @property
    def matched(self) -> str | None:
        """The caller's stop string that ended the choice; None for the template's own."""
        ...

    @property
    def in_reasoning(self) -> bool:
        """Whether text fed now would be reasoning, as far as is known."""
        ...

    @property
    def in_call(self) -> bool:
        """Whether the text fed last belongs to a tool call, as far as is known."""
        ...

    def may_turn(self, text: str) -> bool:
        """Whether `in_reasoning` may change somewhere within this text, if it is fed now."""
        ...


class PlainText:
    """Everything is answer text, and nothing in it ends the choice."""

    stopped = False
    matched = None
    in_reasoning = False
    in_call = False
    kept_back = 0
    transparent = True

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self.stops_armed = True

    def may_turn(self, text: str) -> bool:
        return False

    def feed(self, text: str) -> Sequence[PartDelta]:
        return (TextDelta(self._choice, text),) if text else ()

    def finish(self, *, cut: bool = False) -> Sequence[PartDelta]:
        return ()
