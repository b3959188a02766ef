"""A choice that was cut goes on in the real SGLang engine as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from schemas.delta import TokenLogprob
from schemas.errors import GenerationFailed
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import Message, TextPart, ToolChoice, ToolSpec
from schemas.sampling import (
    Ebnf,
    EngineOptions,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
    StructuralTag,
)
from tests.contract.engine_suite import (
    Consumer,
    ending,
    ids_of,
    request,
    run,
    text_of,
    until_running,
)
from tests.fixtures.engine import SESSION_LOOP
from workers.constraint import effective_constraint
from workers.engines.base import EngineChunk, EngineRequest
from workers.engines.sglang import SglangEngine
from workers.engines.sglang_continuation import PREFIX_KEY
from workers.parsing.reasoning import REASONING_FORMATS
from workers.parsing.tools import TOOL_FORMATS

pytestmark = [pytest.mark.sglang, SESSION_LOOP, pytest.mark.timeout(300)]

GREEDY = {"temperature": 0.0}
EOS = 2
CLOSE_THINK = 4077  # `</think>`
TEXT = 'ok 🧪! ď „x" 漢字 👩‍🚀 end'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,20}$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 4},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "type": "tag",
                "begin": "<f=a>",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "</f>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": True,
    },
}


@pytest.fixture
def engine(sglang_engine: SglangEngine) -> SglangEngine:
    return sglang_engine


def literal(text: str) -> str:
    """A pattern for nothing but the text."""
    return "".join(f"\\{c}" if c in r"\.[]{}()*+?|^$/" else c for c in text)


def chat(*, max_tokens: int = 60, reasoning_open: bool = False, **fields: Any) -> EngineRequest:
    """A conversation with the constraint that a worker would make of it."""
    sampling = {
        name: fields.pop(name) for name in list(fields) if name in SamplingParams.__struct_fields__
    }
    job = Job(
        job_id="t",
        model="m",
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text="x"),)),), **fields),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=max_tokens), **sampling),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )
    constraint = effective_constraint(
        job,
        tool_format=TOOL_FORMATS["qwen25"],
        reasoning_format=REASONING_FORMATS["qwen3"],
        reasoning_open=reasoning_open,
    )
    return EngineRequest(
        engine_request_id="t",
        job=job,
        prompt_ids=(300, 301, 302, 303),
        max_tokens=max_tokens,
        constraint=constraint,
        reasoning_open=reasoning_open,
    )


def forced(**prompt: Any) -> EngineRequest:
    tool = ToolSpec(name="save", parameters=SCHEMA, strict=True)
    choice = ToolChoice(mode="named", name="save")
    return chat(tools=(tool,), tool_choice=choice, **GREEDY, **prompt)


KINDS = {
    "plain": request(max_tokens=24, **GREEDY),
    "length": request(max_tokens=5, **GREEDY),
    "seed": request(max_tokens=16, seed=3, temperature=1.0),
    "seed-narrow": request(max_tokens=16, seed=5, temperature=1.3, top_k=20, top_p=0.9, min_p=0.01),
    "frequency": request(max_tokens=40, frequency_penalty=1.7, **GREEDY),
    "presence": request(max_tokens=40, presence_penalty=1.1, **GREEDY),
    "repetition": request(max_tokens=40, repetition_penalty=1.6, **GREEDY),
    "all-penalties": request(
        max_tokens=30,
        frequency_penalty=0.7,
        presence_penalty=0.3,
        repetition_penalty=1.2,
        min_tokens=9,
        logit_bias=((EOS, 18.0),),
        **GREEDY,
    ),
    "min-tokens": request(max_tokens=20, min_tokens=9, logit_bias=((EOS, 50.0),), **GREEDY),
    "bias": request(max_tokens=12, logit_bias=((777, 6.0), (778, 6.0)), seed=1),
    "ignore-eos": request(
        max_tokens=8, logit_bias=((EOS, 100.0),), stop=StopConditions(ignore_eos=True), **GREEDY
    ),
    "special": request(
        max_tokens=6,
        logit_bias=((1, 100.0),),
        stop=StopConditions(ignore_eos=True),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        **GREEDY,
    ),
    "stop-string": request(
        max_tokens=90,
        constraint=Regex(pattern=literal(TEXT + " STOP and more")),
        stop_strings=("STOP",),
        **GREEDY,
    ),
    "characters": request(max_tokens=90, constraint=Regex(pattern=literal(TEXT)), **GREEDY),
    "half-a-character": request(max_tokens=7, constraint=Regex(pattern=literal(TEXT)), **GREEDY),
    "replacement": request(max_tokens=20, constraint=Regex(pattern="a\ufffd"), **GREEDY),
    "json-schema": request(max_tokens=80, constraint=JsonSchema(schema=SCHEMA), **GREEDY),
    "json-schema-seed": request(max_tokens=80, constraint=JsonSchema(schema=SCHEMA), seed=4),
    "regex": request(max_tokens=40, constraint=Regex(pattern="([a-f]{2}-){2,9}[0-9]{3}"), seed=2),
    "ebnf": request(
        max_tokens=50,
        constraint=Ebnf(grammar='root ::= "(" item{1,9} ")"\nitem ::= [a-c]+ ("," | root)'),
        seed=8,
    ),
    "structural-tag": request(max_tokens=80, constraint=StructuralTag(spec=TAG), **GREEDY),
    "reasoning": chat(
        constraint=Regex(pattern="[a-f]{9,20}"),
        reasoning=Reasoning(effort="high"),
        reasoning_open=True,
        logit_bias=((CLOSE_THINK, 6.0),),
        seed=1,
    ),
    "forced-call": forced(),
    "forced-call-reasoning": chat(
        tools=(ToolSpec(name="save", parameters=SCHEMA, strict=True),),
        tool_choice=ToolChoice(mode="required"),
        reasoning=Reasoning(effort="high"),
        reasoning_open=True,
        logit_bias=((CLOSE_THINK, 6.0),),
        seed=1,
        max_tokens=90,
    ),
    "strict-call-auto": chat(
        tools=(ToolSpec(name="save", parameters=SCHEMA, strict=True),), seed=11, max_tokens=40
    ),
}


def cuts(length: int) -> Iterable[int]:
    """Some places to cut an answer of so many tokens."""
    return sorted({1, 2, 3, length // 3, length // 2, length - 2, length - 1} & {*range(1, length)})


async def continued(
    engine: SglangEngine, what: EngineRequest, prefix: tuple[int, ...]
) -> tuple[list[EngineChunk], list[EngineChunk]]:
    """The prefix replayed, and what comes after it."""
    rest = msgspec.structs.replace(
        what, prefix_ids=prefix, engine_request_id=f"{what.engine_request_id}.{len(prefix)}"
    )
    return list(engine.replay(rest)), await run(engine, rest)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_does_not_show(engine: SglangEngine, kind: str) -> None:
    what = KINDS[kind]
    whole = await run(engine, what)
    ids = ids_of(whole)
    assert len(ids) > 3
    at = list(cuts(len(ids)))
    if kind in ("characters", "replacement"):
        at = list(range(1, len(ids)))
    for cut, (before, after) in zip(
        at,
        await asyncio.gather(*(continued(engine, what, ids[:cut]) for cut in at)),
        strict=True,
    ):
        assert ids_of(before) == ids[:cut]
        assert ids_of(after) == ids[cut:], (kind, cut)
        assert text_of(before) + text_of(after) == text_of(whole), (kind, cut)
        assert ending(after) == ending(whole)
        assert all(chunk.replayed and chunk.output_tokens == 1 for chunk in before)
        assert sum(chunk.output_tokens for chunk in after) == len(ids) - cut
        assert {chunk.input_tokens for chunk in after} == {whole[0].input_tokens}
        assert all((chunk.cached_tokens or 0) <= len(what.prompt_ids) for chunk in after)
        assert not any("\ufffd" in chunk.text for chunk in before if "\ufffd" not in text_of(whole))


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("plain", {"logprob_token_ids": (777, 5)}),
        ("json-schema", {"top_logprobs": 2}),
        ("frequency", {"top_logprobs": 2, "logprob_token_ids": (777, 5)}),
    ],
)
async def test_log_probabilities_go_on(
    engine: SglangEngine, kind: str, asked: dict[str, Any]
) -> None:
    job = KINDS[kind].job
    sampling = msgspec.structs.replace(job.sampling, logprobs=True, prompt_logprobs_from=0, **asked)
    what = msgspec.structs.replace(KINDS[kind], job=msgspec.structs.replace(job, sampling=sampling))
    whole = await run(engine, what)
    expected = [logprob for chunk in whole for logprob in chunk.logprobs]
    at = list(cuts(len(expected)))
    parts = await asyncio.gather(*(continued(engine, what, ids_of(whole)[:cut]) for cut in at))
    for cut, (before, after) in zip(at, parts, strict=True):
        assert ids_of(after) == ids_of(whole)[cut:]
        assert not any(chunk.logprobs for chunk in before)
        assert not any(chunk.prompt_logprobs for chunk in after)
        got = [logprob for chunk in after for logprob in chunk.logprobs]
        assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in after)
        for one, same in zip(got, expected[cut:], strict=True):
            assert _same(one, same)


def _same(one: TokenLogprob, same: TokenLogprob) -> bool:
    pairs = [(one, same), *zip((*one.top, *one.asked), (*same.top, *same.asked), strict=True)]
    return all(
        (a.token_id, a.token_bytes) == (b.token_id, b.token_bytes)
        and a.logprob == pytest.approx(b.logprob, abs=1e-3)
        for a, b in pairs
    )


@pytest.mark.parametrize("at_end", [False, True])
async def test_stop_tokens_of_the_caller(engine: SglangEngine, at_end: bool) -> None:
    """Met after the cut, and as the last token before it."""
    greedy = ids_of(await run(engine, KINDS["plain"]))
    at = next(i for i in range(5, 24) if greedy[i] not in greedy[:i])
    for stop in (
        StopConditions(token_ids=(greedy[at],)),
        StopConditions(token_ids=(greedy[at],), include_in_text=True),
        StopConditions(token_ids=(greedy[at],), ignore_eos=True),
    ):
        what = request(max_tokens=24, stop=stop, **GREEDY)
        whole = await run(engine, what)
        assert ending(whole) == ("stop", greedy[at])
        cut = at + 1 if at_end else 4
        before, after = await continued(engine, what, greedy[:cut])
        assert ids_of(after) == greedy[cut : at + 1]
        assert text_of(before) + text_of(after) == text_of(whole)
        assert ending(after) == ending(whole)
        await until_running(engine, 0)


@pytest.mark.parametrize("kind", ["json-schema", "half-a-character", "forced-call"])
async def test_a_prefix_that_is_all_of_it(engine: SglangEngine, kind: str) -> None:
    whole = await run(engine, KINDS[kind])
    before, after = await continued(engine, KINDS[kind], ids_of(whole))
    assert ids_of(after) == ()
    assert text_of(before) == text_of(whole)
    assert ending(after) == ending(whole)


async def test_choices_go_on_side_by_side(engine: SglangEngine) -> None:
    """Each with penalties or a seed of its own, and none feels its neighbours."""
    kinds = ["all-penalties", "frequency", "seed", "regex"]
    whole = [ids_of(chunks) for chunks in [await run(engine, KINDS[kind]) for kind in kinds]]
    rests = await asyncio.gather(
        *(
            run(
                engine,
                msgspec.structs.replace(
                    KINDS[kind], prefix_ids=ids[: 3 + 2 * number], engine_request_id=kind
                ),
            )
            for number, (kind, ids) in enumerate(zip(kinds, whole, strict=True))
        )
    )
    for number, (ids, rest) in enumerate(zip(whole, rests, strict=True)):
        assert ids[: 3 + 2 * number] + ids_of(rest) == ids


async def test_a_long_prefix_is_prefilled_in_steps(engine: SglangEngine) -> None:
    """Prompt and prefix take many steps of 128 tokens, and neither is in the prefix cache."""
    prompt = tuple(range(400, 700))
    what = request("long", prompt_ids=prompt, max_tokens=700, frequency_penalty=0.4, **GREEDY)
    ids = ids_of(await run(engine, what))
    cached = (await continued(engine, what, ids[:600]))[1]
    assert ids_of(cached) == ids[600:]
    assert 0 < (cached[0].cached_tokens or 0) <= len(prompt)
    await until_running(engine, 0)
    assert (await engine._manager.flush_cache()).success
    fresh = (await continued(engine, what, ids[:600]))[1]
    assert ids_of(fresh) == ids[600:]
    assert fresh[0].cached_tokens == 0


async def test_a_grammar_of_which_nothing_is_known_yet(engine: SglangEngine) -> None:
    """It compiles while the request waits; afterwards it is taken from memory, unspoiled."""
    what = request(max_tokens=60, constraint=Regex(pattern="(q[a-f]{2}-){4,9}[0-9]{3}"), seed=6)
    other = request(max_tokens=60, constraint=Regex(pattern="(q[a-f]{2}-){4,9}[0-9]{4}"), seed=6)
    ids = ids_of(await run(engine, what))
    text = engine.tokenizer.decode(ids[:12])
    first = await continued(engine, other, ids[:12])
    again = await continued(engine, other, ids[:12])
    assert ids_of(first[1]) == ids_of(again[1])
    assert (text + text_of(first[1])).startswith("q")
    fresh = await run(engine, other)
    assert text_of(fresh).startswith("q")


async def test_a_prefix_that_breaks_the_grammar_fails_alone(engine: SglangEngine) -> None:
    neighbour = Consumer(engine, request("n", max_tokens=30, **GREEDY))
    what = request(constraint=Regex(pattern="[0-9]{40}"), max_tokens=60, prompt_ids=(5, 6))
    with pytest.raises(GenerationFailed):
        await continued(engine, what, (777, 778))
    with pytest.raises(GenerationFailed):
        await continued(engine, what, (1 << 31,))
    assert ending(await neighbour.end()) == ("length", None)
    await until_running(engine, 0)


async def test_callers_cannot_pose_as_an_earlier_attempt(engine: SglangEngine) -> None:
    plain = await run(engine, KINDS["plain"])
    options = EngineOptions(custom_params={PREFIX_KEY: [1 << 40, "x"], "other": 1})
    posing = await run(engine, request(max_tokens=24, engine=options, **GREEDY))
    assert ids_of(posing) == ids_of(plain)
    ids = ids_of(plain)
    with_own = request(max_tokens=24, engine=options, **GREEDY)
    assert ids_of((await continued(engine, with_own, ids[:7]))[1]) == ids[7:]


async def test_what_a_late_reader_gets_at_once_is_still_apart(engine: SglangEngine) -> None:
    """SGLang joins outputs that wait; counts must not depend on who was late."""
    chunks: list[EngineChunk] = []
    generating = engine.generate(KINDS["plain"])
    chunks.append(await anext(generating))
    await until_running(engine, 0)
    chunks += [chunk async for chunk in generating]
    prompt = await run(engine, KINDS["plain"])
    assert [(c.token_ids, c.text) for c in chunks] == [(c.token_ids, c.text) for c in prompt]
    assert ending(chunks) == ending(prompt)


async def test_an_abort_after_a_cut(engine: SglangEngine) -> None:
    stop = StopConditions(ignore_eos=True)
    what = request("cut", max_tokens=3000, stop=stop, **GREEDY)
    consumer = Consumer(engine, msgspec.structs.replace(what, prefix_ids=(400, 401)))
    await consumer.until_tokens(3)
    await engine.abort("cut")
    assert ending(await consumer.end()) == ("abort", None)
    await until_running(engine, 0)
