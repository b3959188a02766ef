"""FastAPI and aiohttp, passing bytes through and doing nothing else: what a Python hop costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import click
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from benchmarks.peers.base import Peer, Site
from benchmarks.processes import Target
from tests.fixtures.ports import free_port


class Bare(Peer):
    """FastAPI + aiohttp, one process, own code that only passes bytes on."""

    name = "bare"

    def start(self, site: Site) -> Target:
        port = free_port()
        process = site.module(
            self.name,
            *("benchmarks.peers.bare", "--port", str(port), "--upstream", site.engine_url),
        )
        return Target(name=self.name, port=port, parts=(("proxy", process),))


def app(upstream: str) -> FastAPI:
    """The pass-through."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            sessions.append(session)
            yield

    made = FastAPI(lifespan=lifespan)

    @made.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        response = await sessions[0].post(
            f"{upstream}/v1/chat/completions",
            data=await request.body(),
            headers={"content-type": "application/json"},
        )
        media_type = response.headers["content-type"]
        if not media_type.startswith("text/event-stream"):
            async with response:
                return Response(await response.read(), media_type=media_type)

        async def relay() -> AsyncIterator[bytes]:
            async with response:
                async for piece in response.content.iter_any():
                    yield piece

        return StreamingResponse(relay(), media_type=media_type)

    return made


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--upstream", required=True)
def main(port: int, upstream: str) -> None:
    """Serve the pass-through."""
    uvicorn.run(
        app(upstream),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        backlog=4096,
    )


if __name__ == "__main__":
    main()
