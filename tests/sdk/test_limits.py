"""Limits of accounts as clients meet them: refusals, their order, and the headers of answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingress.config import Config
from ingress.limits.ledger_limiter import LedgerLimiter
from ingress.settings import LimitSettings
from tests.fixtures.requests import ALL, answer_schema, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.scripted import ScriptedEngine

KEY = {"Authorization": "Bearer key-of-the-limited"}


def config(**limits: Any) -> Config:
    """One account with these limits, of a model with a price, and one without any."""
    return Config.model_validate(
        {
            "models": [
                {
                    "id": MODEL,
                    "context_length": 4096,
                    "pricing": {"input_cents_per_million": 0, "output_cents_per_million": 100_000},
                }
            ],
            "accounts": [
                {
                    "id": "limited",
                    "keys": [{"key": "key-of-the-limited"}],
                    "limits": limits,
                },
                {"id": "free", "keys": [{"key": "key-of-the-free-one"}]},
            ],
        }
    )


@asynccontextmanager
async def limited(
    *, files: Path | None = None, settings: Mapping[str, Any] | None = None, **limits: Any
) -> AsyncIterator[tuple[Stack, httpx.AsyncClient]]:
    engine = ScriptedEngine(served_id=MODEL, context_length=4096)
    async with (
        memory_stack(engine, config=config(**limits), files=files, **(settings or {})) as stack,
        httpx.AsyncClient(base_url=stack.url, headers=KEY) as client,
    ):
        yield stack, client


async def ask(
    client: httpx.AsyncClient, dialect: str, text: str = "[[say:fine]]", /, **changes: Any
) -> httpx.Response:
    return await client.post(path_of(dialect), json=request_body(dialect, text, **changes))


def rate_headers(response: httpx.Response) -> dict[str, str]:
    return {
        name: value
        for name, value in response.headers.items()
        if name.startswith(("x-ratelimit", "anthropic-ratelimit"))
    }


def code_of(response: httpx.Response) -> str:
    code = response.json()["error"]["code"]
    assert isinstance(code, str)
    return code


async def settled(stack: Stack) -> None:
    """Wait until nothing is held any more."""
    limiter = stack.services.limiter
    assert isinstance(limiter, LedgerLimiter)
    await until(lambda: not any(book.holds or book.owes for book in limiter._books.values()))


@pytest.mark.rule("limits.headers", "limits.retry-after")
async def test_streams_answers_and_refusals_have_the_same_headers() -> None:
    async with limited(requests_per_minute=8, tokens_per_minute=100_000) as (stack, client):
        for number, dialect in enumerate(ALL):
            for stream in (False, True):
                response = await ask(client, dialect, stream=stream)
                assert response.status_code == 200, response.text
                headers = rate_headers(response)
                assert len(headers) == 6
                family = "anthropic" if dialect == "messages" else "x"
                assert all(name.startswith(f"{family}-ratelimit-") for name in headers)
                left = str(8 - 2 * number - stream - 1)
                if family == "x":
                    assert headers["x-ratelimit-limit-requests"] == "8"
                    assert headers["x-ratelimit-remaining-requests"] == left
                    assert headers["x-ratelimit-reset-requests"].startswith("1m")
                    assert int(headers["x-ratelimit-remaining-tokens"]) < 100_000
                else:
                    assert headers["anthropic-ratelimit-requests-remaining"] == left
                    reset = headers["anthropic-ratelimit-tokens-reset"]
                    left_s = datetime.fromisoformat(reset).timestamp() - response_time(response)
                    assert 58 < left_s <= 63
                await settled(stack)
        for dialect in ALL:
            for stream in (False, True):
                response = await ask(client, dialect, stream=stream)
                assert (response.status_code, code_of(response)) == (429, "rate_limit_exceeded")
                assert 0 < int(response.headers["retry-after"]) <= 61
                assert "x-should-retry" not in response.headers
                headers = rate_headers(response)
                assert len(headers) == 6
                assert "0" in headers.values()
        free = await client.post(
            path_of("chat"),
            json=request_body("chat"),
            headers={"Authorization": "Bearer key-of-the-free-one"},
        )
        assert free.status_code == 200
        assert rate_headers(free) == {}
        counted = stack.services.metrics.refusals.labels(MODEL, "rate_limit_exceeded")
        assert counted._value.get() == 2 * len(ALL)


def response_time(response: httpx.Response) -> float:
    return datetime.strptime(
        response.headers["date"] + " +0000", "%a, %d %b %Y %H:%M:%S GMT %z"
    ).timestamp()


BAD = "not json"


@pytest.mark.rule("limits.precedence", "errors.precedence")
async def test_credit_comes_before_the_body_and_rate_after_what_is_wrong_with_it() -> None:
    async with limited(budget={"cents": 0}) as (_, client):
        for content in (BAD, "{}", '{"model": "nobody", "messages": []}'):
            response = await client.post(path_of("chat"), content=content)
            assert (response.status_code, code_of(response)) == (402, "insufficient_credits")
            assert response.headers["x-should-retry"] == "false"
            assert "retry-after" not in response.headers
        denied = await client.post(
            path_of("chat"), content=BAD, headers={"authorization": "Bearer x"}
        )
        assert denied.status_code == 401
    async with limited(requests_per_minute=1) as (stack, client):
        assert (await ask(client, "chat")).status_code == 200
        await settled(stack)
        for content, status, code in (
            (BAD, 400, "invalid_json_request"),
            ("{}", 400, "schema_validation_failed"),
        ):
            response = await client.post(path_of("chat"), content=content)
            assert (response.status_code, code_of(response)) == (status, code)
        unknown = await ask(client, "chat", model="nobody")
        assert code_of(unknown) == "model_not_found"
        zdr = await client.post(
            path_of("chat"), json=request_body("chat"), headers={"Wafer-ZDR": "required"}
        )
        assert code_of(zdr) == "model_zdr_not_supported"
        # What the model cannot do would be told of an account that has room.
        for dialect in ALL:
            response = await ask(client, dialect, **CANNOT[dialect])
            assert (response.status_code, code_of(response)) == (429, "rate_limit_exceeded")
            assert rate_headers(response)
        stack.services.begin_shutdown()
        assert code_of(await ask(client, "chat")) == "rate_limit_exceeded"


CANNOT = answer_schema({"$ref": "https://elsewhere.example/schema"})
"""What passes as a request and is nothing that the model can do, in every dialect."""


async def test_what_the_model_cannot_do_is_told_to_whoever_has_room() -> None:
    async with limited(requests_per_minute=1) as (_, client):
        for dialect in ALL:
            response = await ask(client, dialect, **CANNOT[dialect])
            assert response.status_code == 400, dialect
            assert rate_headers(response) == {}


@pytest.mark.rule("limits.too-large", "limits.default-output")
async def test_how_much_a_request_reserves() -> None:
    async with limited(tokens_per_minute=2000) as (stack, client):
        small = await ask(client, "chat")  # its model's own limit is 2,048
        assert small.status_code == 200
        first = int(small.headers["x-ratelimit-remaining-tokens"])
        assert 2000 - 1024 - 100 < first < 2000 - 1024
        await settled(stack)
        after = await ask(client, "chat", max_tokens=10, n=3)
        used = small.json()["usage"]["total_tokens"]
        assert (
            2000 - used - 200
            < int(after.headers["x-ratelimit-remaining-tokens"])
            < 2000 - used - 30
        )
        for dialect, field in (
            ("chat", "max_tokens"),
            ("responses", "max_output_tokens"),
            ("messages", "max_tokens"),
            ("completions", "max_tokens"),
        ):
            response = await ask(client, dialect, **{field: 1990})
            assert (response.status_code, code_of(response)) == (429, "rate_limit_exceeded")
            assert response.headers["x-should-retry"] == "false"
            assert "2000 per minute" in response.json()["error"]["message"]
    async with limited(tokens_per_minute=100) as (_, client):
        assert (await ask(client, "chat")).status_code == 200


@pytest.mark.rule("limits.however-it-ends")
async def test_concurrency_is_free_again_however_an_answer_ends() -> None:
    async with limited(concurrency=1, tokens_per_minute=1_000_000) as (stack, client):
        for text, stream, status in (
            ("[[say:fine]]", False, 200),
            ("[[say:fine]]", True, 200),
            ("[[fail:start]]", False, 500),
            ("[[fail:1]] and more", True, 200),
        ):
            for _ in range(2):
                response = await ask(client, "chat", text, stream=stream)
                assert response.status_code == status, response.text
        hanging = asyncio.create_task(ask(client, "chat", "[[hang:0]]"))
        await until(lambda: stack.services.admission.in_flight)
        for dialect in ALL:
            response = await ask(client, dialect)
            assert (response.status_code, code_of(response)) == (429, "concurrency_limit_exceeded")
            assert response.headers["retry-after"] == "1"
            assert len(rate_headers(response)) == 3
        hanging.cancel()
        await until(lambda: not stack.services.admission.in_flight)
        await until(lambda: freed(client))
        await settled(stack)


async def freed(client: httpx.AsyncClient) -> bool:
    return (await ask(client, "chat")).status_code == 200


@pytest.mark.rule("limits.restart", "limits.budget")
async def test_what_was_spent_outlives_a_restart(tmp_path: Path) -> None:
    for status in (200, 402):  # one token costs a tenth of a cent
        async with limited(files=tmp_path, budget={"cents": 1, "period": "total"}) as (
            stack,
            client,
        ):
            response = await ask(client, "chat", "[[k=10 gap=0 ttft=0]]", max_tokens=10)
            assert response.status_code == status, response.text
            if status == 200:
                await settled(stack)
                again = await ask(client, "chat", max_tokens=1)
                assert (again.status_code, code_of(again)) == (402, "insufficient_credits")
                assert "x-should-retry" in again.headers


async def test_a_request_that_is_refused_for_want_of_a_worker_counts_as_none() -> None:
    settings = {"accounting": LimitSettings(hold_s=5.0), "max_concurrent": 1}
    async with limited(settings=settings, requests_per_minute=2) as (stack, client):
        hanging = asyncio.create_task(ask(client, "chat", "[[hang:0]]"))
        await until(lambda: stack.services.admission.in_flight)
        for _ in range(5):
            assert code_of(await ask(client, "chat")) == "model_overloaded"
        hanging.cancel()
        await until(lambda: not stack.services.admission.in_flight)
        assert (await ask(client, "chat")).status_code == 200
        assert (await ask(client, "chat")).status_code == 429
