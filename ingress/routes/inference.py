"""The inference endpoints: one per dialect, all on the same straight line; and counting.

They are ASGI apps, and requests go to them past the framework: its layers around an endpoint,
several of which wrap every message of an answer, took up to half of a short request's time (see
docs/performance.md). It knows them all the same, for whatever else comes to their paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ingress.counting import count_tokens
from ingress.dialects.base import CountingDialect, Dialect
from ingress.dialects.registry import DIALECTS
from ingress.errors import ErrorResponses
from ingress.generate import generate
from ingress.line import Sender
from ingress.services import Services
from schemas.errors import ServingError

Endpoints: TypeAlias = "Mapping[str, Endpoint]"


class Endpoint:
    """Answers the requests of one path, in whatever way they end."""

    def __init__(
        self, path: str, answer: Callable[[Request], Awaitable[Response]], errors: ErrorResponses
    ) -> None:
        self.path = path
        self._answer = answer
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # as the framework does
        sender = Sender(scope, send)
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
            await response(scope, receive, sender)
        except ServingError as error:
            if sender.begun:
                raise
            await self._errors.to(request, error)(scope, receive, sender)
        except Exception as error:
            response = self._errors.to_crashed(request, error)
            if not sender.begun:
                await response(scope, receive, sender)
            raise


def inference_endpoints(services: Services, errors: ErrorResponses) -> Endpoints:
    """Those of every dialect in the registry, by path. All of them take POST and nothing else."""
    answers: dict[str, Callable[[Request], Awaitable[Response]]] = {}
    for dialect in DIALECTS.values():
        answers[dialect.path] = _generating(dialect, services)
        if isinstance(dialect, CountingDialect):
            answers[dialect.count_path] = _counting(dialect, services)
    return {path: Endpoint(path, answer, errors) for path, answer in answers.items()}


def _generating(dialect: Dialect, services: Services) -> Callable[[Request], Awaitable[Response]]:
    return lambda request: generate(request, dialect, services)


def _counting(
    dialect: CountingDialect, services: Services
) -> Callable[[Request], Awaitable[Response]]:
    return lambda request: count_tokens(request, dialect, services)


def inference_routes(endpoints: Endpoints) -> APIRouter:
    """What the framework knows of them."""
    router = APIRouter()
    for path, endpoint in endpoints.items():
        router.routes.append(Route(path, endpoint, methods=["POST"], name=path))
    return router


class Shortcut:
    """An app that hands requests to the inference endpoints by itself, and all others to `app`."""

    def __init__(self, app: ASGIApp, endpoints: Endpoints) -> None:
        self._app = app
        self._endpoints = endpoints

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        app = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._endpoints.get(scope["path"], app)
        return app(scope, receive, send)
