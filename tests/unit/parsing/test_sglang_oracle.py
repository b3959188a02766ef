"""SGLang's own tool parsers make the same of well-formed replies, where chunks are whole tokens.

Where they do not, it is said here, and which is right.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.parsing.reading import calls, read, tool_parser
from tests.unit.parsing.recorded import TOOLS, WELL_FORMED

_TOKENS = re.compile(r"<[^<>\s]*>|<[^<>]*>|\[[A-Z_]+\]|\w+|\s+|.", re.DOTALL)

# It streams the text "null" for a null that the schema allows; what it parses at once is null.
_THEIR_ARGUMENTS = {format: {"note": "null"} for format in ("glm", "glm45", "ling3")}
# It does not know a recipient before the channel, nor a second call of InternLM's.
_THEIR_SPELLING = {
    "interns1": (
        '\n<|action_start|> <|plugin|>\n{"name": "get_clock", "parameters": {}}<|action_end|>',
        "",
    ),
    "gpt-oss": (
        " to=functions.get_clock<|channel|>commentary json",
        "<|channel|>commentary to=functions.get_clock <|constrain|>json",
    ),
}


@pytest.fixture(scope="module")
def function_call_parser() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' deprecations
        from sglang.srt.entrypoints.openai.protocol import Function, Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        tools = [
            Tool(type="function", function=Function(name=tool.name, parameters=tool.parameters))
            for tool in TOOLS
        ]
        yield lambda format: FunctionCallParser(tools, format)


def streamed(parser: Any, output: str) -> list[tuple[str, str]]:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    items = [parser.parse_stream_chunk(token)[1] for token in _TOKENS.findall(output)]
    for item in [*(one for some in items for one in some), *parser.parse_stream_end()[1]]:
        if item.name:
            names[item.tool_index] = item.name
        arguments[item.tool_index] = arguments.get(item.tool_index, "") + (item.parameters or "")
    return [(name, arguments[index]) for index, name in sorted(names.items())]


@pytest.mark.parametrize("format", WELL_FORMED)
def test_the_same_calls(format: str, function_call_parser: Any) -> None:
    output = WELL_FORMED[format].replace(*_THEIR_SPELLING.get(format, ("", "")))
    ours = decoded(calls(read(tool_parser(format, TOOLS), [output])))
    ours[0][1].update(_THEIR_ARGUMENTS.get(format, {}))
    assert decoded(streamed(function_call_parser(format), output)) == ours


def decoded(found: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    return [(name, msgspec.json.decode(text or "{}")) for name, text in found]
