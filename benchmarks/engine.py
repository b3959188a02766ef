"""An engine behind HTTP that plays what is asked for, at the least cost there can be.

It stands where a vLLM or SGLang server would, behind everything that is measured: it answers
`/v1/chat/completions` as those do, and plays what `benchmarks.script` describes. All streams that
are due at one instant are written in one turn, as those of a real engine's step are.

Run as `python -m benchmarks.engine --port 9000`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import click
import msgspec
import uvloop

from benchmarks.script import Asked, ending, event, whole

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)


def _framed(sent: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(sent), sent)


class Pieces:
    """The bytes of every token on the wire, made once."""

    def __init__(self) -> None:
        self._made: list[bytes] = []

    def upto(self, tokens: int) -> list[bytes]:
        self._made += [_framed(event(number)) for number in range(len(self._made), tokens)]
        return self._made


@dataclass(slots=True)
class Seen:
    """What became of a tagged request, on the monotonic clock."""

    begun: float
    ended: float | None = None
    aborted: bool = False


class Stream:
    """One answer in the making."""

    __slots__ = ("asked", "at", "connection", "seen", "tokens")

    def __init__(self, connection: Connection, asked: Asked) -> None:
        self.connection = connection
        self.asked = asked
        self.at = 0
        self.tokens = asked.tokens if asked.hang is None else asked.hang
        self.seen: Seen | None = None


class Engine:
    """All streams, and what is due when."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.seen: dict[str, Seen] = {}
        self.held: set[Stream] = set()
        self._loop = asyncio.get_running_loop()
        self._ticks: dict[float, list[Stream]] = {}
        self._ready: deque[Stream] = deque()
        self._hurrying = False

    def begin(self, stream: Stream) -> None:
        """Let a stream's tokens come."""
        asked = stream.asked
        if asked.gap_s:
            self._at(asked.first_due(time.monotonic()), stream)
        elif asked.ttft_s:
            self._loop.call_later(asked.ttft_s, self._hurry, stream)
        else:
            self._hurry(stream)

    def release(self) -> None:
        """End everything that is held, without a word."""
        for stream in list(self.held):
            stream.connection.drop()

    def _at(self, due: float, stream: Stream) -> None:
        due = round(due, 4)  # one instant, by whichever sum it was found
        together = self._ticks.get(due)
        if together is None:
            together = self._ticks[due] = []
            self._loop.call_at(due, self._tick, due)
        together.append(stream)

    def _tick(self, due: float) -> None:
        pieces = self.pieces
        for stream in self._ticks.pop(due):
            connection = stream.connection
            if connection.stream is not stream:  # it was hung up
                continue
            connection.write(pieces.upto(stream.tokens)[stream.at])
            stream.at += 1
            if stream.at < stream.tokens:
                self._at(due + stream.asked.gap_s, stream)
            else:
                connection.finish()

    def _hurry(self, stream: Stream) -> None:
        self._ready.append(stream)
        if not self._hurrying:
            self._hurrying = True
            self._round()

    def _round(self) -> None:
        """One token of every stream that has no pace and whose reader keeps up."""
        ready, pieces = self._ready, self.pieces
        for _ in range(len(ready)):
            stream = ready.popleft()
            connection = stream.connection
            if connection.stream is not stream:
                continue
            if not connection.full:
                connection.write(pieces.upto(stream.tokens)[stream.at])
                stream.at += 1
                if stream.at == stream.tokens:
                    connection.finish()
                    continue
            ready.append(stream)
        self._hurrying = bool(ready)
        if ready:
            # Readers that are all behind are waited for, not asked again and again.
            full = all(stream.connection.full for stream in ready)
            if full:
                self._loop.call_later(0.001, self._round)
            else:
                self._loop.call_soon(self._round)


class Connection(asyncio.Protocol):
    """One client's connection; one request at a time, by the least of HTTP/1.1."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: asyncio.Transport
        self.write: Callable[[bytes], None]
        self.stream: Stream | None = None
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self.write = self._transport.write

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def connection_lost(self, error: Exception | None) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            self._engine.held.discard(stream)
            if stream.seen is not None:
                stream.seen.ended, stream.seen.aborted = time.monotonic(), True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._request()) is not None:
            self._answer(*request)

    def _request(self) -> tuple[bytes, bytes] | None:
        """The next whole request: its head and its body."""
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return None
        if _CHUNKED.search(head):
            end = rest.find(b"0\r\n\r\n")
            if end < 0:
                return None
            self._buffer = rest[end + 5 :]
            return head, rest[:end]
        found = _LENGTH.search(head)
        length = int(found.group(1)) if found else 0
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        return head, rest[:length]

    def _answer(self, head: bytes, body: bytes) -> None:
        match head.partition(b"\r\n")[0].split(b" "):
            case [b"POST", _, b"HTTP/1.1"]:
                self._generate(body)
            case [_, target, b"HTTP/1.1"]:
                self._tell(target.decode())
            case _:  # some try first whether it speaks HTTP/2
                self.drop()

    def _generate(self, body: bytes) -> None:
        asked = Asked.of(body)
        if not asked.stream:
            answer = whole(asked)
            self.write(_JSON_HEAD % (len(answer), answer))
            return
        stream = self.stream = Stream(self, asked)
        if asked.tag:
            stream.seen = self._engine.seen[asked.tag] = Seen(time.monotonic())
        if asked.hold != "head":
            self.write(_HEAD)
        if asked.hold or asked.hang is not None:
            self._engine.held.add(stream)
        if not asked.hold:
            self._engine.begin(stream)

    def finish(self) -> None:
        """Say that the stream has ended, unless it only falls silent."""
        stream = self.stream
        assert stream is not None
        if stream.asked.hang is not None:
            return
        self.stream = None
        if stream.seen is not None:
            stream.seen.ended = time.monotonic()
        self.write(b"".join(map(_framed, ending(stream.asked))) + b"0\r\n\r\n")

    def drop(self) -> None:
        self._transport.abort()

    def _tell(self, target: str) -> None:
        """What servers of this kind are asked by who stands before them, and what the client is."""
        path, _, query = target.partition("?")
        answer: object = {}
        match path:
            case "/v1/models":
                model = {"id": "scripted", "object": "model", "created": 1760000000}
                answer = {"object": "list", "data": [{**model, "owned_by": "headrace"}]}
            case "/get_model_info" | "/model_info":
                answer = {"model_path": "scripted", "is_generation": True}
            case "/seen":
                answer = self._engine.seen.get(query.removeprefix("tag="))
            case "/release":
                self._engine.release()
        body = msgspec.json.encode(answer)
        self.write(_JSON_HEAD % (len(body), body))


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


@click.command()
@click.option("--port", type=int, required=True)
def main(port: int) -> None:
    """Serve the engine that everything is measured in front of."""
    uvloop.run(serve(port))


if __name__ == "__main__":
    main()
