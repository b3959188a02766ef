"""What a model writes, and what a strict client of every dialect reads of it.

Each row is played three ways: as it stands, one character at a time, and all at once; and each is
read as a stream and as a body. All of them say the same, and the worker goes on serving.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.fixtures.answers import CONVERSATIONS, Answer, read_body, read_stream, values
from tests.fixtures.player import Player, call, request_to_play
from tests.fixtures.requests import answered_text, path_of, request_body
from tests.fixtures.stack import MODEL, memory_stack
from workers.engines.scripted import End, ScriptedEngine, Step, Text

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Row(NamedTuple):
    """What the model writes, and what is read of it."""

    written: tuple[str, ...]
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    end: str = "stop"
    parts: tuple[str, ...] = ()
    reasoning: str = ""
    stop: End = End()
    think: bool = False
    tools: bool = True
    fields: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


CUT = End("length")


ONE = (("stock", '{"symbol":"KO"}'),)
ODD = "left\u2028right\u2029up\x85down\rback\r\nnext\x0b\x0c\x1c\x1d\x1e\x00\x7f\ufeff\U0001f600end"
NASTY = orjson.dumps(
    {"code": 'if (a[0] == "}") { say("</tool_call>\n<tool_call>{}</think>"); }', "z": ODD}
).decode()
BIG = '{"n": 123456789012345678901234567890, "x": 0.10000000000000000000001, "e": 1e999, "z": 1.0}'
DRAFT = f"I could do {call('delete', '{}')} but first look."

NO_PARALLEL: dict[str, dict[str, Any]] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
FORCED: dict[str, dict[str, Any]] = {
    "chat": {"tool_choice": "required"},
    "responses": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
}

ROWS: dict[str, Row] = {
    "two calls": Row(
        (call("stock", '{"symbol":"KO"}'), "\n", call("list_dir", '{"p":"docs"}')),
        calls=(*ONE, ("list_dir", '{"p":"docs"}')),
        end="calls",
        parts=("call", "call"),
    ),
    "two calls of one tool, nothing between": Row(
        (call("stock", '{"symbol":"KO"}') * 2,),
        calls=ONE * 2,
        end="calls",
        parts=("call", "call"),
    ),
    "arguments in many pieces": Row(
        ('<tool_call>{"name":"stock","arguments":{"sy', 'mbol":"K', 'O"', "}", "}</tool_call>"),
        calls=ONE,
        end="calls",
        parts=("call",),
    ),
    "no arguments at all": Row(
        ('<tool_call>{"name":"get_clock"}</tool_call>',),
        calls=(("get_clock", "{}"),),
        end="calls",
        parts=("call",),
    ),
    "arguments that are null": Row(
        (call("get_clock", "null"),),
        calls=(("get_clock", "{}"),),
        end="calls",
        parts=("call",),
    ),
    "arguments that are empty text": Row(
        (call("get_clock", '""'),),
        calls=(("get_clock", "{}"),),
        end="calls",
        parts=("call",),
    ),
    "arguments that are an empty object": Row(
        (call("get_clock", "{}"),),
        calls=(("get_clock", "{}"),),
        end="calls",
        parts=("call",),
    ),
    "arguments before the name": Row(
        ('<tool_call>{"arguments":{"symbol":"KO"},"name":"stock"}</tool_call>',),
        calls=ONE,
        end="calls",
        parts=("call",),
    ),
    "arguments cut by the limit": Row(
        ('<tool_call>{"name":"stock","arguments":{"symbol":"K',),
        calls=(("stock", '{"symbol":"K'),),
        end="length",
        parts=("call",),
        stop=CUT,
        fields=FORCED,
    ),
    "the second call cut by the limit": Row(
        (call("stock", '{"symbol":"KO"}'), '<tool_call>{"name":"list_dir","arguments":{"p'),
        calls=(*ONE, ("list_dir", '{"p')),
        end="length",
        parts=("call", "call"),
        stop=CUT,
    ),
    "cut right after the arguments": Row(
        ('<tool_call>{"name":"stock","arguments":{"symbol":"KO"}',),
        calls=ONE,
        end="length",
        parts=("call",),
        stop=CUT,
    ),
    "cut before the arguments": Row(
        ('<tool_call>{"name":"stock","arguments":',),
        calls=(("stock", ""),),
        end="length",
        parts=("call",),
        stop=CUT,
    ),
    "cut within the name": Row(
        ('I look.<tool_call>{"name":"sto',), text="I look.", end="length", parts=("text",), stop=CUT
    ),
    "white space around a call": Row(
        ("\n\n", call("stock", '{"symbol":"KO"}'), "\n"),
        calls=ONE,
        end="calls",
        parts=("call",),
    ),
    "text, a call, text, a call, text": Row(
        (
            "First.",
            call("stock", '{"symbol":"KO"}'),
            "Then.",
            call("list_dir", '{"p":"a"}'),
            "Done.",
        ),
        text="First.Then.Done.",
        calls=(*ONE, ("list_dir", '{"p":"a"}')),
        end="calls",
        parts=("text", "call", "text", "call", "text"),
    ),
    "an escaped pair": Row(
        ('<tool_call>{"name":"stock","arguments":{"symbol":"hi \\', "ud8", "3d\\u", 'de00!"}}'),
        calls=(("stock", '{"symbol":"hi \\ud83d\\ude00!"}'),),
        end="calls",
        parts=("call",),
    ),
    "numbers that few languages keep": Row(
        (call("stock", BIG),), calls=(("stock", BIG),), end="calls", parts=("call",)
    ),
    "arguments that are no JSON": Row(
        (call("stock", "{'symbol': NaN}"),),
        calls=(("stock", "{'symbol': NaN}"),),
        end="calls",
        parts=("call",),
    ),
    "half an escaped pair": Row(
        (call("stock", '{"symbol":"hi \\ud83d"}'),),
        calls=(("stock", '{"symbol":"hi \\ud83d"}'),),
        end="calls",
        parts=("call",),
    ),
    "braces, quotes and markers within arguments": Row(
        (call("stock", NASTY),), calls=(("stock", NASTY),), end="calls", parts=("call",)
    ),
    "a name nobody offered": Row(
        (call("wetter_für\u2028_😀", '{"ort":"Köln"}'),),
        calls=(("wetter_für\u2028_😀", '{"ort":"Köln"}'),),
        end="calls",
        parts=("call",),
    ),
    "a marker that begins nothing": Row(
        ("Write <tool_call> or <tool_", "call and </tool_call>, a < b."),
        text="Write <tool_call> or <tool_call and </tool_call>, a < b.",
        parts=("text",),
    ),
    "a marker at the very end": Row(("So: <tool_ca",), text="So: <tool_ca", parts=("text",)),
    "a call where none is offered": Row(
        (call("stock", "{}"),), text=call("stock", "{}"), parts=("text",), tools=False
    ),
    "one call where two were written": Row(
        ("Ok.", call("stock", '{"symbol":"KO"}'), call("stock", '{"symbol":"PEP"}'), "Well."),
        text="Ok.",
        calls=ONE,
        end="calls",
        parts=("text", "call"),
        fields=NO_PARALLEL,
    ),
    "characters that end lines": Row((ODD,), text=ODD, parts=("text",)),
    "such characters in reasoning": Row(
        (f"a{ODD}", "</think>", ODD), text=ODD, reasoning=f"a{ODD}", think=True
    ),
    "an answer cut by the limit": Row(("one two three",), "one two three", end="length", stop=CUT),
    "nothing": Row((), parts=()),
    "nothing, cut by the limit": Row((), end="length", stop=CUT),
    "reasoning opened by the prompt": Row(
        ("We need 17*3", "=51</thi", "nk>\n\n51"), "51", reasoning="We need 17*3=51", think=True
    ),
    "reasoning opened by the model": Row(
        ("<think>\n17*3=51\n</think>\n\n51",), "51", reasoning="17*3=51", think=True
    ),
    "reasoning that was not asked for": Row(("<think>Hmm, weigh both.</think>Pick B.",), "Pick B."),
    "empty reasoning": Row(("<think>\n\n</think>\n\n51",), "51", parts=("text",), think=True),
    "empty reasoning, cut by the limit": Row(
        ("<think>\n\n</think>\n\n",), end="length", stop=CUT, think=True
    ),
    "reasoning alone": Row(("Hm, so be it.</think>",), reasoning="Hm, so be it.", think=True),
    "reasoning without an end": Row(("Hm, so be it.",), reasoning="Hm, so be it.", think=True),
    "reasoning cut by the limit": Row(
        ("Let x be a number such that",),
        reasoning="Let x be a number such that",
        end="length",
        stop=CUT,
        think=True,
    ),
    "reasoning cut within its closing marker": Row(
        ("Let x be</thi",), reasoning="Let x be</thi", end="length", stop=CUT, think=True
    ),
    "a call drafted in reasoning": Row(
        (f"<think>{DRAFT}</think>", call("list_dir", '{"p":"docs"}')),
        reasoning=DRAFT,
        calls=(("list_dir", '{"p":"docs"}'),),
        end="calls",
        think=True,
    ),
    "a call drafted, and none made": Row(
        (f"<think>{DRAFT}</think>No.",), "No.", reasoning=DRAFT, think=True
    ),
    "a call drafted right before reasoning ends": Row(
        (f"So {call('stock', '{}')}</think>No.",),
        "No.",
        reasoning=f"So {call('stock', '{}')}",
        think=True,
    ),
    "reasoning, text and a call": Row(
        ("Hm.</think>\n\nI look.\n", call("stock", '{"symbol":"KO"}')),
        "I look.\n",
        reasoning="Hm.",
        calls=ONE,
        end="calls",
        think=True,
    ),
    "reasoning after the answer began": Row(
        ("Hm.</think>Use <think>this</think>.",),
        "Use <think>this</think>.",
        reasoning="Hm.",
        think=True,
    ),
}


def cuts(row: Row, *, every: bool) -> dict[str, list[Step]]:
    """The steps that write a row in one way, or in every way."""
    whole = "".join(row.written)
    ways: dict[str, Iterable[str]] = {"as it stands": row.written}
    if every:
        ways |= {"by characters": whole, "at once": (whole,) if whole else ()}
    return {way: [*map(Text, pieces), row.stop] for way, pieces in ways.items()}


class Service(NamedTuple):
    """A client and the model behind the service."""

    http: httpx.AsyncClient
    player: Player
    profile: str

    async def ask(self, dialect: str, body: dict[str, Any], *, stream: bool) -> Answer:
        response = await self.http.post(path_of(dialect), json={**body, "stream": stream})
        assert response.status_code == 200, response.text
        return (read_stream if stream else read_body)(dialect, response.content)

    async def check_serving(self, dialect: str) -> None:
        response = await self.http.post(path_of(dialect), json=request_body(dialect))
        assert answered_text(dialect, response.json()) == "fine"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["wafer", "official"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    player = Player()
    engine = ScriptedEngine(served_id=MODEL, script=player)
    async with (
        memory_stack(engine, profile=request.param) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        yield Service(http, player, request.param)


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.rule("chat.stream-is-body", "responses.stream-equals-body")
async def test_an_answer(service: Service, name: str, dialect: str) -> None:
    row = ROWS[name]
    body = request_to_play(dialect, tools=row.tools, think=row.think)
    body |= row.fields.get(dialect, {})
    shown = dialect != "responses" or service.profile == "official"
    for way, steps in cuts(row, every=service.profile == "wafer").items():
        service.player.steps = steps
        for stream in (True, False):
            answer = await service.ask(dialect, body, stream=stream)
            assert answer.end == row.end, way
            assert answer.text == row.text, way
            assert answer.reasoning == (row.reasoning if shown else ""), way
            if stream or dialect != "messages":
                assert tuple(answer.calls) == row.calls, way
            else:
                assert values(answer.calls) == values(row.calls), way
            if row.parts and dialect != "chat":  # where a part is something of its own
                assert tuple(answer.parts) == row.parts, way
            if answer.usage is not None:  # as in streams of the official profile, unasked
                produced, thought = tokens(answer.usage)
                if not row.fields:  # which may end it early
                    assert produced == len(steps) - 1, way
                if row.reasoning and not row.text and not row.calls and dialect != "messages":
                    assert thought == produced, way
            assert all(answer.ids)
            assert len(set(answer.ids)) == len(answer.ids)
    await service.check_serving(dialect)


def tokens(usage: Any) -> tuple[int, int | None]:
    """Those of the output, and how many of them are reasoning, which Messages does not tell."""
    if "completion_tokens" in usage:
        return usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
    details = usage.get("output_tokens_details", {})
    return usage["output_tokens"], details.get("reasoning_tokens")


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.rule("chat.reasoning-hidden", "messages.hidden-reasoning")
async def test_a_model_that_thinks_although_it_was_told_not_to(dialect: str) -> None:
    rows = {
        "thinks": Row(("Hmm, weigh both.", "</think>", "Pick B."), "Pick B."),
        "thinks and says so": Row(("<think>", "Hmm.", "</think>\n\n", "Pick B."), "Pick B."),
        "thinks and calls": Row(
            ("So.", "</think>", call("stock", '{"symbol":"KO"}')), calls=ONE, end="calls"
        ),
        "thinks of a call": Row((DRAFT, "</think>", "No."), "No."),
        "does not think": Row(("Pick", " B."), "Pick B."),
        "closes what it has not opened": Row(("</think>", "Pick B."), "Pick B."),
        "thinks until the limit": Row(("<think>", "Hmm."), end="length", stop=CUT),
    }
    player = Player()
    async with (
        memory_stack(
            ScriptedEngine(served_id=MODEL, script=player), hidden_reasoning=True
        ) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        service = Service(http, player, "wafer")
        body = request_to_play(dialect)
        match dialect:  # in Messages it is off unless it is turned on
            case "chat":
                body["reasoning_effort"] = "none"
            case "responses":
                body["reasoning"] = {}
        for name, row in rows.items():
            for way, steps in cuts(row, every=True).items():
                player.steps = steps
                for stream in (True, False):
                    answer = await service.ask(dialect, body, stream=stream)
                    assert (answer.text, answer.reasoning) == (row.text, ""), (name, way)
                    assert values(answer.calls) == values(row.calls), (name, way)
                    assert answer.end == row.end, (name, way)
                    assert tokens(answer.usage)[0] == len(steps) - 1, (name, way)
                    assert not tokens(answer.usage)[1], (name, way)
