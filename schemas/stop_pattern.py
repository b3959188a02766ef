r"""Stop patterns: the regular expressions that may end a choice, and the automaton that finds them.

A pattern describes text of bounded length: characters, classes, groups, alternatives and counted
repeats. What has no bound (`*`, `+`), looks around (`^`, `$`, `\b`) or refers back is refused. So
every pattern is a small automaton without loops, and a character costs about the same whatever the
pattern and the text: no caller's pattern can hold up a worker.

Both sides use it: a request is checked where it enters, and the text is searched where it is made.

Source: Tokenized completions, section 3 (`stop_regex`). Syntax: the `re` module's, in this subset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn, TypeAlias

MAX_PATTERNS: Final = 32
MAX_PATTERN_CHARS: Final = 256
MAX_POSITIONS: Final = 256
"""Characters that all patterns of a request can stand for, repeats multiplied out."""

Matcher: TypeAlias = Callable[[str], object]

_FLAGS = re.compile(r"\(\?([is]+)\)")
_COUNTS = re.compile(r"\{(?=[\d,])(\d*)(,?)(\d*)\}")
_MAX_DEPTH = 20
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_CODE_ESCAPE = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")


class StopPatternError(ValueError):
    """The pattern cannot be used. The text says why and quotes nothing of it."""


class _Piece(NamedTuple):
    """A part of a pattern, with the positions it may begin and end with, as bits."""

    nullable: bool
    first: int
    last: int


_NOTHING: Final = _Piece(nullable=True, first=0, last=0)


class StopAutomaton:
    """Several patterns as one automaton.

    A state is a set of positions, held as the bits of an integer: those whose character was the
    last one read. Steps are worked out when first needed and then remembered.

    Args:
        patterns: Any number.

    Raises:
        StopPatternError: One cannot be used, or all together are too large.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._matchers: list[Matcher] = []
        self._follow: list[int] = []
        self._steps: dict[tuple[int, str], int] = {}
        self._ends: list[tuple[int, str]] = []  # last positions of each pattern
        self._first = 0
        for pattern in patterns:
            piece = _Parser(pattern, self).parse()
            if piece.nullable:
                raise StopPatternError("matches the empty text")
            self._first |= piece.first
            self._ends.append((piece.last, pattern))

    # --- Building, for the parser ----------------------------------------------------------------

    def add(self, matcher: Matcher) -> _Piece:
        """A position for one character."""
        if len(self._matchers) >= MAX_POSITIONS:
            _too_large()
        bit = 1 << len(self._matchers)
        self._matchers.append(matcher)
        self._follow.append(0)
        return _Piece(nullable=False, first=bit, last=bit)

    def join(self, left: _Piece, right: _Piece) -> _Piece:
        """`right` after `left`."""
        for position in _bits(left.last):
            self._follow[position] |= right.first
        return _Piece(
            nullable=left.nullable and right.nullable,
            first=left.first | (right.first if left.nullable else 0),
            last=right.last | (left.last if right.nullable else 0),
        )

    # --- Running ---------------------------------------------------------------------------------

    def step(self, state: int, char: str) -> int:
        """The state after one more character; 0 when nothing can match any more."""
        after = self._steps.get((state, char))
        if after is None:
            after = self._work_out(state, char)
            if len(self._steps) < 4096:
                self._steps[state, char] = after
        return after

    def begin(self, char: str) -> int:
        """The state of a match that begins with this character; 0 if none does."""
        return self.step(0, char)

    def matched(self, state: int) -> str | None:
        """The pattern that is complete in a state, the first of several."""
        return next((pattern for last, pattern in self._ends if state & last), None)

    def _work_out(self, state: int, char: str) -> int:
        allowed = 0
        for position in _bits(state):
            allowed |= self._follow[position]
        if not state:
            allowed = self._first
        after = 0
        for position in _bits(allowed):
            if self._matchers[position](char):
                after |= 1 << position
        return after


def _bits(value: int) -> Sequence[int]:
    found = []
    while value:
        low = value & -value
        found.append(low.bit_length() - 1)
        value ^= low
    return found


class _Parser:
    """Reads one pattern into an automaton."""

    def __init__(self, pattern: str, automaton: StopAutomaton) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise StopPatternError(f"is longer than {MAX_PATTERN_CHARS} characters")
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._flags = re.NOFLAG
        self._automaton = automaton

    def parse(self) -> _Piece:
        if flags := _FLAGS.match(self._text):
            self._at = flags.end()
            self._flags |= re.IGNORECASE if "i" in flags[1] else re.NOFLAG
            self._flags |= re.DOTALL if "s" in flags[1] else re.NOFLAG
        piece = self._alternatives()
        if self._at < len(self._text):
            raise StopPatternError("has a parenthesis that was never opened")
        return piece

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> _Piece:
        piece = self._sequence()
        while self._peek() == "|":
            self._at += 1
            other = self._sequence()
            piece = _Piece(
                nullable=piece.nullable or other.nullable,
                first=piece.first | other.first,
                last=piece.last | other.last,
            )
        return piece

    def _sequence(self) -> _Piece:
        piece = _NOTHING
        while self._peek() not in ("", "|", ")"):
            piece = self._automaton.join(piece, self._repeated())
        return piece

    def _repeated(self) -> _Piece:
        """One atom with its quantifier. Every repeat reads the atom anew, into new positions."""
        start = self._at
        piece = self._atom()
        end = self._at
        least, most = self._counts()
        after = self._at
        if most == 0 or not piece.first:
            return _NOTHING
        if most > MAX_POSITIONS:
            _too_large()
        pieces = [piece]
        for _ in range(most - 1):
            self._at = start
            pieces.append(self._atom())
            assert self._at == end, "an atom reads the same twice"
        self._at = after
        whole = _NOTHING
        for number, copy in enumerate(pieces):
            whole = self._automaton.join(
                whole, copy if number < least else copy._replace(nullable=True)
            )
        return whole

    def _counts(self) -> tuple[int, int]:
        least, most = 1, 1
        if self._peek() in ("*", "+"):
            _unbounded()
        if self._peek() == "?":
            least, self._at = 0, self._at + 1
        elif counts := _COUNTS.match(self._text, self._at):
            if counts[2] and not counts[3]:
                _unbounded()
            least = int(counts[1] or 0)
            most = int(counts[3]) if counts[2] else least
            if not (counts[1] or counts[3]) or least > most:
                raise StopPatternError("has a repeat that makes no sense")
            self._at = counts.end()
        else:
            return least, most
        if self._peek() == "?":
            self._at += 1  # shortest and longest are the same for what ends a text
        if self._peek() in ("*", "+", "?") or _COUNTS.match(self._text, self._at):
            raise StopPatternError("has a repeat of a repeat")
        return least, most

    def _atom(self) -> _Piece:
        char = self._peek()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case ".":
                self._at += 1
                return self._compiled(".")
        if char in "^$":
            _refused()
        if char in "*+?":
            raise StopPatternError("has a repeat of nothing")
        self._at += 1
        return self._literal(char)

    def _group(self) -> _Piece:
        opened = _GROUP.match(self._text, self._at)
        if opened is None:
            _refused()
        self._at = opened.end()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise StopPatternError(f"nests deeper than {_MAX_DEPTH} levels")
        piece = self._alternatives()
        self._depth -= 1
        if self._peek() != ")":
            raise StopPatternError("has a parenthesis that is never closed")
        self._at += 1
        return piece

    def _class(self) -> _Piece:
        start = self._at
        self._at += 2 if self._text.startswith("[^", start) else 1
        first = self._at
        while self._peek() != "]" or self._at == first:
            if self._peek() == "":
                raise StopPatternError("has a class that is never closed")
            self._at += 2 if self._peek() == "\\" else 1
        inside = self._text[first : self._at]
        self._at += 1
        if "--" in inside:
            raise StopPatternError("has a class that makes no sense")
        # Characters that `re` reserves for set operations stand for themselves.
        inside = re.sub(r"\\.|[\[&|~]", lambda m: m[0] if m[0][0] == "\\" else "\\" + m[0], inside)
        return self._compiled(f"{self._text[start:first]}{inside}]")

    def _escape(self) -> _Piece:
        self._at += 1
        char = self._peek()
        if code := _CODE_ESCAPE.match(self._text, self._at):
            self._at = code.end()
            return self._literal(chr(int(code[0][1:], 16)))
        self._at += 1
        if char and char in "dDwWsS":
            return self._compiled("\\" + char)
        if char and char in "bBAZ123456789":
            _refused()
        if literal := _SIMPLE_ESCAPES.get(char):
            return self._literal(literal)
        if not char or (char.isascii() and char.isalnum()):
            raise StopPatternError("has an unknown escape")
        return self._literal(char)

    def _literal(self, char: str) -> _Piece:
        if self._flags & re.IGNORECASE:
            return self._compiled(re.escape(char))
        return self._automaton.add(char.__eq__)

    def _compiled(self, pattern: str) -> _Piece:
        try:
            compiled = re.compile(pattern, self._flags)
        except re.error:
            raise StopPatternError("has a class that makes no sense") from None
        return self._automaton.add(compiled.fullmatch)


def _too_large() -> NoReturn:
    raise StopPatternError(f"stands for more than {MAX_POSITIONS} characters")


def _unbounded() -> NoReturn:
    raise StopPatternError("has a repeat without an upper bound; write `{0,100}` instead of `*`")


def _refused() -> NoReturn:
    raise StopPatternError("uses anchors, look-around or back-references, which cannot be honoured")
