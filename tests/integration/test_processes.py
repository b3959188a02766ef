"""`headrace ingress --processes 2` over a real broker."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from schemas.transport.rabbit import RabbitJobSource
from tests.fixtures.broker import Broker
from tests.fixtures.faults import Cut
from tests.fixtures.metrics import Samples
from tests.fixtures.ports import free_port
from tests.fixtures.processes import headrace, wait_ready
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, run_worker, until
from workers.engines.scripted import ScriptedEngine

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

MOST = 32
PATIENCE_S = 60.0


def numbers(parent: int) -> dict[int, psutil.Process]:
    """The processes, by their numbers."""
    found = {}
    for child in psutil.Process(parent).children():
        (place,) = (part for part in child.cmdline() if part.startswith('{"number":'))
        found[int(place[len('{"number":')])] = child
    return found


async def test_a_kill_cuts_one_share_and_a_drain_cuts_none(broker: Broker, tmp_path: Path) -> None:
    cut = Cut(("one", " two"), 1)
    engine = ScriptedEngine(served_id=MODEL, slots=MOST, script=cut)
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = ("--processes", "2", "--port", str(port), "--amqp-url", broker.url, "--grace", "20")
    async with AsyncExitStack() as exits:
        source = await RabbitJobSource.connect(broker.url, model=MODEL, slots=MOST, name="worker")
        exits.push_async_callback(source.close)
        await exits.enter_async_context(run_worker(engine, source))
        pod = await exits.enter_async_context(
            headrace("ingress", *arguments, log=tmp_path / "pod.log")
        )
        await wait_ready(url, pod)
        http = await exits.enter_async_context(httpx.AsyncClient(timeout=60))

        async def ask() -> bytes:
            body = request_body("chat", "hi", stream=True)
            return (await http.post(f"{url}{path_of('chat')}", json=body)).content

        async def running() -> dict[str, float]:
            page = Samples((await http.get(f"{url}/metrics")).text)
            return {n: page("headrace_requests_in_flight", process=n) for n in ("1", "2")}

        answers: list[asyncio.Task[bytes]] = []
        while not answers or 0 in (await running()).values():  # by chance, which is fair
            answers.append(asyncio.create_task(ask()))
            await until(lambda: cut.arrivals == len(answers), timeout_s=PATIENCE_S)
        share = await running()
        assert sum(share.values()) == len(answers)

        numbers(pod.pid)[1].kill()
        await until(
            lambda: sum(answer.done() for answer in answers) == share["1"], timeout_s=PATIENCE_S
        )
        await until(lambda: "ingress.process_ended" in pod.output(), timeout_s=PATIENCE_S)
        pod.process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient() as other:
            await until(lambda: _drains(other, url), timeout_s=PATIENCE_S)
            refused = await other.post(f"{url}{path_of('chat')}", json=request_body("chat"))
            assert refused.status_code == 503
        cut.gate.set()
        ended = await asyncio.gather(*answers, return_exceptions=True)
        whole = [end for end in ended if isinstance(end, bytes) and end.endswith(b"[DONE]\n\n")]
        assert len(whole) == share["2"]
        assert await pod.process.wait() == 0
        assert '"event":"ingress.listening"' in pod.output()
        assert '"process":2' in pod.output()


async def _drains(http: httpx.AsyncClient, url: str) -> bool:
    found = (await http.get(f"{url}/health/ready")).json()
    return found["shutting_down"] is True
