"""Tool formats that only SGLang reads, behind our own interface.

SGLang's parsers depend on where chunks are cut, so they are given the text as a whole: what comes
before the first marker is passed on as it is generated, everything from there on waits for the end
of the text. A call in such a format does not stream, and text after it comes before it.

Source: `sglang.srt.function_call.function_call_parser`, version 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.base import CallParser
from workers.parsing.reader import Step
from workers.parsing.tools_constraint import json_calls_constraint
from workers.parsing.tools_json import JsonCallReader

Found: TypeAlias = tuple[str, Sequence[tuple[str, str]]]
"""Text, and the name and arguments of each call."""

MARKERS: Final[dict[str, tuple[str, ...]]] = {
    "apertus2509": ("<|tools_prefix|>",),
    "beam": ("<|channel|>", "<|start|>"),
    "cohere_command4": ("<|START_ACTION|>",),
    "gemma4": ("<|tool_call>",),
    "gigachat3": (),
    "gigachat35": ("<｜GCML｜",),  # noqa: RUF001 - the model's own spelling
    "hunyuan": ("<tool_call",),
    "inkling": ("<|content_invoke_tool",),
    "iquest_q1": ("<iquest_tool_call>", "<tool_call>"),
    "k2_horizon": ("<ifm|tool_call",),
    "kimi_k3": ("<|open|>",),
    "minicpm5": ("<function",),
    "minimax-m3": (),
    "muse": (),
    "step3": ("<｜tool_calls_begin｜>",),  # noqa: RUF001
}
"""Where calls may begin, by SGLang's names; with none the whole text waits."""


class SglangToolFormat:
    """One of SGLang's formats.

    Args:
        name: A key of `MARKERS`.
    """

    markers: tuple[str, str] | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self._openings = MARKERS[name]

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _WholeTextReader(choice, tools, self._openings, lambda text: self._find(text, tools))

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return json_calls_constraint(tools, choice)

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> Found:
        from sglang.srt.entrypoints.openai.protocol import Function, Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        functions = [
            Tool(
                type="function",
                function=Function(
                    name=tool.name,
                    parameters=tool.parameters or {"type": "object", "properties": {}},
                ),
            )
            for tool in tools
        ]
        parser = FunctionCallParser(functions, self._name)
        rest, items = parser.parse_non_stream(text)
        return rest or "", [(item.name, item.parameters or "") for item in items if item.name]


class _WholeTextReader(JsonCallReader):
    """Gives the text from the first marker on to `find`, and forced calls in JSON to itself."""

    def __init__(
        self,
        choice: int,
        tools: Sequence[ToolSpec],
        markers: Sequence[str],
        find: Callable[[str], Found],
    ) -> None:
        super().__init__(choice)
        self._offered = frozenset(tool.name for tool in tools)
        self._markers = markers
        self._find = find

    def grammar(self) -> Step[None]:
        yield from self.space()
        if (yield from self.expect("[")):
            yield from self.json_calls(self._offered.__contains__)
        self.reread()
        if self._markers and not (yield from self.plain(*self._markers)):
            return
        while (yield from self.more()):
            pass
        text = self._text[self._mark :]
        try:
            rest, found = self._find(text)
        except Exception:  # it is the model's text that is odd, and it must not be lost
            rest, found = text, ()
        self.text(rest if found else text)
        for name, arguments in found:
            self.call(name)
            self.arguments(arguments)
