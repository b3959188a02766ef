"""Separate processes, as in production: two ingress, two SGLang workers, one RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from tests.fixtures.broker import Broker
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.processes import Process, free_port, headrace, wait_ready

pytestmark = [pytest.mark.broker, pytest.mark.sglang, pytest.mark.timeout(400), SESSION_LOOP]

STREAMS = 64


@dataclass
class Fleet:
    """Base URLs of the pods, and the processes."""

    urls: list[str]
    workers: list[Process]
    model: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    broker: Broker, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """Two ingress processes and two workers with the tiny model."""
    logs = tmp_path_factory.mktemp("fleet")
    model = f"tiny-{free_port()}"
    common = ("--amqp-url", broker.url, "--log-level", "info")
    async with AsyncExitStack() as exits:
        workers = [
            await exits.enter_async_context(
                headrace(
                    *("worker", "--model", str(tiny_model), "--served-id", model, *common),
                    *("--concurrency", "32", "--grace", "1"),
                    log=logs / f"worker-{i}.log",
                )
            )
            for i in range(2)
        ]
        urls, pods = [], []
        for i in range(2):
            port = free_port()
            pods.append(
                await exits.enter_async_context(
                    headrace(
                        *("ingress", "--port", str(port), "--model", model, *common),
                        *("--grace", "1"),
                        log=logs / f"ingress-{i}.log",
                    )
                )
            )
            urls.append(f"http://127.0.0.1:{port}")
        for url, pod in zip(urls, pods, strict=True):
            await wait_ready(url, pod)
            await _two_workers(url, workers)
        yield Fleet(urls, workers, model)


async def _two_workers(url: str, workers: list[Process]) -> None:
    async with asyncio.timeout(180), httpx.AsyncClient(base_url=url) as http:
        while b'headrace_workers{model="tiny' not in (await http.get("/metrics")).content or (
            b" 2.0" not in _line((await http.get("/metrics")).content)
        ):
            for worker in workers:
                assert worker.process.returncode is None, worker.output()
            await asyncio.sleep(0.1)


def _line(metrics: bytes) -> bytes:
    return next(line for line in metrics.split(b"\n") if line.startswith(b"headrace_workers{"))


def request(fleet: Fleet, number: int) -> dict[str, Any]:
    """A greedy request; the text of its tokens is told beside the text."""
    return {
        "model": fleet.model,
        "messages": [{"role": "user", "content": f"Tell me about the number {number}, please."}],
        "max_tokens": 24 + number % 17,
        "temperature": 0,
        "logprobs": True,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }


async def test_64_streams_equal_their_bodies_token_for_token(fleet: Fleet) -> None:
    async with AsyncExitStack() as exits:
        clients = [
            await exits.enter_async_context(
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
            )
            for url in fleet.urls
        ]

        async def stream(number: int) -> tuple[str, list[str], str | None, Any]:
            text, tokens, finish, usage = "", [], None, None
            async for chunk in await clients[number % 2].chat.completions.create(
                **request(fleet, number), stream=True
            ):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
                    if choice.logprobs:
                        tokens += [entry.token for entry in choice.logprobs.content or ()]
                usage = chunk.usage or usage
            return text, tokens, finish, usage

        async def body(number: int) -> tuple[str, list[str], str | None, Any]:
            answer = await clients[(number + 1) % 2].chat.completions.create(
                **request(fleet, number)
            )
            choice = answer.choices[0]
            assert choice.logprobs is not None
            tokens = [entry.token for entry in choice.logprobs.content or ()]
            return choice.message.content or "", tokens, choice.finish_reason, answer.usage

        streams = await asyncio.gather(*(stream(number) for number in range(STREAMS)))
        bodies = await asyncio.gather(*(body(number) for number in range(STREAMS)))
        for number, (streamed, whole) in enumerate(zip(streams, bodies, strict=True)):
            assert streamed[:3] == whole[:3], f"request {number}"
            assert streamed[3].completion_tokens == whole[3].completion_tokens
            assert streamed[3].prompt_tokens == whole[3].prompt_tokens
            assert streamed[3].completion_tokens == len(streamed[1])
            assert streamed[3].completion_tokens == 24 + number % 17


async def test_both_workers_took_part(fleet: Fleet) -> None:
    for worker in fleet.workers:
        assert "job.completed" in worker.output()


async def test_an_engine_that_died_is_replaced(fleet: Fleet) -> None:
    import psutil

    victim = fleet.workers[0]
    schedulers = [
        child
        for child in psutil.Process(victim.pid).children(recursive=True)
        if "scheduler" in " ".join(child.cmdline()) or "scheduler" in child.name()
    ]
    assert schedulers, "the worker has a scheduler process"
    ready_before = victim.output().count("worker.ready")
    schedulers[0].kill()
    async with asyncio.timeout(180):
        while victim.output().count("worker.ready") <= ready_before:
            assert victim.process.returncode is None, victim.output()
            await asyncio.sleep(0.2)
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.urls[0]}/v1", api_key="any", max_retries=0
    ) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(**request(fleet, i)) for i in range(8))
        )
    assert all(answer.choices[0].finish_reason == "length" for answer in answers)
