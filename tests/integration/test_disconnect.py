"""A client that leaves frees its slot at once: queued, in prefill, in decode; streaming or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.fixtures.raw_client import RawClient, request_bytes
from tests.fixtures.requests import ALL, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text

LONG = "[[k=10000 gap=5]]"
LEAVING = {"reset": RawClient.reset, "closed": RawClient.close}


def long_body(dialect: str, text: str, *, stream: bool, **changes: Any) -> dict[str, Any]:
    """A request that would take minutes."""
    limit = "max_output_tokens" if dialect == "responses" else "max_tokens"
    return request_body(dialect, text, stream=stream, **{limit: 8000}, **changes)


async def post(stack: Stack, text: str, *, stream: bool, dialect: str = "chat") -> RawClient:
    """Send a request and return its connection, with nothing read."""
    body = long_body(dialect, text, stream=stream)
    return await RawClient(stack.url).send(request_bytes(dialect, body))


async def check_nothing_is_left(stack: Stack) -> None:
    """Neither work nor memory of it, at either end."""
    await until(lambda: _running(stack, 0), timeout_s=1)
    await until(lambda: stack.services.admission.in_flight == 0, timeout_s=1)
    await until(lambda: not stack.services.answers, timeout_s=1)
    for consumer in stack.consumers:
        source: Any = consumer._source
        await until(lambda source=source: not source._held, timeout_s=1)
        await until(lambda consumer=consumer: not consumer._tasks, timeout_s=1)


PHASES = {
    "prefill": "[[k=1000 gap=5 ttft=60000]]",
    "decode": LONG,
    "hanging": "[[say:a b c]][[hang:2]]",
}


@pytest.mark.rule("disconnect.frees")
@pytest.mark.parametrize("text", PHASES.values(), ids=PHASES.keys())
@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
async def test_leaving_while_running(text: str, leave: Callable[[RawClient], None]) -> None:
    async with memory_stack() as stack:
        for dialect, stream in product(ALL, (False, True)):
            client = await post(stack, text, stream=stream, dialect=dialect)
            await until(lambda: stack.services.admission.in_flight == 1)
            await until(lambda: _running(stack, 1))
            with capture_logs() as lines:
                leave(client)
                await check_nothing_is_left(stack)
            (line,) = [line for line in lines if line["event"] == "request.completed"]
            assert (line["status"], line["code"]) == (499, "client_closed_request")
            assert (line["dialect"], line["stream"]) == (dialect, stream)
            assert len(lines) < 6, "and nothing is told of each token that comes too late"


@pytest.mark.rule("disconnect.frees")
async def test_leaving_after_ten_chunks() -> None:
    async with memory_stack() as stack:
        for dialect in ALL:
            client = await post(stack, LONG, stream=True, dialect=dialect)
            await client.read_until(b"tok10 ")
            client.reset()
            await check_nothing_is_left(stack)


@pytest.mark.rule("disconnect.frees")
async def test_leaving_while_queued() -> None:
    async with memory_stack(ScriptedEngine(served_id=MODEL, slots=1)) as stack:
        for dialect, stream in product(ALL, (False, True)):
            first = await post(stack, LONG, stream=True)
            await until(lambda: _running(stack, 1))
            second = await post(stack, LONG, stream=stream, dialect=dialect)
            await until(lambda: stack.services.admission.in_flight == 2)
            second.reset()
            await until(lambda: stack.services.admission.in_flight == 1, timeout_s=1)
            third = await post(stack, "[[hang:0]]", stream=stream, dialect=dialect)
            await until(lambda: stack.services.admission.in_flight == 2)
            first.reset()
            # The one that left is never run: the third comes next.
            await until(lambda: stack.services.admission.in_flight == 1)
            await until(lambda: _running(stack, 1))
            third.reset()
            await check_nothing_is_left(stack)


async def test_half_of_many_leave() -> None:
    async with memory_stack() as stack:
        clients = [await post(stack, LONG, stream=bool(i % 2)) for i in range(64)]
        await until(lambda: _running(stack, 64))
        for client in clients[::2]:
            client.reset()
        await until(lambda: _running(stack, 32), timeout_s=1)
        for client in clients[1::2]:
            client.reset()
        await check_nothing_is_left(stack)


@pytest.mark.rule("disconnect.frees")
async def test_leaving_ends_every_choice() -> None:
    async with memory_stack() as stack:
        for dialect, stream in product(("chat", "completions"), (False, True)):
            body = long_body(dialect, LONG, stream=stream, n=5)
            client = await RawClient(stack.url).send(request_bytes(dialect, body))
            await until(lambda: _running(stack, 5))
            client.reset()
            await check_nothing_is_left(stack)


@pytest.mark.rule("disconnect.frees")
async def test_leaving_between_signs_of_life() -> None:
    limits = TimeLimits(commit_after_accept_s=0, keep_alive_s=0.01)
    async with memory_stack(limits=limits) as stack:
        client = await post(stack, "[[hang:0]]", stream=True)
        await client.read_until(b": keep-alive\n\n", 2)
        client.reset()
        await check_nothing_is_left(stack)


@pytest.mark.rule("disconnect.frees", "disconnect.counted-once")
async def test_leaving_between_the_last_token_and_the_last_record() -> None:
    def script(_: object) -> Iterator[Step]:
        yield Text("one")
        yield Text(" two")
        yield Gate(asyncio.Event())

    async with memory_stack(ScriptedEngine(served_id=MODEL, script=script)) as stack:
        for dialect in ALL:
            client = await post(stack, "Go.", stream=True, dialect=dialect)
            await client.read_until(b" two")
            with capture_logs() as lines:
                client.reset()
                await check_nothing_is_left(stack)
            (line,) = [line for line in lines if line["event"] == "request.completed"]
            assert (line["outcome"], line["output_tokens"]) == ("cancelled", 2)


@pytest.mark.rule("disconnect.half")
async def test_a_client_that_closes_its_half_has_left() -> None:
    """It cannot be told from one that has closed all of it, until much has been generated."""
    async with memory_stack() as stack:
        for stream in (False, True):
            client = await post(stack, LONG, stream=stream)
            await until(lambda: _running(stack, 1))
            client.end_sending()
            await check_nothing_is_left(stack)
            client.close()


@pytest.mark.rule("disconnect.upload")
async def test_leaving_in_the_midst_of_an_upload() -> None:
    async with memory_stack() as stack:
        tasks = stack.pods[0].server.server_state.tasks
        for dialect in ALL:
            request = request_bytes(dialect, request_body(dialect))
            with capture_logs() as lines:
                client = await RawClient(stack.url).send(request[:-5])
                await until(lambda: bool(tasks))
                client.reset()
                await until(lambda: not tasks, timeout_s=1)
            assert stack.services.admission.in_flight == 0
            assert not [line for line in lines if line["log_level"] in ("error", "critical")]
            assert await stack.engine.running() == 0


@pytest.mark.rule("disconnect.retries")
async def test_who_asks_again_after_giving_up_costs_one_run_at_a_time() -> None:
    """As clients do whose patience ends: each new try is a request of its own, the old one ends."""
    body = long_body("chat", LONG, stream=False)
    with capture_logs() as lines:
        async with memory_stack() as stack:
            for retry in range(4):
                headers = f"x-stainless-retry-count: {retry}\r\n"
                client = RawClient(stack.url)
                await client.send(request_bytes("chat", body, headers=headers))
                await until(lambda: _running(stack, 1))
                client.reset()
                await until(lambda: _running(stack, 0), timeout_s=1)
            await check_nothing_is_left(stack)
    completed = [line for line in lines if line["event"] == "request.completed"]
    assert [line["client_retry"] for line in completed] == [0, 1, 2, 3]
    assert {line["outcome"] for line in completed} == {"cancelled"}


async def _running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count
