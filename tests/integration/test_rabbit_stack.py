"""The whole service over a real RabbitMQ, with scripted engines."""

from __future__ import annotations

import asyncio
import socket

import httpx
import orjson
import pytest

from tests.fixtures.broker import Broker, BrokerNode
from tests.fixtures.stack import Stack, rabbit_stack, sse_data, until
from workers.engines.scripted import ScriptedEngine

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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", ["[[k=1000 gap=5 ttft=60000]]", "[[k=10000 gap=5]]"])
async def test_a_client_that_leaves_frees_its_slot(
    broker: Broker, model: str, content: str, stream: bool
) -> None:
    engine = ScriptedEngine(served_id=model, slots=2)
    async with rabbit_stack(broker.url, [engine]) as stack:
        writers = [await _post(stack, model, content, stream=stream) for _ in range(4)]
        await until(lambda: _running(engine, 2))
        await until(lambda: stack.services.admission.in_flight == 4)
        for writer in writers:  # two are running, two wait in the queue
            writer.transport.abort()
        await until(lambda: stack.services.admission.in_flight == 0, timeout_s=1)
        await until(lambda: _running(engine, 0), timeout_s=1)
        answer = await ask(stack.url, model, "[[say:next]]", stream=stream)
        assert answer.status_code == 200


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


async def _post(stack: Stack, model: str, content: str, *, stream: bool) -> asyncio.StreamWriter:
    body = orjson.dumps(
        {"model": model, "stream": stream, "messages": [{"role": "user", "content": content}]}
    )
    host, port = stack.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    return writer


async def _running(engine: ScriptedEngine, count: int) -> bool:
    return await engine.running() == count


async def _is_ready(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as http:
        return (await http.get("/health/ready")).status_code == 200
