"""Laws of batch input: pieces carry no meaning, and no bytes whatever break the reader."""

from __future__ import annotations

import json  # noqa: TID251 - the plain reader that ours is compared with
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.batch.input_check import Finding, InputCheck
from ingress.batch.lines import InputLine, LineReader, parse_line
from ingress.batch.message_requests import MessageRequests
from ingress.batch.result_lines import not_executed
from schemas.batch import LineError
from schemas.errors import RequestError

ENDPOINT = "/v1/chat/completions"
IDS = st.text(st.characters(exclude_categories=()), max_size=6)  # with halves of surrogate pairs
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('a"{[,:\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
LINES = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": IDS | JSON,
        "method": st.just("POST") | JSON,
        "url": st.just(ENDPOINT) | JSON,
        "body": st.fixed_dictionaries({"model": st.just("m") | JSON}) | JSON,
    },
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Input that is nearly good, with all that can go wrong in it."""
    parts = draw(
        st.lists(
            st.one_of(
                LINES.map(lambda line: json.dumps(line).encode()),
                st.binary(max_size=6),
                st.sampled_from([b"\r", b"\xef\xbb\xbf", "\u2028".encode(), b" ", b"\x00"]),
            ),
            max_size=6,
        )
    )
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + b"".join(
        part + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b""])) for part in parts
    )


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 1 << 16), max_size=12)


@pytest.mark.rule("batches.reader-pieces")
@settings(max_examples=60)
@given(texts(), CUTS, st.integers(1, 40))
def test_lines_do_not_depend_on_pieces(data: bytes, at: list[int], longest: int) -> None:
    def read(pieces: list[bytes]) -> list[tuple[int, bytes | None]]:
        reader = LineReader(max_line_bytes=longest)
        return [line for piece in pieces for line in reader.feed(piece)] + reader.end()

    lines = read(cut(data, at))
    assert lines == read([data])
    plain = [
        (number, None if len(line) > longest else line)
        for number, line in enumerate(data.split(b"\n"), start=1)
    ]
    for number, line in plain:
        text = (line or b"").removeprefix(b"\xef\xbb\xbf") if number == 1 else line or b""
        expected = None if line is None else text.strip()
        assert ((number, expected) in lines) is (expected is None or expected != b"")


def found(pieces: list[bytes]) -> Finding:
    check = InputCheck(endpoint=ENDPOINT, model_of=str)
    for piece in pieces:
        check.feed(piece)
    return check.end()


@pytest.mark.rule("batches.reader-pieces")
@settings(max_examples=60)
@given(texts(), CUTS)
def test_findings_do_not_depend_on_pieces(data: bytes, at: list[int]) -> None:
    assert found(cut(data, at)) == found([data])


@pytest.mark.rule("batches.strict-lines", "batches.custom-id")
@given(LINES.map(lambda line: json.dumps(line).encode()) | st.binary(max_size=30) | texts())
def test_any_bytes_are_a_request_or_have_an_error(text: bytes) -> None:
    for shape in ("openai", "messages"):
        line = parse_line(7, text, shape=shape, endpoint=ENDPOINT)  # type: ignore[arg-type]
        assert line.line == 7
        if isinstance(line, LineError):
            assert line.code
            assert line.message
        else:
            value = json.loads(text)
            assert line.custom_id == value["custom_id"]
            result = not_executed("openai", custom_id=line.custom_id, result_id="x", why="expired")
            assert json.loads(result)["custom_id"] == value["custom_id"]


@pytest.mark.rule("batches.custom-id")
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=512), st.booleans())
def test_every_id_comes_back(custom_id: str, raw: bool) -> None:
    ascii_only = not raw or any("\ud800" <= char <= "\udfff" for char in custom_id)
    value = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "m"}}
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    line = parse_line(1, text, shape="openai", endpoint=ENDPOINT)
    # Two halves side by side are one character, in every reader.
    assert isinstance(line, InputLine)
    assert line.custom_id == json.loads(text)["custom_id"]


# --- Bodies of message batches --------------------------------------------------------------------

STRICT = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('a"{[]}\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES = st.fixed_dictionaries(
    {
        "requests": st.lists(st.dictionaries(st.sampled_from("xyz"), STRICT), max_size=4).map(
            lambda all_params: [
                {"custom_id": f"r-{number}", "params": params}
                for number, params in enumerate(all_params)
            ]
        )
    },
    optional={"a": STRICT, "z": STRICT},
)


def stored(pieces: list[bytes]) -> Any:
    """The lines, or the error."""
    requests = MessageRequests()
    lines = b""
    try:
        for piece in pieces:
            lines += requests.feed(piece)
        requests.end()
    except RequestError as error:
        return type(error), error.message, error.param
    assert requests.total == lines.count(b"\n")
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.rule("message-batches.pieces", "message-batches.create")
@settings(max_examples=60)
@given(BODIES, CUTS, st.booleans(), st.none() | st.integers(0, 2))
def test_requests_are_stored_as_they_came(
    body: dict[str, Any], at: list[int], ascii_only: bool, indent: int | None
) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    lines = stored(cut(data, at))
    assert lines == stored([data])
    if body["requests"]:
        assert lines == body["requests"]
    else:
        assert lines[2] == "requests"


@pytest.mark.rule("message-batches.pieces", "message-batches.strict-json")
@given(
    BODIES,
    CUTS,
    st.integers(0, 1 << 16),
    st.sampled_from([b"", *(b'"{}[],:\\ x1\x00'[i : i + 1] for i in range(12))]),
)
def test_a_damaged_body(body: dict[str, Any], at: list[int], place: int, damage: bytes) -> None:
    """One byte is lost or replaced: what is taken is sound, and pieces still make no difference."""
    data = json.dumps(body).encode()
    place %= len(data)
    data = data[:place] + damage + data[place + 1 :]
    lines = stored(cut(data, at))
    assert lines == stored([data])
    if isinstance(lines, list):
        assert lines == json.loads(data)["requests"]
    else:
        assert isinstance(lines[1], str)
