"""Which constraint a Job's output has, as XGrammar reads it byte by byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.errors import InvalidGrammar, InvalidJsonSchema, ToolSchemaInvalid, UnsupportedValue
from schemas.job import ChatPrompt, Job, Reasoning, TokenPrompt
from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import (
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StructuralTag,
)
from tests.fixtures.grammars import END, byte_compiler, grammar_matcher
from workers.constraint import calls_allowed, effective_constraint, refused_constraint
from workers.engines.sglang_request import grammar
from workers.parsing.reasoning import REASONING_FORMATS
from workers.parsing.tools import TOOL_FORMATS

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}},
    "required": ["name"],
    "additionalProperties": False,
}
ADA = '{"name": "Ada"}'
WEATHER = ToolSpec(
    name="weather",
    parameters={
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "$defs": {"city": {"type": "string", "pattern": "^[A-Z]+$"}},
    },
)
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "ROME"}}\n</tool_call>'
rome = ROME.replace("ROME", "rome")


def job(
    constraint: Constraint | None = None,
    *,
    tools: tuple[ToolSpec, ...] = (),
    effort: Any = None,
    continue_last: bool = False,
    **choice: Any,
) -> Job:
    return Job(
        job_id="j",
        model="m",
        prompt=ChatPrompt(
            messages=(),
            tools=tools,
            tool_choice=ToolChoice(**choice),
            reasoning=Reasoning(effort=effort),
            continue_last=continue_last,
        ),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=9), constraint=constraint, constraint_param="field"
        ),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )


def effective(
    what: Job, *, reasoning: str | None = None, inside: bool = False, tools: str | None = "hermes"
) -> Constraint | None:
    return effective_constraint(
        what,
        tool_format=TOOL_FORMATS[tools] if tools else None,
        reasoning_format=REASONING_FORMATS[reasoning] if reasoning else None,
        reasoning_open=inside,
    )


def lets_through(constraint: Constraint | None, text: str) -> bool:
    """Whether a text is all that a model may write under a constraint."""
    if constraint is None:
        return True
    kind, value = grammar(constraint)
    match kind:
        case "json_schema":
            compiled = byte_compiler().compile_json_schema(value, any_whitespace=False)
        case "regex":
            compiled = byte_compiler().compile_regex(value)
        case "ebnf":
            compiled = byte_compiler().compile_grammar(value)
        case _:
            compiled = byte_compiler().compile_structural_tag(value)
    matcher = grammar_matcher(compiled)
    return bool(matcher.accept_string(text) and matcher.accept_token(END))


TAG = StructuralTag(
    spec={
        "format": {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "regex", "pattern": "[7]+"},
            "end": "</f>",
        }
    }
)
LEGACY_TAG = StructuralTag(
    spec={
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
)
ANSWERS = [
    (JsonSchema(schema=PERSON), ADA, '{"name": ""}'),
    (JsonObject(), '{"a": [1, 2]}', "[1]"),
    (Regex(pattern="[ab]+"), "abba", "abc"),
    (Ebnf(grammar='root ::= "yes" | "no"'), "yes", "maybe"),
    (TAG, "<f>77</f>", "<f>8</f>"),
    (LEGACY_TAG, "a <f>7</f> b", "a <f>x</f> b"),
]


@pytest.mark.parametrize(("asked", "good", "bad"), ANSWERS)
def test_the_answer_is_constrained(asked: Constraint, good: str, bad: str) -> None:
    constraint = effective(job(asked))
    assert lets_through(constraint, good)
    assert not lets_through(constraint, bad)


# --- Reasoning -----------------------------------------------------------------------------------


@pytest.mark.rule("structured.after-reasoning")
@pytest.mark.parametrize("reasoning", ["qwen3", "gemma4", "kimi"])
@pytest.mark.parametrize(("asked", "good", "bad"), ANSWERS)
def test_reasoning_comes_before_the_constraint(
    asked: Constraint, good: str, bad: str, reasoning: str
) -> None:
    markers = REASONING_FORMATS[reasoning]
    thought = f"Hm, {bad}?{markers.closing}\n\n"
    opens_itself = effective(job(asked, effort="high"), reasoning=reasoning)
    assert lets_through(opens_itself, markers.opening + thought + good)
    assert lets_through(opens_itself, good), "it need not think"
    assert not lets_through(opens_itself, markers.opening + thought + bad)
    assert not lets_through(opens_itself, bad)

    opened = effective(job(asked, effort="high"), reasoning=reasoning, inside=True)
    assert lets_through(opened, thought + good)
    assert not lets_through(opened, thought + bad)


@pytest.mark.rule("structured.after-reasoning")
def test_a_model_that_always_thinks_does_so_unasked() -> None:
    # One that cannot be told not to has no effort that is none.
    constraint = effective(job(Regex(pattern="a"), effort=None), reasoning="deepseek-r1")
    assert lets_through(constraint, "Hm.</think>a")


@pytest.mark.rule("structured.no-reasoning")
@pytest.mark.parametrize(
    ("effort", "reasoning"), [(None, "qwen3"), ("none", "qwen3"), ("none", "qwen3-thinking")]
)
def test_without_reasoning_the_constraint_binds_at_once(effort: Any, reasoning: str) -> None:
    constraint = effective(job(JsonSchema(schema=PERSON), effort=effort), reasoning=reasoning)
    assert lets_through(constraint, ADA)
    assert not lets_through(constraint, f"<think>Hm.</think>{ADA}")


def test_an_answer_that_is_continued_has_no_reasoning_before_it() -> None:
    constraint = effective(
        job(Regex(pattern="a"), effort="high", continue_last=True), reasoning="qwen3"
    )
    assert constraint == Regex(pattern="a")


def test_token_prompts_have_no_reasoning_and_no_tools() -> None:
    what = msgspec.structs.replace(
        job(JsonSchema(schema=PERSON)), prompt=TokenPrompt(prompts=((1,),))
    )
    assert lets_through(effective(what, reasoning="qwen3", inside=True), ADA)


# --- Calls ---------------------------------------------------------------------------------------


@pytest.mark.rule("structured.forced-calls-first")
@pytest.mark.parametrize("choice", [{"mode": "required"}, {"mode": "named", "name": "weather"}])
def test_a_forced_call_takes_the_place_of_the_format(choice: dict[str, Any]) -> None:
    what = job(JsonSchema(schema=PERSON), tools=(WEATHER,), **choice)
    assert calls_allowed(what)
    constraint = effective(what)
    assert lets_through(constraint, ROME)
    assert not lets_through(constraint, rome)
    assert not lets_through(constraint, ADA)
    after = effective(
        msgspec.structs.replace(
            what, prompt=msgspec.structs.replace(what.prompt, reasoning=Reasoning(effort="high"))
        ),
        reasoning="qwen3",
        inside=True,
    )
    assert lets_through(after, f"Hm.</think>\n\n{ROME}")
    assert not lets_through(after, f"Hm.</think>\n\n{ADA}")


@pytest.mark.rule("structured.format-before-calls")
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_the_format_takes_the_place_of_calls(mode: Any) -> None:
    what = job(JsonSchema(schema=PERSON), tools=(WEATHER,), mode=mode)
    assert not calls_allowed(what)
    constraint = effective(what)
    assert lets_through(constraint, ADA)
    assert not lets_through(constraint, ROME)


@pytest.mark.rule("structured.strict-tools")
def test_strict_tools_constrain_their_calls_only() -> None:
    strict = msgspec.structs.replace(WEATHER, strict=True)
    assert effective(job(tools=(WEATHER,))) is None
    constraint = effective(job(tools=(strict,)))
    assert lets_through(constraint, "It is sunny.")
    assert lets_through(constraint, ROME)
    assert not lets_through(constraint, rome)


def test_a_tool_whose_schema_cannot_be_enforced_takes_any_object() -> None:
    tree = {"type": "object", "properties": {"kid": {"$ref": "#"}}}
    constraint = effective(job(tools=(ToolSpec(name="weather", parameters=tree),), mode="required"))
    assert lets_through(constraint, rome)


def test_a_model_that_writes_no_calls_cannot_be_forced() -> None:
    with pytest.raises(UnsupportedValue) as caught:
        effective(job(tools=(WEATHER,), mode="required"), tools=None)
    assert caught.value.param == "tool_choice"
    assert effective(job(tools=(WEATHER,)), tools=None) is None


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.rule("structured.invalid-grammar")
@pytest.mark.parametrize("pattern", ["(?=a)a", "(a)\\1", "\\bsecret\\b", "(secret", "a^b"])
def test_regular_expressions_that_would_be_misread_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        effective(job(Regex(pattern=pattern)))
    assert "secret" not in caught.value.message
    assert caught.value.param == "field"


@pytest.mark.parametrize("spec", [{}, {"format": 5}, {"structures": "x"}, {"structures": [5]}])
def test_structural_tags_without_a_format_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        effective(job(StructuralTag(spec=spec)))
    assert caught.value.param == "field"


def test_the_error_says_what_does_not_compile() -> None:
    for constraint, error in (
        (JsonObject(), InvalidJsonSchema),
        (Ebnf(grammar="x"), InvalidGrammar),
    ):
        refused = refused_constraint(job(constraint))
        assert (type(refused), refused.param) == (error, "field")
    forced = job(JsonObject(), tools=(WEATHER,), mode="required")
    assert type(refused_constraint(forced)) is ToolSchemaInvalid
