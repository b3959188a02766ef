"""What the scripted engine says for markers, tools and constraints."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from schemas.errors import UnsupportedValue
from schemas.job import ChatPrompt, Job
from schemas.message import ImagePart, Message, TextPart, ToolCall, ToolChoice, ToolSpec
from schemas.sampling import (
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
)
from tests.unit.parsing.reading import Part, calls, read, text, tool_parser
from workers.engines.base import EngineRequest
from workers.engines.scripted import (
    CAPABILITIES,
    IMAGE_TOKENS,
    ScriptedEngine,
    ScriptedTokenizer,
    Text,
    script_from_markers,
)
from workers.engines.scripted_markers import DEFAULT_ANSWER

CITY = ToolSpec(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city", "days"],
    },
)
CLOCK = ToolSpec(name="get_clock")


def user(content: str) -> Message:
    return Message(role="user", parts=(TextPart(text=content),))


def job(
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (),
    choice: ToolChoice | None = None,
    constraint: Constraint | None = None,
) -> Job:
    return Job(
        job_id="j",
        model="m",
        prompt=ChatPrompt(messages=messages, tools=tools, tool_choice=choice or ToolChoice()),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=100), constraint=constraint),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )


def said(what: Job) -> str:
    steps = script_from_markers(EngineRequest(engine_request_id="r", job=what))
    return "".join(step.text for step in steps if isinstance(step, Text))


def answer(*messages: Message, **options: Any) -> list[Part]:
    return read(tool_parser("hermes"), [said(job(*messages, **options))])


MARKED = user('Weather? [[say:I look it up.]] [[tool:get_weather {"city": "[[x]]", "days": 2}]]')


def test_a_tool_marker_calls_the_tool_with_these_arguments() -> None:
    parts = answer(MARKED, tools=(CITY, CLOCK))
    assert calls(parts) == [("get_weather", '{"city": "[[x]]", "days": 2}')]
    assert text(parts).strip() == "I look it up."


def test_several_markers_are_several_calls() -> None:
    both = user('[[tool:get_clock]] and [[tool:get_weather {"city":"\\"Oslo\\""}]]')
    assert calls(answer(both, tools=(CITY, CLOCK))) == [
        ("get_clock", ""),
        ("get_weather", '{"city":"\\"Oslo\\""}'),
    ]
    single = ToolChoice(mode="auto", parallel=False)
    assert len(calls(answer(both, tools=(CITY, CLOCK), choice=single))) == 1


def test_a_prompt_quoted_once_more_still_calls() -> None:
    quoted = user('{"prompt": "[[tool:get_weather {\\"city\\": \\"Oslo\\"}]]"}')
    assert calls(answer(quoted, tools=(CITY,))) == [("get_weather", '{"city": "Oslo"}')]


@pytest.mark.parametrize(
    ("after", "options"),
    [
        ((), {"tools": (CLOCK,)}),
        ((), {"tools": (CITY,), "choice": ToolChoice(mode="none")}),
        ((), {"tools": (CITY,), "constraint": Regex(pattern=".*")}),
        (
            (
                Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments=""),)),
                Message(role="tool", tool_call_id="1", parts=(TextPart(text="sunny"),)),
            ),
            {"tools": (CITY,)},
        ),
    ],
    ids=["not offered", "choice none", "format wins", "answered"],
)
def test_no_call_where_none_may_come(after: tuple[Message, ...], options: dict[str, Any]) -> None:
    parts = answer(MARKED, *after, **options)
    assert not calls(parts)
    assert text(parts).startswith("I look it up.")


def test_a_new_question_after_a_result_calls_again() -> None:
    result = Message(role="tool", tool_call_id="1", parts=(TextPart(text="sunny"),))
    assert calls(answer(MARKED, result, MARKED, tools=(CITY,)))


def test_a_forced_call_needs_no_marker() -> None:
    required = ToolChoice(mode="required")
    assert calls(answer(user("Hi"), tools=(CITY, CLOCK), choice=required)) == [
        ("get_weather", '{"city":"text","days":1}')
    ]
    named = ToolChoice(mode="named", name="get_clock")
    assert calls(answer(MARKED, tools=(CITY, CLOCK), choice=named)) == [("get_clock", "{}")]
    named = ToolChoice(mode="named", name="get_weather")
    assert calls(answer(MARKED, tools=(CITY, CLOCK), choice=named)) == [
        ("get_weather", '{"city": "[[x]]", "days": 2}')
    ]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (CITY.parameters, {"city": "text", "days": 1}),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 5}, 5),
        ({"type": ["null", "boolean"]}, True),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "array", "items": {"type": "number"}, "minItems": 2}, [0, 0]),
        ({"type": "array", "prefixItems": [{"const": 1}], "minItems": 1}, [1]),
        ({"type": "string", "minLength": 6, "maxLength": 8}, "textxx"),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, "AA-0"),
        ({"type": "integer", "exclusiveMinimum": 4, "multipleOf": 5}, 5),
        ({"type": "number", "maximum": -3}, -3),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
                    {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
                ]
            },
            {"a": None, "b": 0},
        ),
    ],
)
def test_a_closed_schema_gets_a_minimal_instance(schema: dict[str, Any], value: object) -> None:
    constraint = JsonSchema(schema=schema)
    assert msgspec.json.decode(said(job(MARKED, constraint=constraint))) == value


def test_the_marker_wins_where_any_object_will_do() -> None:
    marked = user('[[say:{"a":1}]]')
    for constraint in (JsonObject(), JsonSchema(schema={"type": "object"})):
        assert said(job(marked, constraint=constraint)) == '{"a":1}'
        assert said(job(user("Hi"), constraint=constraint)) == "{}"


@pytest.mark.parametrize(
    "pattern",
    ["yes|no", "[^a]b?c+", r"\d{3}-\w\s\D", "(?:ab){2}[x-z]", r"Sure\. .*", "^(a|b)$", "[qz]"],
)
def test_a_pattern_is_matched(pattern: str) -> None:
    assert re.fullmatch(pattern, said(job(user("Hi"), constraint=Regex(pattern=pattern))))


def test_a_marker_that_matches_the_pattern_is_said() -> None:
    assert said(job(user("[[say:no]]"), constraint=Regex(pattern="yes|no"))) == "no"


@pytest.mark.parametrize(
    ("grammar", "derived"),
    [
        ('root ::= "yes" | "no"', "yes"),
        (
            'root ::= greeting " " [A-C]+ ("!" | "?")\ngreeting ::= "hi" tail*\ntail ::= "x"',
            "hi A!",
        ),
        ('root ::= "a" root | "b"', DEFAULT_ANSWER),
    ],
)
def test_a_grammar_gives_its_first_derivation(grammar: str, derived: str) -> None:
    assert said(job(user("Hi"), constraint=Ebnf(grammar=grammar))) == derived


def test_tools_are_part_of_the_prompt_unless_none_may_be_called() -> None:
    def length(**options: Any) -> int:
        return len(ScriptedTokenizer().render_chat(job(user("Hi"), **options))[0])

    assert length(tools=(CITY, CLOCK)) > length(tools=(CLOCK,)) > length()
    assert length(tools=(CITY,), choice=ToolChoice(mode="none")) == length()


def test_images_count_where_the_model_sees_them() -> None:
    image = Message(role="user", parts=(ImagePart(media_type="image/png", data=b"x"),))
    seeing = ScriptedEngine(capabilities=msgspec.structs.replace(CAPABILITIES, vision=True))
    assert seeing.card.capabilities.vision
    ids, _ = seeing.tokenizer.render_chat(job(image))
    assert len(ids) == IMAGE_TOKENS + len("user: \n")
    blind = ScriptedEngine()
    assert not blind.card.capabilities.vision
    with pytest.raises(UnsupportedValue):
        blind.tokenizer.render_chat(job(image))
