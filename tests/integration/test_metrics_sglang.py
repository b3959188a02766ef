"""SGLang's own metrics on a worker's page: of its scheduler, a process apart, and of this one."""

from __future__ import annotations

import httpx
import pytest

from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import memory_stack
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.sglang, SESSION_LOOP]


async def test_they_are_passed_through(sglang_engine: SglangEngine) -> None:
    async with (
        memory_stack(sglang_engine) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=60) as http,
    ):
        body = request_body("chat", "hello", model=sglang_engine.card.id, max_tokens=4)
        assert (await http.post(path_of("chat"), json=body)).status_code == 200
        registry = stack.consumers[0]._runner.metrics.registry
        shown = {
            sample.name: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name.startswith(("sglang:", "python_info"))
        }
    assert shown["sglang:generation_tokens_total"] >= 4  # this process's
    assert "sglang:num_running_reqs" in shown  # the scheduler's
    assert shown["sglang:max_total_num_tokens"] > 0
    assert "python_info" not in shown, "and nothing else of the library's own registry"
