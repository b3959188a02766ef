"""Time limits, the moment of the status line, signs of life, shutting down, slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from schemas.errors import InvalidGrammar
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine

CHAT = "/v1/chat/completions"


def body(content: str, *, stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": content}]}


async def post(stack: Stack, content: str, *, stream: bool) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, timeout=20) as http:
        return await http.post(CHAT, json=body(content, stream=stream))


def records(response: httpx.Response) -> list[bytes]:
    return [r for r in response.content.split(b"\n\n") if r]


def check_failed_stream(response: httpx.Response, code: str) -> None:
    assert response.status_code == 200
    *before, last = records(response)
    assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"] == code
    assert b"[DONE]" not in response.content
    for record in before:
        assert b'"finish_reason":"' not in record


@pytest.mark.parametrize("stream", [False, True])
async def test_no_first_token(stream: bool) -> None:
    limits = TimeLimits(first_token_s=0.2)
    async with memory_stack(limits=limits) as stack:
        response = await post(stack, "[[hang:0]]", stream=stream)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "generation_timeout"
        await until(lambda: _running(stack, 0))


@pytest.mark.parametrize("stream", [False, True])
async def test_stall(stream: bool) -> None:
    """It hangs again with the next worker, which gets no further."""
    limits = TimeLimits(stall_s=0.2, first_token_s=0.4)
    async with memory_stack(limits=limits) as stack:
        response = await post(stack, "[[say:a b c]][[hang:2]]", stream=stream)
        if stream:
            check_failed_stream(response, "generation_timeout")
            assert b'"content":"a"' in response.content
        else:
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "generation_timeout"
        await until(lambda: _running(stack, 0))


async def test_whole_request() -> None:
    async with memory_stack(limits=TimeLimits(total_s=0.3)) as stack:
        response = await post(stack, "[[k=1000 gap=20]]", stream=True)
        check_failed_stream(response, "generation_timeout")


@pytest.mark.parametrize("stream", [False, True])
async def test_queue_wait(stream: bool) -> None:
    engine = ScriptedEngine(served_id=MODEL, slots=1)
    async with memory_stack(engine, limits=TimeLimits(queue_wait_s=0.3)) as stack:
        first = asyncio.create_task(post(stack, "[[k=200 gap=10]]", stream=True))
        await until(lambda: _running(stack, 1))
        response = await post(stack, "[[say:x]]", stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_overloaded"
        assert int(response.headers["retry-after"]) > 0
        assert (await first).content.endswith(b"data: [DONE]\n\n")


async def test_headers_leave_before_a_late_first_token() -> None:
    limits = TimeLimits(commit_after_accept_s=0.1)
    async with (
        memory_stack(limits=limits) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        http.stream("POST", CHAT, json=body("[[hang:0]]", stream=True)) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        first = await anext(response.aiter_bytes())
        assert b'"role":"assistant"' in first


class SlowToRefuse(ScriptedEngine):
    """Takes its time to find out that it cannot run a request."""

    def __init__(self) -> None:
        super().__init__(served_id=MODEL)
        self.checking, self.found = asyncio.Event(), asyncio.Event()

    async def check(self, request: EngineRequest) -> None:
        self.checking.set()
        await self.found.wait()
        raise InvalidGrammar("The grammar could not be compiled.")


@pytest.mark.rule("structured.limits")
async def test_the_status_line_waits_for_what_the_engine_refuses() -> None:
    engine = SlowToRefuse()
    async with memory_stack(engine, limits=TimeLimits(commit_after_accept_s=0)) as stack:
        answer = asyncio.create_task(post(stack, "hi", stream=True))
        await engine.checking.wait()
        engine.found.set()
        assert (await answer).status_code == 400


async def test_a_client_that_leaves_during_the_check_is_forgotten() -> None:
    engine = SlowToRefuse()
    async with memory_stack(engine) as stack:
        answer = asyncio.create_task(post(stack, "hi", stream=True))
        await engine.checking.wait()
        answer.cancel()
        await until(lambda: stack.services.admission.in_flight == 0)
        engine.found.set()
        await until(lambda: stack.consumers[0].info().running == 0)


async def test_a_failure_just_after_accepting_is_still_an_http_error() -> None:
    async with memory_stack() as stack:
        response = await post(stack, "[[fail:start]]", stream=True)
        assert response.status_code == 500


async def test_signs_of_life() -> None:
    limits = TimeLimits(commit_after_accept_s=0, keep_alive_s=0.05, stall_s=0.4, first_token_s=0.2)
    async with memory_stack(limits=limits) as stack:
        response = await post(stack, "[[say:a b]][[hang:1]]", stream=True)
        assert response.content.count(b": keep-alive\n\n") >= 3
        for record in records(response):
            assert record.startswith((b"data: ", b": keep-alive"))


@pytest.mark.parametrize("stream", [False, True])
async def test_shutting_down(stream: bool) -> None:
    async with memory_stack(grace_s=0.2) as stack:
        long = asyncio.create_task(post(stack, "[[k=10000 gap=10]]", stream=stream))
        short = asyncio.create_task(post(stack, "[[k=5 gap=10]]", stream=stream))
        await until(lambda: _running(stack, 2))
        async with httpx.AsyncClient(base_url=stack.url) as http:
            assert (await http.get("/health/ready")).status_code == 200
            stack.pods[0].server.handle_exit(15, None)
            assert (await http.get("/health/live")).status_code == 200
        assert (await short).status_code == 200
        response = await long
        if stream:
            check_failed_stream(response, "server_shutting_down")
        else:
            assert response.status_code == 503
            assert response.headers["retry-after"] == "5"
        await until(lambda: _running(stack, 0))


@pytest.mark.parametrize("tokens", [60_000, 2_000_000])
async def test_a_reader_that_takes_nothing_is_given_up(tokens: int) -> None:
    """With few tokens the engine has long ended; with many the reply's buffer would overrun."""
    async with memory_stack(limits=TimeLimits(write_s=0.3, keep_alive_s=0.2)) as stack:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        request = orjson.dumps(body(f"[[k={tokens}]]", stream=True))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(request) + request
        )
        await until(lambda: stack.services.admission.in_flight == 1)
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # the reader stops here
        neighbour = await post(stack, "[[say:fine]]", stream=False)
        assert neighbour.json()["choices"][0]["message"]["content"] == "fine"
        await until(lambda: stack.services.admission.in_flight == 0, timeout_s=20)
        await until(lambda: _running(stack, 0))
        writer.transport.abort()


@pytest.mark.rule("limits.upload")
async def test_a_body_that_trickles_in_has_a_limit() -> None:
    """Each byte comes in time, and it would take for ever."""
    async with memory_stack(limits=TimeLimits(body_s=5, upload_s=0.3)) as stack:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 100000\r\n\r\n"
        )
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        while not answer.done():
            writer.write(b" ")
            await asyncio.wait((answer,), timeout=0.05)
        head = (await answer).lower()
        assert head.startswith(b"http/1.1 408 ")
        assert b"x-should-retry: true" in head
        writer.close()


async def _running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count
