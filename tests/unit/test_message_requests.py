"""How much a message batch may hold, and how little of it is held at a time."""

from __future__ import annotations

import pytest

from ingress.batch.lines import MAX_LINE_BYTES, LineReader
from ingress.batch.message_requests import MAX_REQUESTS, MessageRequests
from ingress.batch.requests_array import RequestsArray
from schemas.errors import RequestTooLarge, SchemaValidationFailed


def body(*requests: bytes) -> bytes:
    return b'{"requests":[' + b",".join(requests) + b"]}"


def request(number: int) -> bytes:
    return b'{"custom_id":"%d","params":{}}' % number


@pytest.mark.rule("message-batches.too-large")
def test_too_many_requests() -> None:
    requests = MessageRequests(max_requests=3)
    lines = requests.feed(body(*map(request, range(3))))
    requests.end()
    assert (requests.total, lines.count(b"\n")) == (3, 3)
    with pytest.raises(RequestTooLarge) as raised:
        MessageRequests(max_requests=3).feed(body(*map(request, range(4))))
    assert raised.value.param == "requests"
    assert MAX_REQUESTS == 100_000


@pytest.mark.rule("message-batches.too-large")
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_a_request_that_is_too_large(at_once: int) -> None:
    def cut(text: bytes) -> list[bytes]:
        array = RequestsArray(max_bytes=20)
        found = []
        for at in range(0, len(text), at_once):
            found += array.feed(text[at : at + at_once])
        array.end()
        return found

    most = b'"' + b"x" * 18 + b'"'
    assert cut(body(b"1", most)) == [b"1", most]
    with pytest.raises(RequestTooLarge) as raised:
        cut(body(b"1", b"[" + most))
    assert raised.value.param == "requests[1]"
    with pytest.raises(RequestTooLarge):
        cut(b'{"a":"' + b"x" * 30 + b'","requests":[1]}')


@pytest.mark.rule("message-batches.create")
def test_a_request_is_given_up_as_soon_as_it_is_too_large() -> None:
    array = RequestsArray(max_bytes=1000)
    assert list(array.feed(b'{"requests":["')) == []
    with pytest.raises(RequestTooLarge):
        for _ in range(3):
            list(array.feed(b"x" * 400))


@pytest.mark.rule("message-batches.create")
def test_the_reader_takes_every_line_that_is_stored() -> None:
    reader = LineReader()
    assert reader.feed(b"x" * MAX_LINE_BYTES + b"\n") == [(1, b"x" * MAX_LINE_BYTES)]


@pytest.mark.rule("message-batches.envelope")
def test_a_body_of_nothing_but_names() -> None:
    names = b",".join(b'"%d":0' % number for number in range(200))
    with pytest.raises(SchemaValidationFailed):
        MessageRequests().feed(b"{" + names + b"}")
    with pytest.raises(RequestTooLarge):
        MessageRequests().feed(b'{"' + b"x" * 2000 + b'":0}')


@pytest.mark.rule("message-batches.pieces")
def test_a_string_of_nothing_but_escapes() -> None:
    """The longest run of escapes, and one that every piece cuts."""
    text = b'{"custom_id":"a","params":{"x":"' + rb"\\" * 300_001 + rb"\"]}" + b'"}}'
    for size in (1 << 16, (1 << 16) + 1, 1 << 30):
        requests = MessageRequests()
        whole = body(text, request(1))
        lines = b"".join(requests.feed(whole[at : at + size]) for at in range(0, len(whole), size))
        requests.end()
        assert lines == text + b"\n" + request(1) + b"\n"
