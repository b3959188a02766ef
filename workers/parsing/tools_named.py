"""Formats that write the tool's name in markup of its own, and the arguments as JSON after it.

Source: SGLang 0.5.23, `srt/function_call`: `kimik2_detector`, `deepseekv3_detector`,
`deepseekv31_detector`, `mistral_detector`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.base import CallParser
from workers.parsing.reader import Step, TextReader
from workers.parsing.tools_constraint import Calls, calls_constraint
from workers.parsing.tools_json import JsonCallReader

_NAME_LIMIT: Final = 256


class Markup(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of one format.

    Attributes:
        section: Before and after all calls; may be missing.
        call: Before the head of a call, before its arguments, and after it.
        fence: Characters that may stand between arguments and closing marker.
        name: The tool's name by the head of its call and the names offered; empty for none.
    """

    section: tuple[str, str]
    call: tuple[str, str, str]
    fence: str = ""
    name: Callable[[str, Sequence[str]], str]


class _NamedReader(TextReader):
    """Calls as `Markup` describes them."""

    def __init__(self, choice: int, tools: Sequence[ToolSpec], markup: Markup) -> None:
        super().__init__(choice)
        self._markup = markup
        self._offered = [tool.name for tool in tools]

    def grammar(self) -> Step[None]:
        section, section_end = self._markup.section
        call = self._markup.call[0]
        while marker := (yield from self.plain(section, call)):
            yield from self.space()
            if marker == section and not (yield from self.expect(call)):
                self.as_text()
                continue
            if not (yield from self._call()):
                self.as_text()
                continue
            while True:
                yield from self.space()
                if not (yield from self.expect(call)):
                    break
                if not (yield from self._call()):
                    self.broken()
                    break
            yield from self.expect(section_end)
            self.accept()

    def _call(self) -> Step[bool]:
        """Read a call after its opening; False if it is none."""
        _, before, end = self._markup.call
        head, found = yield from self.until(before, limit=_NAME_LIMIT)
        name = self._markup.name(head.strip(), self._offered)
        if not found or not name:
            return False
        self.call(name)
        yield from self.space()
        if (yield from self.next_is("{[")):
            yield from self.json_value(self.arguments)
        yield from self.space(self._markup.fence)
        yield from self.expect(end)
        self.accept()
        return True


class NamedFormat:
    """Formats whose markers differ and whose grammar does not."""

    def __init__(self, markup: Markup, calls: Calls) -> None:
        self.markers: tuple[str, str] | None = markup.section
        self._markup = markup
        self._calls = calls

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _NamedReader(choice, tools, self._markup)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, self._calls)


def _kimi_name(head: str, offered: Sequence[str]) -> str:
    """`functions.NAME:3`; a bare `3` leaves no doubt only where one tool is offered."""
    name, _, _ = head.rpartition(":")
    if not name and head.isdigit():
        return offered[0] if len(offered) == 1 else ""
    return (name or head).removeprefix("functions.")


def _deepseek_name(head: str, _: Sequence[str]) -> str:
    return head.removeprefix("function<｜tool▁sep｜>").strip()  # noqa: RUF001


# The bars of DeepSeek's markers are wide ones: the model's own spelling.
_DEEPSEEK_SECTION: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
_DEEPSEEK_CALL: Final = "<｜tool▁call▁begin｜>"  # noqa: RUF001
_DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"  # noqa: RUF001
_DEEPSEEK_END: Final = "<｜tool▁call▁end｜>"  # noqa: RUF001

DEEPSEEK_V3: Final = NamedFormat(
    Markup(
        section=_DEEPSEEK_SECTION,
        call=(_DEEPSEEK_CALL, "```json", _DEEPSEEK_END),
        fence="`",
        name=_deepseek_name,
    ),
    Calls(
        section=_DEEPSEEK_SECTION,
        trigger=_DEEPSEEK_SECTION[0],
        begin=f"{_DEEPSEEK_CALL}function{_DEEPSEEK_SEPARATOR}{{name}}\n```json\n",
        end=f"\n```{_DEEPSEEK_END}",
        separator="\n",
    ),
)

DEEPSEEK_V31: Final = NamedFormat(
    Markup(
        section=_DEEPSEEK_SECTION,
        call=(_DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR, _DEEPSEEK_END),
        name=_deepseek_name,
    ),
    Calls(
        section=_DEEPSEEK_SECTION,
        trigger=_DEEPSEEK_SECTION[0],
        begin=f"{_DEEPSEEK_CALL}{{name}}{_DEEPSEEK_SEPARATOR}",
        end=_DEEPSEEK_END,
    ),
)

_KIMI_SECTION: Final = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

KIMI_K2: Final = NamedFormat(
    Markup(
        section=_KIMI_SECTION,
        call=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        name=_kimi_name,
    ),
    Calls(
        section=_KIMI_SECTION,
        trigger=_KIMI_SECTION[0],
        begin="<|tool_call_begin|>functions.{name}",
        number=(":", "<|tool_call_argument_begin|>"),
        end="<|tool_call_end|>",
    ),
)


class _MistralReader(JsonCallReader):
    """`[TOOL_CALLS]name[ARGS]{...}` for each call, or `[TOOL_CALLS] [{...}, {...}]` for all."""

    def grammar(self) -> Step[None]:
        while (yield from self.plain("[TOOL_CALLS]")):
            yield from self.space()
            if (yield from self.expect("[")):
                read = yield from self.json_calls(bool)
            elif (yield from self.next_is("{")):
                read = yield from self.json_call()
            else:
                read = yield from self._named()
            if not read:
                self.as_text()

    def _named(self) -> Step[bool]:
        head, marker = yield from self.until("[ARGS]", "{", limit=_NAME_LIMIT)
        name, _, _ = head.partition("[CALL_ID]")
        if not marker or not name.strip():
            return False
        if marker == "{":
            self._at -= 1
        self.call(name.strip())
        yield from self.space()
        if (yield from self.next_is("{[")):
            yield from self.json_value(self.arguments)
        return True


class MistralFormat:
    """Mistral and Devstral, old and new."""

    markers: tuple[str, str] | None = None

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _MistralReader(choice)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, *_MISTRAL_CALLS)


_MISTRAL_CALLS: Final = (
    Calls(trigger="[TOOL_CALLS]", begin="[TOOL_CALLS]{name}[ARGS]", end=""),
    Calls(trigger="[TOOL_CALLS]", begin='[TOOL_CALLS] [{"name": "{name}", "arguments": ', end="}]"),
)
MISTRAL: Final = MistralFormat()
