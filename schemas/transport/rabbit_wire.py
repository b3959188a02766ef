"""The socket to the broker, and the frames that cross it too often for a library object each.

Everything rare goes through aio-pika. Two things do not: a reply frame published by a worker, and a
reply frame delivered to a pod, which happen for every step of every engine. Both need only the
outermost layer of AMQP 0-9-1, so `Poster` writes and `FrameTap` reads those frames in place, on the
same connection, at a tenth of the cost.

The tap also notices what aiormq keeps to itself: returned messages on a channel without confirms,
and whether the broker has blocked the connection.

This module knows frames, not what is in a body.

Source: AMQP 0-9-1 specification, sections 2.3 (frames), 4.2 (wire format); RabbitMQ's
`connection.blocked` extension.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, SupportsIndex, TypeAlias

import pamqp.frame
from aiormq.connection import SSLContextProvider, TransportFactory
from aiormq.exceptions import AMQPConnectionError
from pamqp import commands
from yarl import URL

DeliveryCallback: TypeAlias = Callable[[str, bytes], None]
"""Called with consumer tag and body."""

ReturnCallback: TypeAlias = Callable[[str], None]
"""Called with the routing key of a message that no queue took."""

_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_END: Final = 0xCE
_FRAME_OVERHEAD: Final = 8
_FRAME = struct.Struct(">BHL")
_BODY_SIZE = struct.Struct(">Q")

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_RETURN: Final = b"\x00\x3c\x00\x32"
_BLOCKED: Final = b"\x00\x0a\x00\x3c"
_UNBLOCKED: Final = b"\x00\x0a\x00\x3d"
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# Content header and the start of a body that fits one frame. The header names class 60 (basic),
# weight 0, the body's size, and one property: delivery mode 1, transient.
_CONTENT = struct.Struct(">BHLHHQHBBBHL")
_CONTENT_HEADER = struct.Struct(">BHLHHQHBB")
_CONTENT_HEADER_SIZE: Final = 15
_HAS_DELIVERY_MODE: Final = 1 << 12
_TRANSIENT: Final = 1


class Poster:
    """Publishes transient messages on one channel, without confirms, straight to the socket.

    Whole messages are written at once, so they never mix with what aiormq writes, and everything
    posted is on the wire before whatever is sent through aiormq afterwards.

    Args:
        channel: Number of an open channel that nothing else publishes on.
        frame_max: The largest frame the broker takes, in bytes.
    """

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel = channel
        self._body_max = frame_max - _FRAME_OVERHEAD

    def address(self, exchange: str, routing_key: str, *, mandatory: bool = False) -> bytes:
        """The first frame of every message that goes there."""
        publish = commands.Basic.Publish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory
        )
        return pamqp.frame.marshal(publish, self._channel)

    def message(self, address: bytes, body: bytes) -> bytes:
        """One whole message, ready for the socket."""
        channel, size = self._channel, len(body)
        if 0 < size <= self._body_max:
            start = _CONTENT.pack(
                *(_HEADER, channel, _CONTENT_HEADER_SIZE),
                *(60, 0, size, _HAS_DELIVERY_MODE, _TRANSIENT, _FRAME_END),
                *(_BODY, channel, size),
            )
            return b"".join((address, start, body, b"\xce"))
        parts = [
            address,
            _CONTENT_HEADER.pack(
                *(_HEADER, channel, _CONTENT_HEADER_SIZE),
                *(60, 0, size, _HAS_DELIVERY_MODE, _TRANSIENT, _FRAME_END),
            ),
        ]
        for at in range(0, size, self._body_max):
            piece = body[at : at + self._body_max]
            parts += [_FRAME.pack(_BODY, channel, len(piece)), piece, b"\xce"]
        return b"".join(parts)


class _Content:
    """A message on a watched channel, while its frames arrive."""

    __slots__ = ("chunks", "done", "missing")

    def __init__(self, done: Callable[[bytes], None]) -> None:
        self.done = done
        self.missing = 0
        self.chunks: list[bytes] = []


class FrameTap(asyncio.StreamReader):
    """The stream aiormq reads from, less the frames that are dealt with here.

    Frames of watched channels that carry a delivery or a return go to the callbacks, from within
    the socket's own read callback; all else is passed on unchanged and in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._clock = loop.time
        self._partial = b""
        self._deliveries: dict[int, DeliveryCallback] = {}
        self._returns: dict[int, ReturnCallback] = {}
        self._open: dict[int, _Content] = {}
        self._heartbeat_at = 0.0
        self.blocked = False
        self.on_blocked: Callable[[], None] = lambda: None

    def watch_deliveries(self, channel: int, callback: DeliveryCallback) -> None:
        """Send what is delivered on `channel` to `callback`, which must not raise."""
        self._deliveries[channel] = callback

    def watch_returns(self, channel: int, callback: ReturnCallback) -> None:
        """Send what is returned on `channel` to `callback`, which must not raise."""
        self._returns[channel] = callback

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        buffer = bytes(data)
        if self._partial:
            buffer = self._partial + buffer
        end = len(buffer)
        at = kept_from = 0
        kept: list[bytes] = []
        while end - at >= _FRAME.size:
            kind, channel, size = _FRAME.unpack_from(buffer, at)
            following = at + size + _FRAME_OVERHEAD
            if following > end:
                break
            if self._take(kind, channel, buffer, at + _FRAME.size, following - 1):
                if at > kept_from:
                    kept.append(buffer[kept_from:at])
                kept_from = following
            at = following
        taken = kept_from > 0
        if at > kept_from:
            kept.append(buffer[kept_from:at])
        self._partial = buffer[at:]
        if taken:
            self._count_as_life(kept)
        if kept:
            super().feed_data(b"".join(kept))

    def feed_eof(self) -> None:
        if self._partial:
            super().feed_data(self._partial)
            self._partial = b""
        super().feed_eof()

    def _count_as_life(self, kept: list[bytes]) -> None:
        # The broker sends no heartbeats while it sends anything else, and aiormq gives up a
        # connection on which it sees nothing: let it see one.
        now = self._clock()
        if now - self._heartbeat_at >= 1.0:
            self._heartbeat_at = now
            kept.append(_HEARTBEAT)

    def _take(self, kind: int, channel: int, buffer: bytes, start: int, stop: int) -> bool:
        """Whether the frame whose payload is `buffer[start:stop]` was ours."""
        if channel == 0:
            self._observe(kind, buffer[start : start + 4])
            return False
        content = self._open.get(channel)
        if content is None:
            return kind == _METHOD and self._begin(channel, buffer, start)
        if kind == _BODY:
            chunk = buffer[start:stop]
            content.missing -= len(chunk)
            if content.missing or content.chunks:
                content.chunks.append(chunk)
                chunk = b"" if content.missing else b"".join(content.chunks)
        elif kind == _HEADER:
            (content.missing,) = _BODY_SIZE.unpack_from(buffer, start + 4)
            chunk = b""
        else:
            # A method frame inside a message: the message was given up (the channel is closing).
            del self._open[channel]
            return self._begin(channel, buffer, start)
        if not content.missing:
            del self._open[channel]
            content.done(chunk)
        return True

    def _begin(self, channel: int, buffer: bytes, start: int) -> bool:
        method = buffer[start : start + 4]
        if method == _DELIVER and (delivered := self._deliveries.get(channel)) is not None:
            tag, _ = _short_string(buffer, start + 4)
            self._open[channel] = _Content(lambda body: delivered(tag, body))
            return True
        if method == _RETURN and (returned := self._returns.get(channel)) is not None:
            _, at = _short_string(buffer, start + 6)  # after the reply code: the reply text
            _, at = _short_string(buffer, at)  # the exchange
            routing_key, _ = _short_string(buffer, at)
            self._open[channel] = _Content(lambda _: returned(routing_key))
            return True
        return False

    def _observe(self, kind: int, method: bytes) -> None:
        if kind != _METHOD:
            return
        if method == _BLOCKED:
            self.blocked = True
            self.on_blocked()
        elif method == _UNBLOCKED:
            self.blocked = False


def _short_string(buffer: bytes, at: int) -> tuple[str, int]:
    start = at + 1
    stop = start + buffer[at]
    return buffer[start:stop].decode("utf-8", "replace"), stop


class Wire(TransportFactory):
    """Opens the socket for aiormq, and keeps both of its ends at hand.

    Attributes:
        tap: What is read.
        writer: What is written; aiormq writes here too, always whole frames.
    """

    tap: FrameTap
    writer: asyncio.StreamWriter

    def __init__(self, write_buffer_bytes: int) -> None:
        self._write_buffer_bytes = write_buffer_bytes

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, over TLS for an `amqps` URL, with certificates as aiormq reads them from it."""
        context: SSLContextProvider = kwargs.pop("ssl_context_provider")
        assert url.host is not None
        assert url.port is not None
        loop = asyncio.get_running_loop()
        self.tap = FrameTap(loop)
        protocol = asyncio.StreamReaderProtocol(self.tap, loop=loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol,
                url.host,
                url.port,
                ssl=await context.get_context() if url.scheme == "amqps" else None,
                **kwargs,
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self.writer = asyncio.StreamWriter(transport, protocol, self.tap, loop)
        return self.tap, self.writer
