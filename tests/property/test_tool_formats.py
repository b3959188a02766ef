"""The law of output parsers, for every format of tool calls: chunk boundaries carry no meaning.

The texts are what models really write, and what is left when such a text is cut off or damaged.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.parsing.reading import read, tool_parser
from tests.unit.parsing.recorded import RECORDED, TOOLS


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
