"""Tools and structured outputs through the official OpenAI client and its helpers."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
import pytest_asyncio
from openai.lib.streaming.chat import FunctionToolCallArgumentsDoneEvent
from openai.types.chat import ChatCompletionMessageCustomToolCall
from pydantic import BaseModel

from tests.fixtures.stack import MODEL, Stack, memory_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '[[tool:get_weather {"city": "Paris", "days": 2}]]'


class GetWeather(BaseModel):
    """Get the weather."""

    city: str
    days: int


class Person(BaseModel):
    name: str
    age: int


class Family(BaseModel):
    members: list[Person]
    pet: Person | None


WEATHER: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
NOTE: Any = {"type": "custom", "custom": {"name": "note", "description": "Writes a note."}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.rule("chat.sdk", "chat.tool-result")
@pytest.mark.parametrize("stream", [False, True])
async def test_round_trip(client: openai.AsyncOpenAI, stream: bool) -> None:
    messages = user(f"Look it up. {CALL} [[say:Rain.]]")
    message: Any
    if stream:
        async with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[WEATHER]
        ) as events:
            done = [e async for e in events if isinstance(e, FunctionToolCallArgumentsDoneEvent)]
            message = (await events.get_final_completion()).choices[0].message
        assert [(event.name, event.parsed_arguments) for event in done] == [
            ("get_weather", GetWeather(city="Paris", days=2))
        ]
    else:
        answer = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER]
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        message = answer.choices[0].message
    assert message.content.strip() == "Rain."
    (call,) = message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert orjson.loads(call.function.arguments) == {"city": "Paris", "days": 2}
    final = await client.chat.completions.create(
        model=MODEL,
        messages=[
            *messages,
            message.model_dump(include={"role", "content", "tool_calls"}),
            {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "x"}]},
        ],
        tools=[WEATHER],
    )
    assert final.choices[0].message.content == "Rain."
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.rule("chat.tool-call")
async def test_parse_helper_makes_arguments_a_model(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(model=MODEL, messages=user(CALL), tools=[WEATHER])
    assert answer.choices[0].message.tool_calls is not None
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Paris", days=2)


@pytest.mark.rule("chat.tool-choice-required", "chat.tool-choice-named", "chat.tool-choice-none")
async def test_the_choice_is_obeyed_without_being_asked_in_words(
    client: openai.AsyncOpenAI,
) -> None:
    other: Any = {"type": "function", "function": {"name": "other"}}

    async def called(choice: Any, text: str = "Just chat.") -> list[str]:
        answer = await client.chat.completions.create(
            model=MODEL, messages=user(text), tools=[WEATHER, other], tool_choice=choice
        )
        calls = answer.choices[0].message.tool_calls or []
        assert answer.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        return [call.function.name for call in calls if call.type == "function"]

    assert await called("auto") == []
    assert await called("none", CALL) == []
    assert len(await called("required")) == 1
    assert await called({"type": "function", "function": {"name": "other"}}, CALL) == ["other"]
    only_other = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [other]},
    }
    assert await called(only_other, CALL) == ["other"]


@pytest.mark.rule("chat.finish-length")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_cut_by_the_limit(client: openai.AsyncOpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": user('[[tool:get_weather {"city": "a b c d e f g h i j"}]]'),
        "tools": [WEATHER],
        "max_tokens": 8,
    }
    if stream:
        chunks = [c async for c in await client.chat.completions.create(stream=True, **asked)]
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        assert reasons[-1] == "length"
        fragments = [c.choices[0].delta.tool_calls or [] for c in chunks if c.choices]
        arguments = "".join(
            f.function.arguments or "" for part in fragments for f in part if f.function
        )
    else:
        answer = await client.chat.completions.create(**asked)
        assert answer.choices[0].finish_reason == "length"
        arguments = answer.choices[0].message.tool_calls[0].function.arguments
    assert arguments.startswith('{"city": "a b')
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(arguments)


@pytest.mark.rule("chat.custom-tools")
async def test_custom_tool(client: openai.AsyncOpenAI) -> None:
    text = 'two lines\nand a "quote" \u2028'
    arguments = orjson.dumps({"input": text}).decode()
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": user(f"[[tool:note {arguments}]]"),
        "tools": [NOTE, WEATHER],
    }
    answer = await client.chat.completions.create(**asked)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert (call.custom.name, call.custom.input) == ("note", text)
    stream = await client.chat.completions.create(stream=True, **asked)
    deltas = [c.choices[0].delta async for c in stream if c.choices]
    fragments: list[Any] = [part for delta in deltas for part in delta.tool_calls or ()]
    assert "".join(part.custom["input"] for part in fragments) == text
    assert [part.custom.get("name") for part in fragments].count("note") == 1
    history: list[Any] = [
        *asked["messages"],
        answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "written"},
    ]
    final = await client.chat.completions.create(model=MODEL, messages=history, tools=[NOTE])
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.rule("chat.legacy-functions", "chat.legacy-history")
async def test_legacy_functions(client: openai.AsyncOpenAI) -> None:
    functions: Any = [{"name": "get_weather", "parameters": GetWeather.model_json_schema()}]
    messages = user(f"{CALL} [[say:Rain.]]")
    answer = await client.chat.completions.create(
        model=MODEL, messages=messages, functions=functions
    )
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "get_weather"
    arguments = choice.message.function_call.arguments
    assert orjson.loads(arguments) == {"city": "Paris", "days": 2}
    stream = await client.chat.completions.create(
        model=MODEL, messages=messages, functions=functions, stream=True
    )
    chunks = [chunk.choices[0] async for chunk in stream if chunk.choices]
    calls = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
    assert [call.name for call in calls if call.name] == ["get_weather"]
    assert "".join(call.arguments or "" for call in calls) == arguments
    assert chunks[-1].finish_reason == "function_call"
    history: list[Any] = [
        *messages,
        choice.message.model_dump(include={"role", "content", "function_call"}),
        {"role": "function", "name": "get_weather", "content": "18C"},
    ]
    final = await client.chat.completions.create(model=MODEL, messages=history, functions=functions)
    assert final.choices[0].message.content == "Rain."


# --- Structured outputs --------------------------------------------------------------------------


@pytest.mark.rule("chat.json-schema", "chat.schema-refs-inlined")
@pytest.mark.parametrize("form", [Person, Family])
async def test_parse_helper(client: openai.AsyncOpenAI, form: type[BaseModel]) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL, messages=user("Invent somebody."), response_format=form
    )
    assert isinstance(answer.choices[0].message.parsed, form)


@pytest.mark.rule("chat.json-schema")
async def test_stream_helper_parses(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=user("Invent somebody."), response_format=Family
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        message = (await stream.get_final_completion()).choices[0].message
    assert "".join(deltas) == message.content
    assert isinstance(message.parsed, Family)


@pytest.mark.rule("chat.format-with-tools-auto", "chat.format-with-forced-tools")
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
async def test_tools_together_with_a_form(client: openai.AsyncOpenAI, choice: str) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = await client.chat.completions.parse(
        model=MODEL,
        messages=user(CALL),
        tools=[WEATHER],
        tool_choice=named if choice == "named" else choice,  # type: ignore[arg-type]  # by value
        response_format=Person,
    )
    message = answer.choices[0].message
    if choice == "auto":
        assert isinstance(message.parsed, Person)
        assert not message.tool_calls
    else:
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.name == "get_weather"
        assert message.content == ""


@pytest.mark.rule("chat.regex", "chat.grammar")
@pytest.mark.parametrize(
    ("extra", "answers"),
    [
        ({"regex": "(yes|no)"}, ("yes", "no")),
        ({"response_format": {"type": "grammar", "grammar": 'root ::= "left"'}}, ("left",)),
    ],
)
async def test_regex_and_grammar(
    client: openai.AsyncOpenAI, extra: dict[str, Any], answers: tuple[str, ...]
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=user("Well?"), extra_body=extra
    )
    assert answer.choices[0].message.content in answers


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.rule("chat.tool-types", "chat.tools-object-schema")
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "invalid_tool", "tools[0].type"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
                ]
            },
            "tool_schema_invalid",
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "nobody"}},
            },
            "tool_choice_unknown_tool",
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "unsupported_value", "tool_choice"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "unsupported_value",
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_refused(
    client: openai.AsyncOpenAI, fields: dict[str, Any], code: str, param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(
                model=MODEL, messages=user("Hi."), stream=stream, **fields
            )
        assert (raised.value.code, raised.value.param) == (code, param)
        assert raised.value.request_id
