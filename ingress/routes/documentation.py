"""What the service says about itself: the root, the OpenAPI document, and pages to read it.

Everything is answered without a key.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ingress.dialects import wire_json


def documentation_routes() -> APIRouter:
    """`/`."""
    router = APIRouter(include_in_schema=False)

    # Some clients probe their base URL before they use it.
    async def root() -> Response:
        return _json({"service": "headrace", "docs": "/docs", "openapi": "/openapi.json"})

    router.add_api_route("/", root, methods=["GET", "HEAD"])
    return router


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
