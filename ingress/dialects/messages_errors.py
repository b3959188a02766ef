"""How Messages tells an error: one envelope for every kind.

The documents show three wrappers on this path, by kind of error. This one has everything that any
of them promises, each at its documented place.

Source: error catalogue, sections 1 (envelopes) and 2 (type per status); Messages, section 9.
"""

from __future__ import annotations

from ingress.dialects import sse, wire_json
from ingress.dialects.base import Frame
from schemas.errors import ContextLengthExceeded, ContextOverflow, ErrorInfo, ErrorKind

_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.BILLING: "billing_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.OVERLOADED: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}

_UNAVAILABLE = 503
_OVERLOADED = 529


def error_status(error: ErrorInfo) -> int:
    """The status before the first byte. Overload has one of its own, and its own exception."""
    return _OVERLOADED if error.status == _UNAVAILABLE else error.status


def error_body(error: ErrorInfo, request_id: str) -> bytes:
    """The whole body of an error response."""
    return wire_json.encode(
        {
            "type": "error",
            "error": {
                "type": _TYPES[error.kind],
                "message": _message(error),
                "code": error.code,
                "param": error.param,
                "request_id": request_id,
            },
            "request_id": request_id,
        }
    )


def error_record(error: ErrorInfo, request_id: str) -> Frame:
    """The event that ends a stream which has failed; nothing may follow it."""
    return sse.event("error", error_body(error, request_id))


def _message(error: ErrorInfo) -> str:
    if error.code != ContextLengthExceeded.code:
        return error.message
    if error.overflow is None:
        return f"prompt is too long: {error.message}"
    return _too_long(error.overflow)


def _too_long(overflow: ContextOverflow) -> str:
    """In the words that clients look for to shorten the conversation, or to ask for less."""
    prompt, output = overflow.prompt_tokens, overflow.output_tokens
    window = overflow.context_length
    if not output or prompt >= window:
        return f"prompt is too long: {prompt} tokens > {window} maximum"
    return (
        f"prompt is too long: {prompt} tokens > {max(window - output, 0)} maximum; input length "
        f"and `max_tokens` exceed context limit: {prompt} + {output} > {window}, decrease input "
        "length or `max_tokens` and try again"
    )
