"""A cheap client that loads a chat endpoint and checks every reply whole and in order.

One raw connection per stream; replies are taken apart when they are complete, so that little of
the machine goes into looking at them while they are measured.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import msgspec

_END = b"\r\n0\r\n\r\n"
_TOKEN = re.compile(rb"tok\d")
_CONTENT = re.compile(rb'"content":\s*"([^"]*)"')
REPLY_TIMEOUT_S = 60.0


class BadReply(Exception):
    """A reply was refused, cut short, out of order or late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request and what its reply must say.

    Attributes:
        wire: The whole HTTP request.
        tokens: How many tokens come back.
        answer: Their text.
        gap_s: Time between two tokens; they come at multiples of it on the monotonic clock.
    """

    wire: bytes
    tokens: int
    answer: bytes
    gap_s: float


def ask(model: str, *, tokens: int, gap_ms: int, ttft_ms: int, key: str | None = None) -> Ask:
    """A request that makes the scripted engine send `tokens` tokens at a pace."""
    body = msgspec.json.encode(
        {
            "model": model,
            "stream": True,
            "messages": [
                {"role": "user", "content": f"[[k={tokens} gap={gap_ms} ttft={ttft_ms}]]"}
            ],
        }
    )
    authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Ask(
        wire=head.encode() + body,
        tokens=tokens,
        answer=b"".join(b"tok%d " % number for number in range(tokens)),
        gap_s=gap_ms / 1000,
    )


@dataclass(slots=True)
class Samples:
    """What has been seen so far.

    Attributes:
        tokens: Tokens received, those of unfinished replies included.
        ttft_s: Of each reply, from the request's last byte written to the first token read.
        late_s: Of each arrival, how long after the engine's tick it was read.
    """

    tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def __init__(self, asked: Ask, samples: Samples) -> None:
        self._ask = asked
        self._samples = samples
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._sent_at = 0.0
        self._first = True
        self._reply: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, port: int, asked: Ask, samples: Samples) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(asked, samples), "127.0.0.1", port)
        return connection

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection was closed in a reply")

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            return
        now = time.monotonic()
        self._buffer += data
        if tokens := len(_TOKEN.findall(data)):
            self._samples.tokens += tokens
            if self._first:
                self._first = False
                self._samples.ttft_s.append(now - self._sent_at)
            elif self._ask.gap_s:
                self._samples.late_s.append(now % self._ask.gap_s)
        elif self._first and bytes(self._buffer[9:12]) not in (b"", b"200"):
            self._fail(self._buffer.partition(b"\r\n")[0].decode("ascii", "replace"))
            return
        if self._buffer.endswith(_END):
            self._reply.set_result(bytes(self._buffer))

    async def run(self) -> None:
        """Send the request and wait for the whole of its reply.

        Raises:
            BadReply: The reply is not exactly what it should be.
        """
        self._buffer.clear()
        self._first = True
        self._reply = asyncio.get_running_loop().create_future()
        self._sent_at = time.monotonic()
        self._transport.write(self._ask.wire)
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                raw = await self._reply
        except TimeoutError:
            raise BadReply("a reply did not end") from None
        body = dechunk(raw.partition(b"\r\n\r\n")[2])
        if b"".join(_CONTENT.findall(body)) != self._ask.answer or b"data: [DONE]" not in body:
            raise BadReply("tokens are missing, doubled or out of order")

    def _fail(self, why: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(BadReply(why))


def dechunk(body: bytes) -> bytes:
    """A chunked body without its framing."""
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + size + 4


@asynccontextmanager
async def load(port: int, asked: Ask, *, streams: int) -> AsyncIterator[Samples]:
    """Keep `streams` replies running inside the block; afterwards those begun are finished.

    Requests are spread evenly over the time a reply takes, so that they do not come in bursts;
    tokens come in step all the same. The block is entered when all streams run.

    Raises:
        BadReply: One of the replies went wrong.
    """
    samples = Samples()
    ended = asyncio.Event()
    reply_s = asked.tokens * asked.gap_s

    async def keep_running(connection: Connection, number: int) -> None:
        await asyncio.sleep(number / streams * reply_s)
        while not ended.is_set():
            await connection.run()
        connection.close()

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                connection = await Connection.open(port, asked, samples)
                group.create_task(keep_running(connection, number))
            await asyncio.sleep(reply_s)
            yield samples
            ended.set()
    except* BadReply as errors:
        raise BadReply(str(errors.exceptions[0])) from None


async def probe(port: int, asked: Ask, *, every_s: float, seconds: float) -> Samples:
    """Send one request after the other, beginning at most one per `every_s`."""
    samples = Samples()
    connection = await Connection.open(port, asked, samples)
    loop = asyncio.get_running_loop()
    begun = due = loop.time()
    while due < begun + seconds:
        await asyncio.sleep(due - loop.time())
        await connection.run()
        due = max(due + every_s, loop.time())
    connection.close()
    return samples


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
