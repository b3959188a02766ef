"""Liveness, readiness and metrics, for orchestrators and not for clients."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

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
        broker = services.dispatcher.connected()
        model = services.catalog.ready()
        running = not services.admission.shutting_down
        ok = broker and model and running
        return _json(
            200 if ok else 503,
            {
                "status": "ready" if ok else "not ready",
                "broker": broker,
                "worker": model,
                "shutting_down": not running,
            },
        )

    @router.get("/metrics")
    async def metrics() -> Response:
        # Tens of milliseconds where there are several models: no stream is to wait for that.
        page = await asyncio.to_thread(generate_latest, services.metrics.registry)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    return router


def _json(status: int, value: dict[str, object]) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
