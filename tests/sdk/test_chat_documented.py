"""Every example of the Chat Completions page, sent to a live server; answers are read as JSON.

What the page prints is abridged, so an answer may have more fields, but never fewer, and never one
of another type.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.fixtures.stack import MODEL, Stack, memory_stack, sse_data

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": CITY,
    },
}
USAGE = {
    "prompt_tokens": 22,
    "completion_tokens": 16,
    "total_tokens": 38,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer any"}
    async with httpx.AsyncClient(base_url=stack.v1, headers=headers) as client:
        yield client


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def ask(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post("/chat/completions", json={"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[Any]:
    """The chunks; checks what makes them a stream."""
    body = {"model": MODEL, "stream": True, **fields}
    response = await http.post("/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    records = response.content.removesuffix(b"\n\n").split(b"\n\n")
    assert all(record.startswith(b"data: ") and b"\n" not in record for record in records)
    *chunks, done = sse_data(response.content)
    assert done == b"[DONE]"
    return [orjson.loads(chunk) for chunk in chunks]


def check_shape(found: Any, documented: Any, where: str = "answer") -> None:
    """Every documented field is there, with the documented type; null stands for itself."""
    if isinstance(documented, dict):
        assert isinstance(found, dict), where
        for name, value in documented.items():
            assert name in found, f"{where}.{name}"
            check_shape(found[name], value, f"{where}.{name}")
    elif isinstance(documented, list):
        assert isinstance(found, list), where
        assert len(found) == len(documented), where
        for index, (item, value) in enumerate(zip(found, documented, strict=True)):
            check_shape(item, value, f"{where}[{index}]")
    else:
        assert type(found) is type(documented), where


@pytest.mark.rule("chat.example-request", "chat.body", "chat.roles", "chat.finish-stop")
async def test_request_and_response(http: httpx.AsyncClient) -> None:
    text = "Wafer Serverless is pay-per-token access to Wafer-hosted models."
    answer = await ask(
        http,
        messages=[
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": f"What is Wafer Serverless? [[say:{text}]]"},
        ],
        max_tokens=1024,
    )
    documented = {
        "id": "c3a7ac6de84a4e9eade77ab63a27a1ca",
        "object": "chat.completion",
        "created": 1790793243,
        "model": "GLM-5.3",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "reasoning_content": None,
                    "tool_calls": None,
                },
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    check_shape(answer, documented)
    assert answer["choices"][0].items() >= {"index": 0, "finish_reason": "stop"}.items()
    message = answer["choices"][0]["message"]
    assert message.items() >= documented["choices"][0]["message"].items()  # type: ignore[index]
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    assert len(answer["id"]) == 32
    assert int(answer["id"], 16) >= 0
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.rule(
    "chat.stream-records",
    "chat.stream-role-first",
    "chat.stream-text",
    "chat.stream-finish",
    "chat.stream-usage-last",
    "chat.stream-done",
)
async def test_streaming(http: httpx.AsyncClient) -> None:
    chunks = await stream(
        http, messages=user("Count from 1 to 5. [[say:1, 2, 3, 4, 5]]"), max_tokens=256
    )
    opening, *texts, finish, usage = chunks
    head = {"id": "x", "object": "x", "created": 1, "model": "x"}
    for chunk in chunks:
        check_shape(chunk, head)
        assert chunk["object"] == "chat.completion.chunk"
        assert {name: chunk[name] for name in head} == {name: opening[name] for name in head}
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"]["content"] for c in texts) == "1, 2, 3, 4, 5"
    assert all(c["choices"][0]["finish_reason"] is None for c in (opening, *texts))
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    check_shape(usage["usage"], USAGE)
    assert all("usage" not in chunk for chunk in chunks[:-1])


@pytest.mark.rule("chat.tool-call", "chat.finish-tool-calls", "chat.tool-arguments-are-text")
async def test_tools(http: httpx.AsyncClient) -> None:
    answer = await ask(
        http,
        messages=user('What is the weather in Paris? [[tool:get_weather {"city": "Paris"}]]'),
        tools=[WEATHER],
        tool_choice="auto",
        max_tokens=1024,
    )
    (choice,) = answer["choices"]
    documented = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_c5b76a367ad9406c8354ae14",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }
    check_shape(choice["message"], documented)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert len(call["id"]) == len("call_c5b76a367ad9406c8354ae14")
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


@pytest.mark.rule("chat.tool-result")
async def test_tool_result(http: httpx.AsyncClient) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    answer = await ask(
        http,
        messages=[
            *user("What is the weather in Paris? [[tool:get_weather {}]] [[say:18C.]]"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "18C and sunny"},
        ],
        tools=[{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
    )
    assert answer["choices"][0]["message"]["content"] == "18C."
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.rule("chat.stream-tool-opening", "chat.stream-tool-fragments")
async def test_streaming_tool_calls(http: httpx.AsyncClient) -> None:
    chunks = await stream(
        http,
        messages=user('What is the weather in Paris? [[tool:get_weather {"city": "Paris"}]]'),
        tools=[WEATHER],
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-2]]
    entries: Sequence[Any] = [delta["tool_calls"] for delta in deltas]
    assert all(
        len(entry) == 1 and delta.keys() == {"tool_calls"}
        for entry, delta in zip(entries, deltas, strict=True)
    )
    (opening,), *fragments = entries
    assert opening == {
        "id": opening["id"],
        "index": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert fragments
    for (fragment,) in fragments:
        assert fragment.keys() == {"index", "function"}
        assert fragment["index"] == 0
        assert fragment["function"].keys() == {"arguments"}
    joined = "".join(fragment["function"]["arguments"] for (fragment,) in fragments)
    assert orjson.loads(joined) == {"city": "Paris"}
    assert chunks[-2]["choices"][0].items() >= {"delta": {}, "finish_reason": "tool_calls"}.items()


@pytest.mark.rule("chat.several-calls")
async def test_several_calls_in_one_message(http: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {
        "messages": user(
            '[[tool:get_weather {"city": "Paris"}]][[tool:get_weather {"city": "Rome"}]]'
        ),
        "tools": [WEATHER],
    }
    body = (await ask(http, **asked))["choices"][0]["message"]["tool_calls"]
    chunks = await stream(http, **asked)
    entries = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks[1:-2]]
    assert [entry["index"] for entry in entries if "id" in entry] == [0, 1]
    for index, city in enumerate(("Paris", "Rome")):
        joined = "".join(e["function"]["arguments"] for e in entries if e["index"] == index)
        assert orjson.loads(joined) == {"city": city}
        assert orjson.loads(body[index]["function"]["arguments"]) == {"city": city}
    assert body[0]["id"] != body[1]["id"]
    single = await ask(http, parallel_tool_calls=False, **asked)
    assert len(single["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.rule("chat.json-mode", "chat.json-is-content")
async def test_json_mode(http: httpx.AsyncClient) -> None:
    answer = await ask(
        http,
        messages=user('Reply in JSON: [[say:{"ok": true}]]'),
        response_format={"type": "json_object"},
    )
    assert orjson.loads(answer["choices"][0]["message"]["content"]) == {"ok": True}


@pytest.mark.rule("chat.json-schema", "chat.json-is-content")
async def test_structured_outputs(http: httpx.AsyncClient) -> None:
    answer = await ask(
        http,
        messages=user("Invent a fictional person."),
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "person",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                    "required": ["name", "age"],
                    "additionalProperties": False,
                },
            },
        },
        max_tokens=512,
    )
    content = answer["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    person = orjson.loads(content)
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)


@pytest.mark.rule(
    "chat.reasoning-apart",
    "chat.reasoning-streamed",
    "chat.reasoning-tokens",
    "chat.reasoning-effort",
)
async def test_reasoning(http: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {
        "messages": user("Is 391 prime? [[think:17 times 23.]][[say:No.]]"),
        "reasoning_effort": "high",
        "max_tokens": 4096,
    }
    answer = await ask(http, **asked)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("17 times 23.", "No.")
    reasoning_tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning_tokens < answer["usage"]["completion_tokens"]
    chunks = await stream(http, **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-2]]
    kinds = [kind for delta in deltas for kind in delta]
    assert kinds == sorted(kinds, key=("reasoning_content", "content").index)
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "17 times 23."
    assert "".join(d.get("content", "") for d in deltas) == "No."
    assert chunks[-1]["usage"] == answer["usage"]


@pytest.mark.rule("chat.length-without-content", "chat.max-tokens-include-reasoning")
async def test_reasoning_may_use_up_the_limit(http: httpx.AsyncClient) -> None:
    answer = await ask(
        http,
        messages=user("[[think:one two three four five]][[say:No.]]"),
        reasoning={"effort": "high"},
        max_tokens=3,
    )
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert choice["message"]["reasoning_content"] == "one two three"
    assert answer["usage"]["completion_tokens"] == 3
