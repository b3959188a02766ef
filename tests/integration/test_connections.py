"""What clients may do with a connection besides sending one request and reading its answer."""

from __future__ import annotations

from itertools import product

import orjson
import pytest
from structlog.testing import capture_logs

from ingress import connection
from tests.fixtures.answers import CONVERSATIONS, read_body, read_stream
from tests.fixtures.raw_client import RawClient, request_bytes
from tests.fixtures.requests import ALL, answered_text, request_body
from tests.fixtures.stack import Stack, TimeLimits, memory_stack, until
from tests.integration.test_disconnect import LONG, check_nothing_is_left, long_body


async def _running(stack: Stack, count: int) -> bool:
    return await stack.engine.running() == count


def unchunked(body: bytes) -> tuple[bytes, bytes]:
    """A body without the marks between its chunks, and what comes after it."""
    whole = b""
    while True:
        length, _, body = body.partition(b"\r\n")
        size = int(length, 16)
        if not size:
            assert body.startswith(b"\r\n")
            return whole, body[2:]
        whole, body = whole + body[:size], body[size + 2 :]


# --- Several requests at once --------------------------------------------------------------------


@pytest.mark.rule("connections.ahead")
async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    requests = [
        request_bytes("chat", request_body("chat", f"[[say:number {n}]]", stream=True))
        for n in range(5)
    ]
    async with memory_stack() as stack:
        client = await RawClient(stack.url).send(b"".join(requests))
        received = await client.read_until(b"[DONE]\n\n\r\n0\r\n\r\n", 5)
        client.close()
    for n in range(5):
        head, _, received = received.partition(b"\r\n\r\n")
        assert b" 200 OK" in head
        body, received = unchunked(received)
        assert read_stream("chat", body).text == f"number {n}"
    assert received == b""


@pytest.mark.rule("connections.ahead-leaves")
@pytest.mark.parametrize("ahead", [1, 3, 40])
async def test_who_has_sent_ahead_and_leaves_frees_all(ahead: int) -> None:
    async with memory_stack() as stack:
        for dialect, stream in product(ALL, (False, True)):
            request = request_bytes(dialect, long_body(dialect, LONG, stream=stream))
            client = await RawClient(stack.url).send(request)
            await until(lambda: _running(stack, 1))
            with capture_logs() as lines:
                await client.send(request * ahead)
                client.close()
                await check_nothing_is_left(stack)
            (line,) = [line for line in lines if line["event"] == "request.completed"]
            assert line["outcome"] == "cancelled", "those ahead were never begun"


@pytest.mark.rule("connections.ahead-bound")
@pytest.mark.parametrize("size", [0, 1 << 22])
async def test_too_much_ahead_is_not_kept(size: int) -> None:
    """The answer under way is whole, the others are not begun, and the connection ends."""
    body = request_body("chat", "[[k=40 gap=10]]", stream=True)
    small = request_bytes("chat", request_body("chat", "x" * size))
    async with memory_stack() as stack:
        with capture_logs() as lines:
            client = await RawClient(stack.url).send(request_bytes("chat", body))
            await until(lambda: _running(stack, 1))
            (busy,) = stack.pods[0].server.server_state.connections
            await client.send(small * (1 if size else 40))
            received = await client.read_all()
            client.close()
            await check_nothing_is_left(stack)
        assert len(busy.pipeline) == 0  # type: ignore[union-attr]
    told, rest = unchunked(received.partition(b"\r\n\r\n")[2])
    assert read_stream("chat", told).text == "".join(f"tok{n} " for n in range(40))
    assert rest == b""
    assert sum(line["event"] == "request.completed" for line in lines) == 1


@pytest.mark.rule("connections.no-http")
async def test_what_is_no_http_is_not_answered_within_an_answer() -> None:
    async with memory_stack() as stack:
        body = long_body("chat", LONG, stream=True)
        client = await RawClient(stack.url).send(request_bytes("chat", body))
        received = await client.read_until(b"tok3 ")
        await client.send(b"\x16\x03\x01 what is this\r\n\r\n")
        received += await client.read_all()
        assert received.count(b"HTTP/1.1") == 1
        await check_nothing_is_left(stack)
        client.close()
        client = await RawClient(stack.url).send(b"\x16\x03\x01 what is this\r\n\r\n")
        assert (await client.read_all()).startswith(b"HTTP/1.1 400 ")
        client.close()


# --- Requests answered before they were whole -----------------------------------------------------

OVERSIZE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    b"content-type: application/json\r\ncontent-length: 51000000\r\n\r\n"
)


@pytest.mark.rule("connections.rest")
async def test_the_rest_of_a_refused_request_is_thrown_away() -> None:
    """So a client that reads no answer before it has written all gets it, and may go on."""
    async with memory_stack() as stack:
        client = await RawClient(stack.url).send(OVERSIZE)
        received = await client.read_until(b'"request_too_large"')
        assert received.startswith(b"HTTP/1.1 413 ")
        for _ in range(51):
            await client.send(b"x" * 1_000_000)
        await client.send(request_bytes("chat", request_body("chat")))
        assert (await client.read_until(b"fine")).startswith(b"HTTP/1.1 200 ")
        client.close()


@pytest.mark.rule("connections.rest")
async def test_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_REST_BYTES", 1 << 20)
    endless = OVERSIZE.replace(b"content-length: 51000000", b"transfer-encoding: chunked")
    async with memory_stack(max_body_bytes=100_000) as stack:
        client = await RawClient(stack.url).send(endless)
        with pytest.raises(OSError):  # a reset, or a pipe that is broken
            for _ in range(2_000):
                await client.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        client.close()


@pytest.mark.rule("connections.rest")
async def test_nor_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_REST_S", 0.05)
    async with memory_stack() as stack:
        client = await RawClient(stack.url).send(OVERSIZE)
        await client.read_until(b'"request_too_large"')
        await until(lambda: not stack.pods[0].server.server_state.connections, timeout_s=2)
        client.close()


# --- HTTP/1.0 ------------------------------------------------------------------------------------


@pytest.mark.rule("connections.http-1.0")
async def test_an_old_client_gets_no_chunks() -> None:
    async with memory_stack() as stack:
        for dialect, stream in product(ALL, (False, True)):
            body = request_body(dialect, stream=stream)
            client = await RawClient(stack.url).send(request_bytes(dialect, body, version="1.0"))
            head, _, answer = (await client.read_all()).partition(b"\r\n\r\n")
            client.close()
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            lines = head.lower().split(b"\r\n")
            assert not any(line.startswith(b"transfer-encoding") for line in lines)
            assert lines.count(b"connection: close") == 1
            assert any(line.startswith(b"x-request-id: ") for line in lines)
            if not stream:
                assert b"content-length: %d" % len(answer) in lines
                assert answered_text(dialect, orjson.loads(answer)) == "fine"
            elif dialect in CONVERSATIONS:
                assert b"content-type: text/event-stream; charset=utf-8" in lines
                assert read_stream(dialect, answer).text == "fine"
            else:
                assert answer.startswith(b"data: {")
                assert answer.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.rule("connections.http-1.0", "disconnect.frees")
async def test_an_old_client_that_leaves_frees_its_slot() -> None:
    async with memory_stack() as stack:
        body = long_body("chat", LONG, stream=True)
        client = await RawClient(stack.url).send(request_bytes("chat", body, version="1.0"))
        await client.read_until(b"tok3 ")
        client.reset()
        await check_nothing_is_left(stack)


# --- What is no stream ---------------------------------------------------------------------------


@pytest.mark.rule("connections.bodies")
async def test_a_body_is_never_preceded_by_signs_of_life() -> None:
    limits = TimeLimits(commit_s=0.01, commit_after_accept_s=0, keep_alive_s=0.01)
    async with memory_stack(limits=limits) as stack:
        for dialect in CONVERSATIONS:
            body = request_body(dialect, "[[k=3 gap=20 ttft=60]]")
            client = await RawClient(stack.url).send(request_bytes(dialect, body, version="1.0"))
            answer = (await client.read_all()).partition(b"\r\n\r\n")[2]
            client.close()
            assert read_body(dialect, answer).text == "tok0 tok1 tok2 "
