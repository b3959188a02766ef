"""Text completions with the official OpenAI client against a live server on a loopback socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import msgspec
import openai
import orjson
import pytest

from schemas.model_card import Capabilities
from tests.fixtures.stack import MODEL, Stack, memory_stack, sse_data, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text, Trouble

PATH = "/v1/completions"


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        yield client


def ids(text: str) -> list[int]:
    """The scripted engine's token ids are bytes."""
    return list(text.encode())


def say(text: str) -> list[int]:
    return ids(f"[[say:{text}]]")


# --- The documented examples ---------------------------------------------------------------------


@pytest.mark.rule("completions.example-grammar", "completions.body", "completions.usage")
async def test_the_documented_example(http: httpx.AsyncClient) -> None:
    response = await http.post(
        PATH,
        json={
            "model": MODEL,
            "prompt": [9703],
            "max_tokens": 2,
            "temperature": 0,
            "ebnf": 'root ::= "A" | "B"',
        },
    )
    assert response.status_code == 200
    body = response.json()
    assert len(body.pop("id")) == 32
    assert isinstance(body.pop("created"), int)
    text = body["choices"][0].pop("text")
    assert text in ("A", "B")
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "logprobs": None, "finish_reason": "stop", "matched_stop": None}],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 1,
            "total_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
            "reasoning_tokens": 0,
        },
    }


@pytest.mark.rule("completions.example-stream", "completions.stream", "completions.records")
async def test_the_documented_streaming_example(http: httpx.AsyncClient) -> None:
    response = await http.post(
        PATH,
        json={
            "model": MODEL,
            "prompt": [9703],
            "max_tokens": 16,
            "temperature": 0.2,
            "stream": True,
        },
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *records, done = sse_data(response.content)
    assert done == b"[DONE]"
    answers = [orjson.loads(record) for record in records]
    assert {answer["object"] for answer in answers} == {"text_completion"}
    assert len({answer["id"] for answer in answers}) == 1
    assert all("usage" not in answer for answer in answers)
    (*texts, last) = [choice for answer in answers for choice in answer["choices"]]
    assert all(choice["text"] and choice["finish_reason"] is None for choice in texts)
    assert last["finish_reason"] == "stop"
    assert {choice["index"] for choice in (*texts, last)} == {0}


# --- With the client -----------------------------------------------------------------------------


@pytest.mark.rule("completions.model")
async def test_body(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL.upper(), prompt=say("Two words."))
    assert answer.choices[0].text == "Two words."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(say("Two words."))
    assert answer.usage.completion_tokens == 2


@pytest.mark.rule("completions.usage-record", "completions.stream")
async def test_stream_joins_to_the_body(client: openai.AsyncOpenAI) -> None:
    text = "left\u2028right 🧪 \u00e9nd \u0085."
    stream = await client.completions.create(
        model=MODEL, prompt=say(text), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == text
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len(say(text))
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.rule("completions.prompt", "completions.n", "completions.index", "completions.usage")
async def test_a_batch_with_several_texts_each(client: openai.AsyncOpenAI) -> None:
    prompts = [say("one two"), say("three"), say("four five six")]
    answer = await client.completions.create(model=MODEL, prompt=prompts, n=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [
        text for text in ("one two", "three", "four five six") for _ in range(2)
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == 2 * (2 + 1 + 3)
    stream = await client.completions.create(model=MODEL, prompt=prompts, n=2, stream=True)
    texts = [""] * 6
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


@pytest.mark.rule("completions.logprobs", "completions.echo", "completions.return-token-ids")
async def test_echo_and_log_probabilities(client: openai.AsyncOpenAI) -> None:
    prompt = [ids("é [[say:ok then]]"), say("x")]
    fields: dict[str, Any] = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": 2}
    answer = await client.completions.create(**fields, extra_body={"return_token_ids": True})
    first = answer.choices[0]
    assert first.text == "é [[say:ok then]]ok then"
    assert first.logprobs is not None
    logprobs = first.logprobs
    assert logprobs.tokens is not None
    assert logprobs.tokens[-2:] == ["ok", " then"]
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[:4] == [0, 0, 1, 2]
    for at, token in zip(logprobs.text_offset[2:], logprobs.tokens[2:], strict=True):
        assert first.text.startswith(token, at)
    assert logprobs.token_logprobs == [None, *[-0.5] * (len(prompt[0]) + 1)]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[-1] == {" then": -0.5, "alt1": -1.5}
    assert first.model_extra is not None
    assert first.model_extra["prompt_token_ids"] == prompt[0]
    assert len(first.model_extra["token_ids"]) == 2
    assert answer.choices[1].text == "[[say:x]]x"

    stream = await client.completions.create(**fields, stream=True)
    chunks = [chunk async for chunk in stream if chunk.choices[0].index == 0]
    assert chunks[0].choices[0].text == "é [[say:ok then]]"
    assert "".join(chunk.choices[0].text for chunk in chunks) == first.text
    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [at for part in told for at in part.text_offset or ()] == logprobs.text_offset


@pytest.mark.rule(
    "completions.return-logprob",
    "completions.logprob-start-len",
    "completions.token-ids-logprob",
    "completions.top-logprobs-num",
)
async def test_log_probabilities_in_the_engines_shape(client: openai.AsyncOpenAI) -> None:
    prompt = say("a")
    answer = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        extra_body={
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": 2,
            "token_ids_logprob": [65, 66],
        },
    )
    choice = answer.choices[0]
    assert choice.logprobs is None
    assert choice.model_extra is not None
    meta = choice.model_extra["meta_info"]
    assert meta["input_token_logprobs"] == [[-0.5, ord("]"), None]]
    assert [entry[0] for entry in meta["output_token_logprobs"]] == [-0.5]
    assert [[other[0] for other in entry] for entry in meta["output_top_logprobs"]] == [
        [-0.5, -1.5]
    ]
    assert [[other[1] for other in entry] for entry in meta["output_token_ids_logprobs"]] == [
        [65, 66]
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "text", "reason", "matched"),
    [
        ({"stop": " three"}, "one two", "stop", " three"),
        ({"stop": [" three", " two"], "no_stop_trim": True}, "one two", "stop", " two"),
        ({"stop_regex": r"t\w{2}e{2}"}, "one two ", "stop", r"t\w{2}e{2}"),
        ({"stop_regex": ["x", "o{1}"]}, "", "stop", "o{1}"),
        ({"stop": " two", "min_tokens": 3}, "one two three four", "stop", None),
        ({"max_tokens": 2}, "one two", "length", None),
        ({}, "one two three four", "stop", None),
    ],
    ids=str,
)
@pytest.mark.rule(
    "completions.stop",
    "completions.no-stop-trim",
    "completions.stop-regex",
    "completions.min-tokens",
    "completions.max-tokens",
    "completions.matched-stop",
    "completions.finish-reason",
)
async def test_where_the_text_ends(
    http: httpx.AsyncClient,
    fields: dict[str, Any],
    text: str,
    reason: str,
    matched: str | None,
    stream: bool,
) -> None:
    body = {"model": MODEL, "prompt": say("one two three four"), "stream": stream, **fields}
    response = await http.post(PATH, json=body)
    if stream:
        choices = [orjson.loads(d)["choices"][0] for d in sse_data(response.content)[:-1]]
        choice = {**choices[-1], "text": "".join(choice["text"] for choice in choices)}
    else:
        choice = response.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == (
        text,
        reason,
        matched,
    )


@pytest.mark.rule("completions.stop-regex-bounded")
async def test_a_hostile_stop_pattern_delays_nobody(client: openai.AsyncOpenAI) -> None:
    hostile = client.completions.create(
        model=MODEL,
        prompt=ids("[[say:" + "a" * 400 + "]]"),
        extra_body={"stop_regex": "(a?){120}a{120}b"},
    )
    plain = client.completions.create(model=MODEL, prompt=say("fine"))
    async with asyncio.timeout(5):
        slow, quick = await asyncio.gather(hostile, plain)
    assert quick.choices[0].text == "fine"
    assert slow.choices[0].text == "a" * 400


# --- Refusals ------------------------------------------------------------------------------------

BAD: list[dict[str, Any]] = [
    *({"prompt": prompt} for prompt in ([5, -1, 7], [9_999_999], [4_611_686_018_427_387_905])),
    *({"prompt": prompt} for prompt in ([True], [1.0], [], [[1], []], ["hello"], [1, "x"], "text")),
    *({"logit_bias": bias} for bias in ({"9999999": 5}, {"-3": 5})),
    *({"stop_token_ids": stop} for stop in ([-1], [9_999_999])),
    {"max_tokens": 0},
    {"max_tokens": -5},
    {"custom_logit_processor": '{"callable": "80049526"}'},
    {"suffix": "x"},
    {"ebnf": "A", "regex": "A"},
]


@pytest.mark.rule("completions.prompt-refused", "completions.logit-bias")
async def test_bad_requests_disturb_no_neighbour() -> None:
    gate = asyncio.Event()

    def script(request: EngineRequest) -> Iterable[Step]:
        yield Text("before")
        yield Gate(gate)
        yield Text(" after")

    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        good = {"model": MODEL, "prompt": [1]}
        neighbour = asyncio.create_task(http.post(PATH, json=good))
        await until(lambda: stack.consumers[0].info().running == 1)
        for fields in BAD:
            for stream in (False, True):
                response = await http.post(PATH, json={**good, "stream": stream, **fields})
                assert response.status_code == 400, fields
                error = response.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert error["request_id"] == response.headers["x-request-id"]
                assert (error["code"] == "invalid_prompt") == ("prompt" in fields)
        assert stack.consumers[0].info().running == 1
        gate.set()
        assert (await neighbour).json()["choices"][0]["text"] == "before after"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"demo-model","prompt":[1],"stop":"\\ud83d"}',
        b'{"model":"demo-model","prompt":[1],"temperature":NaN}',
        b'{"model":"demo-model","prompt":[1e400]}',
        b"\x80\x81\x82\xff",
        b'{"model":"demo-model","prompt":' + b"[" * 5000 + b"1" + b"]" * 5000 + b"}",
    ],
    ids=["lone surrogate", "NaN", "infinite", "bytes", "deep"],
)
async def test_what_is_no_json(http: httpx.AsyncClient, raw: bytes) -> None:
    response = await http.post(PATH, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] in ("invalid_json_request", "invalid_prompt")
    good = await http.post(PATH, json={"model": MODEL, "prompt": say("fine")})
    assert good.json()["choices"][0]["text"] == "fine"


@pytest.mark.rule("completions.self-hosted-only")
async def test_a_model_without_text_completions() -> None:
    engine = ScriptedEngine(served_id=MODEL, capabilities=Capabilities())
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError) as raised:
            await client.completions.create(model=MODEL, prompt=[1])
        assert raised.value.code == "endpoint_not_supported"
        assert "/v1/chat/completions" in raised.value.message


@pytest.mark.rule("completions.context-overflow", "completions.max-tokens")
async def test_the_window() -> None:
    engine = ScriptedEngine(served_id=MODEL, context_length=30)
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model=MODEL, prompt=[[1], [1] * 30])
        assert raised.value.code == "context_length_exceeded"
        prompt = ids("x" * 28)
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=10**6)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2


@pytest.mark.rule("completions.rid")
async def test_a_label_is_no_identity(stack: Stack) -> None:
    seen: list[str] = []
    gate = asyncio.Event()

    def script(request: EngineRequest) -> Iterable[Step]:
        seen.append(request.engine_request_id)
        yield Text("a")
        yield Gate(gate)
        yield Text("b")

    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        create = client.completions.create
        first, second = (
            asyncio.create_task(create(model=MODEL, prompt=[1], extra_body={"rid": "mine"}))
            for _ in range(2)
        )
        await until(lambda: len(seen) == 2)
        assert len(set(seen)) == 2
        assert all(name.endswith(":mine") for name in seen)
        first.cancel()
        await until(lambda: stack.consumers[0].info().running == 1)
        gate.set()
        assert (await second).choices[0].text == "ab"


# --- Failures ------------------------------------------------------------------------------------


@pytest.mark.rule("completions.failure")
async def test_one_failed_text_fails_them_all() -> None:
    both_began = asyncio.Event()

    def script(request: EngineRequest) -> Iterable[Step]:
        yield Text("a")
        if request.choice == 1:
            yield Gate(both_began)
            yield Trouble("fail")
        yield Trouble("hang")

    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        stream = await client.completions.create(model=MODEL, prompt=[[1], [2]], stream=True)
        with pytest.raises(openai.APIError) as raised:
            async for chunk in stream:
                assert chunk.choices[0].finish_reason is None
                both_began.set()
        assert raised.value.code == "generation_failed"
        await until(lambda: _idle(engine))
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model=MODEL, prompt=[[1], [2]])
        await until(lambda: _idle(engine))


async def _idle(engine: ScriptedEngine) -> bool:
    return await engine.running() == 0


@pytest.mark.rule("completions.leaving")
async def test_a_client_that_leaves_frees_every_text() -> None:
    def script(request: EngineRequest) -> Iterable[Step]:
        yield Text("a")
        yield Trouble("hang")

    engine = ScriptedEngine(served_id=MODEL, script=script, slots=4)
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        body = {"model": MODEL, "prompt": [[1]] * 8, "n": 2, "stream": True}
        async with http.stream("POST", PATH, json=body) as response:
            await anext(response.aiter_lines())
            # One request leaves half of the engine to the others.
            assert await engine.running() == 2
        await until(lambda: _idle(engine))
        await until(lambda: stack.consumers[0].info().running == 0)


async def test_a_large_batch_is_answered_whole(client: openai.AsyncOpenAI) -> None:
    prompts = [say(f"number {index}") for index in range(128)]
    answer = await client.completions.create(model=MODEL, prompt=prompts)
    assert [choice.text for choice in answer.choices] == [f"number {i}" for i in range(128)]


async def test_a_model_that_cannot_be_constrained_is_not_asked_to() -> None:
    able = msgspec.structs.replace(Capabilities(completions=True), json_schema=False)
    engine = ScriptedEngine(served_id=MODEL, capabilities=able)
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        for field, value in (("ebnf", 'root ::= "A"'), ("regex", "A"), ("json_schema", {})):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.completions.create(model=MODEL, prompt=[1], extra_body={field: value})
            assert raised.value.code == "unsupported_parameter"
            assert raised.value.param == field
