"""Responses through the official OpenAI client, its stream helper and its parser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.lib import _pydantic
from pydantic import BaseModel

from tests.fixtures.stack import MODEL, Stack, memory_stack, sse_data
from workers.engines.scripted import ScriptedEngine


class Person(BaseModel):
    name: str
    age: int


WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
}


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(stack) as client:
        yield client


def sdk(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0)


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def respond(client: openai.AsyncOpenAI, stream: bool, **fields: Any) -> Any:
    """The finished response, from a body or from the last event of a stream."""
    answer = await client.responses.create(model=MODEL, stream=stream, **fields)
    if not stream:
        return answer
    last: Any = None
    async for event in answer:
        last = event
    assert last.type in ("response.completed", "response.incomplete")
    return last.response


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.rule("responses.documented-body")
async def test_an_answer(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        answer = await respond(
            client, stream, instructions="Answer in one sentence.", input="[[say:Two words.]]"
        )
        assert answer.output_text == "Two words."
        assert (answer.status, answer.model, answer.object) == ("completed", MODEL, "response")
        assert answer.id.startswith("resp_")
        assert len(answer.id) == 37
        assert answer.instructions == "Answer in one sentence."
        assert answer.parallel_tool_calls is True
        assert answer.usage.output_tokens == 2
        assert answer.usage.total_tokens == answer.usage.input_tokens + 2
        assert answer.usage.output_tokens_details.reasoning_tokens == 0
        assert answer.completed_at >= answer.created_at


@pytest.mark.rule("responses.text-delta", "responses.sequence-number")
async def test_the_stream_joins_to_the_body(client: openai.AsyncOpenAI) -> None:
    text = "left\u2028right 🧪 \u00e9nd \u0085."
    stream = await client.responses.create(model=MODEL, input=f"[[say:{text}]]", stream=True)
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="[[say:one two]]") as stream:
        snapshots = [
            event.snapshot async for event in stream if event.type == "response.output_text.delta"
        ]
        final = await stream.get_final_response()
    assert snapshots == ["one", "one two"]
    assert final.output_text == "one two"


@pytest.mark.rule("responses.json-raw")
async def test_structured_output_is_parsed(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        if stream:
            helper = client.responses.stream(model=MODEL, input="Invent.", text_format=Person)
            async with helper as events:
                done = [e async for e in events if e.type == "response.output_text.done"]
                final: Any = await events.get_final_response()
            assert done[0].parsed == final.output_parsed
        else:
            final = await client.responses.parse(model=MODEL, input="Invent.", text_format=Person)
        assert isinstance(final.output_parsed, Person)
        assert orjson.loads(final.output_text) == final.output_parsed.model_dump()


@pytest.mark.rule("responses.json-one-delta")
async def test_json_of_a_schema_streams_in_one_delta(client: openai.AsyncOpenAI) -> None:
    schema = _pydantic.to_strict_json_schema(Person)
    form: Any = {"type": "json_schema", "name": "person", "strict": True, "schema": schema}
    stream = await client.responses.create(
        model=MODEL, input="Invent.", text={"format": form}, stream=True
    )
    kinds = [event.type async for event in stream]
    assert kinds.count("response.output_text.delta") == 1


@pytest.mark.rule("responses.incomplete", "responses.output-limit")
async def test_the_output_limit(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        answer = await respond(client, stream, input="[[say:one two three]]", max_output_tokens=2)
        assert (answer.output_text, answer.status) == ("one two", "incomplete")
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[0].status == "incomplete"
        assert answer.usage.output_tokens == 2


@pytest.mark.rule("responses.limit-includes-reasoning", "responses.budget-spent")
async def test_reasoning_counts_toward_the_limit(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        answer = await respond(
            client,
            stream,
            input="[[think:Let x be a number such that]]",
            reasoning={"effort": "high"},
            max_output_tokens=5,
        )
        assert (answer.status, answer.output) == ("incomplete", [])
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.usage.output_tokens == 5
        assert answer.usage.output_tokens_details.reasoning_tokens == 5


@pytest.mark.rule("responses.reasoning-not-returned", "responses.official-reasoning")
@pytest.mark.parametrize(
    ("profile", "kinds"), [("wafer", ["message"]), ("official", ["reasoning", "message"])]
)
async def test_reasoning_is_shown_as_the_profile_says(profile: str, kinds: list[str]) -> None:
    async with memory_stack(profile=profile) as stack, sdk(stack) as client:
        for stream in (False, True):
            answer = await respond(
                client,
                stream,
                input="[[think:Hmm, well.]][[say:Yes.]]",
                reasoning={"effort": "high", "summary": "auto"},
            )
            assert [item.type for item in answer.output] == kinds
            assert answer.output_text == "Yes."
            assert answer.usage.output_tokens_details.reasoning_tokens
            if profile == "official":
                assert answer.output[0].content[0].text == "Hmm, well."
            # What came out goes in again.
            history = [user("x"), *(item.to_dict() for item in answer.output)]
            again = await respond(client, stream, input=[*history, user("[[say:Fine.]]")])
            assert again.output_text == "Fine."


@pytest.mark.rule("responses.official-incomplete")
async def test_profile_official_ends_a_cut_stream_with_its_own_event() -> None:
    async with memory_stack(profile="official") as stack, sdk(stack) as client:
        stream = await client.responses.create(
            model=MODEL, input="[[say:a b c]]", max_output_tokens=1, stream=True
        )
        assert [event.type async for event in stream][-1] == "response.incomplete"


@pytest.mark.rule("responses.short-form", "responses.official-short-form")
async def test_the_short_form_of_messages() -> None:
    short: Any = [{"role": "user", "content": "[[say:Hi.]]"}]
    async with memory_stack(profile="official") as stack, sdk(stack) as client:
        answer = await client.responses.create(model=MODEL, input=short)
        assert answer.output_text == "Hi."
    async with memory_stack() as stack, sdk(stack) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model=MODEL, input=short)
        assert raised.value.code == "unsupported_input_item"
        assert raised.value.param == "input[0].type"
        assert "profile: official" in raised.value.message


@pytest.mark.rule("responses.official-hosted-tools")
async def test_profile_official_names_what_it_left_out() -> None:
    async with memory_stack(profile="official") as stack, sdk(stack) as client:
        tools: Any = [WEATHER, {"type": "file_search", "vector_store_ids": ["v"]}]
        raw = await client.responses.with_raw_response.create(
            model=MODEL, input="[[say:Hi.]]", tools=tools
        )
        assert raw.headers["x-headrace-ignored"] == "tools[1]"
        assert raw.parse().output_text == "Hi."


# --- Tools ---------------------------------------------------------------------------------------


@pytest.mark.rule("responses.call-round-trip")
async def test_a_tool_round_trip(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        question = user('[[tool:get_weather {"city": "Paris"}]] [[say:Sunny.]]')
        asked = await respond(client, stream, input=[question], tools=[WEATHER])
        call = asked.output[-1]
        assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
        assert orjson.loads(call.arguments) == {"city": "Paris"}
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "18C"}
        history = [question, *(item.to_dict() for item in asked.output), output]
        answer = await respond(client, stream, input=history, tools=[WEATHER])
        assert answer.output_text == "Sunny."


@pytest.mark.rule("responses.parallel-calls", "responses.parallel")
@pytest.mark.parametrize("parallel", [True, False])
async def test_parallel_calls(client: openai.AsyncOpenAI, parallel: bool) -> None:
    both = '[[tool:get_weather {"city": "Oslo"}]] [[tool:get_weather {"city": "Rome"}]]'
    async with client.responses.stream(
        model=MODEL, input=both, tools=[WEATHER], parallel_tool_calls=parallel
    ) as stream:
        final = await stream.get_final_response()
    calls: Any = final.output
    assert [orjson.loads(c.arguments)["city"] for c in calls] == ["Oslo", "Rome"][: 1 + parallel]
    assert len({call.call_id for call in calls}) == len(calls)


@pytest.mark.rule("responses.tool-choice")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_forced_call(client: openai.AsyncOpenAI, choice: Any) -> None:
    answer = await respond(client, False, input="Hi.", tools=[WEATHER], tool_choice=choice)
    assert [item.type for item in answer.output] == ["function_call"]


@pytest.mark.rule("responses.custom-call", "responses.custom-replay")
async def test_a_custom_tool_round_trip(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        patch = '*** Begin Patch\n+say "hi"\n*** End Patch'
        arguments = orjson.dumps({"input": patch}).decode()
        question = user(f"[[tool:apply_patch {arguments}]] [[say:Done.]]")
        asked = await respond(client, stream, input=[question], tools=[PATCH])
        call = asked.output[-1]
        assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", patch)
        output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
        history = [question, *(item.to_dict() for item in asked.output), output]
        answer = await respond(client, stream, input=history, tools=[PATCH])
        assert answer.output_text == "Done."


# --- What an agent sends -------------------------------------------------------------------------

AGENT: dict[str, Any] = {
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"cmd": {"type": "string"}},
                "required": ["cmd"],
                "additionalProperties": False,
            },
        },
        {
            "type": "namespace",
            "name": "collaboration",
            "description": "Work with others.",
            "tools": [
                {
                    "type": "function",
                    "name": "spawn",
                    "description": "Starts a helper.",
                    "strict": False,
                    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
                }
            ],
        },
        {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]},
        PATCH,
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0197-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-installation-id": "7"},
}


def developer(text: str) -> Any:
    parts = [{"type": "input_text", "text": text}, {"type": "input_text", "text": " And so on."}]
    return {"type": "message", "role": "developer", "content": parts}


async def agent_turn(stack: Stack, items: list[Any]) -> tuple[list[Any], Any]:
    """The finished items as an agent takes them from the stream, and the last response."""
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{stack.v1}/responses", json={"model": MODEL, "input": items, **AGENT}
        )
    assert answer.status_code == 200, answer.text
    events = [orjson.loads(data) for data in sse_data(answer.content)]
    assert events[-1]["type"] == "response.completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return done, events[-1]["response"]


@pytest.mark.rule("responses.agent", "responses.namespace-call", "responses.namespace-replay")
@pytest.mark.parametrize("profile", ["wafer", "official"])
async def test_what_an_agent_sends_and_sends_back(profile: str) -> None:
    async with memory_stack(profile=profile) as stack:
        calls = (
            '[[tool:exec_command {"cmd": "ls"}]] [[tool:collaboration__spawn {"task": "t"}]] '
            '[[tool:web_search {"query": "q"}]] [[tool:apply_patch {"input": "*** x"}]]'
        )
        question = {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>"},
                {"type": "input_text", "text": f"{calls} [[say:All done.]]"},
            ],
        }
        history = [developer("You are an agent."), developer("Be careful."), question]
        items, response = await agent_turn(stack, history)
        made = [item for item in items if "call_id" in item]
        assert [(item["type"], item["name"], item.get("namespace")) for item in made] == [
            ("function_call", "exec_command", None),
            ("function_call", "spawn", "collaboration"),
            ("function_call", "web_search", None),
            ("custom_tool_call", "apply_patch", None),
        ]
        assert items == response["output"]
        results = [
            {
                "type": item["type"].removesuffix("_call") + "_call_output",
                "call_id": item["call_id"],
                "output": "ok",
            }
            for item in made
        ]
        items, _ = await agent_turn(stack, [*history, *items, *results])
        (message,) = [item for item in items if item["type"] == "message"]
        assert message["content"][0]["text"] == "All done."
        history += [*made, *results, message, user("[[say:You are welcome.]]")]
        items, _ = await agent_turn(stack, history)
        assert items[-1]["content"][0]["text"] == "You are welcome."


# --- Errors --------------------------------------------------------------------------------------


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
    ({"input": [{"type": "item_reference"}]}, "unsupported_input_item", "input[0].type"),
    ({"tools": [{"type": "code_interpreter"}]}, "invalid_tool", "tools[0].type"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice_unknown_tool",
        "tool_choice",
    ),
    ({"temperature": 3}, "unsupported_value", "temperature"),
    ({"input": 5}, "schema_validation_failed", "input"),
]


async def test_refusals(client: openai.AsyncOpenAI) -> None:
    for fields, code, param in REFUSALS:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.responses.create(
                    **{"model": MODEL, "input": "x", "stream": stream, **fields}
                )
            assert (raised.value.code, raised.value.param) == (code, param)
            assert (raised.value.request_id or "").startswith("req_")


@pytest.mark.rule("responses.context-overflow")
async def test_prompt_and_limit_over_the_window() -> None:
    engine = ScriptedEngine(served_id=MODEL, context_length=100)
    async with memory_stack(engine) as stack, sdk(stack) as client:
        for fields in ({"max_output_tokens": 90}, {"input": "x" * 200}):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.responses.create(**{"model": MODEL, "input": "x" * 20, **fields})
            assert raised.value.code == "context_length_exceeded"
            assert "maximum context length" in raised.value.message
        answer = await client.responses.create(model=MODEL, input="[[say:a b]]")
        assert answer.output_text == "a b"


@pytest.mark.rule("responses.failed")
async def test_a_failure_in_the_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=MODEL, input="[[say:one two three]][[fail:2]]", stream=True
    )
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    message: Any = last.response.output[0]
    assert (message.status, message.content[0].text) == ("incomplete", "one two")
    assert last.response.usage is not None
    assert last.response.usage.input_tokens > 0
    assert last.response.usage.output_tokens == 2
    assert "response.output_item.done" not in [event.type for event in events]
    with pytest.raises(RuntimeError):
        async with client.responses.stream(
            model=MODEL, input="[[say:one two three]][[fail:2]]"
        ) as helper:
            await helper.get_final_response()


async def test_a_failure_without_a_stream(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        await client.responses.create(model=MODEL, input="[[say:one two]][[fail:1]]")
    assert raised.value.code == "generation_failed"


@pytest.mark.rule("responses.not-stored")
async def test_nothing_is_stored(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model=MODEL, input="[[say:x]]", store=True)
    attempts: list[Any] = [
        lambda: client.responses.retrieve(answer.id),
        lambda: client.responses.delete(answer.id),
        lambda: client.responses.cancel(answer.id),
        lambda: client.responses.input_items.list(answer.id),
        lambda: client.responses.compact(model=MODEL),
    ]
    for attempt in attempts:
        with pytest.raises(openai.NotFoundError) as raised:
            await attempt()
        assert raised.value.code == "not_found"
        assert raised.value.type == "not_found_error"


@pytest.mark.rule("responses.not-stored")
async def test_a_socket_upgrade_is_declined(stack: Stack) -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{stack.v1}/responses", headers=headers)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.rule("responses.count")
async def test_counting(client: openai.AsyncOpenAI) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "input": [user("[[say:Hi.]]")],
        "instructions": "Be brief.",
        "tools": [WEATHER],
    }
    counted = await client.responses.input_tokens.count(**fields)
    assert counted.object == "response.input_tokens"
    answer = await client.responses.create(**fields)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens
