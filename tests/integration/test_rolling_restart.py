"""Every process of a service is replaced in turn, under load, and nobody's answer shows it.

Clients know two addresses and take the other one when a connection is refused or an answer says,
before it began, to come back later. An answer that has begun is never asked for again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.chaos.transcript import Transcript, read
from tests.fixtures.broker import Broker
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Process, headrace, wait_ready
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]

CLIENTS = 20
ASKED = "[[k=50 gap=20]]"
"""An answer that takes a second."""


@dataclass
class Fleet:
    """Processes that can be replaced."""

    broker_url: str
    model: str
    logs: Path
    exits: AsyncExitStack
    http: httpx.AsyncClient
    urls: list[str] = field(default_factory=list)
    started: int = 0

    async def start(self, *args: str) -> Process:
        self.started += 1
        return await self.exits.enter_async_context(
            headrace(
                *(*args, "--model", self.model, "--amqp-url", self.broker_url),
                log=self.logs / f"{self.started}-{args[0]}.log",
            )
        )

    async def worker(self, grace_s: float) -> Process:
        """A worker that takes Jobs."""
        process = await self.start(
            *("worker", "--engine", "scripted", "--no-supervise", "--grace", f"{grace_s}")
        )
        await until(lambda: "worker.ready" in process.output(), timeout_s=40)
        return process

    async def ingress(self, url: str) -> Process:
        """An ingress at that address."""
        process = await self.start("ingress", "--port", url.rsplit(":", 1)[1])
        await wait_ready(url, process, timeout_s=40)
        return process

    def logged(self, event: str) -> int:
        return sum(log.read_text().count(event) for log in self.logs.iterdir())


@asynccontextmanager
async def fleet_of(broker: Broker, logs: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as exits:
        # One for all, since each costs a tenth of a second; but every request has a connection.
        http = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        await exits.enter_async_context(http)
        fleet = Fleet(broker.url, f"rolled-{free_port()}", logs, exits, http)
        fleet.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        yield fleet


async def stop(process: Process) -> None:
    """As an orchestrator does."""
    process.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(40):
        await process.process.wait()


class Client:
    """Asks for the same stream again and again, whatever happens to the service."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._http = fleet.http
        self.dialect = ALL[number % len(ALL)]
        self._next = number
        self._body = request_body(self.dialect, ASKED, stream=True) | {"model": fleet.model}
        self.answers: list[Transcript] = []
        self.sent_away = 0

    async def ask_until(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            self.answers.append(told(self.dialect, await self.ask()))

    async def ask(self) -> bytes:
        """The bytes of one stream; fails if one that had begun is cut off."""
        while True:
            url = self._fleet.urls[self._next % 2]
            self._next += 1
            try:
                response = await self._http.post(url + path_of(self.dialect), json=self._body)
            except httpx.ConnectError:
                self.sent_away += 1
                continue
            content = response.content
            if response.status_code == 200:
                return content
            assert response.status_code == (529 if self.dialect == "messages" else 503), content
            assert b'"server_shutting_down"' in content
            self.sent_away += 1


def told(dialect: str, stream: bytes) -> Transcript:
    """What of a whole stream must be the same every time."""
    answer = read(dialect, stream=True, status=200, body=stream)
    assert answer.failed is None, answer
    return answer


@pytest.mark.rule("shutdown.rolling-restart")
async def test_nobody_notices_a_rolling_restart(broker: Broker, tmp_path: Path) -> None:
    async with fleet_of(broker, tmp_path) as fleet:
        workers = await asyncio.gather(*(fleet.worker(0) for _ in range(3)))
        pods = await asyncio.gather(*(fleet.ingress(url) for url in fleet.urls))
        unharmed = [told(name, await Client(fleet, n).ask()) for n, name in enumerate(ALL)]

        enough = asyncio.Event()
        clients = [Client(fleet, number) for number in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.ask_until(enough))
            for number, worker in enumerate(workers):
                await fleet.worker(0 if number else 20)
                await stop(worker)
            for url, pod in zip(fleet.urls, pods, strict=True):
                await stop(pod)
                await fleet.ingress(url)
            enough.set()

        for number, client in enumerate(clients):
            assert client.answers
            for answer in client.answers:
                assert answer == unharmed[number % len(ALL)]
        assert fleet.logged("reason=draining") + fleet.logged('"reason":"draining"') > 0
        assert sum(client.sent_away for client in clients) > 0
