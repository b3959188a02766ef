"""A worker process is killed: what it had not begun to answer goes on elsewhere, unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest

from schemas.transport.rabbit import RabbitDispatcher
from tests.fixtures.answers import read_stream
from tests.fixtures.broker import Broker
from tests.fixtures.player import request_to_play
from tests.fixtures.processes import Process, headrace
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import Pod, ready, serve_pod, sse_data, until

pytestmark = pytest.mark.broker

CHAT = "/v1/chat/completions"


@dataclass
class Service:
    """One pod in this process, three workers in theirs."""

    pod: Pod
    workers: list[Process]
    model: str

    async def ask(self, content: str, *, stream: bool) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": self.model, "stream": stream, "messages": messages}
        async with httpx.AsyncClient(base_url=self.pod.url, timeout=30) as http:
            return await http.post(CHAT, json=body)

    async def holder(self, phase: str) -> Process:
        """The worker process that holds the one request, once it is in this phase."""
        await until(lambda: [a._generation.phase for a in self.pod.services.answers] == [phase])
        (answer,) = self.pod.services.answers
        name = answer._generation.worker
        return next(worker for worker in self.workers if f'"{name}"' in worker.output())


@pytest.fixture
async def service(broker: Broker, model: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with AsyncExitStack() as exits:
        command = ("worker", "--engine", "scripted", "--model", model, "--no-supervise")
        workers = [
            await exits.enter_async_context(
                headrace(*command, "--amqp-url", broker.url, log=tmp_path / f"worker-{i}.log")
            )
            for i in range(3)
        ]
        dispatcher = await RabbitDispatcher.connect(broker.url, name="ingress")
        exits.push_async_callback(dispatcher.close)
        pod = await exits.enter_async_context(serve_pod(dispatcher, model=model))
        async with asyncio.timeout(30):
            await ready(pod.services, workers=3)
        yield Service(pod, workers, model)


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_token_it_is_invisible(service: Service, stream: bool) -> None:
    asking = asyncio.create_task(service.ask("[[k=4 gap=5 ttft=1500]]", stream=stream))
    (await service.holder("prefill")).kill()
    answer = await asking
    assert answer.status_code == 200, answer.text
    if stream:
        *data, done = sse_data(answer.content)
        assert done == b"[DONE]"
        chunks = [orjson.loads(record) for record in data]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        usage = chunks[-1]["usage"]
    else:
        text = answer.json()["choices"][0]["message"]["content"]
        usage = answer.json()["usage"]
    assert text == "tok0 tok1 tok2 tok3 "
    assert usage["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_answer_it_is_an_honest_failure(service: Service, stream: bool) -> None:
    asking = asyncio.create_task(service.ask("[[k=2000 gap=10]]", stream=stream))
    (await service.holder("decode")).kill()
    answer = await asking
    if stream:
        assert orjson.loads(sse_data(answer.content)[-1])["error"]["code"] == "worker_failed"
        assert b"[DONE]" not in answer.content
        assert b'"finish_reason":"' not in answer.content
    else:
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "worker_failed"
    assert (await service.ask("[[say:next]]", stream=False)).status_code == 200


async def test_within_a_call_it_is_an_honest_failure_in_every_dialect(service: Service) -> None:
    """The last piece of the arguments never comes, and nothing looks as if it had."""
    text = '[[tool:stock {"symbol": "KO", "days": 3}]][[crash:5]]'
    async with httpx.AsyncClient(base_url=service.pod.url, timeout=30) as http:
        for dialect in ("messages", "responses"):  # each costs a worker; there are three
            body = request_to_play(dialect, text, model=service.model)
            response = await http.post(path_of(dialect), json={**body, "stream": True})
            answer = read_stream(dialect, response.content)
            assert answer.failed
            assert answer.end == {"messages": "worker_failed", "responses": "server_error"}[dialect]
            assert answer.parts == ["call"]
            assert '{"symbol": "KO", "days": 3}'.startswith("".join(answer.fed))
            assert answer.fed
        response = await http.post(
            "/v1/messages", json=request_body("messages", model=service.model)
        )
        assert response.status_code == 200


async def test_a_request_that_kills_two_workers_is_not_tried_again(service: Service) -> None:
    answer = await service.ask("[[crash:0]]", stream=True)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed"
