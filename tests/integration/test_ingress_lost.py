"""An ingress process is killed: nobody works for its requests any more, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from schemas.transport import topology
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource, SourceSettings
from tests.fixtures.broker import Broker, BrokerNode
from tests.fixtures.ports import free_port
from tests.fixtures.processes import headrace, wait_ready
from tests.fixtures.stack import run_worker, serve_pod, until
from workers.engines.scripted import ScriptedEngine

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
FREED_S = 5.0

IN_PREFILL = "[[k=10 gap=5 ttft=60000]]"
IN_DECODE = "[[k=100000 gap=5]]"


async def ask(url: str, model: str, content: str, *, stream: bool) -> None:
    """Send a request and read its answer for as long as there is one."""
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": content}]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        with contextlib.suppress(httpx.TransportError):
            await http.post(CHAT, json=body)


@contextlib.asynccontextmanager
async def working(
    url: str, model: str, slots: int
) -> AsyncIterator[tuple[ScriptedEngine, RabbitJobSource]]:
    engine = ScriptedEngine(served_id=model, slots=slots)
    settings = SourceSettings(poll_s=0.02)
    source = await RabbitJobSource.connect(url, model=model, slots=slots, settings=settings)
    try:
        async with run_worker(engine, source, announce_interval_s=0.5):
            yield engine, source
    finally:
        await source.close()


async def test_a_killed_ingress_frees_its_slots(broker: Broker, model: str, tmp_path: Path) -> None:
    """In prefill, where nothing is said, in decode, and while waiting for a slot."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ("ingress", "--amqp-url", broker.url, "--model", model, "--port", str(port))
    async with (
        working(broker.url, model, slots=4) as (engine, source),
        headrace(*command, log=tmp_path / "ingress.log") as ingress,
        asyncio.TaskGroup() as clients,
    ):
        await wait_ready(url, ingress)
        for n in range(12):
            content = IN_DECODE if n % 2 else IN_PREFILL
            clients.create_task(ask(url, model, content, stream=n % 4 < 2))
        await until(lambda: _running(engine, 4))
        if isinstance(broker, BrokerNode):  # the others have arrived there
            queue = topology.job_queue(model, "interactive")
            await until(lambda: _waiting(broker, queue, 8), timeout_s=15)
        ingress.kill()
        await ingress.process.wait()
        await until(lambda: source.returned_frames >= 12 and not source._held, timeout_s=FREED_S)
        await until(lambda: _running(engine, 0), timeout_s=FREED_S)
        assert source._outbox._addresses == {}
        # Its slots are another's.
        dispatcher = await RabbitDispatcher.connect(broker.url)
        try:
            async with serve_pod(dispatcher, model=model) as pod:
                async with httpx.AsyncClient(base_url=pod.url, timeout=20) as http:
                    message = {"role": "user", "content": "[[say:next]]"}
                    answer = await http.post(CHAT, json={"model": model, "messages": [message]})
                assert answer.status_code == 200
        finally:
            await dispatcher.close()
        if isinstance(broker, BrokerNode):
            await until(lambda: _holds_nothing(broker, queue))
            left = await broker.rows("queues", "name", "messages")
            assert not [name for name, _ in left if name.startswith("headrace.reply.ingress")]


async def _running(engine: ScriptedEngine, count: int) -> bool:
    return await engine.running() == count


async def _holds_nothing(broker: BrokerNode, queue: str) -> bool:
    return [queue, "0"] in await broker.rows("queues", "name", "messages")


async def _waiting(broker: BrokerNode, queue: str, count: int) -> bool:
    return [queue, str(count)] in await broker.rows("queues", "name", "messages_ready")
