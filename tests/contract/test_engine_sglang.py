"""The real SGLang engine on the CPU, its output scripted by constraints where it matters."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import signal
from typing import Any

import pytest

from schemas.errors import (
    ContextLengthExceeded,
    InvalidGrammar,
    InvalidJsonSchema,
    InvalidPrompt,
    ServingError,
    UnsupportedParameter,
    UnsupportedValue,
)
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import Message, TextPart
from schemas.sampling import (
    Constraint,
    Ebnf,
    EngineOptions,
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
    StructuralTag,
)
from tests import tiny_model as tiny
from tests.contract.engine_suite import (
    PROMPT,
    Consumer,
    ContinuationSuite,
    EngineSuite,
    ending,
    ids_of,
    request,
    run,
    text_of,
    until_running,
)
from tests.fixtures.engine import SESSION_LOOP
from workers.constraint import effective_constraint
from workers.engines.base import EngineRequest
from workers.engines.sglang import SglangEngine
from workers.engines.sglang_launch import QUOTING
from workers.parsing.reasoning import REASONING_FORMATS

pytestmark = [pytest.mark.sglang, SESSION_LOOP, pytest.mark.timeout(300)]

GREEDY = {"temperature": 0.0}
EMOJI = "ok 🧪! ď"
EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"name": {"const": "Ada"}, "age": {"enum": [36]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def long_prompt(seed: int, length: int = 4000) -> tuple[int, ...]:
    """A prompt that no other test has put into the prefix cache."""
    return tuple(random.Random(seed).choices(range(300, 4000), k=length))


def scripted(text: str, **fields: Any) -> EngineRequest:
    """A request whose whole output is `text`."""
    escaped = "".join(f"\\{c}" if c in r"\.[]{}()*+?|^$/" else c for c in text)
    return request(constraint=Regex(pattern=escaped), max_tokens=100, **GREEDY, **fields)


class TestSglangEngine(EngineSuite, ContinuationSuite):
    @pytest.fixture
    def engine(self, sglang_engine: SglangEngine) -> SglangEngine:
        return sglang_engine

    def long(self, engine_request_id: str = "long") -> EngineRequest:
        stop = StopConditions(ignore_eos=True)
        return request(engine_request_id, max_tokens=4000, stop=stop, **GREEDY)


@pytest.fixture
def engine(sglang_engine: SglangEngine) -> SglangEngine:
    return sglang_engine


# --- What is generated ---------------------------------------------------------------------------


async def test_the_stream_is_what_sglang_answers_at_once(engine: SglangEngine) -> None:
    chunks = await run(engine, request(max_tokens=60, **GREEDY))
    whole = await engine._sglang.async_generate(
        input_ids=list(PROMPT), sampling_params={"temperature": 0.0, "max_new_tokens": 60}
    )
    assert text_of(chunks) == whole["text"]
    assert list(ids_of(chunks)) == whole["output_ids"]
    assert len(chunks) > 10
    assert ending(chunks) == ("length", None)
    assert chunks[-1].input_tokens == len(PROMPT)


async def test_greedy_tokens_are_those_of_the_model(engine: SglangEngine, tiny_model: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False)
    chunks = await run(engine, request(max_tokens=24, **GREEDY))
    assert list(ids_of(chunks)) == expected[0, len(PROMPT) :].tolist()


async def test_characters_are_never_cut(engine: SglangEngine) -> None:
    chunks = await run(engine, scripted(EMOJI))
    assert text_of(chunks) == EMOJI
    assert not any("\ufffd" in chunk.text for chunk in chunks)
    assert len(ids_of(chunks)) > len(EMOJI)
    assert ending(chunks) == ("stop", None)


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_a_character_cut_by_the_limit_is_left_out(
    engine: SglangEngine, max_tokens: int
) -> None:
    chunks = await run(
        engine, request(constraint=Regex(pattern=EMOJI), max_tokens=max_tokens, **GREEDY)
    )
    assert EMOJI.startswith(text_of(chunks))
    assert ending(chunks) == ("length", None)


async def test_a_replacement_character_that_the_model_wrote_stays(engine: SglangEngine) -> None:
    assert text_of(await run(engine, scripted("a\ufffd"))) == "a\ufffd"


async def test_choices_are_separate_and_seeds_repeat(engine: SglangEngine) -> None:
    async def choices(seed: int) -> list[tuple[int, ...]]:
        requests = [
            request(f"c.{seed}.{choice}", choice=choice, n=3, seed=seed, max_tokens=12)
            for choice in range(3)
        ]
        return [
            ids_of(chunks) for chunks in await asyncio.gather(*(run(engine, r) for r in requests))
        ]

    first, again, other = await choices(7), await choices(7), await choices(1234)
    assert first == again
    assert len(set(first)) == 3
    assert first[1] == (await choices(8))[0]
    assert not set(first) & set(other)


async def test_a_seed_gives_every_prompt_of_a_batch_the_same_choices(engine: SglangEngine) -> None:
    first, fourth = [
        ids_of(await run(engine, request(choice=choice, n=3, seed=7, max_tokens=12)))
        for choice in (1, 4)
    ]
    assert first == fourth


async def test_a_seeded_request_goes_on_alike_after_a_cut(engine: SglangEngine) -> None:
    whole = ids_of(await run(engine, request(seed=3, max_tokens=16)))
    cut = whole[:6]
    rest = ids_of(await run(engine, request(prompt_ids=PROMPT + cut, seed=3, max_tokens=10)))
    assert cut + rest == whole


async def test_seeds_go_with_every_way_of_sampling(engine: SglangEngine) -> None:
    options = {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "temperature": 1.3}
    first = await run(engine, request(seed=5, max_tokens=12, **options))
    again = await run(engine, request(seed=5, max_tokens=12, **options))
    plain = await run(engine, request(max_tokens=12, **options))
    assert ids_of(first) == ids_of(again)
    assert len(ids_of(plain)) > 0


async def test_unseeded_requests_differ(engine: SglangEngine) -> None:
    drawn = {ids_of(await run(engine, request(max_tokens=12))) for _ in range(3)}
    assert len(drawn) == 3


@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_narrow_sampling_is_greedy(engine: SglangEngine, option: dict[str, Any]) -> None:
    greedy = ids_of(await run(engine, request(max_tokens=12, **GREEDY)))
    assert ids_of(await run(engine, request(max_tokens=12, **option))) == greedy


async def test_penalties_and_biases_reach_the_model(engine: SglangEngine) -> None:
    greedy = ids_of(await run(engine, request(max_tokens=40, **GREEDY)))
    for option in (
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.8},
    ):
        assert ids_of(await run(engine, request(max_tokens=40, **GREEDY, **option))) != greedy
    biased = await run(engine, request(max_tokens=4, logit_bias=((777, 100.0),), **GREEDY))
    assert ids_of(biased) == (777,) * 4


async def test_the_models_own_defaults_apply_where_the_caller_says_nothing(
    engine: SglangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    facts = msgspec.structs.replace(engine._facts, sampling_defaults={"top_k": 1})
    monkeypatch.setattr(engine, "_facts", facts)
    greedy = ids_of(await run(engine, request(max_tokens=12, **GREEDY)))
    assert ids_of(await run(engine, request(max_tokens=12))) == greedy
    assert ids_of(await run(engine, request(max_tokens=12, top_k=-1))) != greedy


async def test_logprobs_come_with_bytes_and_alternatives(engine: SglangEngine) -> None:
    what = request(
        constraint=Regex(pattern=EMOJI), max_tokens=100, logprobs=True, top_logprobs=3, **GREEDY
    )
    chunks = await run(engine, what)
    reported = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert [logprob.token_id for logprob in reported] == list(ids_of(chunks))
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    assert b"".join(logprob.token_bytes for logprob in reported[:-1]).decode() == EMOJI
    assert all(-10_000 < logprob.logprob <= 0 for logprob in reported)
    assert all(len(logprob.top) == 3 for logprob in reported)
    first = reported[0]
    assert first.top[0].logprob >= first.top[1].logprob >= first.top[2].logprob


async def test_logprobs_of_free_text_are_the_best_ones(engine: SglangEngine) -> None:
    chunks = await run(engine, request(logprobs=True, top_logprobs=2, **GREEDY))
    for logprob in (logprob for chunk in chunks for logprob in chunk.logprobs):
        assert logprob.token_id == logprob.top[0].token_id
        assert logprob.token_bytes.decode(errors="replace") == logprob.token
    assert not any(chunk.logprobs for chunk in await run(engine, request()))


async def test_logprobs_of_asked_ids_come_in_their_order(engine: SglangEngine) -> None:
    chunks = await run(
        engine, request(max_tokens=3, logprobs=True, logprob_token_ids=(777, 5), **GREEDY)
    )
    reported = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert len(reported) == 3
    for logprob in reported:
        assert [asked.token_id for asked in logprob.asked] == [777, 5]
        assert not logprob.top
    own = await run(
        engine, request(max_tokens=1, logprobs=True, logprob_token_ids=(777,), **GREEDY)
    )
    assert own[0].logprobs[0].asked[0].logprob == pytest.approx(reported[0].asked[0].logprob)


async def test_prompt_logprobs_begin_where_they_are_asked_for(engine: SglangEngine) -> None:
    async def prompt_of(start: int) -> list[Any]:
        chunks = await run(
            engine,
            request(
                prompt_ids=(*PROMPT, 400 + start),  # the cache must not answer for it
                max_tokens=3,
                logprobs=True,
                top_logprobs=1,
                logprob_token_ids=(9,),
                prompt_logprobs_from=start,
                **GREEDY,
            ),
        )
        assert not any(chunk.prompt_logprobs for chunk in chunks[1:])
        return list(chunks[0].prompt_logprobs)

    whole = await prompt_of(0)
    assert [token.token_id for token in whole] == [*PROMPT, 400]
    assert (whole[0].logprob, whole[0].top, whole[0].asked) == (None, (), ())
    assert all(-20 < token.logprob < 0 for token in whole[1:])
    assert all((len(token.top), len(token.asked)) == (1, 1) for token in whole[1:])
    part = await prompt_of(2)
    assert [token.token_id for token in part] == [302, 303, 402]
    for token, same in zip(part[:2], whole[2:4], strict=True):
        assert token.logprob == pytest.approx(same.logprob, abs=1e-4)
    assert await prompt_of(5) == []


# --- Where it ends -------------------------------------------------------------------------------


async def test_the_natural_end_is_no_match(engine: SglangEngine) -> None:
    chunks = await run(engine, request(logit_bias=((EOS, 100.0),), **GREEDY))
    assert ending(chunks) == ("stop", None)
    assert text_of(chunks) == ""


async def test_a_stop_string_stays_in_the_text(engine: SglangEngine) -> None:
    chunks = await run(engine, scripted("say END of it", stop_strings=("END", "never")))
    assert text_of(chunks) == "say END"
    assert ending(chunks) == ("stop", "END")


async def test_with_stop_strings_the_end_token_is_still_no_text(engine: SglangEngine) -> None:
    chunks = await run(engine, scripted("fine", stop_strings=("END",), skip_special_tokens=False))
    assert text_of(chunks) == "fine"
    assert ids_of(chunks)[-1] == EOS
    assert ending(chunks) == ("stop", None)


async def test_special_tokens_are_text_only_on_request(engine: SglangEngine) -> None:
    stop = StopConditions(ignore_eos=True)
    shown = request(
        max_tokens=2, logit_bias=((1, 100.0),), stop=stop, skip_special_tokens=False, **GREEDY
    )
    assert text_of(await run(engine, shown)) == "<|im_start|>" * 2
    hidden = request(max_tokens=2, logit_bias=((1, 100.0),), stop=stop, **GREEDY)
    assert text_of(await run(engine, hidden)) == ""


async def test_stop_tokens_stay_in_the_text_on_request(engine: SglangEngine) -> None:
    greedy = ids_of(await run(engine, request(max_tokens=12, **GREEDY)))
    at = next(i for i in range(3, 12) if greedy[i] not in greedy[:i])
    stop = StopConditions(token_ids=(greedy[at],), include_in_text=True)
    chunks = await run(engine, request(max_tokens=12, stop=stop, **GREEDY))
    assert ending(chunks) == ("stop", greedy[at])
    assert text_of(chunks) == engine.tokenizer.decode(greedy[: at + 1])


async def test_special_tokens_may_be_joined_without_spaces(engine: SglangEngine) -> None:
    for spaces in (True, False):
        shown = request(
            max_tokens=2,
            logit_bias=((1, 100.0),),
            stop=StopConditions(ignore_eos=True),
            skip_special_tokens=False,
            spaces_between_special_tokens=spaces,
            **GREEDY,
        )
        chunks = await run(engine, shown)
        assert text_of(chunks) == engine.tokenizer.decode(
            ids_of(chunks), skip_special_tokens=False, spaces_between_special_tokens=spaces
        )


async def test_a_stop_token_of_the_caller_is_a_match(engine: SglangEngine) -> None:
    greedy = ids_of(await run(engine, request(max_tokens=12, **GREEDY)))
    at = next(i for i in range(3, 12) if greedy[i] not in greedy[:i])
    stop = StopConditions(token_ids=(greedy[at],))
    chunks = await run(engine, request(max_tokens=12, stop=stop, **GREEDY))
    assert ids_of(chunks) == greedy[: at + 1]
    assert ending(chunks) == ("stop", greedy[at])
    assert text_of(chunks) == engine.tokenizer.decode(greedy[:at])


async def test_stop_tokens_count_while_the_natural_end_is_ignored(engine: SglangEngine) -> None:
    greedy = ids_of(await run(engine, request(max_tokens=12, **GREEDY)))
    at = next(i for i in range(3, 12) if greedy[i] not in greedy[:i])
    stop = StopConditions(token_ids=(greedy[at],), ignore_eos=True)
    chunks = await run(engine, request(max_tokens=200, stop=stop, **GREEDY))
    assert ids_of(chunks) == greedy[: at + 1]
    assert ending(chunks) == ("stop", greedy[at])
    assert text_of(chunks) == engine.tokenizer.decode(greedy[:at])
    await until_running(engine, 0)


async def test_ignoring_the_end_goes_on_to_the_limit(engine: SglangEngine) -> None:
    stop = StopConditions(ignore_eos=True)
    chunks = await run(engine, request(logit_bias=((EOS, 100.0),), stop=stop, **GREEDY))
    assert ids_of(chunks) == (EOS,) * 8
    assert ending(chunks) == ("length", None)


async def test_no_end_before_the_minimum(engine: SglangEngine) -> None:
    chunks = await run(
        engine, request(logit_bias=((EOS, 50.0),), min_tokens=5, max_tokens=20, **GREEDY)
    )
    assert ids_of(chunks)[5:] == (EOS,)
    assert EOS not in ids_of(chunks)[:5]


# --- Constraints ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Regex(pattern=r"\+49-[7]{3}"), "+49-777"),
        (Ebnf(grammar='root ::= "yes " tail\ntail ::= "and " "no"'), "yes and no"),
        (JsonSchema(schema=SCHEMA), '{"name": "Ada", "age": 36}'),
        (
            StructuralTag(
                spec={
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<f>",
                        "content": {"type": "regex", "pattern": "[7]{3}"},
                        "end": "</f>",
                    },
                }
            ),
            "<f>777</f>",
        ),
    ],
)
async def test_a_constraint_is_obeyed(
    engine: SglangEngine, constraint: Constraint, expected: str
) -> None:
    chunks = await run(engine, request(constraint=constraint, max_tokens=100))
    assert text_of(chunks) == expected
    assert ending(chunks) == ("stop", None)


async def test_a_constraint_ends_an_answer_before_its_minimum(engine: SglangEngine) -> None:
    chunks = await run(
        engine, request(constraint=Regex(pattern="yes"), min_tokens=20, max_tokens=40, **GREEDY)
    )
    assert text_of(chunks) == "yes"
    assert ending(chunks) == ("stop", None)


async def test_any_json_object_begins_as_one(engine: SglangEngine) -> None:
    chunks = await run(engine, request(constraint=JsonObject(), max_tokens=5, **GREEDY))
    assert text_of(chunks).startswith("{")


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (Regex(pattern="(secret"), InvalidGrammar),
        (Ebnf(grammar="root ::= secret"), InvalidGrammar),
        (StructuralTag(spec={"type": "secret"}), InvalidGrammar),
        (JsonSchema(schema={"type": "secret"}), InvalidJsonSchema),
    ],
)
async def test_a_bad_grammar_fails_alone(
    engine: SglangEngine, constraint: Constraint, error: type[ServingError]
) -> None:
    neighbour = Consumer(engine, request("n", max_tokens=30, **GREEDY))
    for _ in range(2):  # the second time SGLang has it in its cache
        with pytest.raises(error) as caught:
            await run(engine, request(constraint=constraint))
        assert caught.value.status == 400
        assert "secret" not in f"{caught.value.message} {caught.value.diagnostic}"
    assert ending(await neighbour.end()) == ("length", None)
    assert text_of(await run(engine, scripted("fine"))) == "fine"
    await until_running(engine, 0)


def thinking(text: str, *, reasoning_open: bool, **reasoning: Any) -> EngineRequest:
    """A conversation with a constraint on its answer, of a model that thinks like Qwen3."""
    prompt = ChatPrompt(
        messages=(Message(role="user", parts=(TextPart(text="x"),)),),
        reasoning=Reasoning(**reasoning),
    )
    job = Job(
        job_id="t",
        model="m",
        prompt=prompt,
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=100),
            constraint=Regex(pattern=text),
            logit_bias=((4077, 6.0),),  # </think> comes soon, but not at once
            seed=1,
        ),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )
    constraint = effective_constraint(
        job,
        tool_format=None,
        reasoning_format=REASONING_FORMATS["qwen3"],
        reasoning_open=reasoning_open,
    )
    return EngineRequest(
        engine_request_id="t",
        job=job,
        prompt_ids=PROMPT,
        max_tokens=100,
        constraint=constraint,
        reasoning_open=reasoning_open,
    )


@pytest.mark.parametrize("reasoning_open", [False, True])
async def test_a_constraint_waits_for_the_end_of_reasoning(
    engine: SglangEngine, reasoning_open: bool
) -> None:
    think = thinking("[f]ine", reasoning_open=reasoning_open, effort="high")
    thought, _, answer = text_of(await run(engine, think)).rpartition("</think>")
    assert answer.lstrip("\r\n") == "fine"
    assert bool(thought) or not reasoning_open
    off = thinking("fine", reasoning_open=False, effort="none")
    assert text_of(await run(engine, off)) == "fine"


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "output"), [(4090, 1), (4000, 97), (5000, 8)])
async def test_what_does_not_fit_the_window_is_refused(
    engine: SglangEngine, prompt: int, output: int
) -> None:
    with pytest.raises(ContextLengthExceeded):
        await run(engine, request(prompt_ids=(300,) * prompt, max_tokens=output))


async def test_what_just_fits_is_served(engine: SglangEngine) -> None:
    chunks = await run(engine, request(prompt_ids=long_prompt(1, 4089), max_tokens=1))
    assert ending(chunks)[0] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": StopConditions(token_ids=(tiny.VOCAB_SIZE,)), "min_tokens": 2}, "stop_token_ids"),
        ({"stop": StopConditions(token_ids=(-1,))}, "stop_token_ids"),
        ({"logit_bias": ((tiny.VOCAB_SIZE, 1.0),)}, "logit_bias"),
        ({"logprob_token_ids": (tiny.VOCAB_SIZE,), "logprobs": True}, "token_ids_logprob"),
    ],
)
async def test_values_outside_the_model_are_refused(
    engine: SglangEngine, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedValue) as caught:
        await run(engine, request(**fields))
    assert caught.value.param == param
    assert await engine.running() == 0


@pytest.mark.parametrize("prompt_ids", [(300, tiny.VOCAB_SIZE), (-1,), (1 << 62,), ()])
async def test_prompts_outside_the_model_are_refused(
    engine: SglangEngine, prompt_ids: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidPrompt):
        await run(engine, request(prompt_ids=prompt_ids))
    assert await engine.running() == 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (EngineOptions(logit_processor="{}"), "custom_logit_processor"),
        (EngineOptions(hidden_states="last"), "return_hidden_states"),
        (EngineOptions(routed_experts=True), "return_routed_experts"),
        (EngineOptions(adapter="/etc/passwd"), "lora_path"),
    ],
)
async def test_options_that_were_not_opened_are_refused(
    engine: SglangEngine, options: EngineOptions, param: str
) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        await run(engine, request(engine=options))
    assert caught.value.param == param
    assert "passwd" not in caught.value.message
    assert await engine.running() == 0


# --- Aborts in every state -----------------------------------------------------------------------


def endless(name: str, **fields: Any) -> EngineRequest:
    stop = StopConditions(ignore_eos=True)
    return request(name, max_tokens=3000, stop=stop, **GREEDY, **fields)


async def test_an_abort_while_queued(engine: SglangEngine) -> None:
    running = [Consumer(engine, endless(f"run{i}")) for i in range(engine.slots)]
    for consumer in running:
        await consumer.until_tokens(1)
    queued = Consumer(engine, endless("queued"))
    await until_running(engine, engine.slots + 1)
    await engine.abort("queued")
    chunks = await queued.end()
    assert ending(chunks) == ("abort", None)
    assert not ids_of(chunks)
    await until_running(engine, engine.slots)
    for index, consumer in enumerate(running):
        await engine.abort(f"run{index}")
        assert ending(await consumer.end()) == ("abort", None)
    await until_running(engine, 0)


async def test_an_abort_during_prefill(engine: SglangEngine) -> None:
    prefilling = Consumer(engine, request("p", prompt_ids=long_prompt(2), max_tokens=50))
    await until_running(engine, 1)
    await engine.abort("p")
    chunks = await prefilling.end()
    assert ending(chunks) == ("abort", None)
    assert not ids_of(chunks)
    await until_running(engine, 0)


async def test_an_abort_while_the_grammar_compiles(engine: SglangEngine) -> None:
    slow = Regex(pattern="(" + "|".join(f"(a{i}b?){{1,40}}" for i in range(60)) + ")" + "x" * 9)
    compiling = Consumer(engine, request("g", constraint=slow, max_tokens=50))
    await until_running(engine, 1)
    await engine.abort("g")
    chunks = await compiling.end()
    assert ending(chunks) == ("abort", None)
    assert not ids_of(chunks)
    await until_running(engine, 0)


async def test_an_aborted_request_leaves_its_room(engine: SglangEngine) -> None:
    """The cache holds 16,384 tokens: without it these would not all be served."""
    for index in range(8):
        consumer = Consumer(engine, endless(f"e{index}", prompt_ids=long_prompt(index, 1000)))
        await consumer.until_tokens(1)
        await engine.abort(f"e{index}")
        await consumer.end()
    await until_running(engine, 0)
    chunks = await run(engine, request(prompt_ids=long_prompt(99), max_tokens=2))
    assert ending(chunks)[0] == "length"


async def test_more_requests_than_slots_all_finish(engine: SglangEngine) -> None:
    consumers = [Consumer(engine, request(f"m{i}", **GREEDY)) for i in range(engine.slots * 3)]
    ended = [await consumer.end() for consumer in consumers]
    assert {ending(chunks) for chunks in ended} == {("length", None)}
    assert len({ids_of(chunks) for chunks in ended}) == 1


async def test_repeated_prompts_are_found_in_the_cache(engine: SglangEngine) -> None:
    what = long_prompt(50, 600)
    assert (await run(engine, request(prompt_ids=what)))[-1].cached_tokens == 0
    assert (await run(engine, request(prompt_ids=what)))[-1].cached_tokens == 599


# --- A guest in the worker -----------------------------------------------------------------------


async def test_the_card_tells_what_was_loaded(engine: SglangEngine) -> None:
    card = engine.card
    assert (card.id, card.context_length, card.vocab_size) == (
        "tiny-qwen3",
        tiny.CONTEXT_LENGTH,
        tiny.VOCAB_SIZE,
    )
    capabilities = card.capabilities
    assert capabilities.tools
    assert capabilities.regex
    assert capabilities.grammar
    assert capabilities.completions
    assert capabilities.reasoning is not None
    assert capabilities.reasoning.efforts == ("none", "high")
    assert engine.template_stop_strings == ()


@pytest.mark.rule("zdr.logs")
async def test_modules_that_quote_requests_in_their_log_lines_are_silent(
    engine: SglangEngine,
) -> None:
    for name in QUOTING:
        module = f"sglang.srt.{name}"
        assert importlib.util.find_spec(module) is not None, "SGLang has another name for it now"
        inside = logging.getLogger(f"{module}.any")
        assert not inside.isEnabledFor(logging.ERROR)
    assert logging.getLogger("sglang.srt.managers.scheduler").isEnabledFor(logging.ERROR)


async def test_sigterm_is_left_to_the_worker(engine: SglangEngine) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGQUIT) is not signal.SIG_DFL
