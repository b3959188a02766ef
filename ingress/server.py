"""Serving an app over HTTP, and stopping without dropping what is under way.

SIGTERM or SIGINT: readiness off, new requests and those that still wait for a worker are refused,
running answers go on for the grace time, the rest is told that the server shuts down. A second
signal ends the grace time.

The port stays open meanwhile, so that probes see an end that was meant and whoever still comes gets
an honest answer. Every connection is closed with its next response, and none before: a client would
have sent its request into the void. One that connects again finds another process.

Source: wire reference, "Shutdown and overload".
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import structlog
import uvicorn
from starlette.types import ASGIApp

from ingress.connection import HttpConnection
from ingress.services import Services
from schemas import telemetry

log = structlog.get_logger()

_LAST_WORDS_S = 5
"""Time for failure records to reach their readers after the grace time."""

_FIRST_WORDS_S = 1.0
"""Time for the first request of a connection to come. Without it whoever has just connected when
the server ends would find the connection cut instead of an answer."""

_LOOK_S = 0.02

_UNSENT_BYTES = 1 << 17
"""What the system holds of a response that its reader has no room for. By default it is megabytes:
too much for readers who stopped, and one who is slow but steady is not seen to take anything."""


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
                http=HttpConnection,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_LAST_WORDS_S,
            )
        )
        self._services = services
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._grace_ends_at: float | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Bind, then say where."""
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        for server in self.servers:
            for listening in server.sockets:
                _bound_unsent(listening)
        if self.started and self._on_ready is not None:
            await self._on_ready(self.url())

    def url(self) -> str:
        """Where it listens, with the port it really got."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come, at whatever moment: the loop is told."""
        del frame
        if sig == signal.SIGINT:
            self._captured_signals.append(sig)  # raised once more when all is over
        if self.started:
            self._loop.call_soon_threadsafe(self.end)
        else:
            self.should_exit = True

    def end(self, grace_s: float | None = None) -> None:
        """The first call begins the end, any further one hurries it.

        Args:
            grace_s: How long running answers may go on; by default as the settings say.
        """
        if self._grace_ends_at is not None:
            self._grace_ends_at = self._loop.time()
            return
        services = self._services
        grace_s = services.settings.grace_s if grace_s is None else grace_s
        self._grace_ends_at = self._loop.time() + grace_s
        services.begin_shutdown()
        log.info(telemetry.INGRESS_DRAINING, running=len(services.answers), grace_s=grace_s)
        close = (b"connection", b"close")
        self.config.encoded_headers.append(close)  # of responses from now on
        self.server_state.default_headers = [*self.server_state.default_headers, close]
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpConnection) and connection.cycle is not None:
                connection.cycle.keep_alive = False

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is over."""
        over = await super().on_tick(counter)
        if over or self._grace_ends_at is None:
            return over
        if self._services.answers and self._loop.time() < self._grace_ends_at:
            return False
        self._services.end_answers()
        return True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, but answer whoever got in before."""
        await asyncio.sleep(0)  # accept those who are at the door: closing it would cut them off
        for server in self.servers:
            server.close()
        while self._expects_first_words():  # noqa: ASYNC110 - until none does, in a second
            await asyncio.sleep(_LOOK_S)
        await super().shutdown(sockets)

    def _expects_first_words(self) -> bool:
        return any(
            connection.expects_first_words(_FIRST_WORDS_S)
            for connection in self.server_state.connections
            if isinstance(connection, HttpConnection)
        )


def _bound_unsent(listening: socket.socket) -> None:
    """Accepted connections inherit it."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not everywhere
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
