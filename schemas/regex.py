r"""Regular expressions as far as constrained decoding understands them.

Grammar compilers read a regular language: no look-around, no back-references, no flags, no word
boundaries, and anchors only where an alternative begins or ends. Some of these they do not refuse
but ignore, so an expression is read here first. The syntax is ECMAScript's, which JSON Schema
names; groups may also be named the way Python does.

The second thing here is `rows_in_json`: within a JSON string some characters are escaped, and a
grammar works on the text with its escapes.

Source: ECMA-262, section 22.2 (patterns); RFC 8259, section 7 (strings).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_LAST: Final = 0x10FFFF
_ALL: Final[tuple[tuple[int, int], ...]] = ((0, _LAST),)
_MAX_NESTING: Final = 40
_MAX_COUNT: Final = 100_000

_DIGITS: Final[Ranges] = ((0x30, 0x39),)
_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[Ranges] = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CONTROL_ESCAPES: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_ESCAPED_IN_JSON: Final[Ranges] = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_SHORT_ESCAPES: Final = {0x22: '"', 0x5C: "\\\\", 0x0A: "n", 0x0D: "r", 0x09: "t"}

_SHORT_QUANTIFIERS: Final[dict[str, tuple[float, float]]] = {
    "": (1, 1),
    "?": (0, 1),
    "*": (0, math.inf),
    "+": (1, math.inf),
}
_QUANTIFIER: Final = re.compile(r"[*+?]|\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
_GROUP: Final = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w{0,63}>|(?!\?))")
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")


class UnsupportedRegex(Exception):
    """It is not a regular expression, or uses what decoding cannot enforce.

    Args:
        reason: Goes on after "The regular expression"; quotes nothing of it.
    """


class Group(msgspec.Struct, frozen=True):
    """Alternatives, in parentheses unless it is the whole expression."""

    alternatives: tuple[Alternative, ...]


class Item(msgspec.Struct, frozen=True):
    """Characters or a group, and how often they come: `""`, `*`, `{2,5}` and so on."""

    what: Ranges | Group
    quantifier: str

    @property
    def span(self) -> tuple[float, float]:
        """How often they come at least and at most."""
        if self.quantifier in _SHORT_QUANTIFIERS:
            return _SHORT_QUANTIFIERS[self.quantifier]
        least, comma, most = self.quantifier[1:-1].partition(",")
        return int(least), int(most) if most else math.inf if comma else int(least)


Row: TypeAlias = tuple[Item, ...]
"""Items in a row that match all of a string."""


class Alternative(msgspec.Struct, frozen=True):
    """Items in a row; `starts` and `ends` tell of `^` before and `$` after them."""

    items: tuple[Item, ...]
    starts: bool
    ends: bool


def parse(pattern: str) -> Group:
    """The structure of an expression.

    Raises:
        UnsupportedRegex: Decoding cannot enforce it.
    """
    reader = _Reader(pattern)
    group = reader.group(0)
    if reader.at < len(pattern):
        raise UnsupportedRegex("has a closing parenthesis too many")
    return group


def whole_rows(pattern: str) -> list[Row]:
    """The ways to match all of a string; JSON Schema's patterns may match anywhere in it.

    Raises:
        UnsupportedRegex: Decoding cannot enforce it.
    """
    anything = Item(_ALL, "*")
    return [
        (
            *(() if alternative.starts else (anything,)),
            *alternative.items,
            *(() if alternative.ends else (anything,)),
        )
        for alternative in parse(pattern).alternatives
    ]


def rows_in_json(rows: Iterable[Row]) -> str:
    """The expression for the inside of a JSON string whose value one of the rows matches."""
    return "|".join("".join(map(_item, row)) for row in rows)


def json_text_of_length(least: int, most: int | None) -> str:
    """The expression for the inside of a JSON string of some length, in characters."""
    return f"{_in_json(_ALL)}{{{least},{'' if most is None else most}}}"


def _item(item: Item) -> str:
    if isinstance(item.what, Group):
        inner = "|".join(
            "".join(map(_item, alternative.items)) for alternative in item.what.alternatives
        )
        return f"(?:{inner}){item.quantifier}"
    return _in_json(item.what) + item.quantifier


def _in_json(ranges: Ranges) -> str:
    """One character of these, as JSON text."""
    plain = _class(_without(ranges, _ESCAPED_IN_JSON))
    escaped = [
        short
        for code, short in _SHORT_ESCAPES.items()
        if any(low <= code <= high for low, high in ranges)
    ]
    if not escaped:
        return plain
    escapes = "".join(escaped)
    return f"(?:{plain}|\\\\[{escapes}])" if plain else f"(?:\\\\[{escapes}])"


def _class(ranges: Ranges) -> str:
    """As a character class; nothing if there are no characters."""
    if not ranges:
        return ""
    if ranges[-1][1] == _LAST and all(high < 0x80 for _, high in _without(_ALL, ranges)):
        return f"[^{''.join(map(_range, _without(_ALL, ranges)))}]"
    return f"[{''.join(map(_range, ranges))}]"


def _range(limits: tuple[int, int]) -> str:
    low, high = map(_character, limits)
    return low if low == high else f"{low}-{high}"


def _character(code: int) -> str:
    if code < 0x80 and not chr(code).isalnum():
        return f"\\x{code:02x}"
    return chr(code)


# --- Sets of characters --------------------------------------------------------------------------


def _union(ranges: Sequence[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _outside(ranges: Ranges) -> Ranges:
    return _without(_ALL, ranges)


def _without(ranges: Ranges, removed: Ranges) -> Ranges:
    """Both in order and without overlaps, as is the result."""
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        for cut_low, cut_high in removed:
            if cut_high < low or cut_low > high:
                continue
            if cut_low > low:
                left.append((low, cut_low - 1))
            low = cut_high + 1
        if low <= high:
            left.append((low, high))
    return tuple(left)


_CLASSES: Final = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": _outside(_DIGITS),
    "W": _outside(_WORD),
    "S": _outside(_SPACE),
}


# --- Reading -------------------------------------------------------------------------------------


class _Reader:
    """Reads an expression from left to right; recurses once per nested group."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def group(self, nesting: int) -> Group:
        """Alternatives up to a closing parenthesis or the end."""
        if nesting > _MAX_NESTING:
            raise UnsupportedRegex("nests its groups too deep")
        alternatives = [self._alternative(nesting)]
        while self._take("|"):
            alternatives.append(self._alternative(nesting))
        return Group(tuple(alternatives))

    def _alternative(self, nesting: int) -> Alternative:
        starts = nesting == 0 and self._take("^")
        items = tuple(self._items(nesting))
        ends = self._take("$")
        if self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            raise UnsupportedRegex("has an anchor within it")
        if ends and nesting:
            raise UnsupportedRegex("has an anchor within it")
        return Alternative(items, starts, ends)

    def _items(self, nesting: int) -> Iterator[Item]:
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)$":
            yield Item(self._atom(nesting), self._quantifier())

    def _atom(self, nesting: int) -> Ranges | Group:
        match self._pattern[self.at]:
            case "^":
                raise UnsupportedRegex("has an anchor within it")
            case "(":
                return self._nested(nesting)
            case "[":
                return self._class()
            case "\\":
                found = self._escape()
                return found if isinstance(found, tuple) else ((found, found),)
            case ".":
                self.at += 1
                return _outside(_LINE_ENDS)
            case "*" | "+" | "?":
                raise UnsupportedRegex("repeats nothing")
            case "{" if _QUANTIFIER.match(self._pattern, self.at):
                raise UnsupportedRegex("repeats nothing")
            case character:
                self.at += 1
                return ((ord(character), ord(character)),)

    def _nested(self, nesting: int) -> Group:
        opening = _GROUP.match(self._pattern, self.at)
        if opening is None:
            raise UnsupportedRegex("has a look-around, a flag or another special group")
        self.at = opening.end()
        group = self.group(nesting + 1)
        if not self._take(")"):
            raise UnsupportedRegex("has an unclosed group")
        return group

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self._pattern, self.at)
        if found is None:
            return ""
        self.at = found.end()
        low, high = int(found[1] or 0), int(found[3] or found[1] or 0)
        if max(low, high) > _MAX_COUNT or (found[3] and low > high):
            raise UnsupportedRegex("has a repetition that is too large or the wrong way round")
        self._take("?")  # how eagerly to match means nothing for what matches
        if _QUANTIFIER.match(self._pattern, self.at):
            raise UnsupportedRegex("repeats a repetition")
        return found[0]

    def _class(self) -> Ranges:
        self.at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_member()
            if self._pattern[self.at : self.at + 1] == "-" and self._pattern[
                self.at + 1 : self.at + 2
            ] not in ("]", ""):
                self.at += 1
                high = self._class_member()
                if isinstance(low, tuple) or isinstance(high, tuple) or low > high:
                    raise UnsupportedRegex("has a malformed range of characters")
                ranges.append((low, high))
            else:
                ranges += low if isinstance(low, tuple) else ((low, low),)
        if not ranges:
            raise UnsupportedRegex("has an empty class of characters")
        found = _union(ranges)
        return _outside(found) if negated else found

    def _class_member(self) -> int | Ranges:
        if self.at >= len(self._pattern):
            raise UnsupportedRegex("has an unclosed class of characters")
        if self._pattern[self.at] != "\\":
            self.at += 1
            return ord(self._pattern[self.at - 1])
        if self._pattern[self.at + 1 : self.at + 2] == "b":
            self.at += 2
            return 0x08
        return self._escape()

    def _escape(self) -> int | Ranges:
        self.at += 1
        letter = self._pattern[self.at : self.at + 1]
        if found := _HEX.match(self._pattern, self.at):
            self.at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            if code > _LAST or 0xD800 <= code <= 0xDFFF:
                raise UnsupportedRegex("has an escape that is no character")
            return code
        self.at += 1
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROL_ESCAPES and letter:
            if letter == "0" and self._pattern[self.at : self.at + 1].isdecimal():
                raise UnsupportedRegex("has an octal escape")
            return _CONTROL_ESCAPES[letter]
        if letter.isalnum() or not letter:
            raise UnsupportedRegex("has a back-reference, a word boundary or an unknown escape")
        return ord(letter)

    def _take(self, character: str) -> bool:
        if not self._pattern.startswith(character, self.at):
            return False
        self.at += 1
        return True
