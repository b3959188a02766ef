"""What an upstream's errors mean for our caller.

The upstream's own sentences stay out even of the diagnostic: they may quote the prompt or our key.
Its identifiers (`type`, `code`, `param`) do not.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from schemas.errors import (
    ContextLengthExceeded,
    GenerationFailed,
    ModelOverloaded,
    ModelRequestRejected,
    ServingError,
)


class _ErrorDetail(msgspec.Struct):
    message: Any = None
    type: Any = None
    code: Any = None
    param: Any = None


class _ErrorBody(_ErrorDetail):
    error: Any = None


_OVERFLOW_NAMES: Final = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW_TEXT: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)
"""What servers say that have no name for a prompt that is too long, and no other error says."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


def failed(diagnostic: str) -> GenerationFailed:
    return GenerationFailed("The model failed to answer.", diagnostic=diagnostic)


def refusal(status: int, body: bytes, retry_after: str | None = None) -> ServingError:
    """What an HTTP error means."""
    detail = _error_detail(body)
    names = {
        name: str(value)
        for name in ("type", "code", "param")
        if (value := getattr(detail, name)) is not None and _IDENTIFIER.fullmatch(str(value))
    }
    diagnostic = f"upstream answered {status} {names}"
    if any(name in _OVERFLOW_NAMES for name in names.values()):
        return ContextLengthExceeded(diagnostic=diagnostic)
    match status:
        case 400 | 413 | 422:
            if _OVERFLOW_TEXT.search(str(detail.message)):
                return ContextLengthExceeded(diagnostic=diagnostic)
            return ModelRequestRejected("The model rejected the request.", diagnostic=diagnostic)
        case 429 | 503 | 529:
            seconds = int(retry_after) if retry_after and retry_after.isdecimal() else None
            return ModelOverloaded(
                "The model is overloaded.", diagnostic=diagnostic, retry_after_s=seconds
            )
        case _:
            return failed(diagnostic)


def reported_error(record: bytes) -> ServingError:
    """What an error inside the stream means."""
    code = _error_detail(record).code
    status = int(code) if str(code).isdecimal() else 500
    return refusal(status, record)


def _error_detail(body: bytes) -> _ErrorDetail:
    """`{"error": {...}}`, or the same fields at the top."""
    try:
        outer = msgspec.json.decode(body, type=_ErrorBody)
        if outer.error is None:
            return outer
        return msgspec.convert(outer.error, _ErrorDetail)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return _ErrorDetail()
