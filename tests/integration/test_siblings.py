"""What a pod of several processes says of itself, whichever of them is asked."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from ingress import siblings
from ingress.place import Place
from ingress.siblings import Siblings
from tests.fixtures.metrics import Samples
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, until

pytestmark = pytest.mark.timeout(30)

CHAT = {"model": MODEL, "dialect": "chat", "outcome": "completed", "status": "200"}


def place(number: int, directory: Path) -> Place:
    return Place(number=number, of=3, directory=str(directory), sockets=(), life=-1)


@pytest_asyncio.fixture
async def two_of_three(tmp_path: Path) -> AsyncIterator[tuple[Stack, Stack]]:
    """Processes 1 and 2; the third is left to the test."""
    async with AsyncExitStack() as exits:
        stacks = [await exits.enter_async_context(memory_stack()) for _ in range(2)]
        for number, stack in enumerate(stacks, start=1):
            stack.services.siblings = Siblings(place(number, tmp_path), stack.services)
            await exits.enter_async_context(stack.services.siblings.answering())
        yield stacks[0], stacks[1]


async def readiness(stack: Stack) -> tuple[int, Any]:
    async with httpx.AsyncClient(base_url=stack.url) as http:
        found = await http.get("/health/ready")
        return found.status_code, found.json()["processes"]


async def test_metrics_of_all_on_one_page(two_of_three: tuple[Stack, Stack]) -> None:
    first, second = two_of_three
    async with httpx.AsyncClient() as http:
        for stack in (first, second, second):
            url = f"{stack.url}{path_of('chat')}"
            assert (await http.post(url, json=request_body("chat", "hi"))).status_code == 200
        await until(lambda: not first.services.answers and not second.services.answers)
        page = (await http.get(f"{first.url}/metrics")).text
        other = (await http.get(f"{second.url}/metrics")).text
    samples = Samples(page)
    assert samples("headrace_requests_total", CHAT, process="1") == 1
    assert samples("headrace_requests_total", CHAT, process="2") == 2
    assert samples.total("headrace_requests_total") == Samples(other).total(
        "headrace_requests_total"
    )
    assert samples.total("headrace_broker_connected") == 2
    unmarked = [line for line in page.splitlines() if line[0] != "#" and 'process="' not in line]
    assert unmarked == []
    kinds = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(kinds) == len(set(kinds)) > 30


async def test_ready_when_all_have_been_up_and_those_that_are_up_are_ready(
    two_of_three: tuple[Stack, Stack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_of_three
    assert await readiness(first) == (503, ["ready", "ready", "starting"])
    with socket.socket(socket.AF_UNIX) as third:
        third.bind(str(place(3, tmp_path).door(3)))
        third.listen()
        monkeypatch.setattr(siblings, "_PATIENCE_S", 0.3)
        assert await readiness(first) == (503, ["ready", "ready", "silent"])
    monkeypatch.undo()
    assert await readiness(first) == (200, ["ready", "ready", "gone"])
    second.services.begin_shutdown()
    assert await readiness(first) == (503, ["ready", "not ready", "gone"])
    async with httpx.AsyncClient() as http:
        page = Samples((await http.get(f"{first.url}/metrics")).text)
    assert page("headrace_broker_connected", process="2") == 1
    with pytest.raises(KeyError):
        page("headrace_broker_connected", process="3")
