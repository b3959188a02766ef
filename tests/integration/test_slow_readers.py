"""Readers slower than the model: they get all of it, and hold nothing meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import pytest
from structlog.testing import capture_logs

from schemas.transport.memory import MemoryTransport
from tests.fixtures.answers import read_body, read_stream
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, ready, run_worker, serve_pod, until
from workers.engines.scripted import ScriptedEngine, Text

WORDS = [f"{number:05}{'x' * 7994} " for number in range(500)]
"""More than the system's own buffers hold."""

BUFFER_BYTES = 1 << 20
WRITE_S = 0.4
PAUSE_S = 0.04


class Reader:
    """A client that reads when it is told to, through a pipe that holds little."""

    def __init__(self, stack: Stack) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._socket.setblocking(False)
        host, port = stack.url.removeprefix("http://").split(":")
        self._address = (host, int(port))

    async def ask(self, dialect: str, *, stream: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._address)
        body = orjson.dumps({**request_body(dialect), "stream": stream, "max_tokens": 100_000})
        head = f"POST {path_of(dialect)} HTTP/1.0\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(self._socket, head.encode() + body)

    async def read(self, *, pause_s: float) -> bytes:
        """The body of the response, piece by piece and in no hurry."""
        loop = asyncio.get_running_loop()
        received = b""
        while piece := await loop.sock_recv(self._socket, 65_536):
            received += piece
            await asyncio.sleep(pause_s)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        return _joined(body) if b"transfer-encoding: chunked" in head else body

    def close(self) -> None:
        self._socket.close()


def _joined(chunked: bytes) -> bytes:
    """A body without the marks between its chunks; it must be whole."""
    body, at = b"", 0
    while True:
        length, _, _ = chunked[at:].partition(b"\r\n")
        size, at = int(length, 16), at + len(length) + 2
        if not size:
            assert chunked[at:] == b"\r\n"
            return body
        body, at = body + chunked[at : at + size], at + size + 2


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    engine = ScriptedEngine(served_id=MODEL, script=lambda _: map(Text, WORDS))
    memory = MemoryTransport()
    limits = TimeLimits(write_s=WRITE_S, silence_s=0.3, stall_s=0.3)
    async with AsyncExitStack() as exits:
        dispatcher = memory.dispatcher(reply_buffer_bytes=BUFFER_BYTES)
        exits.push_async_callback(dispatcher.close)
        source = memory.job_source(model=MODEL, slots=4)
        exits.push_async_callback(source.close)
        stack = Stack(engine=engine)
        worker = run_worker(engine, source, heartbeat_s=0.1)
        stack.consumers.append(await exits.enter_async_context(worker))
        pod = await exits.enter_async_context(serve_pod(dispatcher, model=MODEL, limits=limits))
        stack.pods.append(pod)
        await ready(stack.services)
        yield stack


async def idle(stack: Stack) -> bool:
    return await stack.engine.running() == 0


async def test_a_slow_and_steady_reader_gets_the_whole_stream(stack: Stack) -> None:
    reader = Reader(stack)
    loop = asyncio.get_running_loop()
    try:
        await reader.ask("chat", stream=True)
        await until(lambda: [a._generation.phase for a in stack.services.answers] == ["decode"])
        await until(lambda: idle(stack))  # the worker waits for nobody
        (answer,) = stack.services.answers
        assert answer._generation.phase == "decode", "nor is the answer over"
        began = loop.time()
        async with asyncio.timeout(60):
            told = read_stream("chat", await reader.read(pause_s=PAUSE_S))
        assert loop.time() - began > 2 * WRITE_S
    finally:
        reader.close()
    assert told.text == "".join(WORDS)
    assert told.usage["completion_tokens"] == len(WORDS)
    losses = answer._generation.retries.losses
    assert losses
    assert set(losses) == {"suspended"}


async def test_a_slow_and_steady_reader_gets_the_whole_body(stack: Stack) -> None:
    reader = Reader(stack)
    loop = asyncio.get_running_loop()
    try:
        await reader.ask("chat", stream=False)
        began = loop.time()
        async with asyncio.timeout(60):
            told = read_body("chat", await reader.read(pause_s=PAUSE_S))
        assert loop.time() - began > 2 * WRITE_S
    finally:
        reader.close()
    assert told.text == "".join(WORDS)


async def test_one_that_takes_nothing_is_given_up(stack: Stack) -> None:
    reader = Reader(stack)
    try:
        with capture_logs() as lines:
            await reader.ask("chat", stream=True)
            await until(lambda: len(stack.services.answers) == 1)
            (answer,) = stack.services.answers
            await until(lambda: not stack.services.answers, timeout_s=10)
    finally:
        reader.close()
    (line,) = [line for line in lines if line["event"] == "request.completed"]
    assert (line["status"], line["code"]) == (499, "client_closed_request")
    assert answer._generation.attempt == 1, "nobody works for it a second time"
    assert await idle(stack)
