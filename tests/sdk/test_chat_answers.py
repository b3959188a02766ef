"""What a model writes, and what a chat client reads of it: stop strings, reasoning, calls.

Each row is played by the engine piece by piece and read twice, as a stream and as a body; both must
say the same.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
import pytest_asyncio

from schemas.job import ChatPrompt
from schemas.transport.memory import MemoryTransport
from tests.fixtures.stack import MODEL, memory_stack, ready, run_worker, serve_pod, sse_data
from workers.engines.base import EngineRequest
from workers.engines.scripted import End, ScriptedEngine, Step, Text

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Said(NamedTuple):
    """An answer as it was read."""

    content: str
    reasoning: str | None
    calls: tuple[tuple[str, str], ...]
    finish: str
    usage: dict[str, Any]


class Row(NamedTuple):
    """Pieces the engine writes, and what is read of them."""

    pieces: tuple[str, ...]
    content: str
    fields: Mapping[str, Any] = MappingProxyType({})
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"
    end: End = End()


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


ANSWER = {"stop": ["</answer>"]}
OBSERVATION = {"stop": "Observation:"}
THINK = {"reasoning_effort": "high"}

DRAFT = 'Maybe <tool_call>{"name":"delete","arguments":{"p":"/"}}</tool_call>, but look first.'

HIDDEN = "reasoning of a model that was told not to think"

ROWS = {
    HIDDEN: Row(
        ("Hmm, weigh both.", "</think>", "Pick B."), "Pick B.", {"reasoning_effort": "none"}
    ),
    "stop string over several tokens": Row(
        ("42", "</", "ans", "wer", ">", " tail"), "42", ANSWER, end=End()
    ),
    "almost a stop string": Row(("42", "</", "ans", "ible>"), "42</ansible>", ANSWER),
    "cut inside a stop string": Row(("I logged an ", "Obs"), "I logged an Obs", OBSERVATION),
    "cut by the limit inside a stop string": Row(
        ("I logged an ", "Obs"),
        "I logged an Obs",
        OBSERVATION,
        finish="length",
        end=End("length"),
    ),
    "stop string inside reasoning": Row(
        ("<think>5+2 is ", "7 so", "</think>The sum is ", "7."),
        "The sum is ",
        {"stop": ["7"], **THINK},
        reasoning="5+2 is 7 so",
    ),
    "closing marker in the answer": Row(
        ("<think>They want alpha.", "</think>alpha </think> beta"),
        "alpha </think> beta",
        THINK,
        reasoning="They want alpha.",
    ),
    "reasoning opened by the template": Row(
        ("We need 17*3", "=51</thi", "nk>\n\n51"), "51", THINK, reasoning="We need 17*3=51"
    ),
    "nothing but reasoning": Row(
        ("Let x be a number ", "such that"),
        "",
        THINK,
        reasoning="Let x be a number such that",
        finish="length",
        end=End("length"),
    ),
    "call drafted in reasoning": Row(
        (
            DRAFT,
            '</think><tool_call>{"name":"list_dir","argu',
            'ments":{"p":"docs"}}</tool_call>',
        ),
        "",
        {**THINK, "tools": [tool("list_dir"), tool("delete")]},
        reasoning=DRAFT,
        calls=(("list_dir", '{"p":"docs"}'),),
        finish="tool_calls",
    ),
    "line breaks around two calls": Row(
        (
            '\n\n<tool_call>\n{"name": "stock", "arguments": {"symbol":',
            '"KO"}}\n</tool_call>\n<tool_call>\n{"name": "fx"',
            ', "arguments": {"pair":"EURJPY"}}\n</tool_call>\n',
        ),
        "",
        {"tools": [tool("stock"), tool("fx")]},
        calls=(("stock", '{"symbol":"KO"}'), ("fx", '{"pair":"EURJPY"}')),
        finish="tool_calls",
    ),
    "call without arguments": Row(
        ('<tool_call>\n{"name": "get_clock"}\n</tool_call>',),
        "",
        {"tools": [tool("get_clock")]},
        calls=(("get_clock", "{}"),),
        finish="tool_calls",
    ),
    "call cut by the limit": Row(
        ('<tool_call>\n{"name": "save", "arguments": {"title":"Q3","body":"The', " first"),
        "",
        {"tools": [tool("save")], "tool_choice": "required"},
        calls=(("save", '{"title":"Q3","body":"The first'),),
        finish="length",
        end=End("length"),
    ),
    "escapes cut anywhere": Row(
        ('<tool_call>{"name": "post", "arguments": {"msg":"hi \\', "ud8", "3d\\u", 'de00!"}}'),
        "",
        {"tools": [tool("post")]},
        calls=(("post", '{"msg":"hi \\ud83d\\ude00!"}'),),
        finish="tool_calls",
    ),
    "one call where no more are allowed": Row(
        ('One.<tool_call>{"name":"f"}</tool_call>', '<tool_call>{"name":"f"}</tool_call> More.'),
        "One.",
        {"tools": [tool("f")], "parallel_tool_calls": False},
        calls=(("f", "{}"),),
        finish="tool_calls",
    ),
    "stop string after a call": Row(
        ('<tool_call>{"name":"f"}</tool_call>', "So STOP here."),
        "So ",
        {"tools": [tool("f")], "stop": "STOP"},
        calls=(("f", "{}"),),
        finish="tool_calls",
    ),
    "no calls without tools": Row(
        ('<tool_call>{"name":"f"}</tool_call>',), '<tool_call>{"name":"f"}</tool_call>'
    ),
    "no calls with the choice none": Row(
        ('<tool_call>{"name":"f"}</tool_call>',),
        '<tool_call>{"name":"f"}</tool_call>',
        {"tools": [tool("f")], "tool_choice": "none"},
    ),
    "separators and emoji": Row(
        ("left\u2028right\u2029up\u0085", "\U0001f9ea!"), "left\u2028right\u2029up\u0085\U0001f9ea!"
    ),
}


def script(request: EngineRequest) -> Iterator[Step]:
    """Plays the row that the user names."""
    prompt = request.job.prompt
    assert isinstance(prompt, ChatPrompt)
    row = ROWS[prompt.messages[-1].text]
    yield from map(Text, row.pieces)
    yield row.end


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        memory_stack(ScriptedEngine(served_id=MODEL, script=script)) as stack,
        httpx.AsyncClient(base_url=stack.v1) as client,
    ):
        yield client


async def read(http: httpx.AsyncClient, name: str) -> Said:
    """The answer as a stream and as a body, once they are the same."""
    fields = ROWS[name].fields
    body = {"model": MODEL, "messages": [{"role": "user", "content": name}], **fields}
    response = await http.post("/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    message = choice["message"]
    functions = [call["function"] for call in message["tool_calls"] or ()]
    whole = Said(
        message["content"],
        message["reasoning_content"],
        tuple((function["name"], function["arguments"]) for function in functions),
        choice["finish_reason"],
        response.json()["usage"],
    )
    response = await http.post("/chat/completions", json={"stream": True, **body})
    *chunks, usage = [orjson.loads(chunk) for chunk in sse_data(response.content)[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
        called = calls.setdefault(part["index"], [part["function"].get("name", ""), ""])
        called[1] += part["function"]["arguments"]
    streamed = Said(
        "".join(delta.get("content", "") for delta in deltas),
        "".join(delta.get("reasoning_content", "") for delta in deltas) or None,
        tuple((name, arguments) for name, arguments in calls.values()),
        chunks[-1]["choices"][0]["finish_reason"],
        usage["usage"],
    )
    assert streamed == whole
    return whole


@pytest.mark.rule("chat.stream-is-body", "chat.stop", "chat.reasoning-apart", "chat.tool-call")
@pytest.mark.parametrize("name", [name for name in ROWS if name != HIDDEN])
async def test_an_answer(http: httpx.AsyncClient, name: str) -> None:
    row = ROWS[name]
    found = await read(http, name)
    assert found[:4] == (row.content, row.reasoning, row.calls, row.finish)


@pytest.mark.rule("chat.reasoning-hidden")
async def test_reasoning_of_a_model_that_was_told_not_to_think() -> None:
    memory, engine = MemoryTransport(), ScriptedEngine(served_id=MODEL, script=script)
    dispatcher = memory.dispatcher()
    source = memory.job_source(model=MODEL, slots=engine.slots)
    async with (
        run_worker(engine, source, hidden_reasoning=True),
        serve_pod(dispatcher, model=MODEL) as pod,
        httpx.AsyncClient(base_url=pod.v1) as http,
    ):
        await ready(pod.services)
        found = await read(http, HIDDEN)
    await source.close()
    await dispatcher.close()
    assert (found.content, found.reasoning) == ("Pick B.", None)
    assert found.usage["completion_tokens"] == 3
    assert found.usage["completion_tokens_details"] == {"reasoning_tokens": 0}
