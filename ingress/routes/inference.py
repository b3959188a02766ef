"""The inference endpoints: one route per dialect, all on the same straight line; and counting."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.counting import count_tokens
from ingress.dialects.base import CountingDialect, Dialect
from ingress.dialects.registry import DIALECTS
from ingress.generate import generate
from ingress.services import Services


def inference_routes(services: Services) -> APIRouter:
    """Routes of every dialect in the registry."""
    router = APIRouter(tags=["inference"])
    for dialect in DIALECTS.values():
        _add(router, dialect, services)
        if isinstance(dialect, CountingDialect):
            _add_counting(router, dialect, services)
    return router


def _add(router: APIRouter, dialect: Dialect, services: Services) -> None:
    async def endpoint(request: Request) -> Response:
        return await generate(request, dialect, services)

    router.add_api_route(
        dialect.path, endpoint, methods=["POST"], name=dialect.name, response_model=None
    )


def _add_counting(router: APIRouter, dialect: CountingDialect, services: Services) -> None:
    async def endpoint(request: Request) -> Response:
        return await count_tokens(request, dialect, services)

    router.add_api_route(
        dialect.count_path,
        endpoint,
        methods=["POST"],
        name=f"{dialect.name}.count",
        response_model=None,
    )
