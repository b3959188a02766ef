"""The whole service over a real RabbitMQ, with scripted engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from schemas.codec import encode_job
from schemas.transport.rabbit import DispatcherSettings
from tests.fixtures.answers import CONVERSATIONS
from tests.fixtures.broker import Broker, BrokerNode
from tests.fixtures.player import LIMIT
from tests.fixtures.raw_client import RawClient, request_bytes
from tests.fixtures.requests import ALL, request_body
from tests.fixtures.stack import Stack, TimeLimits, rabbit_stack, sse_data, until
from tests.integration.test_disconnect import check_nothing_is_left, long_body
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine, Step, Text, script_from_markers

pytestmark = pytest.mark.broker

CHAT = "/v1/chat/completions"


async def ask(url: str, model: str, content: str, *, stream: bool) -> httpx.Response:
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": content}]}
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        return await http.post(CHAT, json=body)


def streamed_text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    *data, done = sse_data(response.content)
    assert done == b"[DONE]"
    chunks = [orjson.loads(record) for record in data]
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


async def test_streams_and_bodies_over_two_pods_and_two_workers(broker: Broker, model: str) -> None:
    engines = [ScriptedEngine(served_id=model, slots=16) for _ in range(2)]
    async with rabbit_stack(broker.url, engines, pods=2) as stack:
        texts = [f"{i} left right\u2028🧪 {'word ' * i}end" for i in range(32)]
        answers = await asyncio.gather(
            *(
                ask(stack.pods[i % 2].url, model, f"[[say:{text}]]", stream=bool(i % 4 < 2))
                for i, text in enumerate(texts)
            )
        )
        for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            if i % 4 < 2:
                assert streamed_text(answer) == text
            else:
                assert answer.json()["choices"][0]["message"]["content"] == text


async def test_more_streams_than_reply_queues_and_slots(broker: Broker, model: str) -> None:
    engines = [ScriptedEngine(served_id=model, slots=64)]
    async with rabbit_stack(broker.url, engines) as stack:
        answers = await asyncio.gather(
            *(ask(stack.url, model, "[[k=20 gap=5 ttft=5]]", stream=True) for _ in range(150))
        )
        want = "".join(f"tok{i} " for i in range(20))
        assert all(streamed_text(answer) == want for answer in answers)


@pytest.mark.rule("disconnect.frees")
@pytest.mark.parametrize("content", ["[[k=1000 gap=5 ttft=60000]]", "[[k=10000 gap=5]]"])
async def test_clients_that_leave_free_their_slots(
    broker: Broker, model: str, content: str
) -> None:
    """Of those that are reset two are running and two wait in the queue."""
    engine = ScriptedEngine(served_id=model, slots=2)
    async with rabbit_stack(broker.url, [engine]) as stack:
        for dialect, stream in product(ALL, (False, True)):
            body = long_body(dialect, content, stream=stream) | {"model": model}
            request = request_bytes(dialect, body)
            clients = [await RawClient(stack.url).send(request) for _ in range(4)]
            await until(lambda: _running(engine, 2))
            await until(lambda: stack.services.admission.in_flight == 4)
            for client in clients:
                client.reset()
            await check_nothing_is_left(stack)
            await until(lambda: knows_of_nothing(stack))
            answer = await ask(stack.url, model, "[[say:next]]", stream=stream)
            assert answer.status_code == 200


def knows_of_nothing(stack: Stack) -> bool:
    """Neither end of the broker keeps anything of a request that has ended."""
    dispatcher: Any = stack.services.dispatcher
    sources: list[Any] = [consumer._source for consumer in stack.consumers]
    return not dispatcher._replies and not any(
        source._held or source._incoming or source._outbox._addresses for source in sources
    )


def offering(size: int, offered: Counter[str]) -> Callable[[EngineRequest], Iterator[Step]]:
    """An engine that writes as fast as it is let, to those who ask for anything to go on for ever.

    Args:
        offered: Bytes, by request.
    """

    def script(request: EngineRequest) -> Iterator[Step]:
        if FOREVER.encode() not in encode_job(request.job):
            yield from script_from_markers(request)
            return
        while offered[request.job.request_id] < size:
            offered[request.job.request_id] += 20_000
            yield Text("x" * 20_000)

    return script


FOREVER = "Write for ever."


async def longest_silence(http: httpx.AsyncClient, model: str, content: str) -> float:
    """Read a stream of tokens that come at a pace, and tell for how long there was none."""
    body = request_body("chat", content, stream=True) | {"model": model}
    loop, longest, text = asyncio.get_running_loop(), 0.0, b""
    async with http.stream("POST", CHAT, json=body) as response:
        heard_at: float | None = None
        async for piece in response.aiter_raw():
            now = loop.time()
            longest = max(longest, now - (heard_at or now))
            heard_at = now
            text += piece
    assert text.endswith(b"data: [DONE]\n\n")
    return longest


@pytest.mark.rule("readers.bounded", "readers.neighbours", "limits.writes", "connections.given-up")
async def test_readers_that_stop_hold_little_and_nobody_up(broker: Broker, model: str) -> None:
    """All that lies between their engine and them is bounded, wherever it lies.

    All replies come by the same queue, and each engine could go on to 200 MB.
    """
    write_s = 1.5
    offered: Counter[str] = Counter()
    engine = ScriptedEngine(served_id=model, slots=64, script=offering(200_000_000, offered))
    settings = DispatcherSettings(reply_queues=1)
    limits = TimeLimits(write_s=write_s)
    async with (
        rabbit_stack(broker.url, [engine], dispatcher=settings, limits=limits) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=30) as http,
    ):
        content = "[[k=150 gap=20]]"  # all the time
        quick = [asyncio.create_task(longest_silence(http, model, content)) for _ in range(20)]
        await until(lambda: _running(engine, 20))
        stopped = []
        with capture_logs() as lines:
            for dialect in CONVERSATIONS:
                body = long_body(dialect, FOREVER, stream=True) | {"model": model}
                body[LIMIT[dialect]] = 1_000_000
                client = RawClient(stack.url, receive_bytes=65_536)
                await client.send(request_bytes(dialect, body))
                stopped.append(client)
                await client.read_until(b"\r\n\r\n")
            await until(lambda: stack.services.admission.in_flight == 20, timeout_s=3 * write_s)
            assert not any(task.done() for task in quick)
            await until(lambda: _running(engine, 20))
        gone = [line for line in lines if line["event"] == "request.completed"]
        assert [line["code"] for line in gone] == ["client_closed_request"] * len(stopped)
        connections = stack.pods[0].server.server_state.connections
        await until(lambda: len(connections) == len(quick), timeout_s=1)  # though nothing was read
        for client in stopped:
            client.close()
        assert max(await asyncio.gather(*quick)) < 0.9 * write_s  # who is held up is for as long
        await until(lambda: knows_of_nothing(stack))
    assert len(offered) == len(stopped)
    # Most of it was thrown away on arrival, while the engine had yet to hear that it should stop.
    assert max(offered.values()) < 12_000_000


async def test_a_large_body_passes_and_a_small_one_beside_it(broker: Broker, model: str) -> None:
    engine = ScriptedEngine(served_id=model, context_length=1 << 30)
    async with rabbit_stack(broker.url, [engine]) as stack:
        large = asyncio.create_task(
            ask(stack.url, model, f"[[say:large]] {'x' * 14_000_000}", stream=True)
        )
        small = await ask(stack.url, model, "[[say:small]]", stream=True)
        assert streamed_text(small) == "small"
        assert streamed_text(await large) == "large"
        too_large = await ask(stack.url, model, "x" * 50_000_000, stream=True)
        assert too_large.status_code == 413
        assert too_large.json()["error"]["code"] == "request_too_large"


async def test_unknown_model_and_absent_worker(broker: Broker, model: str) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(broker.url, [engine]) as stack:
        assert (await ask(stack.url, "nobody", "x", stream=True)).status_code == 404
        assert (await ask(stack.url, model.upper(), "x", stream=True)).status_code == 200
        await stack.consumers[0].drain(0)
        await until(lambda: not stack.services.catalog.ready())
        for stream in (False, True):
            answer = await ask(stack.url, model, "x", stream=stream)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
        async with httpx.AsyncClient(base_url=stack.url) as http:
            assert (await http.get("/health/ready")).status_code == 503


async def test_broker_restart_while_idle_needs_no_restart_of_anything(
    own_broker: BrokerNode, model: str
) -> None:
    engine = ScriptedEngine(served_id=model)
    async with rabbit_stack(own_broker.url, [engine], pods=2) as stack:
        for _ in range(2):
            assert streamed_text(await ask(stack.url, model, "[[say:hi]]", stream=True)) == "hi"
            await asyncio.to_thread(own_broker.stop)
            await until(lambda: not stack.services.dispatcher.connected())
            refused = await ask(stack.url, model, "[[say:hi]]", stream=True)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            await asyncio.to_thread(own_broker.start)
            for pod in stack.pods:
                await until(lambda pod=pod: _is_ready(pod.url), timeout_s=20)
        for pod in stack.pods:
            assert streamed_text(await ask(pod.url, model, "[[say:hi]]", stream=True)) == "hi"


async def _running(engine: ScriptedEngine, count: int) -> bool:
    return await engine.running() == count


async def _is_ready(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as http:
        return (await http.get("/health/ready")).status_code == 200
