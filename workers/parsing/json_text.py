"""Where a JSON value ends, in text that arrives in pieces; without decoding it.

Argument text is passed on as the model wrote it, so only its extent matters: an escape cut in half,
or half a surrogate pair, is nothing to wait for.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_STRING_ENDS: Final = re.compile(r'["\\]')
_STRUCTURE: Final = re.compile(r'["{}\[\],:<\s]')


class JsonScanner:
    """Finds the end of one JSON value.

    Attributes:
        ended: The value is over; what follows it belongs to others.
        whole: It ended where it should. Markup cannot stand in JSON outside a string, so `<` there
            ends a value that was left unfinished.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "_scalar", "ended", "whole")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False
        self.ended = False
        self.whole = False

    def feed(self, text: str) -> int:
        """Take more text; returns how many of its characters belong to the value."""
        at = 0
        while at < len(text) and not self.ended:
            at = self._string(text, at) if self._in_string else self._structure(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        """Go on inside a string, up to its end."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _STRING_ENDS.search(text, at)
        if found is None:
            return len(text)
        if found.group() == "\\":
            self._escaped = True
        else:
            self._in_string = False
            if self._depth == 0:
                self._end(whole=True)
        return found.end()

    def _structure(self, text: str, at: int) -> int:
        """Go on outside strings, up to the next character that has a meaning there."""
        found = _STRUCTURE.search(text, at)
        start = found.start() if found else len(text)
        if self._depth == 0 and start > at:
            self._scalar = True
        if found is None:
            return start
        character = found.group()
        if self._scalar or character == "<":
            # What ends a number or a word belongs no more to it.
            self._end(whole=self._scalar and character != "<")
            return start
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and self._depth:
            self._depth -= 1
            if self._depth == 0:
                self._end(whole=True)
        elif self._depth == 0 and not character.isspace():
            self._end(whole=False)
            return start
        return found.end()

    def finish(self) -> bool:
        """The text has ended: whether the value was whole. Only a number or a word can be."""
        return self.whole or self._scalar

    def _end(self, *, whole: bool) -> None:
        self.ended = True
        self.whole = whole


def decoded(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
