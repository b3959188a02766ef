"""What the log says of a request, and what it never says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
import structlog

from tests.fixtures.stack import MODEL, Stack, memory_stack, until

CANARY = "canary-7d1f"
KEY = "sk-canary-key-91"
CHAT = "/v1/chat/completions"


def completed(lines: Sequence[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "request.completed"]


def body(content: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "stream": stream,
        "messages": [{"role": "user", "content": content}],
        **more,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_one_canonical_line(stream: bool) -> None:
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_stack() as stack,
            httpx.AsyncClient(base_url=stack.url) as http,
        ):
            headers = {"x-request-id": "abc", "x-stainless-retry-count": "2"}
            response = await http.post(
                CHAT, json=body("[[say:one two]]", stream=stream), headers=headers
            )
            assert response.status_code == 200
            await until(lambda: not stack.services.answers)
    (line,) = completed(lines)
    expected = {
        "request_id": "client_abc",
        "dialect": "chat",
        "model": MODEL,
        "principal": "anonymous",
        "stream": stream,
        "status": 200,
        "outcome": "completed",
        "code": None,
        "finish_reason": "stop",
        "output_tokens": 2,
        "attempt": 1,
        "worker": "worker-1",
        "client_retry": 2,
    }
    assert {name: line[name] for name in expected} == expected
    assert line["input_tokens"] > 0
    assert 0 < line["ttft_ms"] <= line["duration_ms"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_counted_once_with_what_was_generated(stream: bool) -> None:
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_stack() as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=0.5) as http,
        ):
            with pytest.raises(httpx.ReadTimeout):
                await _read_until_timeout(http, stream)
            await until(lambda: not stack.services.answers)
            await until(lambda: _idle(stack))
    (line,) = completed(lines)
    assert line["status"] == 499
    assert line["outcome"] == "cancelled"
    assert line["code"] == "client_closed_request"
    assert line["input_tokens"] > 0
    assert line["output_tokens"] > 5


async def _read_until_timeout(http: httpx.AsyncClient, stream: bool) -> None:
    # Tokens come every 20 ms, then nothing more.
    content = f"[[say:{'word ' * 10}]][[slow]][[hang:9]]"
    async with http.stream("POST", CHAT, json=body(content, stream=stream)) as response:
        async for _ in response.aiter_bytes():
            pass


async def _idle(stack: Stack) -> bool:
    return await stack.engine.running() == 0


async def test_no_prompt_output_or_key_is_ever_logged() -> None:
    requests: list[dict[str, Any]] = [
        body(f"[[say:{CANARY}]]", stream=False),
        body(f"[[say:{CANARY}]]", stream=True),
        body(f"{CANARY} [[fail:start]]", stream=False),
        body(f"[[say:{CANARY} b c]][[fail:2]]", stream=True),
        body(f"[[think:{CANARY}]]", stream=True, reasoning_effort="high"),
        body("x", stream=False, stop=[CANARY], user=CANARY),
        body("x", stream=False, temperature=CANARY),
        body("x", stream=False, tools=[CANARY]),
        {"model": CANARY, "messages": [{"role": "user", "content": CANARY}]},
        {"model": MODEL, "messages": [{"role": CANARY, "content": CANARY}]},
    ]
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_stack(api_keys=(KEY,)) as stack,
            httpx.AsyncClient(base_url=stack.url) as http,
        ):
            for request in requests:
                await http.post(CHAT, json=request, headers={"x-api-key": KEY})
            response = await http.post(CHAT, json=requests[0], headers={"x-api-key": KEY + "x"})
            assert response.status_code == 401
            await until(lambda: not stack.services.answers)
    assert len(completed(lines)) == 6
    assert CANARY not in repr(lines)
    assert KEY not in repr(lines)
