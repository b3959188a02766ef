"""What the service is compared with: the engine served directly, and a bare pass-through.

Both run in processes of their own: `python -m benchmarks.servers direct --port 9000` and
`python -m benchmarks.servers bare --port 9001 --upstream http://127.0.0.1:9000`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
import click
import msgspec
import uvicorn
import uvloop
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_numbers = itertools.count()


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


_body = msgspec.json.Decoder(_Body)
_encoder = msgspec.json.Encoder()


def _engine_request(text: str) -> EngineRequest:
    job = Job(
        job_id=f"direct-{next(_numbers)}",
        model="scripted",
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text=text),)),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1_000_000)),
        created_at=0.0,
        deadline=0.0,
        queue_deadline=0.0,
    )
    return EngineRequest(engine_request_id=job.job_id, job=job, max_tokens=1_000_000)


class DirectProtocol(asyncio.Protocol):
    """The least that can serve the engine as SSE: no framework, no checks, no dialect."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: asyncio.Transport
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def connection_lost(self, error: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lengths = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        length = lengths[0] if lengths else 0
        if len(rest) >= length:
            self._buffer = rest[length:]
            text = _body.decode(rest[:length]).messages[-1].content
            self._answering = asyncio.create_task(self._answer(text))

    async def _answer(self, text: str) -> None:
        write = self._transport.write
        write(_HEAD)
        async for chunk in self._engine.generate(_engine_request(text)):
            if chunk.text:
                event = b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % (
                    _encoder.encode(chunk.text)
                )
                write(b"%x\r\n%b\r\n" % (len(event), event))
        write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def serve_direct(port: int) -> None:
    loop = asyncio.get_running_loop()
    engine = ScriptedEngine()
    server = await loop.create_server(lambda: DirectProtocol(engine), "127.0.0.1", port)
    await server.serve_forever()


def bare_app(upstream: str) -> FastAPI:
    """FastAPI and aiohttp, passing bytes through and doing nothing else."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            sessions.append(session)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> StreamingResponse:
        response = await sessions[0].post(
            f"{upstream}/v1/chat/completions",
            data=await request.body(),
            headers={"content-type": "application/json"},
        )

        async def relay() -> AsyncIterator[bytes]:
            async with response:
                async for piece in response.content.iter_any():
                    yield piece

        return StreamingResponse(relay(), media_type="text/event-stream")

    return app


@click.group()
def main() -> None:
    """Serve what the service is compared with."""


@main.command()
@click.option("--port", type=int, required=True)
def direct(port: int) -> None:
    """The scripted engine behind the least possible SSE server."""
    uvloop.run(serve_direct(port))


@main.command()
@click.option("--port", type=int, required=True)
@click.option("--upstream", required=True, help="Where to pass requests on to.")
def bare(port: int, upstream: str) -> None:
    """FastAPI and aiohttp as a pass-through."""
    uvicorn.run(
        bare_app(upstream),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
