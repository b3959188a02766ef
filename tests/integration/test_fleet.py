"""Separate processes, as in production: two ingress, two SGLang workers, one RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import pytest_asyncio

from tests.chaos.asks import catalogue
from tests.chaos.fleet import Fleet, running_fleet
from tests.chaos.load import Load
from tests.chaos.verdict import Baseline, Tally, judge
from tests.fixtures.engine import SESSION_LOOP

pytestmark = [pytest.mark.broker, pytest.mark.sglang, pytest.mark.timeout(400), SESSION_LOOP]

STREAMS = 64


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two ingress processes and two workers with the tiny model."""
    logs = tmp_path_factory.mktemp("fleet")
    async with running_fleet(
        engine="sglang", workers=2, pods=2, concurrency=32, logs=logs
    ) as running:
        yield running


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
            for url in fleet.urls.values()
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
        assert "job.completed" in worker.log.read_text()


async def test_streams_survive_the_loss_of_an_engine(fleet: Fleet) -> None:
    """Every answer of every kind is byte for byte what it was when nothing happened.

    The loss of every other part of an engine is in the scenario `kill-workers` of `make chaos`.
    """
    asks = catalogue("sglang", model=fleet.model, count=27, seed=1)
    baseline, tally = Baseline(), Tally()
    await Load(fleet, asks, concurrency=16, hear=baseline.add).once()
    asks = [ask for ask in asks if ask.name in baseline.transcripts]
    unit = fleet.workers[0]
    load = Load(fleet, asks, concurrency=16, hear=lambda it: tally.add(judge(it, baseline)))
    async with load.running():
        await _flowing(fleet, load)
        family = unit.processes()
        del family["supervisor"]
        assert family.keys() == {"worker", "scheduler", "detokenizer"}
        assert unit.kill("detokenizer", 0) is not None
        _, left = await asyncio.to_thread(psutil.wait_procs, family.values(), timeout=10)
        assert left == []
    alarms = [alarm for alarm in fleet.journal.alarms if alarm.startswith(unit.name)]
    assert any("engine.failed" in alarm for alarm in alarms)
    assert _moved(fleet) > 0, "streams of the lost engine went on"
    assert set(tally.outcomes) <= {"same", "valid"}, tally.told()


def _moved(fleet: Fleet) -> int:
    return sum(request.attempt > 1 for request in fleet.journal.requests.values())


async def _flowing(fleet: Fleet, load: Load) -> None:
    await fleet.until(lambda: load.streaming >= 8, 60, "streams flow")
