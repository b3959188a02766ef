"""SIGTERM to an ingress: what has begun goes on, everything else is sent away at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fixtures.ports import free_port
from tests.fixtures.processes import Process, headrace, wait_ready
from tests.fixtures.requests import ALL, SAY, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.timeout(60)

LONG = "[[k=100000 gap=10]]"


def terminate(stack: Stack) -> None:
    stack.pods[0].server.handle_exit(signal.SIGTERM, None)


def client(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, timeout=20)


def code_of(response: httpx.Response) -> str:
    code = response.json()["error"]["code"]
    assert isinstance(code, str)
    return code


def check_sent_away(response: httpx.Response, dialect: str) -> None:
    assert response.status_code == (529 if dialect == "messages" else 503)
    assert code_of(response) == "server_shutting_down"
    assert response.headers["retry-after"] == "5"
    assert response.headers["connection"] == "close"


async def running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count


@pytest.mark.rule("shutdown.refused")
@pytest.mark.parametrize("dialect", ALL)
async def test_new_requests_are_sent_away(dialect: str) -> None:
    async with memory_stack(grace_s=10) as stack, client(stack) as other, client(stack) as http:
        begun = asyncio.create_task(other.post(path_of("chat"), json=request_body("chat", LONG)))
        await until(lambda: running(stack, 1))
        assert (await http.get("/health/ready")).status_code == 200
        terminate(stack)
        for stream in (False, True):
            response = await http.post(
                path_of(dialect), json=request_body(dialect, SAY, stream=stream)
            )
            check_sent_away(response, dialect)
        begun.cancel()
        await asyncio.wait((begun,))


@pytest.mark.rule("shutdown.readiness")
async def test_readiness_is_off_at_once_and_liveness_is_not() -> None:
    async with memory_stack(grace_s=10) as stack, client(stack) as http, client(stack) as other:
        begun = asyncio.create_task(other.post(path_of("chat"), json=request_body("chat", LONG)))
        await until(lambda: running(stack, 1))
        terminate(stack)
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["shutting_down"]) == (503, True)
        assert (await http.get("/health/live")).status_code == 200
        begun.cancel()
        await asyncio.wait((begun,))


@pytest.mark.rule("shutdown.queued")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ALL)
async def test_what_waits_for_a_worker_is_sent_away(dialect: str, stream: bool) -> None:
    engine = ScriptedEngine(served_id=MODEL, slots=1)
    async with memory_stack(engine, grace_s=10) as stack, client(stack) as http:
        begun = asyncio.create_task(
            http.post(path_of("chat"), json=request_body("chat", "[[k=50 gap=10]]", stream=True))
        )
        await until(lambda: running(stack, 1))
        waiting = asyncio.create_task(
            http.post(path_of(dialect), json=request_body(dialect, SAY, stream=stream))
        )
        await until(lambda: stack.services.admission.in_flight == 2)
        await until(lambda: len(stack.services.admission.backlogs[MODEL]) == 1)
        terminate(stack)
        async with asyncio.timeout(0.4):  # the one that runs takes longer
            check_sent_away(await waiting, dialect)
        assert (await begun).content.endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(5):
            await stack.pods[0].serving


@pytest.mark.rule("shutdown.queued")
async def test_a_stream_that_waits_with_its_status_line_sent_is_kept() -> None:
    engine = ScriptedEngine(served_id=MODEL, slots=1)
    limits = TimeLimits(commit_s=0.05)
    async with memory_stack(engine, grace_s=10, limits=limits) as stack, client(stack) as http:
        begun = asyncio.create_task(
            http.post(path_of("chat"), json=request_body("chat", "[[k=50 gap=10]]", stream=True))
        )
        await until(lambda: running(stack, 1))
        body = request_body("chat", SAY, stream=True)
        async with http.stream("POST", path_of("chat"), json=body) as waiting:
            terminate(stack)
            answer = await waiting.aread()
        assert b"fine" in answer
        assert answer.endswith(b"data: [DONE]\n\n")
        assert (await begun).content.endswith(b"data: [DONE]\n\n")


@pytest.mark.rule("shutdown.grace")
async def test_the_process_ends_with_its_last_answer() -> None:
    async with memory_stack(grace_s=30) as stack, client(stack) as http:
        begun = asyncio.create_task(
            http.post(path_of("chat"), json=request_body("chat", "[[k=20 gap=10]]", stream=True))
        )
        await until(lambda: running(stack, 1))
        terminate(stack)
        assert (await begun).content.endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(5):
            await stack.pods[0].serving


@pytest.mark.rule("shutdown.keep-alive")
async def test_a_kept_connection_gets_one_more_answer() -> None:
    async with memory_stack(grace_s=10) as stack, client(stack) as other:
        begun = asyncio.create_task(other.post(path_of("chat"), json=request_body("chat", LONG)))
        await until(lambda: running(stack, 1))
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        request = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(request)
        assert b"connection: close" not in await reader.readuntil(b'{"status":"live"}')
        terminate(stack)
        writer.write(request)
        async with asyncio.timeout(5):
            assert b"connection: close" in await reader.read()  # to its end
        writer.close()
        begun.cancel()
        await asyncio.wait((begun,))


@pytest.mark.rule("shutdown.refused")
async def test_who_connected_just_before_the_end_is_answered() -> None:
    async with memory_stack(grace_s=10) as stack:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        terminate(stack)  # nothing runs, so it ends at once
        await until(lambda: _refuses(host, int(port)))
        body = orjson.dumps(request_body("chat", SAY))
        head = f"POST {path_of('chat')} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"server_shutting_down"' in answer
        await closed(writer)


@pytest.mark.rule("shutdown.grace")
async def test_a_client_that_asks_nothing_does_not_hold_up_the_end() -> None:
    async with memory_stack(grace_s=10) as stack:
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        terminate(stack)
        async with asyncio.timeout(5):
            await stack.pods[0].serving
            assert await reader.read() == b""
        await closed(writer)


async def _refuses(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it knocked while the door was being closed
        return False
    await closed(writer)
    return False


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@dataclass
class Pod:
    """A process that serves, and another one that works for it."""

    url: str
    process: Process


@asynccontextmanager
async def pod(tmp_path: Path, *args: str) -> AsyncIterator[Pod]:
    port = free_port()
    async with AsyncExitStack() as exits:
        process = await exits.enter_async_context(
            headrace(
                *("up", "--engine", "scripted", "--port", str(port), "--no-supervise", *args),
                log=tmp_path / "up.log",
            )
        )
        url = f"http://127.0.0.1:{port}"
        await wait_ready(url, process, timeout_s=30)
        yield Pod(url, process)


async def _long_stream(http: httpx.AsyncClient, begun: asyncio.Event) -> bytes:
    body: dict[str, Any] = {**request_body("chat", LONG, stream=True), "model": "scripted"}
    content = b""
    async with http.stream("POST", path_of("chat"), json=body) as response:
        assert response.status_code == 200
        async for piece in response.aiter_bytes():
            content += piece
            begun.set()
    return content


@pytest.mark.rule("shutdown.grace")
async def test_a_process_tells_what_it_could_not_finish(tmp_path: Path) -> None:
    async with (
        pod(tmp_path, "--grace", "0.5") as served,
        httpx.AsyncClient(base_url=served.url, timeout=20) as http,
    ):
        begun = asyncio.Event()
        stream = asyncio.create_task(_long_stream(http, begun))
        await begun.wait()
        served.process.process.send_signal(signal.SIGTERM)
        content = await stream
        assert b'"code":"server_shutting_down"' in content.split(b"\n\n")[-2]
        assert b"[DONE]" not in content
        async with asyncio.timeout(10):
            assert await served.process.process.wait() == 0, served.process.output()


@pytest.mark.rule("shutdown.second-signal")
async def test_a_second_signal_ends_the_grace_time(tmp_path: Path) -> None:
    async with (
        pod(tmp_path, "--grace", "1000") as served,
        httpx.AsyncClient(base_url=served.url, timeout=20) as http,
    ):
        begun = asyncio.Event()
        stream = asyncio.create_task(_long_stream(http, begun))
        await begun.wait()
        served.process.process.send_signal(signal.SIGTERM)
        await until(lambda: "ingress.draining" in served.process.output())
        assert (await http.get("/health/ready")).status_code == 503
        served.process.process.send_signal(signal.SIGTERM)
        assert b'"code":"server_shutting_down"' in (await stream).split(b"\n\n")[-2]
        async with asyncio.timeout(10):
            assert await served.process.process.wait() == 0, served.process.output()
