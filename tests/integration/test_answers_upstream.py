"""What a chat server behind the `upstream` engine says, and what strict clients here read of it.

It has split reasoning and calls off itself. How it cuts them, and what it repeats or leaves out,
must not matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from tests.fixtures.answers import CONVERSATIONS, read_body, read_stream, values
from tests.fixtures.player import request_to_play
from tests.fixtures.requests import path_of
from tests.fixtures.stack import MODEL, memory_stack
from workers.engines.upstream import UpstreamEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

Step = Mapping[str, Any]


def said(text: str) -> Step:
    return {"content": text}


def thought(text: str) -> Step:
    return {"reasoning_content": text}


def called(index: int, arguments: str, name: str | None = None) -> Step:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    call = {"index": index, "function": function}
    return {"tool_calls": [call | ({"id": f"c{index}", "type": "function"} if name else {})]}


class Row(NamedTuple):
    """The deltas of the upstream, and what is read of them."""

    steps: tuple[Step, ...]
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    end: str = "stop"
    parts: tuple[str, ...] = ()
    reasoning: str = ""
    finish: str = "stop"
    think: bool = False
    off: bool = False


KO = ("stock", '{"symbol":"KO"}')

ROWS: dict[str, Row] = {
    "two calls": Row(
        (
            called(0, '{"symbol":', "stock"),
            called(0, '"KO"}'),
            called(1, '{"p":"docs"}', "list_dir"),
        ),
        calls=(KO, ("list_dir", '{"p":"docs"}')),
        end="calls",
        parts=("call", "call"),
    ),
    "a name with every fragment": Row(
        (
            called(0, '{"sy', "stock"),
            called(0, 'mbol":', "stock"),
            called(0, '"KO"', "stock"),
            called(0, "}", "stock"),
        ),
        calls=(KO,),
        end="calls",
        parts=("call",),
        finish="tool_calls",
    ),
    "no argument text": Row(
        (called(0, "", "get_clock"),), calls=(("get_clock", "{}"),), end="calls", parts=("call",)
    ),
    "arguments cut by the limit": Row(
        (called(0, '{"symbol":"K', "stock"),),
        calls=(("stock", '{"symbol":"K'),),
        end="length",
        parts=("call",),
        finish="length",
    ),
    "line breaks around a call": Row(
        (said("\n\n"), called(0, '{"symbol":"KO"}', "stock"), said("\n")),
        calls=(KO,),
        end="calls",
        parts=("call",),
    ),
    "an escaped pair in pieces": Row(
        (
            called(0, '{"symbol":"hi \\', "stock"),
            called(0, "ud8"),
            called(0, "3d\\u"),
            called(0, 'de00!"}'),
        ),
        calls=(("stock", '{"symbol":"hi \\ud83d\\ude00!"}'),),
        end="calls",
        parts=("call",),
    ),
    "reasoning cut by the limit": Row(
        (thought("Let x be"), thought(" a number")),
        reasoning="Let x be a number",
        end="length",
        finish="length",
        think=True,
    ),
    "reasoning that was turned off": Row(
        (thought("Hm."), said("Pick B.")), "Pick B.", parts=("text",), off=True
    ),
    "reasoning, text, call": Row(
        (thought("Hm."), said("I look."), called(0, '{"symbol":"KO"}', "stock")),
        "I look.",
        (KO,),
        "calls",
        reasoning="Hm.",
        think=True,
    ),
    "characters that end lines": Row(
        (said("left\u2028right\u2029up\x85down\r\n\x0b\x1c"), said("end")),
        "left\u2028right\u2029up\x85down\r\n\x0b\x1cend",
    ),
    "cut text": Row((said("one two three"),), "one two three", end="length", finish="length"),
    "nothing": Row(()),
}


def cut(step: Step) -> Iterable[Step]:
    """One character per step; what else the first fragment has comes with the first one."""
    if "tool_calls" not in step:
        [(field, text)] = step.items()
        return [{field: character} for character in text]
    [call] = step["tool_calls"]
    function = call["function"]
    first, rest = function["arguments"][:1], function["arguments"][1:]
    opening = {"tool_calls": [call | {"function": function | {"arguments": first}}]}
    return [opening, *(called(call["index"], character) for character in rest)]


class Upstream:
    """A chat server that says what it is given."""

    def __init__(self) -> None:
        self.deltas: Iterable[Step] = ()
        self.finish = "stop"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        choices: list[Mapping[str, Any]] = [{"index": 0, "delta": delta} for delta in self.deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": self.finish})
        for choice in choices:
            await response.write(b"data: %b\n\n" % orjson.dumps({"choices": [choice]}))
        await response.write(b"data: [DONE]\n\n")
        return response


class Service(NamedTuple):
    http: httpx.AsyncClient
    upstream: Upstream
    profile: str


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["wafer", "official"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    upstream = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", upstream.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine = UpstreamEngine(
        f"http://127.0.0.1:{runner.addresses[0][1]}/v1",
        model="m",
        served_id=MODEL,
        slots=8,
    )
    await engine.start()
    async with (
        memory_stack(engine, profile=request.param) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        yield Service(http, upstream, request.param)
    await engine.stop()
    await runner.cleanup()


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.parametrize("name", ROWS)
async def test_an_answer(service: Service, name: str, dialect: str) -> None:
    row, upstream = ROWS[name], service.upstream
    body = request_to_play(dialect, think=row.think)
    if row.off and dialect == "chat":  # of the others nobody has asked for it
        body["reasoning_effort"] = "none"
    upstream.finish = row.finish
    for steps in (row.steps, [piece for step in row.steps for piece in cut(step)]):
        upstream.deltas = steps
        for stream in (True, False):
            response = await service.http.post(path_of(dialect), json={**body, "stream": stream})
            assert response.status_code == 200, response.text
            answer = (read_stream if stream else read_body)(dialect, response.content)
            shown = dialect != "responses" or service.profile == "official"
            assert answer.text == row.text
            assert answer.end == row.end
            assert values(answer.calls) == values(row.calls)
            if stream:
                assert tuple(answer.calls) == row.calls
            assert answer.reasoning == (row.reasoning if shown else "")
            if row.parts and dialect != "chat":
                assert tuple(answer.parts) == row.parts
