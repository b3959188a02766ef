"""What a deployment's profile changes on every inference endpoint."""

from __future__ import annotations

from typing import Literal

import httpx
import orjson
import pytest

from ingress.config import Config
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, memory_stack, sse_data

CONFIG = Config.model_validate({"models": [{"id": MODEL, "honors_sampling": False}]})


@pytest.mark.parametrize(
    ("profile", "named"), [("wafer", None), ("official", "temperature, top_p")]
)
@pytest.mark.rule("profiles.sampling-named")
async def test_ignored_sampling(profile: Literal["wafer", "official"], named: str | None) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "[[say:fine]]"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
    }
    async with (
        memory_stack(profile=profile, config=CONFIG) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        for stream in (False, True):
            response = await http.post("/v1/chat/completions", json={**body, "stream": stream})
            assert response.status_code == 200
            assert response.headers.get("x-headrace-ignored") == named


@pytest.mark.parametrize("profile", ["wafer", "official"])
async def test_the_opening_records_come_first(profile: Literal["wafer", "official"]) -> None:
    async with (
        memory_stack(profile=profile) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        body = request_body("responses", stream=True)
        response = await http.post(path_of("responses"), json=body)
        events = [orjson.loads(data) for data in sse_data(response.content)]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created"
