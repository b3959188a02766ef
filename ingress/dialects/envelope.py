"""The error envelope of the OpenAI dialects.

Shared by every dialect whose clients are OpenAI's; it knows errors and nothing of the request.

Source: error catalogue, sections 1 (envelopes) and 2 (type per status).
"""

from __future__ import annotations

from typing import Any

from ingress.dialects import sse, wire_json
from ingress.dialects.base import Frame
from schemas.errors import ErrorInfo, ErrorKind

_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.BILLING: "billing_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.OVERLOADED: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}


def error_object(error: ErrorInfo, request_id: str) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": _TYPES[error.kind],
        "param": error.param,
        "code": error.code,
        "request_id": request_id,
    }


def error_body(error: ErrorInfo, request_id: str) -> bytes:
    """The whole body of an error response."""
    return wire_json.encode({"error": error_object(error, request_id)})


def error_record(error: ErrorInfo, request_id: str) -> Frame:
    """The record that ends a stream which has failed; nothing may follow it."""
    return sse.data(error_body(error, request_id))
