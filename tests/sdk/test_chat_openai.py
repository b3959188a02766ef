"""The official OpenAI client against a live server on a loopback socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.fixtures.stack import MODEL, Stack, memory_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client:
        yield client


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": f"[[say:{text}]]"}]


@pytest.mark.rule("chat.sdk", "chat.usage")
async def test_body(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=say("Two words."))
    assert answer.choices[0].message.content == "Two words."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2


@pytest.mark.rule("chat.stream", "chat.stream-is-body")
async def test_stream_joins_to_the_body(client: openai.AsyncOpenAI) -> None:
    text = "left\u2028right 🧪 \u00e9nd \u0085."
    stream = await client.chat.completions.create(model=MODEL, messages=say(text), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


async def test_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=say("one two")) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "one two"


@pytest.mark.rule("chat.n")
async def test_several_choices(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=say("a b"), n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert {c.message.content for c in answer.choices} == {"a b"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


async def test_reasoning_is_apart(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "[[think:Hmm, well.]][[say:Yes.]]"}],
        reasoning_effort="high",
    )
    message = answer.choices[0].message
    assert message.content == "Yes."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Hmm, well."
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens


@pytest.mark.rule("chat.stop", "chat.finish-stop")
async def test_stop_string(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        result = await client.chat.completions.create(
            model=MODEL, messages=say("one two three four"), stop=[" three"], stream=stream
        )
        if stream:
            text = "".join(
                [c.choices[0].delta.content or "" async for c in result if c.choices]  # type: ignore[union-attr]
            )
        else:
            text = result.choices[0].message.content or ""  # type: ignore[union-attr]
        assert text == "one two"


@pytest.mark.rule("chat.finish-length")
async def test_output_limit(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=say("one two three"), max_completion_tokens=2
    )
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "length"


async def test_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.chat.completions.create(model="nobody", messages=say("x"))
    assert raised.value.code == "model_not_found"
    assert raised.value.request_id


@pytest.mark.rule("chat.model")
async def test_model_name_in_any_case(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL.upper(), messages=say("x"))
    assert answer.model == MODEL


async def test_failure_before_the_first_token(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "[[fail:start]]"}],
                stream=stream,
            )
        assert raised.value.status_code == 500
        assert raised.value.code == "generation_failed"


@pytest.mark.rule("chat.stream-failure")
async def test_failure_in_the_stream_is_no_success(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "[[say:one two three]][[fail:2]]"}],
        stream=True,
    )
    seen = []
    with pytest.raises(openai.APIError) as raised:
        async for chunk in stream:
            seen += [c.delta.content for c in chunk.choices if c.delta.content]
            assert all(c.finish_reason is None for c in chunk.choices)
    assert "".join(seen) == "one two"
    assert raised.value.code == "generation_failed"


async def test_failure_in_the_middle_of_a_body(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "[[say:a b c]][[fail:2]]"}]
        )


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


async def test_no_worker_is_503_before_the_status_line() -> None:
    async with (
        memory_stack(worker=False) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as raised:
                await client.chat.completions.create(model=MODEL, messages=say("x"), stream=stream)
            assert raised.value.status_code == 503
            assert raised.value.code == "model_unavailable"
            assert int(raised.value.response.headers["retry-after"]) > 0


async def test_keys() -> None:
    async with memory_stack(api_keys=("good-key",)) as stack:
        async with openai.AsyncOpenAI(
            base_url=stack.v1, api_key="good-key", max_retries=0
        ) as client:
            assert await client.chat.completions.create(model=MODEL, messages=say("x"))
        async with openai.AsyncOpenAI(
            base_url=stack.v1, api_key="bad-key", max_retries=0
        ) as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                await client.chat.completions.create(model=MODEL, messages=say("x"))
            assert raised.value.code == "invalid_api_key"
            assert "bad-key" not in str(raised.value)
