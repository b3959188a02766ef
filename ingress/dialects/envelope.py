"""What the OpenAI dialects say alike: their error envelope, and the usage of the two older ones.

It knows errors and usage, and nothing of the request.

Source: error catalogue, sections 1 (envelopes) and 2 (type per status); Chat Completions, section
6 (usage).
"""

from __future__ import annotations

from typing import Any

from ingress.dialects import sse, wire_json
from ingress.dialects.base import Frame
from schemas.delta import Usage
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


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage of chat and text completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
