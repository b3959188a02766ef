"""A cheap client that loads an endpoint and checks every reply whole and in order.

One raw connection per stream; replies are taken apart when they are complete, so that little of
the machine goes into looking at them while they are measured.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, cast

import msgspec

Dialect: TypeAlias = Literal["chat", "messages", "responses"]

_TOKEN = re.compile(rb"tok\d")
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_CHUNKS_END = b"\r\n0\r\n\r\n"
_PATHS: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
_TEXT: dict[Dialect, re.Pattern[bytes]] = {
    "chat": re.compile(rb'"content":\s*"(tok[^"]*)"'),
    "messages": re.compile(rb'"text":\s*"(tok[^"]*)"'),
    "responses": re.compile(rb'"delta":\s*"(tok[^"]*)"'),
}
_LAST: dict[Dialect, bytes] = {
    "chat": b"data: [DONE]",
    "messages": b"message_stop",
    "responses": b"response.completed",
}
REPLY_TIMEOUT_S = 60.0
BEGINNING_S = 3.0
_GRACE_S = 0.0005
"""A timer may be early by half of its grain; what it was set for is no earlier for that."""


class BadReply(Exception):
    """A reply was refused, cut short, out of order or late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request and what its reply must say.

    Attributes:
        wire: The whole HTTP request.
        tokens: How many tokens come back.
        answer: Their text.
        gap_s: Time between two tokens; they come at `phase_s` after multiples of it on the
            monotonic clock. 0: as fast as they can.
        like: Makes the same request but for what is named.
    """

    wire: bytes
    dialect: Dialect
    stream: bool
    tokens: int
    answer: bytes
    gap_s: float
    phase_s: float
    like: Callable[..., Ask]


def ask(
    model: str,
    *,
    tokens: int,
    gap_ms: int = 0,
    ttft_ms: int = 0,
    phase_ms: int = 0,
    marks: str = "",
    key: str | None = None,
    dialect: Dialect = "chat",
    stream: bool = True,
) -> Ask:
    """A request that makes the scripted engine send `tokens` tokens at a pace.

    Args:
        model: Which one to ask for.
        tokens: Of the reply.
        gap_ms: Between two of them.
        ttft_ms: Before the first of them.
        phase_ms: How long after multiples of the gap they come.
        marks: More of the engine's markers, after those of the pace.
        key: To be shown as a bearer's.
        dialect: Which API to ask by.
        stream: Whether the reply comes as it is made.
    """
    pace = f"k={tokens} gap={gap_ms} ttft={ttft_ms}" + (f" phase={phase_ms}" if phase_ms else "")
    said = [{"role": "user", "content": f"[[{pace}]]{marks}"}]
    fields: dict[Dialect, dict[str, object]] = {
        "chat": {"messages": said},
        "messages": {"messages": said, "max_tokens": 65536},
        "responses": {"input": [{"type": "message", **message} for message in said]},
    }
    body = msgspec.json.encode({"model": model, "stream": stream, **fields[dialect]})
    headers = "" if key is None else f"Authorization: Bearer {key}\r\n"
    if dialect == "messages":
        headers += "anthropic-version: 2023-06-01\r\n"
    head = (
        f"POST {_PATHS[dialect]} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Ask(
        wire=head.encode() + body,
        dialect=dialect,
        stream=stream,
        tokens=tokens,
        answer=b"".join(b"tok%d " % number for number in range(tokens)),
        gap_s=gap_ms / 1000,
        phase_s=phase_ms / 1000,
        like=partial(
            ask,
            model,
            tokens=tokens,
            gap_ms=gap_ms,
            ttft_ms=ttft_ms,
            phase_ms=phase_ms,
            marks=marks,
            key=key,
            dialect=dialect,
            stream=stream,
        ),
    )


@dataclass(slots=True)
class Samples:
    """What has been seen so far. Times are in seconds.

    Attributes:
        tokens: Tokens received, those of unfinished replies included.
        replies: Replies that have come whole.
        ttft_s: Of each reply, from the request's last byte written to the first token read.
        late_s: Of each token, how long after its instant it was read. That of a reply's first token
            is the engine's last before it came: where a request itself waits longer than from one
            token to the next, that belongs to its TTFT.
        gaps_s: Between two arrivals of one reply.
    """

    tokens: int = 0
    replies: int = 0
    ttft_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def forget_times(self) -> None:
        """What comes from now on is what counts."""
        self.ttft_s.clear()
        self.late_s.clear()
        self.gaps_s.clear()


class Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._transport: asyncio.Transport
        self._ask: Ask
        self._buffer = bytearray()
        self._sent_at = 0.0
        self._seen = 0
        self._first_due = 0.0
        self._arrived_at = 0.0
        self._reply: asyncio.Future[bytes] | None = None
        self.first_token: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, port: int, samples: Samples) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(samples), "127.0.0.1", port)
        return connection

    def close(self) -> None:
        """Leave, in the middle of a reply too."""
        self._reply = None
        self._transport.abort()

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
            # The last events of some dialects say all of the text again.
            tokens = min(tokens, self._ask.tokens - self._seen)
            self._samples.tokens += tokens
            self._note(now, tokens)
        elif not self._seen and bytes(self._buffer[9:12]) not in (b"", b"200"):
            self._fail(bytes(self._buffer[:300]).decode("ascii", "replace"))
            return
        if self._is_whole():
            self._reply.set_result(bytes(self._buffer))

    def _note(self, now: float, tokens: int) -> None:
        """Take the times of tokens that came together."""
        gap_s, seen = self._ask.gap_s, self._seen
        if not seen:
            self._samples.ttft_s.append(now - self._sent_at)
            if self.first_token is not None and not self.first_token.done():
                self.first_token.set_result(None)
            if gap_s:
                since = now + _GRACE_S - self._ask.phase_s
                self._first_due = since // gap_s * gap_s + self._ask.phase_s
        if gap_s and tokens:
            after = now - self._first_due
            for number in range(seen, seen + tokens):
                self._samples.late_s.append(after - number * gap_s)
            if seen:
                self._samples.gaps_s.append(now - self._arrived_at)
            self._arrived_at = now
        self._seen += tokens

    def _is_whole(self) -> bool:
        if self._buffer.endswith(_CHUNKS_END):
            return True
        if self._ask.stream:
            return False
        head, _, body = bytes(self._buffer).partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        return found is not None and len(body) >= int(found.group(1))

    def begin(self, asked: Ask) -> asyncio.Future[bytes]:
        """Send a request; its raw reply comes later."""
        self._ask = asked
        self._buffer.clear()
        self._seen = 0
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        self._reply.add_done_callback(_seen)  # who only waits for its beginning hears no more of it
        self.first_token = loop.create_future()
        self._sent_at = time.monotonic()
        self._transport.write(asked.wire)
        return self._reply

    async def run(self, asked: Ask) -> None:
        """Send the request and wait for the whole of its reply.

        Raises:
            BadReply: The reply is not exactly what it should be.
        """
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                raw = await self.begin(asked)
        except TimeoutError:
            raise BadReply("a reply did not end") from None
        check(raw, asked)
        self._samples.replies += 1

    def check_begun(self) -> None:
        """Look at what has come of a reply that has not ended.

        Raises:
            BadReply: It is no beginning of the right one.
        """
        if self._reply is None or self._reply.done():
            return
        body = bytes(self._buffer).partition(b"\r\n\r\n")[2]
        said = b"".join(_TEXT[self._ask.dialect].findall(body))
        if not self._ask.answer.startswith(said):
            raise BadReply("tokens are missing, doubled or out of order")

    def _fail(self, why: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(BadReply(why))


def _seen(reply: asyncio.Future[bytes]) -> None:
    if not reply.cancelled():
        reply.exception()


def check(raw: bytes, asked: Ask) -> None:
    """Hold a whole reply against what it must say.

    Raises:
        BadReply: It is not exactly that.
    """
    head, _, body = raw.partition(b"\r\n\r\n")
    if head[9:12] != b"200":
        raise BadReply(raw[:300].decode("ascii", "replace"))
    if _CHUNKED.search(head):
        body = dechunk(body)
    if b"".join(_TEXT[asked.dialect].findall(body)) != asked.answer:
        raise BadReply("tokens are missing, doubled or out of order")
    if asked.stream and _LAST[asked.dialect] not in body:
        raise BadReply("a reply did not say that it has ended")


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
async def load(
    port: int, asked: Ask, *, streams: int, phases: int = 1, settle_s: float = 0.3
) -> AsyncIterator[Samples]:
    """Keep `streams` replies running inside the block; afterwards those begun are hung up.

    The first replies have all lengths up to the one asked for, so that later requests do not come
    in bursts. The block is entered `settle_s` after every stream has had a token, or has had time
    for it; the times of what came before that are forgotten.

    Args:
        port: Of whoever is loaded.
        asked: The request, again and again.
        streams: How many replies at once.
        phases: Their tokens come at so many different instants, a millisecond apart.
        settle_s: Time for what the beginning stirs up.

    Raises:
        BadReply: One of the replies went wrong.
    """
    samples = Samples()
    lengths = random.Random(streams)  # the same for all that are compared
    connections: list[Connection] = []

    async def keep_running(connection: Connection, again: Ask) -> None:
        await connection.run(again.like(tokens=lengths.randint(1, again.tokens)))
        while True:
            await connection.run(again)

    try:
        async with asyncio.TaskGroup() as group:
            running: list[asyncio.Task[None]] = []
            for number in range(streams):
                connection = await Connection.open(port, samples)
                connections.append(connection)
                again = asked.like(phase_ms=number % phases) if phases > 1 else asked
                running.append(group.create_task(keep_running(connection, again)))
                await asyncio.sleep(0)  # it has asked
            firsts = [connection.first_token for connection in connections]
            await asyncio.wait([first for first in firsts if first], timeout=BEGINNING_S)
            await asyncio.sleep(settle_s)
            samples.forget_times()
            yield samples
            for task in running:
                task.cancel()
            for connection in connections:
                connection.check_begun()
    except* (BadReply, OSError) as errors:
        raise BadReply(str(errors.exceptions[0])) from None
    finally:
        for connection in connections:
            connection.close()


async def probe(
    port: int, asked: Ask, *, every_s: float, seconds: float, patience_s: float = REPLY_TIMEOUT_S
) -> Samples:
    """Send one request after the other, about one per `every_s`, at no rhythm of the engine's.

    A reply that takes longer than `patience_s` counts as if it had come then, and is the last.
    """
    samples = Samples()
    connection = await Connection.open(port, samples)
    loop, pauses = asyncio.get_running_loop(), random.Random(every_s)
    begun = due = loop.time()
    try:
        while due < begun + seconds:
            await asyncio.sleep(due - loop.time())
            async with asyncio.timeout(patience_s):
                await connection.run(asked)
            due = max(due + every_s * pauses.uniform(0.5, 1.5), loop.time())
    except TimeoutError:
        samples.ttft_s.append(patience_s)
    finally:
        connection.close()
    return samples


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
