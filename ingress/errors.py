"""ServingError to response, in the shape of the dialect that was asked.

Whatever goes wrong before the first byte ends here. A path that belongs to no dialect gets the
envelope of the OpenAI family.
"""

from __future__ import annotations

import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ingress.dialects.base import Dialect
from ingress.dialects.registry import DIALECTS
from schemas.errors import (
    ErrorInfo,
    InternalError,
    MethodNotAllowed,
    NotFound,
    SchemaValidationFailed,
    ServingError,
)

log = structlog.get_logger()


def dialect_of(path: str) -> Dialect:
    """Whose envelope errors on this path have."""
    for dialect in DIALECTS.values():
        if path == dialect.path or path.startswith(f"{dialect.path}/"):
            return dialect
    return DIALECTS["chat"]


def error_headers(info: ErrorInfo) -> dict[str, str]:
    """Headers that steer the client's retries.

    Source: error catalogue, "Envelopes" and "Retry steering".
    """
    headers = dict(info.headers)
    if info.retry_after_s is not None:
        headers["retry-after"] = str(info.retry_after_s)
    if info.retryable is not None:
        headers["x-should-retry"] = "true" if info.retryable else "false"
    return headers


def error_response(dialect: Dialect, info: ErrorInfo, request_id: str) -> Response:
    """The complete response to a request that failed before its first byte."""
    return Response(
        dialect.error_body(info, request_id),
        status_code=dialect.error_status(info),
        media_type="application/json",
        headers=error_headers(info),
    )


def _respond(request: Request, error: ServingError) -> Response:
    return error_response(dialect_of(request.url.path), error.info(), request.state.request_id)


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return _respond(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        headers = tuple((error.headers or {}).items())
        return _respond(request, MethodNotAllowed("This path has another method.", headers=headers))
    if error.status_code == 404:
        return _respond(request, NotFound("There is nothing at this path."))
    return _respond(request, SchemaValidationFailed("The request could not be understood."))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    log.error(
        "request.crashed",
        request_id=request.state.request_id,
        error=type(error).__name__,
        exc_info=error,
    )
    return _respond(request, InternalError("Something went wrong in the server."))


def install_error_handlers(app: FastAPI) -> None:
    """From now on every error of `app` is rendered by a dialect."""
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unexpected)
