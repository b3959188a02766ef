"""Text completions over a real broker, where messages and unread replies have limits."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.stack import rabbit_stack
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.broker


@pytest.mark.rule("completions.logprobs", "completions.echo")
async def test_the_most_log_probabilities_of_prompts_arrive(broker: Broker, model: str) -> None:
    prompts = [[65 + index] * 4096 for index in range(4)]
    body = {"model": model, "prompt": prompts, "echo": True, "logprobs": 1}
    engine = ScriptedEngine(served_id=model)
    async with (
        rabbit_stack(broker.url, [engine]) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=60) as http,
    ):
        plain = {"model": model, "prompt": [1]}
        response, *others = await asyncio.gather(
            http.post("/v1/completions", json=body),
            *(http.post("/v1/completions", json=plain) for _ in range(8)),
        )
        assert response.status_code == 200, response.text[:500]
        choices = response.json()["choices"]
        assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [4096 + 12] * 4
        assert all(choice["text"].startswith("ABCD"[i] * 9) for i, choice in enumerate(choices))
        assert [other.status_code for other in others] == [200] * 8
