"""Lines of results, in the shape of either API: the very bytes that a client will read.

Each is one line without its end. Bodies go in as the dialect's encoder made them, which may hold
ends of lines: what a model calls a tool with stands in a message as the model wrote it. Between the
tokens of JSON they mean nothing, and inside of one they cannot be.

Source: wire reference of the batch APIs, "Output line", "Error-file line" and "Result line".
"""

from __future__ import annotations

import hashlib
import json  # noqa: TID251 - the only encoder that takes half a surrogate pair
from typing import Final, Literal, assert_never

from ingress.dialects import wire_json
from schemas.batch import Shape

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")

_NOT_EXECUTED: Final = {
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    "expired": ("batch_expired", "This request was not executed before the batch expired."),
}


def result_id(batch_id: str, line: int) -> str:
    """`batch_req_` and 24 hex digits: the same for the same line, whoever runs it and how often."""
    digest = hashlib.sha256(f"{batch_id} {line}".encode()).hexdigest()
    return f"batch_req_{digest[:24]}"


def succeeded(
    shape: Shape, *, custom_id: str, result_id: str, request_id: str, body: bytes
) -> bytes:
    """A request was answered.

    Args:
        shape: Of the batch.
        custom_id: As the client wrote it.
        result_id: See `result_id`; message batches show none.
        request_id: `req_…`; message batches show none.
        body: The whole answer of the dialect.
    """
    body = body.translate(_ONE_LINE)
    match shape:
        case "openai":
            return _openai_response(custom_id, result_id, request_id, 200, body)
        case "messages":
            return _messages(custom_id, b'{"type":"succeeded","message":%b}' % body)
        case _:
            assert_never(shape)


def errored(
    shape: Shape, *, custom_id: str, result_id: str, request_id: str, status: int, body: bytes
) -> bytes:
    """A request was executed, and refused or failed.

    Args:
        shape: Of the batch.
        custom_id: As the client wrote it.
        result_id: See `result_id`; message batches show none.
        request_id: `req_…`, also in the body.
        status: Of HTTP, what the request would have got alone: the dialect's `error_status`.
        body: The dialect's `error_body`.
    """
    body = body.translate(_ONE_LINE)
    match shape:
        case "openai":
            return _openai_response(custom_id, result_id, request_id, status, body)
        case "messages":
            return _messages(custom_id, b'{"type":"errored","error":%b}' % body)
        case _:
            assert_never(shape)


def not_executed(
    shape: Shape, *, custom_id: str, result_id: str, why: Literal["cancelled", "expired"]
) -> bytes:
    """The batch ended before this request did."""
    match shape:
        case "openai":
            code, message = _NOT_EXECUTED[why]
            error = wire_json.encode({"code": code, "message": message})
            return _openai(custom_id, result_id, b"null", error)
        case "messages":
            kind = b"canceled" if why == "cancelled" else b"expired"
            return _messages(custom_id, b'{"type":"%b"}' % kind)
        case _:
            assert_never(shape)


def _openai_response(
    custom_id: str, result_id: str, request_id: str, status: int, body: bytes
) -> bytes:
    response = b'{"status_code":%d,"request_id":%b,"body":%b}' % (
        status,
        wire_json.encode_text(request_id),
        body,
    )
    return _openai(custom_id, result_id, response, b"null")


def _openai(custom_id: str, result_id: str, response: bytes, error: bytes) -> bytes:
    return b'{"id":%b,"custom_id":%b,"response":%b,"error":%b}' % (
        wire_json.encode_text(result_id),
        _literal(custom_id),
        response,
        error,
    )


def _messages(custom_id: str, result: bytes) -> bytes:
    return b'{"custom_id":%b,"result":%b}' % (_literal(custom_id), result)


def _literal(custom_id: str) -> bytes:
    """The JSON string that reads as this very id, half of a surrogate pair included."""
    try:
        return wire_json.encode_text(custom_id)
    except TypeError:
        return json.dumps(custom_id).encode()
