"""What counts as JSON: stricter than most parsers, and never in doubt about a name."""

import json  # noqa: TID251 - writes what the strict parser is to refuse
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.strict_json import MAX_DEPTH, decode_json
from schemas.errors import InvalidJson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('a:"\\é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("a:"), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
@pytest.mark.rule("errors.json")
def test_what_a_parser_writes_is_read(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    assert decode_json(text.encode()) == value


def test_an_escaped_colon_is_a_colon() -> None:
    assert decode_json(b'{"a\\u003ab":"\\u003A:","a:c":[{"a":1},{"a":1}]}') == {
        "a:b": "::",
        "a:c": [{"a": 1}, {"a": 1}],
    }


@given(VALUES, VALUES, st.text("a:", max_size=3), st.integers(0, 5), st.booleans())
@pytest.mark.rule("errors.json-names")
def test_a_name_twice_is_seen_wherever_it_is(
    one: Any, other: Any, name: str, depth: int, escaped: bool
) -> None:
    key = orjson.dumps(name)
    again = key.replace(b":", b"\\u003A") if escaped else key
    text = b"{" + key + b":" + orjson.dumps(one) + b"," + again + b":" + orjson.dumps(other) + b"}"
    text = b'[{"x":' * depth + text + b"}]" * depth
    with pytest.raises(InvalidJson, match="same name twice"):
        decode_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'"\\ud83d"',
        b'{"\\udc00":1}',
        b'"\xed\xa0\xbd"',
        b"\x80\x81\x82\xff",
        b"\xef\xbb\xbf{}",
        b"'a'",
        b"[1,]",
        b"{} {}",
        b'"\x00"',
        b"[" * 100_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"x":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    ],
)
@pytest.mark.rule("errors.json")
def test_not_json(text: bytes) -> None:
    with pytest.raises(InvalidJson):
        decode_json(text)


@pytest.mark.rule("errors.json")
def test_as_deep_as_allowed() -> None:
    decode_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    decode_json(b'{"x":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)


def test_huge_integers_are_numbers() -> None:
    assert decode_json(b"1" + b"0" * 30) == 10.0**30
    assert decode_json(b'{"a\\u003a":1' + b"0" * 300 + b"}") == {"a:": 1e300}
