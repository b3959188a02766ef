"""The inference endpoints: one route per dialect, all on the same straight line."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.dialects.base import Dialect
from ingress.dialects.registry import DIALECTS
from ingress.generate import Services, generate


def inference_routes(services: Services) -> APIRouter:
    """Routes of every dialect in the registry."""
    router = APIRouter(tags=["inference"])
    for dialect in DIALECTS.values():
        _add(router, dialect, services)
    return router


def _add(router: APIRouter, dialect: Dialect, services: Services) -> None:
    async def endpoint(request: Request) -> Response:
        return await generate(request, dialect, services)

    router.add_api_route(
        dialect.path, endpoint, methods=["POST"], name=dialect.name, response_model=None
    )
