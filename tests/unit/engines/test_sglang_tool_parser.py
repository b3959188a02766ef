"""Formats that only SGLang reads: the whole text at once, whatever chunks it came in."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from schemas.message import ToolChoice
from schemas.sampling import StopConditions
from tests.unit.parsing.reading import Part, read
from tests.unit.parsing.recorded import TOOLS
from workers.engines.sglang_tool_parser import MARKERS, SglangToolFormat
from workers.parsing.pipeline import ChoiceParser, build_parser
from workers.parsing.tools import TOOL_FORMATS

COHERE = (
    'I look.<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", '
    '"parameters": {"city": "Bern"}}]<|END_ACTION|>'
)
WEATHER = Part("call", '{"city": "Bern"}', "get_weather")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang's imports
        yield


def parser(format: str) -> ChoiceParser:
    return build_parser(
        0,
        reasoning_format=None,
        starts_inside=False,
        visible=True,
        stop=StopConditions(),
        template_stops=(),
        tool_format=SglangToolFormat(format),
        tools=TOOLS,
    )


@pytest.mark.parametrize("format", ["cohere_command4"])
def test_a_call_is_read_however_it_was_cut(format: str) -> None:
    for chunks in ([COHERE], list(COHERE), [COHERE[:40], COHERE[40:]]):
        assert read(parser(format), chunks) == [Part("text", "I look."), WEATHER]


def test_text_before_the_marker_streams() -> None:
    assert len(parser("cohere_command4").feed("I look.")) == 1


@pytest.mark.parametrize("format", MARKERS)
def test_what_is_no_call_is_not_lost(format: str) -> None:
    marker = MARKERS[format][0] if MARKERS[format] else ""
    output = f" a < b {marker} nothing"
    assert "".join(part.text for part in read(parser(format), list(output))) == output


@pytest.mark.parametrize("format", MARKERS)
def test_a_forced_call_is_written_and_read_as_json(format: str) -> None:
    assert SglangToolFormat(format).constraint(TOOLS, ToolChoice(mode="required")) is not None
    assert SglangToolFormat(format).constraint(TOOLS, ToolChoice()) is None
    output = '[{"name": "get_weather", "parameters": {"city": "Bern"}}]'
    assert read(parser(format), list(output)) == [WEATHER]


def test_every_parser_of_sglang_has_a_format_here() -> None:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    theirs = {*FunctionCallParser.ToolCallParserEnum}
    # It is made from a template that comes with the model's own files.
    assert theirs - {"response_template"} == {*TOOL_FORMATS, *MARKERS}
    assert not {*TOOL_FORMATS} & {*MARKERS}
