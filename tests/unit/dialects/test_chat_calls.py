"""Calls as the three spellings of a request want them answered, in a stream and in a body."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from ingress.dialects.chat import Chat
from schemas.delta import (
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from tests.unit.dialects.chat_jobs import USER, custom, tool
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

CUSTOM = {"tools": [custom(), tool()]}
LEGACY = {"functions": [{"name": "f"}, {"name": "note"}]}


def answer(
    fields: dict[str, Any], said: Sequence[Delta], reason: FinishReason = FinishReason.TOOL_CALLS
) -> tuple[list[Any], Any]:
    """The deltas of the stream's chunks with the reason of the last, and the body's choice."""
    chat = Chat()
    request = chat.parse({"model": "m", "messages": [USER], **fields})
    encoder = chat.encoder(request, chat.normalise(request, CARD, CONTEXT).job, STAMP)
    frames = [*encoder.open()]
    for delta in (*said, Finished(0, reason), Completed(Usage(1, 0, 1, 0))):
        frames += encoder.feed(delta)
    chunks = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames[1:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    (choice,) = orjson.loads(encoder.body())["choices"]
    assert deltas.pop() == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return deltas, choice


@pytest.mark.rule("chat.custom-tools")
def test_a_custom_call_carries_text() -> None:
    deltas, choice = answer(
        CUSTOM,
        [
            ToolCallStarted(0, 0, "note"),
            ArgumentsDelta(0, 0, '{"inp'),
            ArgumentsDelta(0, 0, 'ut": "say \\"'),
            ArgumentsDelta(0, 0, 'hi\\"\\n'),
            ArgumentsDelta(0, 0, '"}'),
            ToolCallStarted(0, 1, "f"),
            ArgumentsDelta(0, 1, "{}"),
        ],
    )
    note, function = choice["message"]["tool_calls"]
    assert note == {
        "id": note["id"],
        "type": "custom",
        "custom": {"name": "note", "input": 'say "hi"\n'},
    }
    assert function["function"] == {"name": "f", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"
    opening = {
        "id": note["id"],
        "index": 0,
        "type": "custom",
        "custom": {"name": "note", "input": ""},
    }
    assert [delta["tool_calls"][0] for delta in deltas[:3]] == [
        opening,
        {"index": 0, "custom": {"input": 'say "'}},
        {"index": 0, "custom": {"input": 'hi"\n'}},
    ]
    assert [delta["tool_calls"][0]["index"] for delta in deltas[3:]] == [1, 1]


def test_a_custom_call_without_input_has_empty_text() -> None:
    deltas, choice = answer(CUSTOM, [ToolCallStarted(0, 0, "note")])
    assert len(deltas) == 1
    assert choice["message"]["tool_calls"][0]["custom"] == {"name": "note", "input": ""}


def test_what_a_custom_call_holds_back_comes_at_its_end() -> None:
    deltas, choice = answer(
        CUSTOM, [ToolCallStarted(0, 0, "note"), ArgumentsDelta(0, 0, "no JSON at all")]
    )
    assert deltas[-1] == {"tool_calls": [{"index": 0, "custom": {"input": "no JSON at all"}}]}
    assert choice["message"]["tool_calls"][0]["custom"]["input"] == "no JSON at all"


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_a_custom_call_that_was_cut_off(reason: FinishReason) -> None:
    _, choice = answer(
        CUSTOM, [ToolCallStarted(0, 0, "note"), ArgumentsDelta(0, 0, '{"input":"half\\')], reason
    )
    assert choice["finish_reason"] == reason.value
    assert choice["message"]["tool_calls"][0]["custom"]["input"] == "half"


@pytest.mark.rule("chat.legacy-functions")
def test_a_legacy_call_is_answered_in_the_legacy_form() -> None:
    deltas, choice = answer(
        LEGACY,
        [
            TextDelta(0, "Well."),
            ToolCallStarted(0, 0, "f"),
            ArgumentsDelta(0, 0, '{"a"'),
            ArgumentsDelta(0, 0, ":1}"),
        ],
    )
    assert deltas == [
        {"content": "Well."},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
    ]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert choice["message"]["tool_calls"] is None


def test_there_is_room_for_one_legacy_call() -> None:
    deltas, choice = answer(
        LEGACY,
        [
            ToolCallStarted(0, 0, "f"),
            ToolCallStarted(0, 1, "note"),
            ArgumentsDelta(0, 1, '{"b":2}'),
        ],
    )
    assert deltas == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}


def test_a_legacy_call_that_was_cut_off() -> None:
    _, choice = answer(
        LEGACY, [ToolCallStarted(0, 0, "f"), ArgumentsDelta(0, 0, '{"a')], FinishReason.LENGTH
    )
    assert choice["finish_reason"] == "length"
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a'}


@pytest.mark.parametrize(("fields", "has"), [(LEGACY, True), (CUSTOM, False), ({}, False)])
def test_a_text_answer_says_null_in_the_form_that_was_asked_in(
    fields: dict[str, Any], has: bool
) -> None:
    _, choice = answer(fields, [TextDelta(0, "No.")], FinishReason.STOP)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"] is None
    assert ("function_call" in choice["message"]) is has
    assert choice["message"].get("function_call") is None
