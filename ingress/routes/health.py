"""Liveness, readiness and metrics, for orchestrators and not for clients."""

from __future__ import annotations

import asyncio

import msgspec
import orjson
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from ingress.readiness import Readiness
from ingress.services import Services


def health_routes(services: Services) -> APIRouter:
    """`/health/live`, `/health/ready`, `/metrics`."""
    router = APIRouter(tags=["operation"])

    @router.get("/health/live")
    async def live() -> Response:
        return _json(200, {"status": "live"})

    @router.get("/health/ready")
    async def ready() -> Response:
        """200 once a model can answer; 503 before, while the broker is away, and in shutdown."""
        if services.siblings is None:
            found, states = Readiness.of(services), None
        else:
            found, states = await services.siblings.readiness()
        ok = found.ready and {"starting", "silent"}.isdisjoint(states or ())
        return _json(
            200 if ok else 503,
            {
                "status": "ready" if ok else "not ready",
                **msgspec.structs.asdict(found),
                **({} if states is None else {"processes": states}),
            },
        )

    @router.get("/metrics")
    async def metrics() -> Response:
        if services.siblings is not None:
            page = await services.siblings.metrics()
        else:
            # Tens of milliseconds where there are several models: no stream is to wait for that.
            page = await asyncio.to_thread(generate_latest, services.metrics.registry)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    return router


def _json(status: int, value: dict[str, object]) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
