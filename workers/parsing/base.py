"""The output parser: generated text of one choice in, Deltas out.

`feed(text)` may hold text back while it could still become a marker or a stop string; `finish()`
releases what is left. Chunk boundaries carry no meaning: any re-chunking of the same text gives
Deltas that join to the same answer. There is no second method for complete text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted

PartDelta: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ArgumentsDelta


class OutputParser(Protocol):
    """Splits one choice's text."""

    def feed(self, text: str) -> Sequence[PartDelta]: ...

    def finish(self) -> Sequence[PartDelta]: ...


class PlainText:
    """Everything is answer text."""

    def __init__(self, choice: int) -> None:
        self._choice = choice

    def feed(self, text: str) -> Sequence[PartDelta]:
        return (TextDelta(self._choice, text),) if text else ()

    def finish(self) -> Sequence[PartDelta]:
        return ()
