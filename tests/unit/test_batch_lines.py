"""Batch input and results as pure values: where lines end, what is wrong, what is answered."""

from __future__ import annotations

import json  # noqa: TID251 - reads and writes half of a surrogate pair
from collections.abc import Sequence
from typing import Any

import pytest

from ingress.batch.input_check import Finding, InputCheck, InputLimits
from ingress.batch.lines import InputLine, LineReader, parse_line
from ingress.batch.result_lines import errored, not_executed, result_id, succeeded
from schemas.batch import LineError, Shape
from schemas.errors import EndpointNotSupported, ModelNotFound

CHAT = "/v1/chat/completions"


def read(
    text: bytes, *, at_once: int | None = None, **limits: Any
) -> list[tuple[int, bytes | None]]:
    reader = LineReader(**limits)
    size = at_once or len(text) or 1
    lines = []
    for at in range(0, len(text), size):
        lines += reader.feed(text[at : at + size])
    return lines + reader.end()


def request(**changes: Any) -> dict[str, Any]:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "demo-model"}}
    return {name: value for name, value in {**line, **changes}.items() if value is not ...}


def encoded(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def model_of(name: str) -> str:
    if name == "nobody":
        raise ModelNotFound("There is no such model.", param="model")
    if name == "chat-only":
        raise EndpointNotSupported("This model has no text completions.", param="model")
    return name.lower()


def found(data: bytes, *, at_once: int = 1 << 16, **limits: Any) -> Finding:
    check = InputCheck(endpoint=CHAT, model_of=model_of, limits=InputLimits(**limits))
    for at in range(0, len(data), at_once):
        check.feed(data[at : at + at_once])
    return check.end()


def codes(finding: Finding) -> Sequence[tuple[int | None, str, str | None]]:
    return [(error.line, error.code, error.param) for error in finding.errors]


# --- Lines ----------------------------------------------------------------------------------------


@pytest.mark.rule("batches.reader")
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", []),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf{}\r\n[]\r\n\r\n", [(1, b"{}"), (2, b"[]")]),
        (b"\r\n \t\n{}", [(3, b"{}")]),
        (b"{}\n\xef\xbb\xbf{}", [(1, b"{}"), (2, b"\xef\xbb\xbf{}")]),
        ("{\u2028\u0085\u2029}\n1".encode(), [(1, "{\u2028\u0085\u2029}".encode()), (2, b"1")]),
        (b"1\r2\n3", [(1, b"1\r2"), (2, b"3")]),
        (b"\x00\n\xff\n\x1a", [(1, b"\x00"), (2, b"\xff"), (3, b"\x1a")]),
        (b"  {} \t\r\n", [(1, b"{}")]),
    ],
)
def test_where_lines_end(text: bytes, lines: list[tuple[int, bytes]]) -> None:
    for size in (None, 1, 2, 3):
        assert read(text, at_once=size) == lines


@pytest.mark.rule("batches.long-line")
def test_a_line_that_is_too_long() -> None:
    for size in (1, 3, 1000):
        lines = read(b"12345\n123456\n12345\n123456", at_once=size, max_line_bytes=5)
        assert lines == [(1, b"12345"), (2, None), (3, b"12345"), (4, None)]
    reader = LineReader(max_line_bytes=1000)
    for _ in range(1000):
        assert reader.feed(b"x" * 900) == []
        assert sum(len(kept) for kept in reader._kept) <= 1000
    assert parse_line(4, None, shape="openai", endpoint=CHAT) == LineError(
        code="invalid_json_line", message="The line is too long.", line=4
    )


@pytest.mark.rule("batches.reader")
def test_a_file_saved_on_windows_has_two_requests() -> None:
    lines = (
        json.dumps(
            request(custom_id="r1", body={"model": "m", "x": "a\u2028b"}), ensure_ascii=False
        ),
        json.dumps(request(custom_id="r2")),
    )
    data = b"\xef\xbb\xbf" + "\r\n".join((*lines, "", "")).encode()
    assert found(data) == Finding(total=2, model=None, errors=())
    parsed = [parse_line(*line, shape="openai", endpoint=CHAT) for line in read(data)]
    assert parsed == [
        InputLine(line=1, custom_id="r1", body={"model": "m", "x": "a\u2028b"}),
        InputLine(line=2, custom_id="r2", body={"model": "demo-model"}),
    ]


@pytest.mark.rule("batches.line-shape")
@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"custom_id": ...}, "missing_required_parameter", "custom_id"),
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 7}, "missing_required_parameter", "custom_id"),
        ({"custom_id": ["a"]}, "missing_required_parameter", "custom_id"),
        ({"custom_id": ""}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "x" * 513}, "missing_required_parameter", "custom_id"),
        ({"method": ...}, "missing_required_parameter", "method"),
        ({"method": 1}, "missing_required_parameter", "method"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": "post"}, "invalid_method", "method"),
        ({"url": ...}, "missing_required_parameter", "url"),
        ({"url": {}}, "missing_required_parameter", "url"),
        ({"url": "/v1/responses", "body": {}}, "mismatched_endpoint", "url"),
        ({"url": CHAT + "/"}, "mismatched_endpoint", "url"),
        ({"body": ...}, "missing_required_parameter", "body"),
        ({"body": "text"}, "missing_required_parameter", "body"),
        ({"body": [1]}, "missing_required_parameter", "body"),
        ({"body": {}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": ""}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": 1}}, "missing_required_parameter", "body.model"),
    ],
)
def test_a_line_that_is_no_request(changes: dict[str, Any], code: str, param: str) -> None:
    error = parse_line(3, encoded(request(**changes)), shape="openai", endpoint=CHAT)
    assert isinstance(error, LineError)
    assert (error.line, error.code, error.param) == (3, code, param)
    assert f"`{param}`" in error.message


@pytest.mark.rule("batches.line-shape")
def test_what_is_wrong_in_a_body_is_not_looked_at() -> None:
    body = {"model": "m", "stream": True, "temperature": "hot", "messages": None}
    line = parse_line(1, encoded(request(body=body, more=1)), shape="openai", endpoint=CHAT)
    assert line == InputLine(line=1, custom_id="a", body=body)


@pytest.mark.rule("batches.strict-lines")
@pytest.mark.parametrize(
    "text",
    [
        b"[1,2,3]",
        b"null",
        b'"a"',
        b"{not json",
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b'{"custom_id":"\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\x00\x00",
        b'{"custom_id":"\xed\xa0\xbd"}',
        b"[" * 200_000,
        b'{"custom_id":"\\ud800","a":' + b"[" * 200_000,
        b'{"custom_id":"\\ud800","custom_id":"b"}',
        b'{"custom_id":"\\ud800","body":{"model":NaN}}',
        b'{"custom_id":"\\ud800","body":{"model":"\\udc00"}}',
        b'{"custom_id":"a","body":{"model":"\\udc00"}}',
        b'{"custom_id":"\\ud800","n":1' + b"0" * 9000 + b"}",
        b'["\\ud800"]',
        b'{"custom_id":"\\ud800"} {}',
    ],
)
def test_a_line_that_is_no_json_object(text: bytes) -> None:
    error = parse_line(9, text, shape="openai", endpoint=CHAT)
    assert isinstance(error, LineError)
    assert (error.line, error.code, error.param) == (9, "invalid_json_line", None)
    assert len(error.message) < 80


@pytest.mark.rule("batches.strict-lines")
def test_a_line_of_another_encoding_is_told_so() -> None:
    line = parse_line(1, "{}".encode("utf-16"), shape="openai", endpoint=CHAT)
    assert isinstance(line, LineError)
    assert line.message == "The line is not UTF-8."


@pytest.mark.rule("batches.custom-id")
@pytest.mark.parametrize(
    "custom_id",
    ["x", "x" * 512, " ", "\x00\n", "\u2028", "é\U0001f600", "\ud83d", "\ude00\ud83d cut", '"\\'],
)
def test_any_string_can_be_an_id(custom_id: str) -> None:
    body = {"model": "m", "n": 2**70, "f": 1e300, "deep": [[{"x": "\U0001f600"}]]}
    text = encoded(request(custom_id=custom_id, body=body))
    assert text.isascii()
    line = parse_line(1, text.strip(), shape="openai", endpoint=CHAT)
    assert line == InputLine(line=1, custom_id=custom_id, body={**body, "n": float(2**70)})
    assert found(text).errors == ()


def test_a_line_of_a_message_batch() -> None:
    line = parse_line(2, b'{"custom_id":"a","params":{"x":1.0}}', shape="messages", endpoint="")
    assert line == InputLine(line=2, custom_id="a", body={"x": 1.0})
    bad = parse_line(2, b'{"custom_id":"a","params":[]}', shape="messages", endpoint="")
    assert isinstance(bad, LineError)
    assert bad.param == "params"


# --- Validation -----------------------------------------------------------------------------------


@pytest.mark.rule("batches.every-error")
def test_every_bad_line_is_told() -> None:
    data = b"\n".join(
        (
            encoded(request(custom_id="ok1")).strip(),
            b"[1,2,3]",
            b"null",
            encoded(request(custom_id="b1", body="text")).strip(),
            encoded(request(custom_id="b2", url="/v1/responses", body={})).strip(),
            b"{not json",
        )
    )
    for at_once in (1, 7, 1 << 16):
        finding = found(data, at_once=at_once)
        assert finding.total == 6
        assert codes(finding) == [
            (2, "invalid_json_line", None),
            (3, "invalid_json_line", None),
            (4, "missing_required_parameter", "body"),
            (5, "mismatched_endpoint", "url"),
            (6, "invalid_json_line", None),
        ]
        assert all(error.message for error in finding.errors)


@pytest.mark.rule("batches.every-error")
def test_reading_stops_after_so_many_errors() -> None:
    assert [error.line for error in found(b"x\n\n" * 500).errors] == list(range(1, 200, 2))
    check = InputCheck(endpoint=CHAT, model_of=model_of)
    check.feed(b"x\n" * 99)
    assert not check.done
    check.feed(b"x\n")
    assert check.done
    check.feed(b"x\n")
    assert len(check.end().errors) == 100


@pytest.mark.rule("batches.every-error")
def test_one_broken_line_far_down() -> None:
    lines = [request(custom_id=str(number)) for number in range(39_999)]
    assert codes(found(encoded(*lines) + b'{"custom_id":\n' + encoded(request()))) == [
        (40_000, "invalid_json_line", None)
    ]


@pytest.mark.rule("batches.duplicate-ids")
def test_an_id_that_was_used_before() -> None:
    same = [request(custom_id=name) for name in ("same", "other", "same", "\ud800", "\ud800")]
    finding = found(b"\n" + encoded(*same))
    assert codes(finding) == [
        (4, "duplicate_custom_id", "custom_id"),
        (6, "duplicate_custom_id", "custom_id"),
    ]
    assert finding.errors[0].message == "Line 2 has the same `custom_id`."
    apart = [request(custom_id=name) for name in ("\ud800", "\ud801", "?", "a", "A", "a ")]
    assert found(encoded(*apart)).errors == ()


@pytest.mark.rule("batches.unknown-model")
def test_models() -> None:
    def lines(*models: str) -> bytes:
        return encoded(
            *(
                request(custom_id=str(number), body={"model": model})
                for number, model in enumerate(models)
            )
        )

    assert found(lines("A", "a")) == Finding(total=2, model="a", errors=())
    assert found(lines("a", "b")) == Finding(total=2, model=None, errors=())
    finding = found(lines("nobody", "a", "nobody", "chat-only"))
    assert codes(finding) == [
        (1, "model_not_found", "body.model"),
        (3, "model_not_found", "body.model"),
        (4, "endpoint_not_supported", "body.model"),
    ]


@pytest.mark.rule("batches.empty-file")
@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n\r\n \t \n"])
def test_a_file_without_requests(data: bytes) -> None:
    assert codes(found(data)) == [(None, "empty_file", None)]


@pytest.mark.rule("batches.input-limits")
def test_too_much_input() -> None:
    two = encoded(request(), request(custom_id="b"))
    assert found(two, requests=2, size=len(two)).errors == ()
    assert codes(found(two, requests=1)) == [(2, "too_many_requests_in_batch", None)]
    for at_once in (1, 1000):
        assert codes(found(two, size=len(two) - 1, at_once=at_once)) == [
            (None, "file_too_large", None)
        ]
    limits = InputLimits()
    assert (limits.requests, limits.size, limits.errors) == (50_000, 200_000_000, 100)


# --- Results --------------------------------------------------------------------------------------

ODD_ID = 'a"\\\u2028\n\ud83d'


def ends(shape: Shape) -> Sequence[bytes]:
    ids: Any = {"custom_id": ODD_ID, "result_id": "batch_req_1"}
    return (
        succeeded(shape, **ids, request_id="req_1", body=b'{"x":1.0}'),
        errored(shape, **ids, request_id="req_1", status=404, body=b'{"type":"error"}'),
        not_executed(shape, **ids, why="cancelled"),
        not_executed(shape, **ids, why="expired"),
    )


@pytest.mark.rule("batches.output-line", "batches.error-line", "batches.custom-id")
def test_results_of_openai_batches() -> None:
    done, failed, cancelled, expired = map(json.loads, ends("openai"))
    for line in (done, failed, cancelled, expired):
        assert list(line) == ["id", "custom_id", "response", "error"]
        assert (line["id"], line["custom_id"]) == ("batch_req_1", ODD_ID)
    assert done["response"] == {"status_code": 200, "request_id": "req_1", "body": {"x": 1.0}}
    assert failed["response"] == {
        "status_code": 404,
        "request_id": "req_1",
        "body": {"type": "error"},
    }
    assert done["error"] is failed["error"] is cancelled["response"] is expired["response"] is None
    assert cancelled["error"]["code"] == "batch_cancelled"
    assert expired["error"]["code"] == "batch_expired"
    assert cancelled["error"]["message"]
    assert expired["error"]["message"]


@pytest.mark.rule("message-batches.result-line")
def test_results_of_message_batches() -> None:
    lines = [json.loads(line) for line in ends("messages")]
    assert [line["custom_id"] for line in lines] == [ODD_ID] * 4
    assert [line["result"] for line in lines] == [
        {"type": "succeeded", "message": {"x": 1.0}},
        {"type": "errored", "error": {"type": "error"}},
        {"type": "canceled"},
        {"type": "expired"},
    ]


@pytest.mark.rule("batches.output-line", "message-batches.result-line")
@pytest.mark.parametrize("shape", ["openai", "messages"])
def test_a_body_with_ends_of_lines_is_one_line(shape: Shape) -> None:
    body = b'{"content":[{"type":"tool_use","input":{\t\r\n"sides":\n6,\r"says":"a\\n\\r"\r\n}}]}'
    names = {"custom_id": "a", "result_id": "batch_req_1", "request_id": "req_1"}
    for line in (
        succeeded(shape, **names, body=body),
        errored(shape, **names, status=400, body=body),
    ):
        assert len(line.splitlines()) == 1
        assert b'"sides": 6' in line
        assert b'"says":"a\\n\\r"' in line


@pytest.mark.rule("batches.output-line")
def test_a_result_is_one_line_and_its_id_is_its_own() -> None:
    for shape in ("openai", "messages"):
        for line in ends(shape):
            assert len(line.decode().splitlines()) == 1
    ids = {result_id(batch, line) for batch in ("batch_1", "batch_11") for line in range(1, 200)}
    assert len(ids) == 398
    assert result_id("batch_1", 1) == result_id("batch_1", 1)
    assert all(len(name) == 34 and name.startswith("batch_req_") for name in ids)
