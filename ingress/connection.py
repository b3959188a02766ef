"""One connection of a client, as the server below the app keeps it.

uvicorn's own, but for what matters where an answer takes minutes:

- It goes on reading while an answer is under way, so it notices that its client has left, also when
  that one had sent its next request before. Requests that come ahead are answered in their turn as
  long as they are small and few; else the connection ends with the answer under way, and the
  client, hearing no answer to the others, sends them again.
- Of a request that was answered before it was whole, as one that is too large, the rest is thrown
  away, since many clients read no answer before they have written all; but not without end.
- What is no HTTP ends the connection; nothing is written into the midst of an answer.
- An answer that is given up half-way ends the connection at once. To close it would mean to wait
  until its reader has taken what is written, and it is given up because that one takes nothing.
- A client that speaks HTTP/1.0 is not sent chunks: the end of the connection is the end of the
  answer.

Knows nothing of what is asked or answered.

Source: RFC 9112, sections 6.1 (Transfer-Encoding), 9.3.2 (pipelining), 9.6 (tear-down).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ingress.line import EXTENSION

_AHEAD = 16
"""Requests that may wait for the answer to an earlier one."""

_AHEAD_BYTES = 1 << 16
"""The bodies of all of them together."""

_REST_BYTES = 1 << 26
"""What may still come of a request that has been answered already."""

_REST_S = 30.0
"""And within which time."""


class HttpConnection(HttpToolsProtocol):
    """See the module."""

    _answering: RequestResponseCycle | None = None
    _line: ChunkLine | None = None  # of the same
    _deaf = False  # what more comes is thrown away
    _rest_ends: asyncio.TimerHandle | None = None  # the rest of an answered request is coming
    _rest_bytes = 0
    _made_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._made_at = self.loop.time()

    def expects_first_words(self, patience_s: float) -> bool:
        """Whether no request has come yet, while there was little time for one."""
        return self.cycle is None and self.loop.time() - self._made_at < patience_s

    def data_received(self, data: bytes) -> None:
        """Take what has come, but not without end while an answer is under way."""
        if self._deaf:
            return
        super().data_received(data)
        if not self.pipeline:
            return
        if len(self.pipeline) > _AHEAD or self._bytes_ahead() > _AHEAD_BYTES:
            assert self._answering is not None
            self._deaf = True
            self.pipeline.clear()
            self.cycle = self._answering
            self.cycle.keep_alive = False
        self.flow.resume_reading()

    def _bytes_ahead(self) -> int:
        return sum(len(cycle.body) for cycle, _ in self.pipeline)

    def send_400_response(self, msg: str) -> None:
        """Something came that is no HTTP."""
        if self._answering is None or self._answering.response_complete:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """An answer has been written, perhaps before its request had been read."""
        answered = self._answering
        super().on_response_complete()
        if answered is not None and answered.more_body:
            self._rest_bytes = 0
            self._rest_ends = self.loop.call_later(_REST_S, self.transport.abort)

    def on_body(self, body: bytes) -> None:
        """A piece of a request, or of the rest of one."""
        super().on_body(body)
        if self._rest_ends is not None:
            self._rest_bytes += len(body)
            if self._rest_bytes > _REST_BYTES:
                self._deaf = True
                self.transport.abort()

    def on_message_complete(self) -> None:
        """A request has come to its end."""
        super().on_message_complete()
        self._forget_rest()

    def _forget_rest(self) -> None:
        if self._rest_ends is not None:
            self._rest_ends.cancel()
            self._rest_ends = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: the answer under way may be another one than the latest."""
        if (cycle := self._answering) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._forget_rest()
        super().connection_lost(exc)
        if self._line is not None:
            self._line.lost()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answering = cycle
        self._line = ChunkLine(cycle)
        cycle.scope["extensions"] = {EXTENSION: self._line}  # type: ignore[dict-item]  # any value may
        if cycle.scope["http_version"] == "1.0":
            app = _Unchunked(app, cycle)
        app = _Whole(app, cycle)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]


class ChunkLine:
    """See `ingress.line.Line`; for answers that uvicorn sends in chunks."""

    __slots__ = ("_cycle", "_on_gone")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._on_gone: Callable[[], object] | None = None

    @property
    def writable(self) -> bool:
        """As of `Line`."""
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.response_complete
            and not cycle.disconnected
        )

    def write(self, piece: bytes) -> None:
        """As of `Line`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def watch(self, on_gone: Callable[[], object]) -> None:
        """As of `Line`."""
        self._on_gone = on_gone
        if self._cycle.disconnected:
            on_gone()
        else:
            self._cycle.flow.resume_reading()  # a large body may have stopped it

    def unwatch(self) -> None:
        """As of `Line`."""
        self._on_gone = None

    def lost(self) -> None:
        """The connection has ended."""
        if self._on_gone is not None and self._cycle.disconnected:
            self._on_gone()


class _Whole:
    """An app whose answers are whole, or visibly broken off."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        cycle = self._cycle
        begun = cycle.response_started or cycle.flow.write_paused
        if begun and not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True
            cycle.transport.abort()


class _Unchunked:
    """An app whose answers of unknown length are sent as they are, to the end of the connection."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._plain = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                self._plain = scope["method"] != "HEAD" and b"content-length" not in names
            if self._plain:
                await self._send(message)
            else:
                await send(message)

        await self._app(scope, receive, send_plain)

    async def _send(self, message: Message) -> None:
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            cycle.response_started = True
            cycle.keep_alive = False
            cycle.transport.write(_head(message, cycle.default_headers))
            return
        cycle.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            cycle.response_complete = True
            cycle.message_event.set()
            cycle.transport.close()
            cycle.on_response()


def _head(message: Message, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    status = HTTPStatus(message["status"])
    headers = [*default_headers, *message["headers"]]
    headers = [(name, value) for name, value in headers if name.lower() != b"connection"]
    lines = [
        b"HTTP/1.1 %d %b" % (status, status.phrase.encode()),
        *(b"%b: %b" % header for header in headers),
        b"connection: close",
    ]
    return b"".join(b"%b\r\n" % line for line in (*lines, b""))
