"""Formats that write a call as a JSON object with a name and arguments, between markers.

The argument text is passed on exactly as the model wrote it, fragment by fragment as it comes.

Source: SGLang 0.5.23, `srt/function_call`: `hermes_detector`, `qwen25_detector`,
`llama32_detector`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.base import CallParser
from workers.parsing.json_text import decoded
from workers.parsing.reader import Step, TextReader
from workers.parsing.tools_constraint import Calls, calls_constraint

_ARGUMENTS: Final = ("arguments", "parameters")


class JsonCallReader(TextReader):
    """Reads `{"name": ..., "arguments": ...}`, with the keys in any order."""

    def json_call(self, accepts: Callable[[str], bool] = bool) -> Step[bool]:
        """Read a call's object and emit the call.

        Args:
            accepts: Whether a tool may have this name.

        Returns:
            False if this is no call; then nothing was emitted.
        """
        if not (yield from self.expect("{")):
            return False
        begun = False
        early = ""  # arguments that came before the name
        while True:
            yield from self.space(",")
            if (yield from self.expect("}")):
                return begun
            key, whole = yield from self.json_text()
            yield from self.space()
            if not whole or not (yield from self.expect(":")):
                break
            yield from self.space()
            if decoded(key) == "name" and not begun:
                value, whole = yield from self.json_text()
                name = decoded(value)
                if not whole or not isinstance(name, str) or not accepts(name := name.strip()):
                    return False
                begun = True
                self.call(name)
                self.arguments(early)
            elif decoded(key) in _ARGUMENTS and begun and not early:
                whole = yield from self._arguments()
            else:
                value, whole = yield from self.json_text()
                if decoded(key) in _ARGUMENTS and not begun:
                    early = _as_object(value)
            if not whole:
                break
        if begun:
            self.broken()
        return begun

    def json_calls(self, accepts: Callable[[str], bool]) -> Step[bool]:
        """Read what follows the `[` of a list of calls; False if it does not begin with one."""
        found = False
        while True:
            yield from self.space(",")
            if not (yield from self.next_is("{")) or not (yield from self.json_call(accepts)):
                break
            found = True
            self.accept()
        if found and (yield from self.expect("]")):
            self.accept()
        elif found:
            self.broken()
        return found

    def _arguments(self) -> Step[bool]:
        """Arguments as they come; only those that are a string or a word wait for their end."""
        if (yield from self.next_is("{[")):
            whole: bool = yield from self.json_value(self.arguments)
            return whole
        value, whole = yield from self.json_text()
        self.arguments(_as_object(value))
        return whole


class _HermesReader(JsonCallReader):
    """`<tool_call>{...}</tool_call>`, any number of times. The closing marker may be missing."""

    def __init__(self, choice: int, opening: str, closing: str) -> None:
        super().__init__(choice)
        self._opening = opening
        self._closing = closing

    def grammar(self) -> Step[None]:
        while (yield from self.plain(self._opening)):
            yield from self.space("[,")
            if not (yield from self.json_call()):
                self.as_text()
                continue
            yield from self._rest()

    def _rest(self) -> Step[None]:
        """What may follow a call's object before its closing marker: brackets, or another call."""
        while True:
            yield from self.space("],}")
            self.accept()
            if not (yield from self.next_is("{")):
                break
            if not (yield from self.json_call()):
                self.broken()
                return
        yield from self.expect(self._closing)
        self.accept()


class HermesFormat:
    """Hermes, Qwen 2.5 and 3, and many that were trained after them; others have other markers."""

    def __init__(self, opening: str, closing: str, calls: Calls) -> None:
        self.markers: tuple[str, str] | None = (opening, closing)
        self._calls = calls

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        assert self.markers is not None
        return _HermesReader(choice, *self.markers)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, self._calls)


class _Llama3Reader(JsonCallReader):
    """`<|python_tag|>{...}; {...}`, or the objects alone if the answer begins with one.

    Without the marker an object is a call only if it names a tool that is offered: it may as well
    be an answer in JSON.
    """

    def __init__(self, choice: int, tools: Sequence[ToolSpec]) -> None:
        super().__init__(choice)
        self._offered = frozenset(tool.name for tool in tools)

    def grammar(self) -> Step[None]:
        yield from self.space()
        if (yield from self.next_is("{")):
            yield from self._objects(self._offered.__contains__)
        self.reread()
        while (yield from self.plain("<|python_tag|>")):
            yield from self.space()
            if not (yield from self._objects(bool)):
                self.as_text()

    def _objects(self, accepts: Callable[[str], bool]) -> Step[bool]:
        """One call after the other; False if there is none."""
        found = False
        while (yield from self.json_call(accepts)):
            found = True
            yield from self.space(";,")
            self.accept()
        if found:
            self.broken()
        return found


class Llama3Format:
    """Llama 3.1 to 3.3."""

    markers: tuple[str, str] | None = None

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _Llama3Reader(choice, tools)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, _LLAMA3_CALLS)


HERMES: Final = HermesFormat(
    "<tool_call>",
    "</tool_call>",
    Calls(
        trigger="<tool_call>",
        begin='<tool_call>\n{"name": "{name}", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
    ),
)
INTERNS1: Final = HermesFormat(
    "<|action_start|> <|plugin|>",
    "<|action_end|>",
    Calls(
        trigger="<|action_start|>",
        begin='<|action_start|> <|plugin|>\n{"name": "{name}", "parameters": ',
        end="}<|action_end|>",
        separator="\n",
    ),
)
_LLAMA3_CALLS: Final = Calls(
    trigger='{"name": "', begin='{"name": "{name}", "parameters": ', end="}", separator="; "
)
LLAMA3: Final = Llama3Format()


def _as_object(text: str) -> str:
    """Arguments that were written as a string of JSON, or as nothing, as an object's text."""
    value = decoded(text)
    if isinstance(value, str) and (not value.strip() or isinstance(decoded(value), dict)):
        return value.strip()
    return "" if text == "null" else text
