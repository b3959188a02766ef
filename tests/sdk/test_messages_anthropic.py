"""The official Anthropic client against a live server on a loopback socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from anthropic import transform_schema
from pydantic import BaseModel

from schemas.transport.memory import MemoryTransport
from tests.fixtures.stack import (
    MODEL,
    Stack,
    TimeLimits,
    memory_stack,
    ready,
    run_worker,
    serve_pod,
)
from workers.engines.scripted import ScriptedEngine

WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASK_WEATHER = 'Weather in Paris? [[say:Let me see.]] [[tool:get_weather {"city": "Paris"}]]'


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with connect(stack) as client:
        yield client


def connect(stack: Stack, **fields: Any) -> anthropic.AsyncAnthropic:
    fields = {"api_key": "any", "max_retries": 0, **fields}
    return anthropic.AsyncAnthropic(base_url=stack.url, **fields)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def say(text: str) -> Any:
    return [user(f"[[say:{text}]]")]


@pytest.mark.rule("messages.host-root", "messages.body", "messages.request-id")
async def test_a_message(client: anthropic.AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(
        model=MODEL, max_tokens=10, system="Be brief.", messages=say("Two words.")
    )
    answer = await raw.parse()
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Two words."}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert answer.usage.output_tokens == 2
    assert answer.usage.input_tokens > 0
    assert answer.usage.cache_creation_input_tokens == 0
    assert answer._request_id == raw.headers["request-id"] == raw.headers["x-request-id"]
    assert answer._request_id.startswith("req_")


@pytest.mark.rule("messages.stream-events", "messages.text-deltas", "messages.start-usage-zero")
async def test_raw_events(client: anthropic.AsyncAnthropic) -> None:
    stream = await client.messages.create(
        model=MODEL, max_tokens=10, messages=say("one two"), stream=True
    )
    events = [event async for event in stream]
    deltas = [event for event in events if event.type == "content_block_delta"]
    assert [event.type for event in events if event not in deltas] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert {event.delta.type for event in deltas} == {"text_delta"}
    assert "".join(getattr(event.delta, "text", "") for event in deltas) == "one two"
    start, end = events[0], events[-2]
    assert start.type == "message_start"
    assert end.type == "message_delta"
    assert start.message.usage.input_tokens == 0
    assert end.usage.input_tokens
    assert end.usage.output_tokens == 2


async def test_the_stream_helper_reads_the_body(client: anthropic.AsyncAnthropic) -> None:
    fields: Any = {
        "model": MODEL,
        "max_tokens": 40,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [user("[[think:Left \u2028 right.]][[say:Yes, 🧪 \u0085.]]")],
    }
    body = await client.messages.create(**fields)
    async with client.messages.stream(**fields) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "Yes, 🧪 \u0085."
    assert final.model_dump(exclude={"id"}) == body.model_dump(exclude={"id"})


@pytest.mark.rule(
    "messages.thinking-enabled",
    "messages.thinking-first",
    "messages.thinking-off-by-default",
    "messages.hidden-reasoning",
)
async def test_thinking(client: anthropic.AsyncAnthropic) -> None:
    messages = [user("[[think:Hmm, well.]][[say:Yes.]]")]
    on = await client.messages.create(
        model=MODEL, max_tokens=40, messages=messages, thinking={"type": "adaptive"}
    )
    assert [block.to_dict() for block in on.content] == [
        {"type": "thinking", "thinking": "Hmm, well.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    off = await client.messages.create(model=MODEL, max_tokens=40, messages=messages)
    assert [block.to_dict() for block in off.content] == [{"type": "text", "text": "Yes."}]
    history: list[Any] = [*messages, {"role": "assistant", "content": on.content}]
    again = await client.messages.create(
        model=MODEL, max_tokens=40, messages=[*history, *say("Good.")]
    )
    assert getattr(again.content[0], "text", "") == "Good."


@pytest.mark.rule("messages.tool-use", "messages.tool-result", "messages.tool-input-deltas")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_makes_the_round(client: anthropic.AsyncAnthropic, streamed: bool) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER]}
    messages: list[Any] = [user(ASK_WEATHER)]

    async def ask() -> anthropic.types.Message:
        if not streamed:
            message: anthropic.types.Message = await client.messages.create(
                messages=messages, **fields
            )
            return message
        async with client.messages.stream(messages=messages, **fields) as stream:
            return await stream.get_final_message()

    answer = await ask()
    assert answer.stop_reason == "tool_use"
    text, call = answer.content
    assert text.type == "text"
    assert text.text.strip() == "Let me see."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18C and sunny"}
    messages += [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    final = await ask()
    assert final.stop_reason == "end_turn"
    assert final.content[0].type == "text"


@pytest.mark.rule("messages.tool-choice", "messages.parallel-calls")
async def test_choices_among_tools(client: anthropic.AsyncAnthropic) -> None:
    clock: Any = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    fields: Any = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER, clock]}
    both = [user("[[tool:clock]] [[tool:clock]]")]

    async def called(choice: Any) -> list[str]:
        answer = await client.messages.create(messages=both, tool_choice=choice, **fields)
        return [block.name for block in answer.content if block.type == "tool_use"]

    assert await called({"type": "auto"}) == ["clock", "clock"]
    assert await called({"type": "any"}) == ["clock", "clock"]
    assert await called({"type": "none"}) == []
    assert await called({"type": "auto", "disable_parallel_tool_use": True}) == ["clock"]
    assert set(await called({"type": "tool", "name": "get_weather"})) == {"get_weather"}
    forced = await client.messages.create(
        messages=[user("What time is it?")],
        tool_choice={"type": "tool", "name": "clock"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        **fields,
    )
    assert [block.type for block in forced.content] == ["tool_use"]


@pytest.mark.rule("messages.server-tools")
async def test_a_server_tool_is_called_like_any_other(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(
        model=MODEL,
        max_tokens=200,
        tools=[
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "bash_20250124", "name": "bash"},
        ],
        messages=[user('[[tool:bash {"command": "ls"}]]')],
    )
    (call,) = answer.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("bash", {"command": "ls"})


@pytest.mark.rule(
    "messages.stop-sequences", "messages.stop-sequence-reported", "messages.stop-reasons"
)
async def test_a_stop_sequence(client: anthropic.AsyncAnthropic) -> None:
    fields: Any = {
        "model": MODEL,
        "max_tokens": 20,
        "messages": say("one two three four"),
        "stop_sequences": ["nowhere", " three"],
    }
    body = await client.messages.create(**fields)
    async with client.messages.stream(**fields) as stream:
        streamed = await stream.get_final_message()
    for answer in (body, streamed):
        assert [block.to_dict() for block in answer.content] == [
            {"type": "text", "text": "one two"}
        ]
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " three")


@pytest.mark.rule("messages.max-tokens", "messages.stop-reasons")
async def test_the_limit(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(model=MODEL, max_tokens=2, messages=say("a b c"))
    assert answer.stop_reason == "max_tokens"
    assert getattr(answer.content[0], "text", "") == "a b"
    assert answer.usage.output_tokens == 2


@pytest.mark.rule("messages.prefill")
async def test_a_begun_answer_is_continued(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(
        model=MODEL,
        max_tokens=20,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=[*say("four."), {"role": "assistant", "content": "Two and two is"}],
    )
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "four."}]


@pytest.mark.rule("messages.prefill")
async def test_a_begun_answer_is_continued_by_a_model_that_always_thinks_first() -> None:
    engine, memory = ScriptedEngine(served_id=MODEL), MemoryTransport()
    dispatcher = memory.dispatcher()
    source = memory.job_source(model=MODEL, slots=4)
    async with (
        run_worker(engine, source, reasoning_format="deepseek-r1"),
        serve_pod(dispatcher, model=MODEL) as pod,
        anthropic.AsyncAnthropic(base_url=pod.url, api_key="any", max_retries=0) as client,
    ):
        await ready(pod.services)
        answer = await client.messages.create(
            model=MODEL,
            max_tokens=20,
            messages=[*say("four."), {"role": "assistant", "content": "Two and two is"}],
        )
    await source.close()
    await dispatcher.close()
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "four."}]


class City(BaseModel):
    name: str
    visits: int


@pytest.mark.rule("messages.output-format")
async def test_an_answer_in_a_form(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=[user("Paris?")],
        output_config={"format": {"type": "json_schema", "schema": transform_schema(City)}},
    )
    City.model_validate_json(getattr(answer.content[0], "text", ""))
    parsed = await client.messages.parse(
        model=MODEL, max_tokens=200, messages=[user("Paris?")], output_format=City
    )
    assert isinstance(parsed.parsed_output, City)


# --- What clients send beside the body -----------------------------------------------------------


@pytest.mark.rule("messages.versions-ignored", "messages.ignored-fields")
async def test_betas_and_the_query_have_no_effect(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.beta.messages.create(
        model=MODEL,
        max_tokens=20,
        messages=say("ok"),
        betas=["context-management-2025-06-27", "nobody-knows-2099-01-01"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        extra_headers={"anthropic-version": "1999-01-01"},
    )
    assert getattr(answer.content[0], "text", "") == "ok"
    async with client.beta.messages.stream(
        model=MODEL, max_tokens=20, messages=say("ok")
    ) as stream:
        assert getattr((await stream.get_final_message()).content[0], "text", "") == "ok"


@pytest.mark.rule("messages.keys")
async def test_keys() -> None:
    async with memory_stack(api_keys=("good-key",)) as stack:
        keys: list[dict[str, str]] = [{"api_key": "good-key"}, {"auth_token": "good-key"}]
        for key in keys:
            async with anthropic.AsyncAnthropic(
                base_url=stack.url,
                max_retries=0,
                **key,  # type: ignore[arg-type]  # by name
            ) as client:
                assert await client.messages.create(model=MODEL, max_tokens=5, messages=say("x"))
        async with connect(stack, api_key="bad-key") as client:
            with pytest.raises(anthropic.AuthenticationError) as raised:
                await client.messages.create(model=MODEL, max_tokens=5, messages=say("x"))
            assert "bad-key" not in str(raised.value)


# --- Failures ------------------------------------------------------------------------------------


def detail(error: anthropic.APIStatusError) -> dict[str, Any]:
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    inner: dict[str, Any] = error.body["error"]
    assert error.body["request_id"] == inner["request_id"]
    return inner


@pytest.mark.rule("messages.unknown-model", "messages.error-classes", "messages.errors")
@pytest.mark.parametrize("streamed", [False, True])
async def test_unknown_models(client: anthropic.AsyncAnthropic, streamed: bool) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.messages.create(
            model="claude-opus-4-8", max_tokens=5, messages=say("x"), stream=streamed
        )
    error = detail(raised.value)
    assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")
    assert raised.value.request_id == error["request_id"]


@pytest.mark.rule("messages.error-classes", "messages.errors")
async def test_bad_requests(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model=MODEL, max_tokens=0, messages=say("x"))
    error = detail(raised.value)
    assert (error["type"], error["param"]) == ("invalid_request_error", "max_tokens")
    answer = await client.messages.create(model=MODEL, max_tokens=5, messages=say("x"))
    assert answer.stop_reason == "end_turn"


@pytest.mark.rule("messages.context-length", "messages.no-retry-without-limit")
async def test_what_does_not_fit() -> None:
    engine = ScriptedEngine(served_id=MODEL, context_length=200)
    async with memory_stack(engine) as stack, connect(stack) as client:
        for limit, text, words in (
            (10, "x" * 300, "maximum"),
            (190, "x" * 40, "exceed context limit"),
        ):
            for stream in (False, True):
                with pytest.raises(anthropic.BadRequestError) as raised:
                    await client.messages.create(
                        model=MODEL, max_tokens=limit, messages=[user(text)], stream=stream
                    )
                error = detail(raised.value)
                assert error["code"] == "context_length_exceeded"
                assert error["message"].startswith("prompt is too long: ")
                assert words in error["message"]


@pytest.mark.rule("messages.overload-status", "messages.error-classes")
async def test_nobody_to_serve_it_is_529() -> None:
    async with memory_stack(worker=False) as stack, connect(stack) as client:
        for stream in (False, True):
            with pytest.raises(anthropic.APIStatusError) as raised:
                await client.messages.create(
                    model=MODEL, max_tokens=5, messages=say("x"), stream=stream
                )
            assert type(raised.value).__name__ == "OverloadedError"
            assert raised.value.status_code == 529
            assert detail(raised.value)["type"] == "overloaded_error"
            assert int(raised.value.response.headers["retry-after"]) > 0


@pytest.mark.rule("messages.failed-stream")
async def test_a_failure_in_the_stream_is_no_success(client: anthropic.AsyncAnthropic) -> None:
    messages = [user("[[say:one two three]][[fail:2]]")]
    stream = await client.messages.create(
        model=MODEL, max_tokens=20, messages=messages, stream=True
    )
    seen = []
    with pytest.raises(anthropic.APIStatusError) as raised:
        async for event in stream:
            seen.append(event.type)  # noqa: PERF401 - a comprehension would be lost with the error
    assert detail(raised.value)["code"] == "generation_failed"
    assert seen == ["message_start", "content_block_start", *["content_block_delta"] * 2]
    with pytest.raises(anthropic.APIStatusError):
        async with client.messages.stream(model=MODEL, max_tokens=20, messages=messages) as helper:
            await helper.get_final_message()
    with pytest.raises(anthropic.InternalServerError):
        await client.messages.create(model=MODEL, max_tokens=20, messages=messages)


@pytest.mark.rule("messages.keep-alive", "messages.no-ping")
async def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    limits = TimeLimits(commit_after_accept_s=0, keep_alive_s=0.05, stall_s=0.2, first_token_s=0.2)
    body = {"model": MODEL, "max_tokens": 20, "stream": True}
    body["messages"] = [user("[[say:a b]][[hang:1]]")]
    async with memory_stack(limits=limits) as stack, httpx.AsyncClient(timeout=10) as http:
        response = await http.post(f"{stack.url}/v1/messages", json=body)
    assert response.content.count(b": keep-alive\n\n") >= 3
    names = [line[7:] for line in response.text.split("\n") if line.startswith("event: ")]
    assert names == ["message_start", "content_block_start", "content_block_delta", "error"]


# --- Claude Code ---------------------------------------------------------------------------------

CACHE = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def agent_turn(*history: Any) -> dict[str, Any]:
    """A request as this client makes it: everything at once."""
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332; cch=aa11;"},
            {"type": "text", "text": "You are an agent.", **CACHE},
            {"type": "text", "text": "Work in /src.", **CACHE},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Be careful.</system-reminder>\n"},
                    {"type": "text", "text": "<system-reminder>It is late.</system-reminder>\n"},
                    {
                        "type": "text",
                        "text": '[[tool:Bash {"command": "ls", "description": "List"}]]',
                        **CACHE,
                    },
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "Tools may be deferred."}]},
            *history,
        ],
        "tools": [
            {
                "name": "Bash",
                "description": "Run a command.",
                "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "properties": {
                        "command": {"type": "string"},
                        "timeout": {"type": "number"},
                        "description": {"type": "string"},
                    },
                    "required": ["command"],
                    "additionalProperties": False,
                },
                "eager_input_streaming": True,
            },
            {
                "name": "WebSearch",
                "description": "Search.",
                "input_schema": {"type": "object", "properties": {}},
                "defer_loading": True,
                **CACHE,
            },
        ],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "safeguards": {"kind": "default"},
        "metadata": {"user_id": "user_0_account__session_1"},
        "temperature": 1,
    }


async def events(http: httpx.AsyncClient, stack: Stack, body: Any) -> list[dict[str, Any]]:

    response = await http.post(
        f"{stack.url}/v1/messages?beta=true",
        json=body,
        headers={
            "authorization": "Bearer any",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,x-2099",
            "x-app": "cli",
            "x-claude-code-session-id": "1",
            "x-stainless-retry-count": "0",
        },
    )
    assert response.status_code == 200, response.text
    found = []
    for record in response.text.removesuffix("\n\n").split("\n\n"):
        event, data = record.split("\n")
        found.append(orjson.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


@pytest.mark.rule("messages.system-turns", "messages.ignored-fields", "messages.versions-ignored")
async def test_an_agents_turn_and_its_next_one(stack: Stack) -> None:
    async with httpx.AsyncClient(timeout=10) as http:
        first = await events(http, stack, agent_turn())
        blocks = [e["content_block"] for e in first if e["type"] == "content_block_start"]
        assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
        assert first[-2]["delta"]["stop_reason"] == "tool_use"
        thought = "".join(
            e["delta"]["thinking"]
            for e in first
            if e["type"] == "content_block_delta" and e["delta"]["type"] == "thinking_delta"
        )
        call = {**blocks[1], "input": {"command": "ls", "description": "List"}}
        history = [
            {
                "role": "assistant",
                "content": [{**blocks[0], "thinking": thought}, call],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call["id"],
                        "content": "a.txt",
                        "is_error": False,
                        **CACHE,
                    }
                ],
            },
        ]
        second = await events(http, stack, agent_turn(*history))
        blocks = [e["content_block"]["type"] for e in second if e["type"] == "content_block_start"]
        assert blocks == ["thinking", "text"]
        assert second[-2]["delta"]["stop_reason"] == "end_turn"
        assert second[-1] == {"type": "message_stop"}


@pytest.mark.rule("messages.official-any", "messages.official-usage", "messages.official-ping")
async def test_the_official_profile() -> None:
    async with memory_stack(profile="official") as stack, connect(stack) as client:
        answer = await client.messages.create(
            model=MODEL,
            max_tokens=200,
            tools=[WEATHER],
            tool_choice={"type": "any"},
            messages=[user("Well?")],
        )
        assert [block.type for block in answer.content] == ["tool_use"]
        async with httpx.AsyncClient() as http:
            body = {"model": MODEL, "max_tokens": 5, "messages": say("x"), "stream": True}
            found = await events(http, stack, body)
        assert found[1] == {"type": "ping"}
        assert found[0]["message"]["usage"]["input_tokens"] > 0
        async with client.messages.stream(model=MODEL, max_tokens=5, messages=say("x")) as stream:
            assert (await stream.get_final_message()).usage.output_tokens == 1
