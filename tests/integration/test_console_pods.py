"""A console on one pod shows the requests of all, over a real broker."""

import asyncio

import httpx
import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.stack import rabbit_stack, until
from tests.integration.test_console import moment
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.broker


async def test_a_console_shows_the_requests_of_all_pods(broker: Broker, model: str) -> None:
    engine = ScriptedEngine(served_id=model, slots=1)
    async with rabbit_stack(broker.url, [engine], pods=2) as stack:
        one, two = stack.pods
        for pod in stack.pods:
            assert pod.services.watch is not None
            pod.services.watch.every_s = 0.1
        async with (
            httpx.AsyncClient(base_url=one.url) as watching,
            httpx.AsyncClient(base_url=two.url, timeout=30) as asking,
        ):
            body = {"model": model, "messages": [{"role": "user", "content": "[[hang:2]]"}]}
            tasks = [
                asyncio.create_task(asking.post("/v1/chat/completions", json=body))
                for _ in range(2)
            ]

            async def both_are_seen() -> bool:
                now = await moment(watching)
                phases = sorted(request["phase"] for request in now["requests"])
                if phases != ["decode", "queued"]:
                    return False
                assert len(now["pods"]) == 2
                assert {request["pod"] for request in now["requests"]} == {now["pods"][1]["pod"]}
                (queue,) = now["queues"]
                assert (queue["count"], queue["job_class"]) == (1, "interactive")
                (worker,) = now["workers"]
                assert worker["live"] == 1
                return True

            await until(both_are_seen, timeout_s=15)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
