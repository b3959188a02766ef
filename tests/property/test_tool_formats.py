"""The law of output parsers, for every format of tool calls: chunk boundaries carry no meaning.

The texts are what models really write, and what is left when such a text is cut off or damaged.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.sampling import StopConditions
from tests.unit.parsing.reading import read, tool_parser
from tests.unit.parsing.recorded import RECORDED, TOOLS
from workers.parsing.pipeline import ChoiceParser, build_parser
from workers.parsing.tools import TOOL_FORMATS


def cut(text: str, at: list[int]) -> list[str]:
    bounds = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@st.composite
def outputs(draw: st.DrawFn, format: str) -> str:
    """Some of a format's recorded texts in a row, cut off or with a piece missing."""
    texts = st.sampled_from(RECORDED[format])
    text = "".join(draw(st.lists(texts, min_size=1, max_size=3)))
    start = draw(st.integers(0, len(text)))
    length = draw(st.sampled_from([0, 0, 1, 7, len(text)]))
    return text[:start] + text[start + length :]


@pytest.mark.parametrize("format", RECORDED)
@settings(max_examples=40)
@given(data=st.data())
def test_chunk_boundaries_carry_no_meaning(format: str, data: st.DataObject) -> None:
    text = data.draw(outputs(format))
    stops = tuple(data.draw(st.lists(st.sampled_from(["END", "\n", "{", "</"]), max_size=1)))
    whole = read(tool_parser(format, TOOLS, stops=stops), [text])
    for chunks in (list(text), cut(text, data.draw(st.lists(st.integers(0, 400), max_size=8)))):
        assert read(tool_parser(format, TOOLS, stops=stops), chunks) == whole


@pytest.mark.parametrize("format", ["hermes", "kimi_k2", "deepseekv32"])
@settings(max_examples=60)
@given(data=st.data())
def test_chunk_boundaries_carry_no_meaning_inside_reasoning(
    format: str, data: st.DataObject
) -> None:
    between = st.sampled_from(["", "\n", "So:\n", "</think>", "\n\nMore.", " <tool_call> ", "</th"])
    pieces = [data.draw(between), data.draw(outputs(format)), data.draw(between)]
    text = "".join([*pieces, data.draw(outputs(format)), data.draw(between)])

    def parser() -> ChoiceParser:
        return build_parser(
            0,
            reasoning_format="qwen3",
            starts_inside=True,
            visible=True,
            stop=StopConditions(),
            template_stops=(),
            tool_format=TOOL_FORMATS[format],
            tools=TOOLS,
        )

    whole = read(parser(), [text])
    for chunks in (list(text), cut(text, data.draw(st.lists(st.integers(0, 400), max_size=8)))):
        assert read(parser(), chunks) == whole
