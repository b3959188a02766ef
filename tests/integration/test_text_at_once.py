"""Text in the midst of a stream is written in the turn in which it arrives, as long as its reader
keeps up; whatever else comes takes the long way, and nothing overtakes anything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from starlette.types import Message, Scope

from ingress.app import build_app
from ingress.line import EXTENSION
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    ReplyMessage,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.model_card import Capabilities, ModelCard, WorkerInfo
from schemas.transport.memory import MemoryDelivery, MemoryTransport
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import MODEL, serve_pod

_TEXT = re.compile(rb'"content":"([^"]*)"')


class Client:
    """Both ways that a connection takes an answer, into one record."""

    def __init__(self, body: bytes) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self._on_gone: Callable[[], object] | None = None
        self.writable = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.got = b""
        self.pieces = 0

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.got += message.get("body", b"")

    def write(self, piece: bytes) -> None:
        assert self.writable
        self.got += piece
        self.pieces += 1

    def watch(self, on_gone: Callable[[], object]) -> None:
        self._on_gone = on_gone

    def unwatch(self) -> None:
        self._on_gone = None

    def leave(self) -> None:
        assert self._on_gone is not None
        self._on_gone()

    @property
    def text(self) -> bytes:
        return b"".join(_TEXT.findall(self.got))


class Worker:
    """Says what it is told to."""

    def __init__(self, delivery: MemoryDelivery) -> None:
        self.delivery = delivery
        self._seq = 0

    def say(self, *deltas: Delta) -> None:
        job = self.delivery.job
        self.delivery.send(ReplyMessage(job.job_id, job.attempt, self._seq, deltas, ((0, (7,)),)))
        self._seq += 1


async def settled() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[Client, Worker, asyncio.Future[None]]]:
    """A stream whose first token has arrived."""
    memory = MemoryTransport()
    source = memory.job_source(model=MODEL, slots=1)
    card = ModelCard(id=MODEL, context_length=1000, capabilities=Capabilities(tools=True))
    await source.announce(WorkerInfo(worker_id="w", card=card, engine="test", slots=1))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = request_body("chat", "hi", stream=True, tools=[tool])
    client = Client(orjson.dumps(body))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path_of("chat"),
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {EXTENSION: client},
    }
    async with serve_pod(memory.dispatcher(), model=MODEL) as pod:
        app = build_app(pod.services)
        answering = asyncio.ensure_future(app(scope, client.receive, client.send))
        delivery = await anext(source.deliveries())
        worker = Worker(delivery)
        worker.say(Accepted("w", 1), Started("w", 1, 0), TextDelta(0, "a"))
        await settled()
        assert client.text == b"a"
        assert client.pieces == 0, "the beginning is never written past the app"
        yield client, worker, answering
        answering.cancel()
        await asyncio.wait((answering,))
    await source.close()


def end(worker: Worker) -> None:
    worker.say(Finished(0, FinishReason.STOP), Completed(Usage(1, 0, 9)))


async def test_text_is_written_in_the_turn_in_which_it_arrives() -> None:
    async with streaming() as (client, worker, answering):
        worker.say(TextDelta(0, "b"))
        assert client.text == b"ab"
        worker.say()
        worker.say(TextDelta(0, "c"))
        assert client.text == b"abc"
        end(worker)
        await answering
        assert b"[DONE]" in client.got


async def test_a_reader_who_falls_behind_gets_all_of_it_in_order() -> None:
    async with streaming() as (client, worker, answering):
        client.writable = False
        client.reads.clear()
        worker.say(TextDelta(0, "b"))
        worker.say(TextDelta(0, "c"))
        await settled()
        assert client.text == b"a"
        client.writable = True
        worker.say(TextDelta(0, "d"))
        assert client.text == b"a", "what came before it is still on its way"
        client.reads.set()
        await settled()
        assert client.text == b"abcd"
        worker.say(TextDelta(0, "e"))
        assert client.text == b"abcde"
        end(worker)
        await answering


async def test_what_is_no_text_is_not_overtaken_by_text() -> None:
    async with streaming() as (client, worker, answering):
        worker.say(ToolCallStarted(0, 0, "look"))
        worker.say(ArgumentsDelta(0, 0, "{"))
        assert client.pieces == 0
        await settled()
        worker.say(ArgumentsDelta(0, 0, "}"))
        assert client.pieces == 1, "arguments are text too"
        end(worker)
        await answering
        written = re.findall(rb'"arguments":"([^"]*)"', client.got)
        assert b"".join(written) == b"{}"


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        (None, TextDelta(1, "b")),
        (None, TextDelta(-1, "b")),
        (None, ArgumentsDelta(0, 0, "b")),
        (ToolCallStarted(0, 0, "look"), ArgumentsDelta(0, 1, "b")),
        (Finished(0, FinishReason.STOP), TextDelta(0, "b")),
    ],
    ids=["choice", "negative", "no call", "another call", "after the end"],
)
async def test_text_out_of_grammar_ends_the_stream_as_a_failure(
    before: Delta | None, wrong: Delta
) -> None:
    async with streaming() as (client, worker, answering):
        if before is not None:
            worker.say(before)
            await settled()
        worker.say(wrong)
        assert client.pieces == 0
        async with asyncio.timeout(5):
            await answering
        assert client.text == b"a"
        assert b'"error"' in client.got
        assert b"[DONE]" not in client.got
        assert worker.delivery.cancelled.is_set()


@pytest.mark.parametrize(("attempt", "seq"), [(1, 0), (1, 2), (2, 1), (0, 1)])
async def test_text_of_another_attempt_or_out_of_order_is_not_written(
    attempt: int, seq: int
) -> None:
    async with streaming() as (client, worker, _):
        job = worker.delivery.job
        worker.delivery.send(ReplyMessage(job.job_id, attempt, seq, (TextDelta(0, "x"),)))
        assert client.text == b"a"


async def test_nothing_is_written_to_a_client_who_has_left() -> None:
    async with streaming() as (client, worker, answering):
        client.leave()
        worker.say(TextDelta(0, "b"))
        await answering
        assert client.text == b"a"
        assert worker.delivery.cancelled.is_set()
