"""One path with several methods as one route, so that `Allow` of a 405 names all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def add_path(
    router: APIRouter,
    path: str,
    *,
    get: Endpoint | None = None,
    post: Endpoint | None = None,
    patch: Endpoint | None = None,
    delete: Endpoint | None = None,
) -> None:
    """Serve a path with these methods; HEAD comes with GET."""
    given = {"GET": get, "HEAD": get, "POST": post, "PATCH": patch, "DELETE": delete}
    endpoints = {method: endpoint for method, endpoint in given.items() if endpoint is not None}

    async def endpoint(request: Request) -> Response:
        return await endpoints[request.method](request)

    router.add_api_route(path, endpoint, methods=list(endpoints), response_model=None)
