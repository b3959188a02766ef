"""A request id on every response, whoever writes it.

Pure ASGI: it wraps `send` once per response and touches no body.
Source: Chat Completions, "Transport": `req_` and 12 hex digits, or `client_` and what the client
sent; under both header names, so that either family of clients finds it.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FOREIGN: Final = re.compile(rb"[^A-Za-z0-9._-]")
_MAX_LENGTH: Final = 128


def request_id_for(scope: Scope) -> str:
    """The id of a request: the client's own, made safe, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            safe = _FOREIGN.sub(b"", value)[:_MAX_LENGTH]
            if safe:
                return f"client_{safe.decode('ascii')}"
    return new_request_id()


def new_request_id() -> str:
    """An id of our own."""
    return f"req_{secrets.token_hex(6)}"


class RequestIdMiddleware:
    """Puts `scope["state"]["request_id"]` and the two response headers in place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_for(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        trace = state.get("trace")

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id
                if trace is not None:
                    trace.status = message["status"]
            await send(message)

        await self._app(scope, receive, with_id)
