"""Structured output through the whole service on the real engine.

The model's weights are random, so whatever is well formed here is so because decoding enforced it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI, BadRequestError

from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import memory_stack
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.sglang, SESSION_LOOP, pytest.mark.timeout(300)]

ASK = [{"role": "user", "content": "Well?"}]
THINK_END = 4077  # of the tiny model's tokens

SCHEMA = {
    "type": "object",
    "properties": {
        "状態": {"$ref": "#/$defs/state"},
        "名": {"type": "string", "minLength": 1, "maxLength": 4},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["状態", "名", "tags"],
    "additionalProperties": False,
    "$defs": {"state": {"enum": ["稼働", "fermé", "🛑"]}},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "maximum": 9}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}


def obeys(schema: dict[str, Any]) -> Callable[[str], bool]:
    return lambda text: Draft202012Validator(schema).is_valid(msgspec.json.decode(text))


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def form(kind: str, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **fields}}


JSON_SCHEMA = form("json_schema", json_schema={"name": "s", "strict": True, "schema": SCHEMA})
TAG = {
    "type": "tag",
    "begin": "<f>",
    "content": {"type": "regex", "pattern": "[0-9]{2}"},
    "end": "</f>",
}

FORMS = [
    pytest.param(JSON_SCHEMA, obeys(SCHEMA), id="json_schema"),
    pytest.param(form("json_object"), obeys({"type": "object"}), id="json_object"),
    pytest.param({"extra_body": {"regex": "(ab){2}[0-9]{3}"}}, matches("abab[0-9]{3}"), id="regex"),
    pytest.param(
        form("grammar", grammar='root ::= "yes" | "no" tail\ntail ::= "!"*'),
        matches("yes|no!*"),
        id="ebnf",
    ),
    pytest.param(form("structural_tag", format=TAG), matches("<f>[0-9]{2}</f>"), id="tag"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(sglang_engine: SglangEngine) -> AsyncIterator[AsyncOpenAI]:
    async with (
        memory_stack(sglang_engine) as stack,
        AsyncOpenAI(base_url=stack.v1, api_key="k", max_retries=0) as client,
    ):
        yield client


class Answer(msgspec.Struct):
    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    finish: str


async def ask(client: AsyncOpenAI, *, stream: bool, **fields: Any) -> Answer:
    """One answer of a model that chooses by chance, the same whenever it is asked."""
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 200, **fields}
    if stream:
        return await streamed(client, **fields)
    reply = await client.chat.completions.create(model="tiny-qwen3", messages=ASK, **fields)
    choice = reply.choices[0]
    return Answer(
        choice.message.content or "",
        getattr(choice.message, "reasoning_content", None) or "",
        [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()],
        choice.finish_reason,
    )


async def streamed(client: AsyncOpenAI, **fields: Any) -> Answer:
    answer = Answer("", "", [], "")
    chunks = await client.chat.completions.create(
        model="tiny-qwen3", messages=ASK, stream=True, **fields
    )
    async for chunk in chunks:
        for choice in chunk.choices:
            answer.text += choice.delta.content or ""
            answer.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                if call.function.name:
                    answer.calls.append((call.function.name, ""))
                name, arguments = answer.calls[-1]
                answer.calls[-1] = (name, arguments + (call.function.arguments or ""))
            answer.finish = choice.finish_reason or answer.finish
    return answer


def thinking(on: bool) -> dict[str, Any]:
    if not on:
        return {"reasoning_effort": "none"}
    # By chance alone the tiny model would never stop to think.
    return {"reasoning_effort": "high", "logit_bias": {str(THINK_END): 5.0}}


@pytest.mark.rule(
    "structured.json-schema",
    "structured.json-object",
    "structured.regex",
    "structured.grammar",
    "structured.streamed",
)
@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize(("asked", "holds"), FORMS)
async def test_an_answer_has_the_form_that_was_asked_for(
    client: AsyncOpenAI, asked: dict[str, Any], holds: Callable[[str], bool], think: bool
) -> None:
    fields = {**asked, **thinking(think)}
    whole = await ask(client, stream=False, **fields)
    assert whole == await ask(client, stream=True, **fields)
    assert think or not whole.reasoning
    assert whole.finish in ("stop", "length")
    if whole.finish == "stop":
        assert holds(whole.text), whole
    else:
        assert asked == form("json_object") or think, "the form leaves no room for more"


@pytest.mark.rule("structured.non-ascii")
async def test_values_beyond_ascii_however_they_are_spelt(client: AsyncOpenAI) -> None:
    import json  # noqa: TID251 - writes escapes

    import httpx

    body = {
        "model": "tiny-qwen3",
        "messages": ASK,
        "reasoning_effort": "none",
        "temperature": 0,
        **JSON_SCHEMA,
    }
    texts = []
    async with httpx.AsyncClient(timeout=60) as http:
        for ascii_only in (True, False):
            reply = await http.post(
                f"{client.base_url}chat/completions",
                content=json.dumps(body, ensure_ascii=ascii_only).encode(),
                headers={"content-type": "application/json"},
            )
            texts.append(reply.json()["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]
    assert msgspec.json.decode(texts[0])["状態"] in ("稼働", "fermé", "🛑")


@pytest.mark.rule("structured.forced-calls-first")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_forced_call_is_made(
    client: AsyncOpenAI, choice: Any, think: bool, stream: bool
) -> None:
    answer = await ask(
        client,
        stream=stream,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        **JSON_SCHEMA,
        **thinking(think),
    )
    if answer.finish == "length":
        assert think or answer.calls
        return
    assert answer.finish == "tool_calls"
    [(name, arguments)] = answer.calls
    assert name == "weather"
    assert obeys(WEATHER["function"]["parameters"])(arguments)  # type: ignore[index]
    assert not answer.text.strip()


@pytest.mark.rule("structured.format-before-calls")
async def test_with_auto_the_answer_has_the_form(client: AsyncOpenAI) -> None:
    answer = await ask(
        client,
        stream=False,
        tools=[WEATHER],
        tool_choice="auto",
        **form("json_schema", json_schema={"name": "s", "schema": {"const": "<tool_call>"}}),
        **thinking(False),
    )
    assert answer == Answer('"<tool_call>"', "", [], "stop")


@pytest.mark.parametrize("stop", ["\n", '"', "}"])
async def test_a_stop_string_ends_even_a_constrained_answer(client: AsyncOpenAI, stop: str) -> None:
    answer = await ask(client, stream=False, stop=stop, **JSON_SCHEMA, **thinking(False))
    assert stop not in answer.text


@pytest.mark.rule("structured.invalid-grammar", "structured.limits")
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"extra_body": {"regex": "(?=secret)"}}, "invalid_grammar"),
        ({"extra_body": {"regex": "(secret"}}, "invalid_grammar"),
        (form("grammar", grammar="root ::= secret"), "invalid_grammar"),
        (form("grammar", grammar='root ::= "a" | (' + "(" * 9_000), "invalid_grammar"),
        (form("structural_tag", format={"type": "secret"}), "invalid_grammar"),
        (
            form(
                "json_schema",
                json_schema={"name": "s", "schema": {"enum": [f"v {n}" for n in range(90_000)]}},
            ),
            "invalid_json_schema",
        ),
    ],
)
async def test_what_does_not_compile_fails_alone_and_delays_no_other(
    client: AsyncOpenAI, asked: dict[str, Any], code: str
) -> None:
    async def refused() -> BadRequestError:
        with pytest.raises(BadRequestError) as caught:
            await ask(client, stream=False, **asked)
        return caught.value

    bad = asyncio.create_task(refused())
    plain = [ask(client, stream=False, max_tokens=4, **thinking(False)) for _ in range(3)]
    async with asyncio.timeout(30):
        await asyncio.gather(*plain)
        error = await bad
    assert error.code == code
    assert "secret" not in str(error)
