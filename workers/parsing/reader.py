"""Reads marked-up text that arrives in pieces, in one straight line.

A tool format is written as a generator that reads its text from left to right and emits Deltas. It
says `yield from self.expect("...")` as if the whole text were there; where more text is needed, the
generator rests until `feed` brings some. So the grammar of a format reads from top to bottom, and
where the text was cut into chunks cannot matter: every step either has what it needs or waits.

Nothing may be lost: what turns out not to be a call goes on as text (`as_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted
from workers.parsing.base import PartDelta
from workers.parsing.holdback import partial_marker
from workers.parsing.json_text import JsonScanner

_T = TypeVar("_T")
Step: TypeAlias = Generator[None, None, _T]
"""Something that may have to wait for text before it returns."""


class TextReader:
    """An output parser whose subclass gives the grammar.

    A step of the grammar reads from `_at` on. Text before `_mark` has been dealt with and is let
    go; what lies between the two is read but may still turn out to be plain text.

    Attributes:
        in_reasoning: The text read last was reasoning; only formats that mark it themselves know.
        in_call: The text read last belongs to a call, as far as is known.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self.in_call = False
        self.in_reasoning = False
        self._text = ""
        self._at = 0
        self._mark = 0
        self._marker = ""
        self._ended = False
        self._cut = False
        self._calls = 0
        self._out: list[PartDelta] = []
        self._grammar = self.grammar()

    def grammar(self) -> Step[None]:
        """Reads the whole text of a choice; whatever it leaves is plain text."""
        raise NotImplementedError

    def feed(self, text: str) -> Sequence[PartDelta]:
        self._text = self._text[self._mark :] + text
        self._at -= self._mark
        self._mark = 0
        return self._read()

    def finish(self, *, cut: bool = False) -> Sequence[PartDelta]:
        self._ended = True
        self._cut = cut
        return self._read()

    def _read(self) -> Sequence[PartDelta]:
        self._out = []
        next(self._grammar, None)
        return self._out

    # What a grammar is made of.

    def more(self) -> Step[bool]:
        """Wait for more text; False at the end of it."""
        if self._ended:
            return False
        yield
        return True

    def plain(self, *markers: str) -> Step[str]:
        """Pass text on up to one of the markers; empty if there is none up to the end.

        The marker is read, but may still become text.
        """
        self.in_call = False
        while True:
            if found := self._first(markers, self._at, len(self._text)):
                start, marker = found
                self._emit_text(self._text[self._at : start])
                self._mark, self._marker = start, marker
                self._at = start + len(marker)
                self.in_call = True
                return marker
            rest = self._text[self._at :]
            held = 0
            if not self._ended:
                held = max(partial_marker(rest, marker) for marker in markers)
            self._emit_text(rest[: len(rest) - held])
            self.accept(len(rest) - held)
            if not (yield from self.more()):
                return ""

    def expect(self, *strings: str) -> Step[str]:
        """Read the string that comes next, one of these; empty if none does.

        The beginning of one at the very end of the text is read, too: it was cut off.
        """
        while True:
            rest = self._text[self._at :]
            for string in strings:
                if rest.startswith(string):
                    self._at += len(string)
                    return string
            if not any(string.startswith(rest) for string in strings):
                return ""
            if not (yield from self.more()):
                self._at = len(self._text)
                return ""

    def next_is(self, characters: str) -> Step[bool]:
        """Whether the next character is one of these; nothing is read."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return False
        return self._text[self._at] in characters

    def space(self, others: str = "") -> Step[None]:
        """Read white space, and the given characters, as much as there is."""
        while True:
            while self._at < len(self._text) and (
                (character := self._text[self._at]).isspace() or character in others
            ):
                self._at += 1
            if self._at < len(self._text) or not (yield from self.more()):
                return

    def until(self, *markers: str, limit: int | None = None) -> Step[tuple[str, str]]:
        """Read up to and with one of the markers.

        Args:
            markers: Any of these.
            limit: Most characters before the marker; where there are more, none is found.

        Returns:
            What came before the marker, and the marker: empty if it was not found.
        """
        begin = searched = self._at - self._mark
        longest = max(map(len, markers))
        while True:
            start = self._mark + begin
            end = len(self._text) if limit is None else start + limit + longest
            found = self._first(markers, self._mark + searched, end)
            if found and (limit is None or found[0] - start <= limit):
                at, marker = found
                self._at = at + len(marker)
                return self._text[start:at], marker
            self._at = len(self._text)
            searched = max(begin, self._at - self._mark - longest + 1)
            if (limit is not None and self._at >= end) or not (yield from self.more()):
                return self._text[self._mark + begin :], ""

    def streamed(
        self, emit: Callable[[str], None], *markers: str, trimmed: str = "", keep: bool = False
    ) -> Step[str]:
        """Hand text on as it comes, up to one of the markers, which is read.

        Args:
            emit: Takes the text.
            markers: Any of these.
            trimmed: Left out where it comes right before a marker.
            keep: A single character at the very end that could begin a marker is text. Otherwise,
                and always if there are more, it is a marker that was cut off.

        Returns:
            The marker; empty if the end came first.
        """
        waits = [marker for one in markers for marker in (one, trimmed + one)]
        while True:
            if found := self._first(markers, self._at, len(self._text)):
                at, marker = found
                text = self._text[self._at : at]
                self._at = at + len(marker)
                emit(text.removesuffix(trimmed))
                return marker
            rest = self._text[self._at :]
            held = max(partial_marker(rest, marker) for marker in waits)
            if self._ended and keep and held == 1:
                held = 0
            self._at += len(rest) - held
            emit(rest[: len(rest) - held])
            if not (yield from self.more()):
                self._at += held
                return ""

    def _first(self, markers: Sequence[str], start: int, end: int) -> tuple[int, str] | None:
        """The marker that comes first within the text, and where."""
        return min(
            (
                (at, marker)
                for marker in markers
                if (at := self._text.find(marker, start, end)) >= 0
            ),
            default=None,
        )

    def json_value(self, emit: Callable[[str], None]) -> Step[bool]:
        """Read one JSON value, handing its text on as it comes; False if it is not whole."""
        scanner = JsonScanner()
        while True:
            rest = self._text[self._at :]
            end = scanner.feed(rest)
            self._at += end
            emit(rest[:end])
            if scanner.ended:
                return scanner.whole
            if not (yield from self.more()):
                return scanner.finish()

    def json_text(self) -> Step[tuple[str, bool]]:
        """The text of the JSON value that comes next, and whether it is whole."""
        pieces: list[str] = []
        whole = yield from self.json_value(pieces.append)
        return "".join(pieces), whole

    # What a grammar says.

    def accept(self, length: int = 0) -> None:
        """What has been read, and `length` characters more, are dealt with."""
        self._at += length
        self._mark = self._at

    def as_text(self) -> None:
        """The last marker began nothing: it is text, and what follows it is read again.

        Unless the text was cut off while it still could: then it is no text either. A bracket says
        too little for that.
        """
        if self._cut and self._at == len(self._text) and len(self._marker) > 1:
            self.accept()
            return
        self._emit_text(self._marker)
        self._at = self._mark = self._mark + len(self._marker)

    def broken(self) -> None:
        """A call's markup does not go on: cut off, or by something else, which is text then."""
        if self._ended:
            self.accept()
        else:
            self.reread()

    def reread(self) -> None:
        """What has been read since the last `accept` is still to be read, by another step."""
        self._at = self._mark

    def text(self, text: str) -> None:
        """Answer text."""
        self.accept()
        self._emit_text(text)

    def reasoning(self, text: str) -> None:
        """Reasoning text."""
        self.accept()
        if text:
            self._out.append(ReasoningDelta(self._choice, text))

    def call(self, name: str) -> None:
        """A call begins."""
        self.accept()
        self._out.append(ToolCallStarted(self._choice, self._calls, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """A piece of the open call's argument JSON."""
        self.accept()
        if text:
            self._out.append(ArgumentsDelta(self._choice, self._calls - 1, text))

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(self._choice, text))
