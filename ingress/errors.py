"""ServingError to response, in the shape of the dialect that was asked.

Whatever goes wrong before the first byte ends here. A path that belongs to no dialect gets the
envelope of the OpenAI family.
"""

from __future__ import annotations

import msgspec
import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ingress.console.activity import Activity
from ingress.dialects.base import Dialect
from ingress.dialects.registry import DIALECTS
from ingress.limits.refusals import Refused
from schemas import telemetry
from schemas.errors import (
    ErrorInfo,
    InternalError,
    MethodNotAllowed,
    NotFound,
    SchemaValidationFailed,
    ServingError,
)

log = structlog.get_logger()


DEFAULT_RETRY_AFTER_S = 5
"""For an error that invites a retry without saying when."""

_RETRY_LATER = (429, 503, 529)


def speaks_anthropic(request: Request) -> bool:
    """Whether the client is of the Anthropic family, on a path that both families use."""
    return "anthropic-version" in request.headers


def dialect_of(request: Request) -> Dialect:
    """Whose envelope errors of this request have."""
    path = request.url.path
    for dialect in DIALECTS.values():
        if _is_at(path, dialect.path):
            return dialect
    anthropic = _is_at(path, "/v1/models") and speaks_anthropic(request)
    return DIALECTS["messages" if anthropic and "messages" in DIALECTS else "chat"]


def _is_at(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def error_headers(info: ErrorInfo) -> dict[str, str]:
    """Headers that steer the client's retries.

    Source: error catalogue, "Envelopes" and "Retry steering".
    """
    headers = dict(info.headers)
    retry_after_s = info.retry_after_s
    if retry_after_s is None and info.status in _RETRY_LATER:
        retry_after_s = DEFAULT_RETRY_AFTER_S
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    if info.retryable is not None:
        headers["x-should-retry"] = "true" if info.retryable else "false"
    return headers


def error_response(dialect: Dialect, info: ErrorInfo, request_id: str) -> Response:
    """The complete response to a request that failed before its first byte."""
    info = encodable(info)
    return Response(
        dialect.error_body(info, request_id),
        status_code=dialect.error_status(info),
        media_type="application/json",
        headers=error_headers(info),
    )


def encodable(info: ErrorInfo) -> ErrorInfo:
    """The same error without characters that no JSON can hold.

    Nothing of a request should be in it; should it happen all the same, with half a character, the
    answer must not fail over it.
    """
    return msgspec.structs.replace(
        info,
        message=_without_surrogates(info.message),
        param=_without_surrogates(info.param) if info.param is not None else None,
    )


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class ErrorResponses:
    """What whoever asked is told when something goes wrong.

    Args:
        activity: Is told as well.
    """

    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    def to(self, request: Request, error: ServingError) -> Response:
        """The complete response to a request that is refused, or failed before its first byte."""
        dialect, info = dialect_of(request), error.info()
        if isinstance(error, Refused):
            standing = dialect.limit_headers(error.standings)
            headers = [(name.decode(), value.decode()) for name, value in standing]
            info = msgspec.structs.replace(info, headers=(*info.headers, *headers))
        if request.url.path.startswith("/v1/"):
            status = dialect.error_status(info)
            if not error.logged:
                log.info(
                    telemetry.REQUEST_REFUSED,
                    request_id=request.state.request_id,
                    dialect=dialect.name,
                    status=status,
                    code=info.code,
                )
            self._activity.failed(
                info.code,
                status,
                request_id=request.state.request_id,
                dialect=dialect.name,
                account=getattr(request.state, "account", None),
            )
        return error_response(dialect, info, request.state.request_id)

    def to_crashed(self, request: Request, error: Exception) -> Response:
        """The same where the fault is one of this program's, which is logged."""
        log.error(
            "request.crashed",
            request_id=request.state.request_id,
            error=type(error).__name__,
            exc_info=error,
        )
        return self.to(request, InternalError("Something went wrong in the server."))

    def install(self, app: FastAPI) -> None:
        """From now on every error of `app` is rendered by a dialect."""
        app.add_exception_handler(ServingError, self._on_serving_error)
        app.add_exception_handler(HTTPException, self._on_http_exception)
        app.add_exception_handler(Exception, self._on_unexpected)

    async def _on_serving_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ServingError)
        return self.to(request, error)

    async def _on_http_exception(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self.to(request, _translated(request, error))

    async def _on_unexpected(self, request: Request, error: Exception) -> Response:
        return self.to_crashed(request, error)


def _translated(request: Request, error: HTTPException) -> ServingError:
    """The error of ours that says what the framework found."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        # Some clients try a WebSocket first, and know by 404 that there is none.
        return NotFound("There is no WebSocket at this path.")
    if error.status_code == 405:
        headers = tuple((error.headers or {}).items())
        message = "This path does not take this method; the header `Allow` names those it takes."
        return MethodNotAllowed(message, headers=headers)
    if error.status_code == 404:
        return NotFound("There is nothing at this path.")
    return SchemaValidationFailed("The request could not be understood.")
