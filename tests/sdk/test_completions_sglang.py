"""Text completions from the official client to the real SGLang engine and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest
import pytest_asyncio

from tests import tiny_model as tiny
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import Stack, memory_stack, sse_data, until
from workers.engines.sglang import SglangEngine

pytestmark = [pytest.mark.sglang, SESSION_LOOP, pytest.mark.timeout(300)]

MODEL = "tiny-qwen3"
PATH = "/v1/completions"
PROMPT = [1300, 1301, 1302, 1303]
EOS = 2


@pytest_asyncio.fixture(loop_scope="session")
async def stack(sglang_engine: SglangEngine) -> AsyncIterator[Stack]:
    async with memory_stack(sglang_engine) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="session")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client:
        yield client


async def complete(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The body of an answer."""
    body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, **fields}
    response = await http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def choice_of(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await complete(http, **fields)
    choice: dict[str, Any] = answer["choices"][0]
    return choice


async def greedy_ids(http: httpx.AsyncClient, **fields: Any) -> list[int]:
    ids: list[int] = (await choice_of(http, return_token_ids=True, **fields))["token_ids"]
    return ids


@pytest.mark.rule("completions.example-grammar", "completions.ebnf", "completions.body")
async def test_the_documented_example(http: httpx.AsyncClient) -> None:
    answer = await complete(
        http, prompt=[970], max_tokens=2, temperature=0, ebnf='root ::= "A" | "B"'
    )
    assert isinstance(answer.pop("id"), str)
    assert isinstance(answer.pop("created"), int)
    assert answer["choices"][0].pop("text") in ("A", "B")
    usage = answer.pop("usage")
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "logprobs": None, "finish_reason": "stop", "matched_stop": None}],
    }
    # The letter, and the token that ends the text.
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 2, 3)


@pytest.mark.rule("completions.example-stream", "completions.stream", "completions.seed")
async def test_the_documented_streaming_example(http: httpx.AsyncClient) -> None:
    fields = {"max_tokens": 16, "temperature": 0.2, "seed": 1, "ignore_eos": True}
    body = {"model": MODEL, "prompt": [970], "stream": True, **fields}
    response = await http.post(PATH, json=body)
    *records, done = sse_data(response.content)
    assert done == b"[DONE]"
    choices = [orjson.loads(record)["choices"][0] for record in records]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    whole = await complete(http, prompt=[970], **fields)
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 16


@pytest.mark.rule("completions.prompt", "completions.index", "completions.usage", "completions.n")
async def test_a_batch_answers_as_its_prompts_alone(http: httpx.AsyncClient) -> None:
    prompts = [PROMPT, [7, 8, 9], [4000]]
    answer = await complete(http, prompt=prompts, n=2, max_tokens=6)
    alone = [(await choice_of(http, prompt=prompt, max_tokens=6))["text"] for prompt in prompts]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == [t for t in alone for _ in "ab"]
    assert answer["usage"]["prompt_tokens"] == 8
    assert answer["usage"]["completion_tokens"] == 36


@pytest.mark.rule("completions.usage")
async def test_cached_tokens_of_every_prompt_are_counted_once(http: httpx.AsyncClient) -> None:
    prompts = [list(range(2000, 2050)), list(range(2100, 2160))]
    await complete(http, prompt=prompts, max_tokens=1)
    answer = await complete(http, prompt=prompts, n=2, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 110
    # The last token of a prompt is always read anew.
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 49 + 59}


@pytest.mark.rule("completions.seed")
async def test_seeded_texts_of_a_prompt_differ_and_repeat(http: httpx.AsyncClient) -> None:
    fields = {"temperature": 1, "seed": 5, "n": 2, "max_tokens": 12}
    batch = await complete(http, prompt=[PROMPT, PROMPT], **fields)
    first, second, third, fourth = (choice["text"] for choice in batch["choices"])
    assert first != second
    assert (first, second) == (third, fourth)


@pytest.mark.rule("completions.logprobs", "completions.echo")
async def test_echo_with_log_probabilities(http: httpx.AsyncClient, stack: Stack) -> None:
    tokenizer = stack.engine.tokenizer
    assert tokenizer is not None
    fields = {"echo": True, "logprobs": 2, "max_tokens": 5, "return_token_ids": True}
    choice = await choice_of(http, **fields)
    echo = tokenizer.decode(tuple(PROMPT))
    assert choice["text"].startswith(echo)
    assert choice["prompt_token_ids"] == PROMPT
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(PROMPT) + 5
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][len(PROMPT)] == len(echo)
    for at, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        if "\ufffd" not in token:
            assert choice["text"].startswith(token, at)
    for token, top in zip(logprobs["tokens"][4:], logprobs["top_logprobs"][4:], strict=True):
        assert max(top, key=top.__getitem__) == token, "greedy"

    scored = await choice_of(
        http, prompt=[*PROMPT, *choice["token_ids"]], echo=True, logprobs=0, max_tokens=1
    )
    assert scored["logprobs"]["token_logprobs"][4:9] == pytest.approx(
        logprobs["token_logprobs"][4:], abs=1e-3
    )


@pytest.mark.rule(
    "completions.return-logprob",
    "completions.logprob-start-len",
    "completions.token-ids-logprob",
    "completions.top-logprobs-num",
    "completions.return-text-in-logprobs",
)
async def test_log_probabilities_in_the_engines_shape(http: httpx.AsyncClient) -> None:
    choice = await choice_of(
        http,
        max_tokens=3,
        return_logprob=True,
        logprob_start_len=2,
        top_logprobs_num=2,
        token_ids_logprob=[11, 5],
        return_text_in_logprobs=True,
        return_token_ids=True,
    )
    meta = choice["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == PROMPT[2:]
    assert all(entry[0] < 0 for entry in meta["input_token_logprobs"])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == choice["token_ids"]
    assert "".join(entry[2] for entry in meta["output_token_logprobs"]) == choice["text"]
    for top, own in zip(meta["output_top_logprobs"], meta["output_token_logprobs"], strict=True):
        assert len(top) == 2
        assert top[0] == own
    assert [[other[1] for other in entry] for entry in meta["output_token_ids_logprobs"]] == [
        [11, 5]
    ] * 3


@pytest.mark.rule(
    "completions.stop-token-ids", "completions.matched-stop", "completions.no-stop-trim"
)
async def test_stop_tokens(http: httpx.AsyncClient, stack: Stack) -> None:
    tokenizer = stack.engine.tokenizer
    assert tokenizer is not None
    ids = await greedy_ids(http, max_tokens=12)
    at = next(i for i in range(3, 12) if ids[i] not in ids[:i])
    fields = {"max_tokens": 12, "stop_token_ids": [ids[at]], "return_token_ids": True}
    choice = await choice_of(http, **fields)
    assert choice["token_ids"] == ids[: at + 1]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", ids[at])
    assert choice["text"] == tokenizer.decode(tuple(ids[:at]))
    kept = await choice_of(http, **fields, no_stop_trim=True)
    assert kept["text"] == tokenizer.decode(tuple(ids[: at + 1]))
    # Not before the minimum, which engines take to mean that the id is not generated at all.
    later = await choice_of(http, **fields, min_tokens=at + 2)
    assert ids[at] not in later["token_ids"][: at + 1]


@pytest.mark.rule("completions.stop", "completions.stop-regex", "completions.no-stop-trim")
async def test_stop_texts(http: httpx.AsyncClient) -> None:
    script = {"regex": "one 22 END three", "max_tokens": 60}
    for fields, text, matched in (
        ({"stop": ["END", "never"]}, "one 22 ", "END"),
        ({"stop": "END", "no_stop_trim": True}, "one 22 END", "END"),
        ({"stop_regex": r"\d{2} E"}, "one ", r"\d{2} E"),
        ({"stop_regex": r"\d{2}", "no_stop_trim": True}, "one 22", r"\d{2}"),
        ({}, "one 22 END three", None),
    ):
        choice = await choice_of(http, **script, **fields)
        assert (choice["text"], choice["matched_stop"]) == (text, matched)
        assert choice["finish_reason"] == "stop"


@pytest.mark.rule("completions.ignore-eos", "completions.min-tokens", "completions.logit-bias")
async def test_the_end_of_text_token(http: httpx.AsyncClient) -> None:
    ends = {"logit_bias": {str(EOS): 50}, "max_tokens": 8}
    assert await greedy_ids(http, **ends) == [EOS]
    assert await greedy_ids(http, **ends, ignore_eos=True) == [EOS] * 8
    ids = await greedy_ids(http, **ends, min_tokens=4)
    assert EOS not in ids[:4]
    assert ids[4:] == [EOS]


@pytest.mark.rule("completions.skip-special-tokens", "completions.spaces-between-special-tokens")
async def test_special_tokens(http: httpx.AsyncClient) -> None:
    fields = {"logit_bias": {"1": 100}, "max_tokens": 2, "ignore_eos": True}
    assert (await choice_of(http, **fields))["text"] == ""
    shown = {**fields, "skip_special_tokens": False}
    for spaces in (True, False):
        choice = await choice_of(http, **shown, spaces_between_special_tokens=spaces)
        assert choice["text"].replace(" ", "") == "<|im_start|>" * 2
    echoed = await choice_of(http, prompt=[1, 1300], **shown, echo=True)
    assert echoed["text"].startswith("<|im_start|>")
    assert not (await choice_of(http, prompt=[1, 1300], **fields, echo=True))["text"].startswith(
        "<"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"regex": r"\+49-[7]{3}"}, "+49-777"),
        ({"json_schema": {"const": 7}}, "7"),
        ({"json_schema": '{"enum":["x"]}'}, '"x"'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}},
            "7",
        ),
        (
            {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<f>",
                        "content": {"type": "regex", "pattern": "[7]{3}"},
                        "end": "</f>",
                    },
                }
            },
            "<f>777</f>",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.rule(
    "completions.regex",
    "completions.json-schema",
    "completions.response-format",
    "completions.structural-tag",
)
async def test_constraints_are_obeyed(
    http: httpx.AsyncClient, fields: dict[str, Any], text: str
) -> None:
    choice = await choice_of(http, max_tokens=60, temperature=1, **fields)
    assert choice["text"] == text
    assert choice["finish_reason"] == "stop"


@pytest.mark.rule("completions.invalid-grammar", "completions.prompt-refused")
async def test_bad_requests_disturb_no_neighbour(http: httpx.AsyncClient, stack: Stack) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
    neighbour = asyncio.create_task(http.post(PATH, json=body))
    await until(lambda: stack.consumers[0].info().running == 1)
    for fields, code in (
        ({"ebnf": "root ::= ("}, "invalid_grammar"),
        ({"ebnf": "not a grammar"}, "invalid_grammar"),
        ({"regex": "(unclosed"}, "invalid_grammar"),
        ({"prompt": [tiny.VOCAB_SIZE]}, "invalid_prompt"),
        ({"prompt": [[1], [9_999_999]]}, "invalid_prompt"),
        ({"prompt": [4_611_686_018_427_387_905]}, "invalid_prompt"),
        ({"prompt": [5, -1, 7]}, "invalid_prompt"),
        ({"logit_bias": {"9999999": 5}}, "unsupported_value"),
        ({"stop_token_ids": [-1]}, "unsupported_value"),
        ({"token_ids_logprob": [9_999_999]}, "unsupported_value"),
        ({"prompt": [1] * tiny.CONTEXT_LENGTH}, "context_length_exceeded"),
        ({"lora_path": "/etc/passwd"}, "unsupported_value"),
        ({"custom_logit_processor": '{"callable": "80"}'}, "unsupported_parameter"),
        ({"return_hidden_states": True}, "unsupported_parameter"),
    ):
        response = await http.post(PATH, json={**body, **fields})
        assert response.status_code == 400, fields
        assert response.json()["error"]["code"] == code, fields
    answer = (await neighbour).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 400


@pytest.mark.rule("completions.custom-params", "completions.priority", "completions.rid")
async def test_options_without_an_effect_are_accepted(http: httpx.AsyncClient) -> None:
    plain = await greedy_ids(http, max_tokens=4)
    options = {
        "custom_params": {"a": 1, "b": [1, 2], "c": {"d": None}},
        "priority": 3,
        "rid": "mine",
        "user": "me",
    }
    assert await greedy_ids(http, max_tokens=4, **options) == plain


@pytest.mark.rule(
    "completions.temperature",
    "completions.top-p",
    "completions.top-k",
    "completions.min-p",
    "completions.frequency-penalty",
    "completions.presence-penalty",
    "completions.repetition-penalty",
)
async def test_sampling_fields_reach_the_model(http: httpx.AsyncClient) -> None:
    greedy = await greedy_ids(http, max_tokens=24)
    assert await greedy_ids(http, max_tokens=24) == greedy
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert await greedy_ids(http, max_tokens=24, temperature=1, **narrow) == greedy
    assert await greedy_ids(http, max_tokens=24, temperature=5) != greedy
    long = await greedy_ids(http, max_tokens=40)
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.8}):
        assert await greedy_ids(http, max_tokens=40, **penalty) != long


@pytest.mark.rule("completions.max-tokens")
async def test_the_limit_is_lowered_to_the_window(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL,
        prompt=[1300] * (tiny.CONTEXT_LENGTH - 12),
        max_tokens=10_000,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    # SGLang itself keeps the last positions of the window free.
    assert tiny.CONTEXT_LENGTH - 4 < answer.usage.total_tokens <= tiny.CONTEXT_LENGTH
    assert len((await client.completions.create(model=MODEL, prompt=[5])).choices) == 1


@pytest.mark.rule("completions.leaving")
async def test_a_client_that_leaves_frees_every_text(
    http: httpx.AsyncClient, sglang_engine: SglangEngine
) -> None:
    body = {"model": MODEL, "prompt": [PROMPT] * 6, "max_tokens": 3000, "ignore_eos": True}
    async with http.stream("POST", PATH, json={**body, "stream": True}) as response:
        await anext(response.aiter_lines())

    async def idle() -> bool:
        return await sglang_engine.running() == 0

    await until(idle, timeout_s=2)


SIGNS = "ok 🧪! ďaleko 한글 e\u0301 👩‍👧."
SIGNS_PATTERN = SIGNS.replace(".", r"\.")


async def text_of(http: httpx.AsyncClient, stream: bool, **fields: Any) -> tuple[str, str, Any]:
    """The text, why it ended, and at what."""
    if not stream:
        choice = await choice_of(http, **fields)
        return choice["text"], choice["finish_reason"], choice["matched_stop"]
    body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "stream": True, **fields}
    response = await http.post(PATH, json=body)
    response.content.decode()  # strictly
    choices = [orjson.loads(data)["choices"][0] for data in sse_data(response.content)[:-1]]
    last = choices[-1]
    return "".join(c["text"] for c in choices), last["finish_reason"], last["matched_stop"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.rule("completions.stop", "completions.matched-stop")
async def test_characters_of_many_tokens_are_whole_and_can_end_a_text(
    http: httpx.AsyncClient, stream: bool
) -> None:
    fields: dict[str, Any] = {"regex": SIGNS_PATTERN, "max_tokens": 80}
    assert await text_of(http, stream, **fields) == (SIGNS, "stop", None)
    for stop in ("🧪", "ok", "ď", "! ďa", "한글", "글 e", "\u0301", "👧", "👩‍👧.", SIGNS):
        kept = SIGNS[: SIGNS.index(stop)]
        assert await text_of(http, stream, stop=stop, **fields) == (kept, "stop", stop)
    assert await text_of(http, stream, stop=["🧬", "👨"], **fields) == (SIGNS, "stop", None)
    for limit in range(1, 24):
        text, end, _ = await text_of(http, stream, **{**fields, "max_tokens": limit})
        assert SIGNS.startswith(text)
        assert end == "length"
