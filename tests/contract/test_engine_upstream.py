"""The `upstream` engine against a real HTTP server on the loopback that plays recorded answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from aiohttp import web

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted
from schemas.errors import (
    GenerationFailed,
    GenerationTimeout,
    ModelOverloaded,
    ModelRequestRejected,
    ModelUnavailable,
    ServingError,
    UnsupportedParameter,
)
from schemas.job import ChatPrompt, Job, Prompt, TokenPrompt
from schemas.message import Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams, StopConditions
from workers.engines.base import Engine, EngineChunk, EngineFinish, EngineRequest
from workers.engines.upstream import UpstreamEngine, UpstreamTimeouts
from workers.parsing.base import PartDelta

RECORDED = """\
data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"id":"1","choices":[{"index":0,"delta":{"reasoning_content":"Überlegen\u2028…"}}]}

: keep-alive

data: {"id":"1","choices":[{"index":0,"delta":{"content":"ok 🧪! "}}]}

data: {"id":"1","choices":[{"index":0,"delta":{"content":"ď"}}]}

data: {"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function",\
"function":{"name":"look","arguments":""}}]}}]}

data: {"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,\
"function":{"arguments":"{\\"q\\":\\"ü\\"}"}}]}}]}

data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,\
"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":4}}}

data: [DONE]

"""
ANSWER = [
    ReasoningDelta(0, "Überlegen\u2028…"),
    TextDelta(0, "ok 🧪! "),
    TextDelta(0, "ď"),
    ToolCallStarted(0, 0, "look"),
    ArgumentsDelta(0, 0, '{"q":"ü"}'),
]


def text(content: str) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode({"choices": [{"delta": {"content": content}}]})


END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'

Play = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


class Upstream:
    """A server that plays what the test tells it to, and remembers what it was asked.

    Attributes:
        gone: Set once a client has left before its answer was complete.
        arrived: Set once a request has come in.
    """

    def __init__(self) -> None:
        self.play: Play = self.answer(RECORDED.encode())
        self.models: web.Response | None = None
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(msgspec.json.decode(await request.read()))
        self.arrived.set()
        try:
            return await self.play(request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    async def list_models(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        return self.models or web.json_response({"detail": "Not Found"}, status=404)

    def answer(
        self, *pieces: bytes, size: int | None = None, then: asyncio.Event | None = None
    ) -> Play:
        """A stream of these pieces, cut into `size` bytes; held open until `then` is set."""
        body = b"".join(pieces)
        step = size or max(len(body), 1)

        async def play(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for at in range(0, len(body), step):
                await response.write(body[at : at + step])
                await asyncio.sleep(0)  # so that pieces leave one by one
            if then is not None:
                await then.wait()
            return response

        return play

    def cut(self, body: bytes) -> Play:
        """A stream whose connection breaks after `body`."""

        async def play(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(body)
            assert request.transport is not None
            request.transport.close()
            return response

        return play

    def silence(self) -> Play:
        """No answer at all, not even a status line."""

        async def play(request: web.Request) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

        return play


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/v1/models", server.list_models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}/v1"
    yield server
    await runner.cleanup()


Connect = Callable[..., Coroutine[Any, Any, UpstreamEngine]]


@pytest.fixture
async def connect(upstream: Upstream) -> AsyncIterator[Connect]:
    engines: list[UpstreamEngine] = []

    async def connect(**timeouts: float) -> UpstreamEngine:
        engine = UpstreamEngine(
            upstream.url + "/",
            model="up/model",
            served_id="ours",
            slots=4,
            api_key="k",
            timeouts=UpstreamTimeouts(**timeouts),
        )
        await engine.start()
        engines.append(engine)
        return engine

    yield connect
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def engine(connect: Connect) -> UpstreamEngine:
    return await connect()


def request(
    id: str = "r",
    *,
    prompt: Prompt | None = None,
    stop: tuple[str, ...] = (),
    limit: OutputLimit | None = None,
) -> EngineRequest:
    hi = Message(role="user", parts=(TextPart(text="hi"),))
    job = Job(
        job_id="j",
        model="ours",
        prompt=prompt or ChatPrompt(messages=(hi,)),
        sampling=SamplingParams(
            limit=limit or OutputLimit(max_tokens=64), stop=StopConditions(strings=stop)
        ),
        created_at=0.0,
        deadline=1e12,
        queue_deadline=1e12,
    )
    return EngineRequest(engine_request_id=id, job=job, max_tokens=64)


async def collect(engine: Engine, asked: EngineRequest) -> list[EngineChunk]:
    async with asyncio.timeout(10):
        return [chunk async for chunk in engine.generate(asked)]


def deltas(chunks: list[EngineChunk]) -> list[PartDelta]:
    return [delta for chunk in chunks for delta in chunk.deltas]


@pytest.mark.parametrize("size", [None, 1, 2, 7, 300])
async def test_answer_however_it_is_cut(
    upstream: Upstream, engine: UpstreamEngine, size: int | None
) -> None:
    upstream.play = upstream.answer(RECORDED.encode(), size=size)
    chunks = await collect(engine, request())
    assert deltas(chunks) == ANSWER
    last = chunks[-1]
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert last.finish == EngineFinish(reason="tool_calls")
    assert (last.input_tokens, last.cached_tokens, last.reasoning_tokens) == (9, 3, 4)
    assert sum(chunk.output_tokens for chunk in chunks) == 12
    assert await engine.running() == 0


async def test_crlf_stream(upstream: Upstream, engine: UpstreamEngine) -> None:
    upstream.play = upstream.answer(RECORDED.replace("\n", "\r\n").encode(), size=11)
    assert deltas(await collect(engine, request())) == ANSWER


async def test_request_carries_model_key_and_conversation(
    upstream: Upstream, engine: UpstreamEngine
) -> None:
    await collect(engine, request())
    assert upstream.bodies[0]["model"] == "up/model"
    assert upstream.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert upstream.requests[-1].headers["Authorization"] == "Bearer k"
    assert upstream.requests[-1].headers["Accept-Encoding"] == "identity"


async def test_deltas_come_while_the_upstream_still_writes(
    upstream: Upstream, engine: UpstreamEngine
) -> None:
    upstream.play = upstream.answer(text("Hi"), then=asyncio.Event())
    async with asyncio.timeout(10), aclosing(engine.generate(request())) as chunks:  # type: ignore[type-var]
        first = await anext(chunks)
        assert first.deltas == (TextDelta(0, "Hi"),)
        assert await engine.running() == 1
    await asyncio.wait_for(upstream.gone.wait(), 5)


async def test_connection_is_used_again(upstream: Upstream, engine: UpstreamEngine) -> None:
    for _ in range(3):
        await collect(engine, request())
    peers = {request.transport for request in upstream.requests[1:]}
    assert len(upstream.requests) == 4
    assert len(peers) == 1


class TestStart:
    async def test_upstream_without_a_model_list(self, engine: UpstreamEngine) -> None:
        assert engine.card.id == "ours"
        assert engine.card.context_length == 32_768
        assert not engine.card.capabilities.completions
        assert (engine.takes_token_ids, engine.tokenizer, engine.slots) == (False, None, 4)

    @pytest.mark.parametrize("field", ["max_model_len", "context_length"])
    async def test_window_the_upstream_tells(
        self, upstream: Upstream, connect: Connect, field: str
    ) -> None:
        upstream.models = web.json_response(
            {"data": [{"id": "other", field: 1}, {"id": "up/model", field: 4096}]}
        )
        assert (await connect()).card.context_length == 4096

    async def test_upstream_that_refuses_us(self, upstream: Upstream, connect: Connect) -> None:
        upstream.models = web.json_response({"error": {"message": "key k?"}}, status=401)
        with pytest.raises(GenerationFailed) as caught:
            await connect()
        assert caught.value.diagnostic == "upstream answered 401 {}"

    async def test_upstream_that_is_not_there(self) -> None:
        engine = UpstreamEngine("http://127.0.0.1:9/v1", model="m", served_id="m", slots=1)
        with pytest.raises(ModelUnavailable):
            await engine.start()


class TestEnds:
    async def test_without_done(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.answer(text("Hi"), END)
        chunks = await collect(engine, request())
        assert deltas(chunks) == [TextDelta(0, "Hi")]
        assert chunks[-1].finish == EngineFinish(reason="stop")
        assert sum(chunk.output_tokens for chunk in chunks) == 1

    @pytest.mark.parametrize("farewell", [b"", b"data: [DONE]\n\n"])
    async def test_upstream_that_never_closes(
        self, upstream: Upstream, connect: Connect, farewell: bytes
    ) -> None:
        upstream.play = upstream.answer(text("Hi"), END, farewell, then=asyncio.Event())
        engine = await connect(usage_s=0.05, close_s=0.05)
        chunks = await collect(engine, request())
        assert chunks[-1].finish == EngineFinish(reason="stop")
        await asyncio.wait_for(upstream.gone.wait(), 5)

    async def test_connection_lost_after_the_end(
        self, upstream: Upstream, engine: UpstreamEngine
    ) -> None:
        upstream.play = upstream.cut(text("Hi") + END + b'data: {"usa')
        assert (await collect(engine, request()))[-1].finish == EngineFinish(reason="stop")

    async def test_stop_string_ends_the_upstreams_work(
        self, upstream: Upstream, engine: UpstreamEngine
    ) -> None:
        upstream.play = upstream.answer(text("Hi EN"), text("D and on"), then=asyncio.Event())
        chunks = await collect(engine, request(stop=("END",)))
        assert "".join(d.text for d in deltas(chunks) if isinstance(d, TextDelta)) == "Hi "
        assert chunks[-1].finish == EngineFinish(reason="stop", matched="END")
        await asyncio.wait_for(upstream.gone.wait(), 5)


class TestFailures:
    async def expect(
        self, engine: UpstreamEngine, error: type[ServingError]
    ) -> tuple[ServingError, list[EngineChunk]]:
        chunks: list[EngineChunk] = []
        with pytest.raises(error) as caught:
            async with asyncio.timeout(10):
                async for chunk in engine.generate(request()):
                    chunks.append(chunk)  # noqa: PERF401 - kept although the loop raises
        assert all(chunk.finish is None for chunk in chunks)
        assert await engine.running() == 0
        return caught.value, chunks

    @pytest.mark.parametrize("farewell", [b"", b"data: [DONE]\n\n"])
    async def test_clean_close_without_finish_reason_is_no_success(
        self, upstream: Upstream, engine: UpstreamEngine, farewell: bytes
    ) -> None:
        upstream.play = upstream.answer(text("half"), farewell)
        await self.expect(engine, GenerationFailed)

    async def test_connection_lost(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.cut(text("half"))
        _, chunks = await self.expect(engine, GenerationFailed)
        assert deltas(chunks) == [TextDelta(0, "half")]

    async def test_error_record(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.answer(
            text("half"), b'event: error\ndata: {"error":{"message":"hi","code":429}}\n\n'
        )
        await self.expect(engine, ModelOverloaded)

    async def test_answer_that_is_not_a_stream(
        self, upstream: Upstream, engine: UpstreamEngine
    ) -> None:
        upstream.play = upstream.answer(b'{"choices":[{"message":{"content":"hi"}}]}')
        await self.expect(engine, GenerationFailed)

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (400, ModelRequestRejected),
            (401, GenerationFailed),
            (307, GenerationFailed),
            (429, ModelOverloaded),
            (500, GenerationFailed),
        ],
    )
    async def test_http_errors(
        self, upstream: Upstream, engine: UpstreamEngine, status: int, error: type[ServingError]
    ) -> None:
        async def play(_: web.Request) -> web.Response:
            headers = {"Retry-After": "3", "Location": "/v1/chat/completions"}
            body = {"error": {"message": "you said hi", "type": "t"}}
            return web.json_response(body, status=status, headers=headers)

        upstream.play = play
        failure, _ = await self.expect(engine, error)
        assert failure.diagnostic == f"upstream answered {status} {{'type': 't'}}"
        assert failure.retry_after_s == (3 if error is ModelOverloaded else None)
        assert len(upstream.bodies) == 1

    @pytest.mark.rule("chat.limit-retried")
    async def test_a_limit_that_may_be_dropped_is_when_the_request_is_refused(
        self, upstream: Upstream, engine: UpstreamEngine
    ) -> None:
        answer = upstream.play

        async def play(request: web.Request) -> web.StreamResponse:
            if "max_tokens" in upstream.bodies[-1]:
                return web.json_response({"error": {"message": "too much"}}, status=400)
            return await answer(request)

        upstream.play = play
        limit = OutputLimit(max_tokens=64, fallback_tokens=32)
        assert deltas(await collect(engine, request(limit=limit))) == ANSWER
        first, second = upstream.bodies
        assert {"max_tokens": 64, **second} == first
        await self.expect(engine, ModelRequestRejected)  # of one that may not, there is one try
        assert len(upstream.bodies) == 3

    async def test_silence_before_the_answer(self, upstream: Upstream, connect: Connect) -> None:
        engine = await connect(first_byte_s=0.05)
        upstream.play = upstream.silence()
        await self.expect(engine, GenerationTimeout)
        upstream.play = upstream.answer(then=asyncio.Event())  # a status line and nothing more
        await self.expect(engine, GenerationTimeout)

    async def test_silence_in_the_answer(self, upstream: Upstream, connect: Connect) -> None:
        engine = await connect(stall_s=0.05)
        upstream.play = upstream.answer(text("half"), then=asyncio.Event())
        _, chunks = await self.expect(engine, GenerationTimeout)
        assert deltas(chunks) == [TextDelta(0, "half")]
        await asyncio.wait_for(upstream.gone.wait(), 5)

    async def test_kept_connection_that_died_is_replaced(
        self, upstream: Upstream, engine: UpstreamEngine
    ) -> None:
        answer = upstream.play

        async def hang_up_once(request: web.Request) -> web.StreamResponse:
            upstream.play = answer
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        upstream.play = hang_up_once
        assert deltas(await collect(engine, request())) == ANSWER

    async def test_token_ids_are_refused(self, engine: UpstreamEngine) -> None:
        with pytest.raises(UnsupportedParameter):
            await collect(engine, request(prompt=TokenPrompt(prompts=((1,),))))


class TestAbort:
    """An aborted request ends at once and the upstream sees its client leave, in any phase."""

    async def abort_when(
        self, upstream: Upstream, engine: UpstreamEngine, ready: asyncio.Event
    ) -> list[EngineChunk]:
        running = asyncio.create_task(collect(engine, request("r")))
        async with asyncio.timeout(5):
            await ready.wait()
            await engine.abort("r")
            chunks = await running
            await upstream.gone.wait()
        assert chunks[-1] == EngineChunk(finish=EngineFinish(reason="abort"))
        assert await engine.running() == 0
        return chunks

    async def test_before_the_status_line(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.silence()
        assert len(await self.abort_when(upstream, engine, upstream.arrived)) == 1

    async def test_before_the_first_byte(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.answer(then=asyncio.Event())
        assert len(await self.abort_when(upstream, engine, upstream.arrived)) == 1

    async def test_in_the_stream(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.answer(text("Hi"), then=asyncio.Event())
        async with asyncio.timeout(5), aclosing(engine.generate(request("r"))) as chunks:  # type: ignore[type-var]
            assert (await anext(chunks)).deltas == (TextDelta(0, "Hi"),)
            await engine.abort("r")
            assert (await anext(chunks)).finish == EngineFinish(reason="abort")
            await upstream.gone.wait()

    async def test_cancelled_consumer(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        upstream.play = upstream.silence()
        running = asyncio.create_task(collect(engine, request("r")))
        async with asyncio.timeout(5):
            await upstream.arrived.wait()
            running.cancel()
            await asyncio.wait([running])
            await upstream.gone.wait()
        assert running.cancelled()
        assert await engine.running() == 0

    async def test_others_go_on(self, upstream: Upstream, engine: UpstreamEngine) -> None:
        release = asyncio.Event()
        upstream.play = upstream.answer(text("Hi"), END, then=release)
        first, second = (asyncio.create_task(collect(engine, request(id))) for id in "ab")
        async with asyncio.timeout(5):
            await upstream.arrived.wait()
            await engine.abort("a")
            assert (await first)[-1].finish == EngineFinish(reason="abort")
            release.set()
            assert deltas(await second) == [TextDelta(0, "Hi")]

    async def test_unknown_ids_are_ignored(self, engine: UpstreamEngine) -> None:
        await engine.abort("nobody")
        assert await engine.running() == 0
