"""More requests than fit: refused in each dialect's own shape, with a time to come back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ingress.backlog import Backlog, Place
from tests.fixtures.faults import Cut
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.timeout(30)


@asynccontextmanager
async def full(waiting: int, **settings: Any) -> AsyncIterator[tuple[Stack, Cut, Any]]:
    """A stack whose one slot is taken, with so many requests that wait, and a client of it."""
    cut = Cut(("fine",), 0)
    engine = ScriptedEngine(served_id=MODEL, slots=1, script=cut)
    async with (
        memory_stack(engine, **settings) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        asyncio.TaskGroup() as group,
    ):

        async def ask() -> None:
            response = await http.post(path_of("chat"), json=request_body("chat"))
            assert response.status_code == 200

        group.create_task(ask())
        await cut.reached.wait()
        for _ in range(waiting):
            group.create_task(ask())
        await until(lambda: len(stack.services.admission.backlog(MODEL)) == waiting)
        yield stack, cut, http
        cut.gate.set()


def refused(response: httpx.Response, dialect: str) -> int:
    """The seconds after which to come back."""
    assert response.status_code == (529 if dialect == "messages" else 503)
    assert response.json()["error"]["code"] == "model_overloaded"
    assert response.json()["error"]["type"] == "overloaded_error"
    seconds = int(response.headers["retry-after"])
    assert 1 <= seconds <= 60
    return seconds


async def metric(http: httpx.AsyncClient, name: str) -> float:
    text = (await http.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found.group(1)) if found else 0.0


@pytest.mark.rule("overload.refused")
@pytest.mark.parametrize("dialect", ALL)
async def test_a_full_queue_refuses_and_keeps_what_it_has(dialect: str) -> None:
    async with full(2, max_queued=2) as (_, _, http):
        for stream in (True, False):
            response = await http.post(path_of(dialect), json=request_body(dialect, stream=stream))
            refused(response, dialect)
        reason = f'headrace_refusals_total{{model="{MODEL}",reason="queue_length"}}'
        assert await metric(http, reason) == 2
        assert (
            await metric(http, f'headrace_queued_requests{{class="interactive",model="{MODEL}"}}')
            == 2
        )
        assert await metric(http, f'headrace_queued_tokens{{model="{MODEL}"}}') > 2


@pytest.mark.rule("overload.refused")
async def test_too_many_tokens_are_refused() -> None:
    async with full(1, max_queued_tokens=1_000) as (_, _, http):
        for dialect in ALL:
            body = request_body(dialect, "word " * 1_000)
            refused(await http.post(path_of(dialect), json=body), dialect)


@pytest.mark.rule("overload.waited")
@pytest.mark.parametrize("dialect", ALL)
async def test_who_has_waited_in_vain_is_told_so(dialect: str) -> None:
    async with full(0, limits=TimeLimits(queue_wait_s=0.6)) as (_, _, http):
        for stream in (True, False):
            response = await http.post(path_of(dialect), json=request_body(dialect, stream=stream))
            refused(response, dialect)
        reason = f'headrace_refusals_total{{model="{MODEL}",reason="model_overloaded"}}'
        assert await metric(http, reason) == 2


@pytest.mark.rule("overload.retry-after")
async def test_the_time_to_come_back_is_what_was_measured() -> None:
    now = 0.0
    measured = Backlog(
        max_requests=100, max_tokens=100, max_wait_s=100, clock=lambda: now, chance=lambda: 0.0
    )
    places = [Place(measured, 1) for _ in range(30)]
    for place in places:
        place.take()
    for place in places[:10]:
        now += 2
        place.leave(accepted=True)  # 20 are left, at half a request a second
    async with full(0, limits=TimeLimits(queue_wait_s=0.6)) as (stack, _, http):
        stack.services.admission.backlogs[MODEL] = measured
        response = await http.post(path_of("chat"), json=request_body("chat"))
        assert 38 <= refused(response, "chat") <= 44


async def test_the_wait_of_a_request_is_measured() -> None:
    async with full(3) as (stack, cut, http):
        cut.gate.set()
        await until(lambda: stack.services.admission.in_flight == 0)
        count = f'headrace_queue_wait_seconds_count{{class="interactive",model="{MODEL}"}}'
        assert await metric(http, count) == 4
