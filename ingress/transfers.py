"""Uploads and downloads under way: one line and one count for each, whatever its end.

A process that ends waits for them as it does for answers. It must not know what is carried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import structlog

from ingress.auth import Principal
from ingress.generation import outcome_of
from ingress.services import Services
from schemas import telemetry
from schemas.errors import (
    ClientClosedRequest,
    ErrorInfo,
    InternalError,
    ServerShuttingDown,
    ServingError,
)

log = structlog.get_logger()

Direction: TypeAlias = Literal["upload", "download"]


class Transfer:
    """One upload or download.

    Attributes:
        file_id: Of what is carried, once it has one.
        size: Bytes carried so far.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.file_id: str | None = None
        self.size = 0
        self._limit = limit
        self._given_up = False

    def refuse(self) -> None:
        """It has begun, and goes on."""

    def shut_down(self) -> None:
        """The process ends: give it up."""
        if self._given_up:
            return
        self._given_up = True
        self._limit.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def transferring(
    services: Services, direction: Direction, *, request_id: str, principal: Principal
) -> AsyncIterator[Transfer]:
    """While this lasts, something is carried to or from a client.

    Raises:
        ServerShuttingDown: The process ends, or has no more time for it.
    """
    began = time.monotonic()
    error: ErrorInfo | None = None
    limit = asyncio.timeout(None)
    transfer = Transfer(limit)
    try:
        services.admission.check_open()
        async with limit:
            services.answers.add(transfer)
            yield transfer
    except TimeoutError:
        if not limit.expired():
            error = _crashed()
            raise
        late = ServerShuttingDown("The server is shutting down; try again.")
        late.logged = True
        error = late.info()
        raise late from None
    except ServingError as raised:
        raised.logged = True
        error = raised.info()
        raise
    except asyncio.CancelledError:
        error = ClientClosedRequest("The request was given up.").info()
        raise
    except Exception:
        error = _crashed()
        raise
    finally:
        services.answers.discard(transfer)
        outcome = outcome_of(error)
        services.metrics.transfers.labels(direction, outcome).inc()
        services.metrics.transferred_bytes.labels(direction).inc(transfer.size)
        log.info(
            telemetry.FILE_TRANSFERRED,
            request_id=request_id,
            direction=direction,
            principal=principal.name,
            file_id=transfer.file_id,
            bytes=transfer.size,
            status=error.status if error is not None else 200,
            outcome=outcome,
            code=error.code if error is not None else None,
            duration_ms=round((time.monotonic() - began) * 1000, 1),
        )


def _crashed() -> ErrorInfo:
    return InternalError("Something went wrong in the server.").info()
