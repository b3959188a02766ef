"""However an upload is cut on its way, it is read, or refused, the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingress.multipart import FileForm
from schemas.errors import ServingError
from tests.fixtures.forms import BOUNDARY, CONTENT_TYPE, cut, field, file, form

MAX_FILE_BYTES = 60

tricky = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"-", b"--", b"\r\n--", BOUNDARY.encode(), BOUNDARY[:5].encode(), b" ", b"x"]
    )
    | st.binary(max_size=4),
    max_size=12,
).map(b"".join)
"""Contents made of pieces of a boundary."""

parts = st.one_of(
    st.builds(file, tricky, st.sampled_from(["a.jsonl", "gr\u00f6\u00dfe", "a%22", ""])),
    st.builds(field, st.sampled_from(["purpose", "note"]), tricky),
)
cuts = st.lists(st.integers(min_value=0), max_size=20)


def outcome(pieces: list[bytes]) -> tuple[Any, ...]:
    fields: list[tuple[str, str]] = []
    content = b""
    try:
        reader = FileForm(
            CONTENT_TYPE.encode(),
            file_field="file",
            max_file_bytes=MAX_FILE_BYTES,
            on_field=lambda name, value: fields.append((name, value)),
        )
        for piece in pieces:
            content += b"".join(reader.feed(piece))
        reader.finish()
    except ServingError as error:
        return (error.code, error.message, error.param)
    return (content, reader.filename, fields)


@given(tricky.filter(lambda content: BOUNDARY.encode() not in content), cuts)
def test_a_file_arrives_as_it_was_sent(content: bytes, places: list[int]) -> None:
    body = form(field("purpose", "batch"), file(content))
    expected = (content, "input.jsonl", [("purpose", "batch")])
    if len(content) <= MAX_FILE_BYTES:
        assert outcome(cut(body, places)) == expected


@given(st.lists(parts, max_size=4), tricky, st.integers(min_value=0, max_value=20), cuts)
def test_no_cut_makes_a_difference(
    given_parts: list[Any], epilogue: bytes, lost: int, places: list[int]
) -> None:
    body = form(*given_parts)
    body = body[: len(body) - lost] if lost else body + epilogue
    whole = outcome([body])
    assert outcome(cut(body, places)) == whole
    assert outcome([body[at : at + 1] for at in range(len(body))]) == whole


starts = st.sampled_from(
    [b"\r\n", b"\r", b"\n", b"\r\nx", b"\r\nx\r\n", b"\r\n\r\n" + b"x" * 30]
) | st.binary(max_size=20)


@given(st.binary(max_size=80), starts, cuts)
def test_no_cut_makes_a_difference_to_what_is_broken(
    noise: bytes, start: bytes, places: list[int]
) -> None:
    body = start + form(file(noise)).replace(b"Content", noise[:3], 1)
    assert outcome(cut(body, places)) == outcome([body])
