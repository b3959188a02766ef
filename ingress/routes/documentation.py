"""What the service says about itself: the root, the OpenAPI document, and a page to read it.

Everything is answered without a key. The page works without any other host: its program is
Swagger UI as `fastapi-swagger` ships it, and the page's policy lets the browser ask nobody else.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from ingress.dialects import wire_json
from ingress.openapi import build_document

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace API</title>
<link rel="icon" type="image/png" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#page",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  validatorUrl: null,
});
"""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Swagger UI styles its elements inline; everything else comes from files of this host."""

_PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def documentation_routes(version: str) -> APIRouter:
    """`/`, `/openapi.json` and `/docs`.

    Args:
        version: Of the service.
    """
    router = APIRouter(include_in_schema=False)

    # Some clients probe their base URL before they use it.
    async def root() -> Response:
        about = {"service": "headrace", "docs": "/docs", "openapi": "/openapi.json"}
        return Response(wire_json.encode(about), media_type="application/json")

    async def document() -> Response:
        return Response(_document(version), media_type="application/json")

    async def page() -> Response:
        return Response(_PAGE, media_type="text/html", headers=_PAGE_HEADERS)

    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=_PAGE_HEADERS)

    methods = ["GET", "HEAD"]
    router.add_api_route("/", root, methods=methods)
    router.add_api_route("/openapi.json", document, methods=methods)
    router.add_api_route("/docs", page, methods=methods)
    router.add_api_route("/docs/start.js", start, methods=methods)
    for name, media_type in _ASSETS.items():
        _add_asset(router, name, media_type)
    return router


def _add_asset(router: APIRouter, name: str, media_type: str) -> None:
    path = Path(str(files("fastapi_swagger.resources") / name))

    async def asset() -> Response:
        return FileResponse(
            path,
            media_type=media_type,
            headers={**_PAGE_HEADERS, "cache-control": "public, max-age=86400"},
        )

    router.add_api_route(f"/docs/{name}", asset, methods=["GET", "HEAD"])


@cache
def _document(version: str) -> bytes:
    return wire_json.encode(build_document(version))
