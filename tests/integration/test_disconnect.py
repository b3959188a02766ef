"""A client that leaves frees its slot at once: queued, in prefill, in decode; streaming or not."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.scripted import ScriptedEngine


async def post(stack: Stack, content: str, *, stream: bool) -> asyncio.StreamWriter:
    """Send a request and return its connection, with nothing read."""
    body = orjson.dumps(
        {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": content}]}
    )
    host, port = stack.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    return writer


PHASES = {
    "prefill": "[[k=1000 gap=5 ttft=60000]]",
    "decode": "[[k=10000 gap=5]]",
    "hanging": "[[say:a b c]][[hang:2]]",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", PHASES.values(), ids=PHASES.keys())
async def test_leaving_while_running(content: str, stream: bool) -> None:
    async with memory_stack() as stack:
        writer = await post(stack, content, stream=stream)
        await until(lambda: stack.services.admission.in_flight == 1)
        await until(lambda: _running(stack, 1))
        writer.transport.abort()
        await until(lambda: _running(stack, 0), timeout_s=1)
        await until(lambda: stack.services.admission.in_flight == 0, timeout_s=1)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_queued(stream: bool) -> None:
    async with memory_stack(ScriptedEngine(served_id=MODEL, slots=1)) as stack:
        first = await post(stack, "[[k=10000 gap=5]]", stream=True)
        await until(lambda: _running(stack, 1))
        second = await post(stack, "[[k=10000 gap=5]]", stream=stream)
        await until(lambda: stack.services.admission.in_flight == 2)
        second.transport.abort()
        await until(lambda: stack.services.admission.in_flight == 1, timeout_s=1)
        third = await post(stack, "[[hang:0]]", stream=stream)
        await until(lambda: stack.services.admission.in_flight == 2)
        first.transport.abort()
        # The one that left is never run: the third comes next.
        await until(lambda: stack.services.admission.in_flight == 1)
        await until(lambda: _running(stack, 1))
        third.transport.abort()
        await until(lambda: _running(stack, 0), timeout_s=1)


async def test_half_of_many_leave() -> None:
    async with memory_stack() as stack:
        writers = [await post(stack, "[[k=100000 gap=10]]", stream=bool(i % 2)) for i in range(64)]
        await until(lambda: _running(stack, 64))
        for writer in writers[::2]:
            writer.transport.abort()
        await until(lambda: _running(stack, 32), timeout_s=1)
        for writer in writers[1::2]:
            writer.transport.abort()
        await until(lambda: _running(stack, 0), timeout_s=1)
        await until(lambda: not stack.services.answers)


async def _running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count
