"""`/console`: a page that shows how the service stands, for who may look; and what it is made of.

Where nobody may look the paths are not there. The page comes whole from this host, and its policy
lets the browser run and ask nothing else.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.console.door import Door, from_elsewhere, is_loopback
from ingress.console.events import Events, Watch
from ingress.request_body import body_pieces
from ingress.routes.by_method import add_path
from ingress.services import Services
from schemas.errors import MissingApiKey, NotFound, RequestTooLarge

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_PRIVATE: Final = {**_HEADERS, "cache-control": "no-store"}
_MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_MAX_LOGIN_BYTES: Final = 4096
_WRONG: Final = b'<p role="alert" class="wrong">That is not the key.</p>'


def console_routes(services: Services) -> APIRouter:
    """All paths, or none where nobody may look."""
    router = APIRouter(include_in_schema=False)
    settings = services.settings
    # Who names a URL for others serves them, by way of a proxy if on a loopback address.
    private = is_loopback(settings.host) and settings.public_url is None
    if services.watch is None or not (settings.console_key or private):
        return router
    console = _Console(
        services,
        services.watch,
        Door(settings.console_key, configured_url=settings.public_url),
    )
    add_path(router, "/console", get=console.page)
    add_path(router, "/console/events", get=console.events)
    add_path(router, "/console/login", post=console.login)
    add_path(router, "/console/logout", post=console.logout)
    add_path(router, "/console/static/{name}", get=console.asset)
    return router


class _Asset:
    """A file of the page."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'


class _Console:
    """The endpoints."""

    def __init__(self, services: Services, watch: Watch, door: Door) -> None:
        self._services = services
        self._watch = watch
        self._door = door
        self._assets = {
            entry.name: _Asset(entry.name, entry.read_bytes())
            for entry in (files("ingress.console") / "static").iterdir()
            if entry.name.rpartition(".")[2] in _MEDIA_TYPES
        }

    async def page(self, request: Request) -> Response:
        """The page, or the way to it."""
        if self._door.admits(request):
            content = self._assets["index.html"].content
            if not self._door.locked:
                return _html(content.replace(b"<body", b"<body data-open", 1))
            return _html(content)
        if self._door.locked:
            return self._login_page(wrong="wrong" in request.query_params)
        raise _not_here()

    async def events(self, request: Request) -> Response:
        if not self._door.admits(request):
            raise MissingApiKey("Sign in at /console first.") if self._door.locked else _not_here()
        self._services.admission.check_open()
        private = [(name.encode(), value.encode()) for name, value in _PRIVATE.items()]
        return Events(self._watch, self._services, [*private, (b"x-accel-buffering", b"no")])

    async def login(self, request: Request) -> Response:
        _require_own_page(request)
        fields = parse_qs((await self._body(request)).decode("utf-8", "replace"))
        if not self._door.opens(fields.get("key", [""])[0]):
            return _back_to_page("?wrong")
        return _back_to_page(cookie=self._door.pass_for(request))

    async def logout(self, request: Request) -> Response:
        _require_own_page(request)
        cookie = self._door.no_pass_for(request) if self._door.locked else None
        return _back_to_page(cookie=cookie)

    async def asset(self, request: Request) -> Response:
        """A file of the page. Nothing in them is worth hiding."""
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise NotFound("There is nothing at this path.")
        headers = {**_HEADERS, "cache-control": "no-cache", "etag": asset.tag}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    def _login_page(self, *, wrong: bool) -> Response:
        said = _WRONG if wrong else b""
        return _html(self._assets["login.html"].content.replace(b"<!-- said -->", said))

    async def _body(self, request: Request) -> bytes:
        limits = self._services.settings.limits
        body = b""
        async for piece in body_pieces(request, idle_s=limits.body_s, upload_s=limits.body_s):
            body += piece
            if len(body) > _MAX_LOGIN_BYTES:
                raise RequestTooLarge("The form is too large.")
        return body


def _html(content: bytes) -> Response:
    return Response(content, headers=_PRIVATE, media_type=_MEDIA_TYPES["html"])


def _back_to_page(query: str = "", *, cookie: str | None = None) -> Response:
    # Relative: outside the page may be below another path.
    response = Response(status_code=303, headers={**_PRIVATE, "location": f"../console{query}"})
    if cookie is not None:
        response.headers["set-cookie"] = cookie
    return response


def _require_own_page(request: Request) -> None:
    if from_elsewhere(request):
        raise _not_here()


def _not_here() -> NotFound:
    return NotFound("There is nothing at this path.")
