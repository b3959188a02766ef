"""What forces a call lets through only what the same format's parser reads as such a call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint, JsonSchema, OutputLimit, SamplingParams, StructuralTag
from tests.fixtures.grammars import END, Allowed, byte_compiler, grammar_matcher
from tests.unit.parsing.reading import calls, read, tool_parser
from workers.constraint import effective_constraint
from workers.parsing.harmony import BEFORE_FINAL
from workers.parsing.tools import TOOL_FORMATS

WEATHER = ToolSpec(
    name="get_weather",
    strict=True,
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
CLOCK = ToolSpec(name="get_clock")
TOOLS = (WEATHER, CLOCK)
FORMATS = sorted({format: name for name, format in TOOL_FORMATS.items()}.values())
_VALUE = "Bern"
_DSML = ("</｜DSML｜parameter>", "</｜DSML｜ parameter>")  # noqa: RUF001 - the model's own spelling
_CLOSINGS = ('"', "<|end|>", "</parameter>", "</arg_value>", *_DSML)


def matcher(constraint: Constraint | None) -> Any:
    match constraint:
        case StructuralTag(spec=spec):
            grammar = byte_compiler().compile_structural_tag(msgspec.json.encode(spec).decode())
        case JsonSchema(schema=schema):
            grammar = byte_compiler().compile_json_schema(schema, any_whitespace=False)
        case _:
            raise AssertionError(constraint)
    return grammar_matcher(grammar)


def allowed(walk: Any) -> set[int]:
    """The bytes that may come next, and perhaps the end."""
    return set(Allowed().by(walk))


def generated(constraint: Constraint | None, *, most: int = 600) -> str:
    """A text that a constraint lets through, made byte by byte like a model would."""
    walk = matcher(constraint)
    text = b""
    while len(text) < most:
        following = allowed(walk)
        if END in following:
            return text.decode()
        piece = _next(walk, text, following)
        assert walk.accept_string(piece)
        text += piece
    raise AssertionError(f"no end: {text!r}")


def _next(walk: Any, text: bytes, following: set[int]) -> bytes:
    if len(following) > 100:  # anything goes: a value, and then what closes it
        if not text.endswith(_VALUE.encode()):
            return _VALUE.encode()
        for closing in _CLOSINGS:
            attempt = walk.fork()
            if attempt.accept_string(closing) and len(allowed(attempt)) < 100:
                return closing.encode()
    if ord(" ") in following and (not text or text.endswith(b"assistant")):
        return b" "
    first = next((token for token in b'"}<3{gc' if token in following), min(following))
    return bytes([first])


@pytest.mark.parametrize("format", FORMATS)
def test_a_named_call_is_made_with_true_arguments(format: str) -> None:
    named = ToolChoice(mode="named", name="get_weather")
    text = generated(TOOL_FORMATS[format].constraint(TOOLS, named))
    ((name, arguments),) = calls(read(tool_parser(format, TOOLS), [text]))
    assert name == "get_weather"
    value = msgspec.json.decode(arguments)
    assert set(value) == {"city", "days"}
    assert isinstance(value["city"], str)
    assert isinstance(value["days"], int)


@pytest.mark.parametrize("format", FORMATS)
def test_a_required_call_is_made(format: str) -> None:
    required = ToolChoice(mode="required", parallel=False)
    text = generated(TOOL_FORMATS[format].constraint(TOOLS, required))
    ((name, arguments),) = calls(read(tool_parser(format, TOOLS), [text]))
    assert (name, msgspec.json.decode(arguments or "{}")) == ("get_clock", {})


@pytest.mark.parametrize("format", FORMATS)
def test_text_instead_of_a_required_call_is_refused(format: str) -> None:
    walk = matcher(TOOL_FORMATS[format].constraint(TOOLS, ToolChoice(mode="required")))
    assert not walk.accept_string("I would rather not.")


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"pythonic", "lfm2"}))
def test_strict_tools_are_called_truly_or_not_at_all(format: str) -> None:
    auto = TOOL_FORMATS[format].constraint(TOOLS, ToolChoice())
    spoken = "<|channel|>final<|message|>Hello.<|return|>" if format == "gpt-oss" else "Hello."
    walk = matcher(auto)
    assert walk.accept_string(spoken)
    assert not walk.is_terminated()
    named = ToolChoice(mode="named", name="get_weather")
    call = generated(TOOL_FORMATS[format].constraint(TOOLS, named))
    assert matcher(auto).accept_string(call)
    assert not matcher(auto).accept_string(call.replace("get_weather", "get_whether"))
    assert not matcher(auto).accept_string(call.replace("days", "nights"))


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_enforced_where_nothing_was_asked(format: str) -> None:
    loose = (CLOCK,)
    assert TOOL_FORMATS[format].constraint(loose, ToolChoice()) is None
    assert TOOL_FORMATS[format].constraint(TOOLS, ToolChoice(mode="none")) is None


def test_an_answer_of_gpt_oss_is_constrained_after_its_reasoning() -> None:
    constraint = effective_constraint(
        Job(
            job_id="j",
            model="m",
            prompt=ChatPrompt(messages=(), reasoning=Reasoning(effort="low")),
            sampling=SamplingParams(
                limit=OutputLimit(max_tokens=9), constraint=JsonSchema(schema={"const": 7})
            ),
            created_at=0,
            deadline=0,
            queue_deadline=0,
        ),
        tool_format=None,
        reasoning_format=BEFORE_FINAL,
        reasoning_open=False,
    )
    thought = "<|channel|>analysis<|message|>Hm {.<|end|><|start|>assistant"
    assert matcher(constraint).accept_string(f"{thought}<|channel|>final<|message|>7")
    assert not matcher(constraint).accept_string(f"{thought}<|channel|>final<|message|>8")
    assert not matcher(constraint).accept_string("<|channel|>final<|message|>Seven.")
