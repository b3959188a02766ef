"""Grammars tried out in a process of their own: the verdicts, the limits and the process's loss."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from schemas.errors import GenerationFailed
from tests.fixtures.grammars import byte_tokenizer
from workers.engines.sglang_grammar import GrammarTrial

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


def tokenizer_info() -> str:
    """One token for each byte, and one for the end."""
    return str(byte_tokenizer().serialize_json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trial() -> AsyncIterator[GrammarTrial]:
    trial = GrammarTrial(time_limit_s=1.0)
    await trial.start(tokenizer_info, any_whitespace=False)
    yield trial
    await trial.stop()


def large_tokenizer_info() -> str:
    """As many tokens as the largest vocabularies have."""
    import xgrammar

    words = [f"{number:x}".encode() for number in range(1 << 18)]
    single = [bytes([value]) for value in range(256)]
    info = xgrammar.TokenizerInfo([*single, *words, b"<end>"], stop_token_ids=[256 + (1 << 18)])
    return str(info.serialize_json())


async def test_a_large_vocabulary_is_no_reason_to_refuse() -> None:
    trial = GrammarTrial()
    await trial.start(large_tokenizer_info, any_whitespace=False)
    try:
        named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        assert await trial.passes("json_schema", schema(named))
    finally:
        await trial.stop()


def schema(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def alternatives(levels: int) -> dict[str, Any]:
    """Three objects to choose from at each level."""
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        inner = {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": value},
                    "required": ["kind", "value"],
                }
                for kind, value in enumerate([inner, {"type": "integer"}, {"type": "null"}])
            ]
        }
    return inner


def nested(levels: int) -> str:
    """A schema that takes minutes."""
    level = '{"type":"object","required":["a"],"properties":{"a":'
    return level * levels + '{"type":"string"}' + "}}" * levels


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type":"object"}'),
        ("json_schema", schema(alternatives(14))),
        ("regex", "[a-z]+"),
        ("regex", "(a?){40}a{40}"),
        ("ebnf", 'root ::= "a" | "b"'),
        ("ebnf", "root ::= " + "(" * 60 + '"a"' + ")?" * 60),
        ("structural_tag", schema({"type": "structural_tag", "format": {"type": "any_text"}})),
    ],
)
async def test_what_compiles_in_time_passes(trial: GrammarTrial, kind: str, text: str) -> None:
    assert await trial.passes(kind, text)


@pytest.mark.rule("structured.limits")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type":"secret"}'),
        ("json_schema", "{"),
        ("json_schema", nested(600)),
        ("json_schema", schema({"enum": [f"value {number}" for number in range(60_000)]})),
        ("regex", "(secret"),
        ("regex", "(" * 5_000 + "a" + ")" * 5_000),
        ("regex", "a\0b"),
        ("ebnf", "root ::= secret"),
        ("ebnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
        ("structural_tag", "{}"),
        ("structural_tag", '{"type":"structural_tag","format":{"type":"secret"}}'),
    ],
)
async def test_what_does_not_is_refused_in_time(trial: GrammarTrial, kind: str, text: str) -> None:
    assert await trial.passes("regex", "warm")  # the process has started
    begun = time.perf_counter()
    assert not await trial.passes(kind, text)
    assert time.perf_counter() - begun < 12  # ten time limits, however busy the machine is
    assert await trial.passes("regex", "fine")


async def test_a_verdict_is_remembered(trial: GrammarTrial) -> None:
    slow = nested(601)
    assert not await trial.passes("json_schema", slow)
    begun = time.perf_counter()
    assert not await trial.passes("json_schema", slow)
    assert time.perf_counter() - begun < 0.5


@pytest.mark.rule("structured.limits")
async def test_one_that_takes_long_delays_no_other(trial: GrammarTrial) -> None:
    slow = asyncio.create_task(trial.passes("json_schema", nested(602)))
    await asyncio.sleep(0)  # it is on its way
    assert await trial.passes("regex", "quick")
    assert not slow.done()
    assert not await slow


async def test_who_leaves_takes_no_verdict_from_others(trial: GrammarTrial) -> None:
    text = nested(603)
    first = asyncio.create_task(trial.passes("json_schema", text))
    second = asyncio.create_task(trial.passes("json_schema", text))
    await asyncio.sleep(0)
    first.cancel()
    assert not await second


async def test_a_lost_process_fails_what_it_had_and_is_replaced(trial: GrammarTrial) -> None:
    assert await trial.passes("regex", "before")
    slow = asyncio.create_task(trial.passes("json_schema", nested(604)))
    await asyncio.sleep(0)
    process = trial._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    with pytest.raises(GenerationFailed):
        await slow
    assert await trial.passes("regex", "after")
