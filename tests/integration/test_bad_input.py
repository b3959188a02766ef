"""Bad requests get the right error in the dialect's shape, and nothing else breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from tests.fixtures.stack import MODEL, Stack, memory_stack

CHAT = "/v1/chat/completions"
GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "[[say:fine]]"}]}


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack(max_body_bytes=200_000) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


def check_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = orjson.loads(response.content)["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return error


async def check_still_serving(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=GOOD)
    assert response.json()["choices"][0]["message"]["content"] == "fine"


RAW = {
    "cut": b'{"model":"demo-model","messages":[',
    "not an object": b"[1,2,3]",
    "a string": b'"hello"',
    "nothing": b"",
    "invalid utf-8": b"\x80\x81\x82\xff",
    "NaN": b'{"model":"demo-model","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
    "Infinity": b'{"model":"demo-model","temperature":Infinity,"messages":[]}',
    "lone surrogate": b'{"model":"demo-model","messages":[{"role":"user","content":"x\\ud83d"}]}',
    "lone surrogate in model": b'{"model":"\\ud83d","messages":[{"role":"user","content":"x"}]}',
    "lone surrogate in stop": (
        b'{"model":"demo-model","stop":"\\ud83d","messages":[{"role":"user","content":"x"}]}'
    ),
    "100,000 brackets": b"[" * 100_000,
    "10,000 deep": b'{"x":' * 10_000 + b"1" + b"}" * 10_000,
    "500 deep in an unused field": (
        b'{"model":"demo-model","messages":[{"role":"user","content":"x"}],"unused":'
        + b"[" * 500
        + b"]" * 500
        + b"}"
    ),
    "200 deep, wide": (
        b'{"model":"demo-model","messages":[{"role":"user","content":"x"}],"unused":'
        + b'[{"a":1},' * 200
        + b"1"
        + b"]" * 200
        + b"}"
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
async def test_not_json(http: httpx.AsyncClient, raw: bytes, stream: bool) -> None:
    if stream:
        raw = raw.replace(b'{"model"', b'{"stream":true,"model"', 1)
    response = await http.post(CHAT, content=raw, headers={"content-type": "application/json"})
    error = check_error(response, 400, "invalid_json_request")
    assert "demo-model" not in error["message"]
    await check_still_serving(http)


SHAPES: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"messages": GOOD["messages"]}, 400, "schema_validation_failed", "model"),
    ({"model": MODEL}, 400, "schema_validation_failed", "messages"),
    ({**GOOD, "model": 5}, 400, "schema_validation_failed", "model"),
    ({**GOOD, "temperature": "hot"}, 400, "schema_validation_failed", "temperature"),
    ({**GOOD, "stream": "yes"}, 400, "schema_validation_failed", "stream"),
    ({**GOOD, "max_tokens": 0}, 400, "unsupported_value", "max_tokens"),
    ({**GOOD, "max_tokens": -5}, 400, "unsupported_value", "max_tokens"),
    ({**GOOD, "n": 0}, 400, "unsupported_value", "n"),
    ({**GOOD, "model": "nobody"}, 404, "model_not_found", "model"),
    ({**GOOD, "reasoning_effort": "ultra"}, 400, "unsupported_value", "reasoning_effort"),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), SHAPES)
async def test_wrong_shape(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    for stream in (False, True):
        response = await http.post(CHAT, json={"stream": stream, **body})
        error = check_error(response, status, code)
        assert error["param"] == param
    await check_still_serving(http)


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "x"}], [{"content": "x"}]])
async def test_bad_messages(http: httpx.AsyncClient, messages: list[Any]) -> None:
    response = await http.post(CHAT, json={"model": MODEL, "messages": messages})
    assert response.status_code == 400
    assert orjson.loads(response.content)["error"]["param"].startswith("messages")
    await check_still_serving(http)


async def test_limit_far_above_the_window_is_ignored(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json={**GOOD, "max_tokens": 10**18})
    assert response.status_code == 200


async def test_oversize_by_length_is_refused_unread(stack: Stack) -> None:
    host, port = stack.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 51000000\r\n\r\n"
    )
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_oversize_without_a_length(http: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"model":"demo-model","x":"'
        for _ in range(30):
            yield b"y" * 10_000

    response = await http.post(CHAT, content=body(), headers={"content-type": "application/json"})
    check_error(response, 413, "request_too_large")
    await check_still_serving(http)


async def test_other_media_type(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, content=b"a=b", headers={"content-type": "text/csv"})
    check_error(response, 415, "unsupported_media_type")


async def test_paths_and_methods(http: httpx.AsyncClient) -> None:
    check_error(await http.get("/v1/nothing"), 404, "not_found")
    response = await http.get(CHAT)
    check_error(response, 405, "method_not_allowed")
    assert "POST" in response.headers["allow"]


async def test_request_id_of_the_client_is_kept(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=GOOD, headers={"x-request-id": "abc 1/2<3>" + "x" * 500})
    request_id = response.headers["x-request-id"]
    assert request_id.startswith("client_abc123xxx")
    assert len(request_id) == len("client_") + 128
    own = (await http.post(CHAT, json=GOOD)).headers["x-request-id"]
    assert own.startswith("req_")
    assert len(own) == 16


async def test_context_overflow_names_the_window() -> None:
    from workers.engines.scripted import ScriptedEngine

    engine = ScriptedEngine(served_id=MODEL, context_length=100)
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 200}]}
        for stream in (False, True):
            response = await http.post(CHAT, json={**body, "stream": stream})
            error = check_error(response, 400, "context_length_exceeded")
            assert "maximum context length" in error["message"]
        await check_still_serving(http)


KEYS: list[list[tuple[bytes, bytes]]] = [
    [(b"authorization", "Bearer kéy-“quoted”".encode())],
    [(b"authorization", b"Bearer k\xe9y")],
    [(b"x-api-key", b"\xff")],
    [(b"x-api-key", b"")],
    [(b"authorization", b"Bearer " + b"k" * 30_000)],
    [(b"authorization", b"Basic Z29vZC1rZXk=")],
    [(b"x-api-key", b"good-key"), (b"authorization", b"Bearer other")],
    [(b"x-api-key", b"good-key"), (b"x-api-key", b"other")],
    [(b"authorization", b"Bearer good-key2")],
]


@pytest.mark.parametrize("headers", KEYS)
async def test_bad_keys(headers: list[tuple[bytes, bytes]]) -> None:
    async with (
        memory_stack(api_keys=("good-key", "good-key-b")) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        response = await http.post(CHAT, json=GOOD, headers=headers)
        error = check_error(response, 401, "invalid_api_key")
        assert error["message"] == "The API key is not valid."
        assert (await http.get("/v1/models", headers=headers)).status_code == 401
        good = {"x-api-key": "good-key", "authorization": "Bearer good-key"}
        assert (await http.post(CHAT, json=GOOD, headers=good)).status_code == 200


async def test_two_different_keys_are_never_chosen_between() -> None:
    async with (
        memory_stack(api_keys=("good-key", "other-good-key")) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        others = ["other-good-key", *(f"foreign-{number}" for number in range(15))]
        for other in others:
            headers = {"x-api-key": "good-key", "authorization": f"Bearer {other}"}
            check_error(await http.post(CHAT, json=GOOD, headers=headers), 401, "invalid_api_key")


async def test_missing_key_names_both_headers() -> None:
    async with (
        memory_stack(api_keys=("good-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        error = check_error(await http.post(CHAT, json=GOOD), 401, "missing_api_key")
        assert "Authorization" in error["message"]
        assert "x-api-key" in error["message"]
        # Credentials come before the body.
        response = await http.post(CHAT, content=b"{", headers={"content-type": "application/json"})
        check_error(response, 401, "missing_api_key")
        assert (await http.get("/v1/models")).status_code == 200
