"""The messages of gpt-oss: reasoning, calls and answer on channels of one text."""

from __future__ import annotations

import pytest

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted
from schemas.sampling import StopConditions
from tests.unit.parsing.reading import Part, read
from tests.unit.parsing.recorded import TOOLS
from workers.parsing.harmony import HARMONY
from workers.parsing.pipeline import ChoiceParser, build_parser

THOUGHT = "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is sunny.<|return|>"
CALL = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Bern"}<|call|>'
)


def harmony(*, tools: bool = True, visible: bool = True, stop: str = "") -> ChoiceParser:
    return build_parser(
        0,
        reasoning_format="gpt-oss",
        starts_inside=False,
        visible=visible,
        stop=StopConditions(strings=(stop,) if stop else ()),
        template_stops=(),
        tool_format=HARMONY if tools else None,
        tools=TOOLS,
    )


def test_channels_become_reasoning_call_and_answer() -> None:
    assert read(harmony(), [THOUGHT + CALL]) == [
        Part("reasoning", "The user asks."),
        Part("call", '{"city": "Bern"}', "get_weather"),
    ]
    assert read(harmony(), [THOUGHT + FINAL]) == [
        Part("reasoning", "The user asks."),
        Part("text", "It is sunny."),
    ]


def test_everything_streams() -> None:
    parser = harmony()
    assert list(parser.feed("<|channel|>analysis<|message|>The us")) == [
        ReasoningDelta(0, "The us")
    ]
    assert parser.in_reasoning
    assert list(parser.feed("er.<|end|><|start|>assist")) == [ReasoningDelta(0, "er.")]
    assert not parser.in_reasoning
    assert not parser.feed("ant<|channel|>commentary to=functions.get_clock<|mess")
    assert list(parser.feed('age|>{"')) == [
        ToolCallStarted(0, 0, "get_clock"),
        ArgumentsDelta(0, 0, '{"'),
    ]
    assert parser.in_call
    assert list(parser.feed("<|call|><|start|>assistant<|channel|>final<|message|>Hi")) == [
        TextDelta(0, "Hi")
    ]
    assert not parser.in_call


@pytest.mark.parametrize("recipient", ["functions.analysis_of", "analysis"])
def test_a_tool_may_be_called_what_a_channel_is(recipient: str) -> None:
    call = f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{}}<|call|>"
    (part,) = read(harmony(), [call])
    assert (part.kind, part.name) == ("call", recipient.removeprefix("functions."))


def test_a_draft_on_the_reasoning_channel_is_no_call() -> None:
    draft = "<|channel|>analysis to=functions.get_weather code<|message|>{}<|end|>"
    assert read(harmony(), [draft]) == [Part("reasoning", "{}")]


def test_without_tools_a_call_is_text() -> None:
    assert read(harmony(tools=False), [THOUGHT + CALL]) == [
        Part("reasoning", "The user asks."),
        Part("text", '{"city": "Bern"}'),
    ]


def test_hidden_reasoning_is_dropped_and_stop_strings_leave_it_alone() -> None:
    assert read(harmony(visible=False), [THOUGHT + FINAL]) == [Part("text", "It is sunny.")]
    assert read(harmony(stop="s"), [THOUGHT + FINAL])[1] == Part("text", "It i")


def test_messages_of_one_channel_are_set_apart() -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert read(harmony(), [THOUGHT + THOUGHT + preamble + FINAL]) == [
        Part("reasoning", "The user asks.\n\nThe user asks."),
        Part("text", "I look.\n\nIt is sunny."),
    ]


def test_text_outside_messages_is_text() -> None:
    assert read(harmony(), ["Hello <|there|>."]) == [Part("text", "Hello <|there|>.")]
