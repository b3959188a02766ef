"""Serving an app over HTTP, and stopping without dropping what is under way.

SIGTERM or SIGINT: readiness off, no new requests, running answers go on for the grace time, the
rest is told that the server shuts down. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import FrameType

import structlog
import uvicorn
from starlette.types import ASGIApp

from ingress.generate import Services

log = structlog.get_logger()

_LAST_WORDS_S = 5
"""Time for failure records to reach their readers after the grace time."""


class Server(uvicorn.Server):
    """A uvicorn server that knows the services behind its app."""

    def __init__(
        self,
        app: ASGIApp,
        services: Services,
        *,
        on_ready: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        settings = services.settings
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(settings.grace_s) + _LAST_WORDS_S,
            )
        )
        self._services = services
        self._on_ready = on_ready
        self._ending: asyncio.TimerHandle | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Bind, then say where."""
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        if self.started and self._on_ready is not None:
            await self._on_ready(self.url())

    def url(self) -> str:
        """Where it listens, with the port it really got."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end; uvicorn stops accepting."""
        if self.should_exit:
            self._services.end_answers()
        else:
            self._services.begin_shutdown()
            self._ending = asyncio.get_event_loop().call_later(
                self._services.settings.grace_s, self._services.end_answers
            )
        super().handle_exit(sig, frame)
