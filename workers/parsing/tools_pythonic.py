"""The format that writes calls as a list of Python calls: `[get_weather(city="Paris", days=3)]`.

A bracket is a call only if the name of an offered tool and a parenthesis follow it: brackets are
common in text. Each argument is passed on as JSON when it is whole.

Source: SGLang 0.5.23, `srt/function_call/pythonic_detector`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.argument_types import as_json, string
from workers.parsing.base import CallParser
from workers.parsing.reader import Step
from workers.parsing.tools_constraint import json_calls_constraint
from workers.parsing.tools_json import JsonCallReader

_NAME_LIMIT: Final = 128
_KEYWORD: Final = re.compile(r"\s*(\w+)\s*=(.*)", re.DOTALL)
_ANY: Final[frozenset[str]] = frozenset()


class _Expression:
    """Finds the end of a Python expression: a comma or a parenthesis outside all brackets."""

    def __init__(self) -> None:
        self._quote = ""
        self._escaped = False
        self._depth = 0

    def ends_at(self, text: str, start: int) -> int | None:
        """Where it ends in text of which all before `start` was seen before."""
        for at in range(start, len(text)):
            character = text[at]
            if self._escaped:
                self._escaped = False
            elif self._quote:
                self._escaped = character == "\\"
                self._quote = "" if character == self._quote else self._quote
            elif character in "\"'":
                self._quote = character
            elif character in "([{":
                self._depth += 1
            elif character in ")]}" and self._depth:
                self._depth -= 1
            elif character in ",)" and not self._depth:
                return at
        return None


class _PythonicReader(JsonCallReader):
    """`[f(a=1), g()]`, and the same in JSON, as a forced call is written."""

    def __init__(self, choice: int, tools: Sequence[ToolSpec], markers: Sequence[str]) -> None:
        super().__init__(choice)
        self._markers = markers
        self._offered = frozenset(tool.name for tool in tools)

    def grammar(self) -> Step[None]:
        while marker := (yield from self.plain(*self._markers, "[")):
            if marker != "[":
                self.accept()  # only says what the brackets say again
                continue
            if (yield from self.next_is("{")):
                if not (yield from self.json_calls(self._offered.__contains__)):
                    self.as_text()
                continue
            if not (yield from self._call()):
                self.as_text()
                continue
            while True:
                yield from self.space(",")
                if (yield from self.expect("]")):
                    self.accept()
                    break
                self.accept()
                if not (yield from self._call()):
                    self.broken()
                    break

    def _call(self) -> Step[bool]:
        """Read one call; False if it is none."""
        name, found = yield from self.until("(", limit=_NAME_LIMIT)
        if not found or name.strip() not in self._offered:
            return False
        self.call(name.strip())
        opening = "{"
        while True:
            yield from self.space(",")
            if (yield from self.expect(")")):
                self.arguments("{}" if opening == "{" else "}")
                return True
            if (argument := (yield from self._expression())) is None:
                self.accept()  # cut off: what an unfinished expression means is not known
                return True
            keyword = _KEYWORD.fullmatch(argument)
            key, value = keyword.groups() if keyword else ("", argument)
            self.arguments(f"{opening}{string(key)}: {as_json(value, _ANY)}")
            opening = ", "

    def _expression(self) -> Step[str | None]:
        """The text of the next argument; None if it is cut off."""
        begin = seen = self._at - self._mark
        expression = _Expression()
        while True:
            end = expression.ends_at(self._text, self._mark + seen)
            if end is not None:
                self._at = end
                return self._text[self._mark + begin : end]
            seen = len(self._text) - self._mark
            if not (yield from self.more()):
                self._at = len(self._text)
                return None


class PythonicFormat:
    """Llama 4 and others that write calls as Python.

    XGrammar knows no Python, so calls are forced in JSON. Strict schemas are best effort here.

    Args:
        markers: May stand before and after the list, and say nothing that the list does not.
    """

    markers: tuple[str, str] | None = None

    def __init__(self, *markers: str) -> None:
        self._around = markers

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _PythonicReader(choice, tools, self._around)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return json_calls_constraint(tools, choice)


PYTHONIC: Final = PythonicFormat("<|python_start|>", "<|python_end|>")
LFM2: Final = PythonicFormat("<|tool_call_start|>", "<|tool_call_end|>")
