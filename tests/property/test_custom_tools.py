"""The input of a custom tool comes back whole, however its JSON is written and cut."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from ingress.dialects.custom_tools import wrap_input
from tests.property.strategies import texts
from tests.unit.dialects.test_custom_tools import unwrap

cuts = st.lists(st.integers(0, 200), max_size=8)


def escaped(text: str) -> str:
    units = text.encode("utf-16-be").hex()
    codes = (units[start : start + 4] for start in range(0, len(units), 4))
    return '{"input":"' + "".join(f"\\u{code}" for code in codes) + '"}'


@given(texts, cuts)
def test_the_input_comes_back_however_its_json_is_cut(text: str, at: list[int]) -> None:
    assert unwrap(wrap_input(text), at) == text
    assert orjson.loads(escaped(text)) == {"input": text}
    assert unwrap(escaped(text), at) == text


@given(st.text('\\ud83dDEn"{}:input x1', max_size=30), cuts)
def test_cutting_anything_elsewhere_changes_nothing(inside: str, at: list[int]) -> None:
    for arguments in (inside, f'{{"input":"{inside}"}}', f'{{"input":"{inside}'):
        assert unwrap(arguments, at) == unwrap(arguments)
