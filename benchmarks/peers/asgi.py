"""The engine's script behind uvicorn and nothing else: the least that an answer by ASGI costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import click
import uvicorn

from benchmarks.peers.base import Peer, Site
from benchmarks.processes import Target
from benchmarks.script import Asked, ending, event, whole
from tests.fixtures.ports import free_port

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_ticks: dict[float, asyncio.Future[None]] = {}


class Asgi(Peer):
    """Uvicorn and a bare ASGI app with the script in it: the limit of a server in Python."""

    name = "asgi"

    def start(self, site: Site) -> Target:
        port = free_port()
        process = site.module(self.name, "benchmarks.peers.asgi", "--port", str(port))
        return Target(
            name=self.name, port=port, parts=(("server", process),), engine=True, hang_up=False
        )


async def _until(due: float) -> None:
    """Wait together with whoever is due at the same instant."""
    due = round(due, 4)  # one instant, by whichever sum it was found
    tick = _ticks.get(due)
    if tick is None:
        loop = asyncio.get_running_loop()
        tick = _ticks[due] = loop.create_future()
        loop.call_at(due, lambda: _ticks.pop(due).set_result(None))
    await asyncio.shield(tick)


async def app(scope: _Message, receive: _Receive, send: _Send) -> None:
    """Play what a request asks for."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    asked = Asked.of(body)
    kind = b"text/event-stream" if asked.stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if asked.stream:
        await _play(asked, send)
    await send({"type": "http.response.body", "body": b"" if asked.stream else whole(asked)})


async def _play(asked: Asked, send: _Send) -> None:
    due = asked.first_due(time.monotonic()) if asked.gap_s else 0.0
    for number in range(asked.tokens):
        if number == asked.hang:
            await asyncio.Event().wait()
        if asked.gap_s:
            await _until(due + number * asked.gap_s)
        await send({"type": "http.response.body", "body": event(number), "more_body": True})
    tail = b"".join(ending(asked))
    await send({"type": "http.response.body", "body": tail, "more_body": True})


@click.command()
@click.option("--port", type=int, required=True)
def main(port: int) -> None:
    """Serve the script."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
        backlog=4096,
    )


if __name__ == "__main__":
    main()
