"""A client that takes nothing at the worst moment: no write may hold up the limits of a request.

The app is called as its server calls it, with a connection whose writes block when the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from starlette.types import Message, Scope

from ingress.app import build_app
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import Stack, TimeLimits, memory_stack, until

pytestmark = pytest.mark.timeout(20)


class Connection:
    """What the app reads from and writes to.

    Args:
        blocks: Which writes are never taken.
    """

    def __init__(self, body: bytes, blocks: Callable[[Message], bool]) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self._blocks = blocks
        self.blocked = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        if self._blocks(message):
            self.blocked.set()
            await asyncio.Event().wait()
        self.sent.append(message)


@asynccontextmanager
async def served(stack: Stack, connection: Connection) -> AsyncIterator[asyncio.Future[None]]:
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path_of("chat"),
        "raw_path": path_of("chat").encode(),
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    app = build_app(stack.services)
    task = asyncio.ensure_future(app(scope, connection.receive, connection.send))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


def is_sign(message: Message) -> bool:
    return bool(message.get("body", b"").startswith(b": keep-alive"))


@pytest.mark.rule("limits.writes")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_write_that_is_never_taken_ends_the_request(stream: bool) -> None:
    limits = TimeLimits(write_s=0.3, keep_alive_s=0.05)
    body = orjson.dumps(
        request_body("chat", "[[say:a]][[hang:1]]" if stream else "hi", stream=stream)
    )
    blocks = is_sign if stream else (lambda message: message["type"] == "http.response.start")
    async with memory_stack(limits=limits) as stack:
        connection = Connection(body, blocks)
        async with served(stack, connection) as task:
            async with asyncio.timeout(5):
                await task
            assert connection.blocked.is_set()
        assert stack.services.admission.in_flight == 0
        await until(lambda: stack.consumers[0].info().running == 0)


@pytest.mark.rule("limits.writes")
async def test_an_error_that_is_never_taken_ends_the_request() -> None:
    body = orjson.dumps(request_body("chat", "[[fail:start]]"))
    async with memory_stack(limits=TimeLimits(write_s=0.3)) as stack:
        connection = Connection(body, lambda _: True)
        async with served(stack, connection) as task, asyncio.timeout(5):
            await task
        assert connection.blocked.is_set()


@pytest.mark.rule("limits.writes")
async def test_other_limits_hold_while_a_sign_of_life_is_not_taken() -> None:
    limits = TimeLimits(write_s=60, keep_alive_s=0.05, total_s=0.5)
    body = orjson.dumps(request_body("chat", "[[say:a]][[hang:1]]", stream=True))
    async with memory_stack(limits=limits) as stack:
        connection = Connection(body, is_sign)
        async with served(stack, connection) as task, asyncio.timeout(5):
            await task
        assert connection.blocked.is_set()
        assert not any(b"[DONE]" in message.get("body", b"") for message in connection.sent)


@pytest.mark.rule("limits.writes")
async def test_an_answer_waits_for_the_record_that_is_on_its_way() -> None:
    """A sign of life and the next token are never written into each other."""
    taken = asyncio.Event()
    limits = TimeLimits(keep_alive_s=0.05)
    body = orjson.dumps(request_body("chat", "[[k=3 gap=150]]", stream=True))

    class Slow(Connection):
        writing = 0

        async def send(self, message: Message) -> None:
            self.writing += 1
            assert self.writing == 1
            if is_sign(message):
                self.blocked.set()
                await taken.wait()
            self.writing -= 1
            self.sent.append(message)

    async with memory_stack(limits=limits) as stack:
        connection = Slow(body, is_sign)
        async with served(stack, connection) as task:
            async with asyncio.timeout(5):
                await connection.blocked.wait()
                await until(lambda: stack.consumers[0].info().running == 0)  # all is generated
                taken.set()
                await task
        assert connection.sent[-1]["body"].endswith(b"data: [DONE]\n\n")
