"""Clients that leave a real engine: its own running count returns to zero."""

from __future__ import annotations

import asyncio
import random

import orjson
import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import Stack, rabbit_stack, until
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.broker, pytest.mark.sglang, pytest.mark.timeout(240), SESSION_LOOP]

DISCONNECTS = 200


async def _post(stack: Stack, words: int, *, stream: bool) -> asyncio.StreamWriter:
    body = orjson.dumps(
        {
            "model": stack.engine.card.id,
            "stream": stream,
            "max_tokens": 2000,
            "temperature": 0,
            "stop": ["\ue000"],
            "messages": [{"role": "user", "content": "word " * words}],
        }
    )
    host, port = stack.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    return writer


async def test_200_random_disconnects(broker: Broker, sglang_engine: SglangEngine) -> None:
    rng = random.Random(20)
    async with rabbit_stack(broker.url, [sglang_engine]) as stack:
        admission = stack.services.admission

        async def come_and_go(_: int) -> None:
            # Long prompts are cut in prefill, short ones in decode; with more clients than the
            # engine has slots, many are cut while they wait.
            words = rng.choice((3, 3, 300, 1500))
            writer = await _post(stack, words, stream=rng.random() < 0.5)
            await asyncio.sleep(rng.random() * 0.5)  # the moment of leaving is the random part
            writer.transport.abort()

        for batch in range(0, DISCONNECTS, 10):
            await asyncio.gather(*(come_and_go(batch + i) for i in range(10)))
        await until(lambda: admission.in_flight == 0, timeout_s=1)
        await until(lambda: _idle(sglang_engine), timeout_s=1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
async def test_one_disconnect_in_each_phase(
    broker: Broker, sglang_engine: SglangEngine, phase: str, stream: bool
) -> None:
    async with rabbit_stack(broker.url, [sglang_engine]) as stack:
        blockers = []
        if phase == "queued":
            blockers = [await _post(stack, 3, stream=True) for _ in range(sglang_engine.slots)]
            await until(lambda: _count(sglang_engine, sglang_engine.slots))
        writer = await _post(stack, 1800 if phase == "prefill" else 3, stream=stream)
        total = len(blockers) + 1
        await until(lambda: stack.services.admission.in_flight == total)
        if phase == "decode":
            await until(lambda: _generations(stack, "decode") == 1)
        elif phase == "prefill":
            await until(lambda: _generations(stack, "prefill") == 1)
        writer.transport.abort()
        await until(lambda: stack.services.admission.in_flight == len(blockers), timeout_s=1)
        await until(lambda: _count(sglang_engine, len(blockers)), timeout_s=1)
        for blocker in blockers:
            blocker.transport.abort()
        await until(lambda: _idle(sglang_engine), timeout_s=1)


def _generations(stack: Stack, phase: str) -> int:
    return sum(answer._generation.phase == phase for answer in stack.services.answers)


async def _count(engine: SglangEngine, count: int) -> bool:
    return await engine.running() == count


async def _idle(engine: SglangEngine) -> bool:
    return await engine.running() == 0
