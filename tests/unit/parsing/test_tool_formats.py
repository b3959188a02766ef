"""Every format of tool calls says the same thing in its own way."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.parsing.reading import Part, calls, read, text, tool_parser
from tests.unit.parsing.recorded import ARGUMENTS, SAID, TOOLS, WELL_FORMED
from workers.parsing.tools import TOOL_FORMATS, detect_tool_format


def parsed(format: str, output: str) -> list[Part]:
    return read(tool_parser(format, TOOLS), [output])


@pytest.mark.parametrize("format", WELL_FORMED)
def test_a_reply_with_two_calls(format: str) -> None:
    parts = parsed(format, WELL_FORMED[format])
    assert text(parts).strip() == SAID
    (first, second) = calls(parts)
    assert (first[0], msgspec.json.decode(first[1])) == ("get_weather", ARGUMENTS)
    assert (second[0], msgspec.json.decode(second[1] or "{}")) == ("get_clock", {})


@pytest.mark.parametrize("format", WELL_FORMED)
def test_a_cut_never_invents_lost_or_closed_arguments(format: str) -> None:
    """Cut anywhere, a call's arguments are how those of the whole call begin."""
    output = WELL_FORMED[format]
    whole = calls(parsed(format, output))
    for length in range(len(output)):
        parts = parsed(format, output[:length])
        cut = calls(parts)
        assert [name for name, _ in cut] == [name for name, _ in whole[: len(cut)]]
        assert all(
            expected.startswith(arguments)
            for (_, arguments), (_, expected) in zip(cut, whole, strict=False)
        ), (length, cut)
        assert len(text(parts)) <= length


@pytest.mark.parametrize("format", sorted({*WELL_FORMED} - {"lfm2", "pythonic"}))
def test_a_cut_leaves_no_markup_in_the_text(format: str) -> None:
    """Not of the two that begin a call with a bracket, which may as well be text."""
    output = WELL_FORMED[format]
    for length in range(len(output)):
        said = text(read(tool_parser(format, TOOLS), output[:length], cut=True))
        assert "get" not in said, length
        assert "name" not in said, length


@pytest.mark.parametrize("format", WELL_FORMED)
def test_a_second_call_ends_the_choice_where_one_is_allowed(format: str) -> None:
    parser = tool_parser(format, TOOLS, single_call=True)
    (call,) = calls(read(parser, list(WELL_FORMED[format])))
    assert msgspec.json.decode(call[1]) == ARGUMENTS
    assert parser.stopped
    assert parser.matched is None


@pytest.mark.parametrize("format", sorted({*TOOL_FORMATS} - {"gpt-oss"}))
def test_text_without_calls_is_passed_on_as_it_is(format: str) -> None:
    output = ' In <b>1</b> [x] {"a": 1} `c` | < & > \n\n'
    assert parsed(format, output) == [Part("text", output)]


def test_a_bracket_before_a_name_that_was_not_offered_is_text() -> None:
    output = "[print(1)] and [{}]"
    assert parsed("pythonic", output) == [Part("text", output)]
    assert parsed("lfm2", output) == [Part("text", output)]


def test_a_call_by_its_number_alone_is_certain_only_of_a_single_tool() -> None:
    output = "<|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert calls(read(tool_parser("kimi_k2", TOOLS[:1]), [output])) == [("get_weather", "{}")]
    assert parsed("kimi_k2", output) == [Part("text", output)]


@pytest.mark.parametrize(
    ("sign", "format"),
    [
        ("<|start|>assistant<|channel|>final<|message|>", "gpt-oss"),
        ("<｜tool▁calls▁begin｜>{{ name }}\n```json", "deepseekv3"),  # noqa: RUF001
        ("<｜tool▁calls▁begin｜>{{ name }}", "deepseekv31"),  # noqa: RUF001
        ("<｜DSML｜function_calls>", "deepseekv32"),  # noqa: RUF001
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<minimax:tool_call>", "minimax-m2"),
        ("<tool_call>{{ name }}<arg_key>", "glm45"),
        ("<tool_call>\n<function=f>", "qwen3_coder"),
        ('<tool_call>\n{"name": ', "qwen25"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3"),
        ("<|python_start|>", "pythonic"),
        ("{{ messages }}", None),
    ],
)
def test_the_format_is_read_off_the_template(sign: str, format: str | None) -> None:
    assert detect_tool_format("{% if tools %}" + sign) == format
