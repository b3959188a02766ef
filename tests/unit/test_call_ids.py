"""Ids of calls for the models that read them."""

from __future__ import annotations

import re

from schemas.message import Message, TextPart, ToolCall
from workers.call_ids import own_ids

SHORT_IDS = "[TOOL_CALLS]{{ call.id }}"
READS_IDS = "{{ call.id }}<|tool_call_argument_begin|>{{ call.arguments }}"


def turn(*calls: tuple[str, str]) -> Message:
    made = tuple(ToolCall(id=call_id, name=name, arguments="{}") for call_id, name in calls)
    return Message(role="assistant", tool_calls=made)


def result(call_id: str) -> Message:
    return Message(role="tool", parts=(TextPart(text="x"),), tool_call_id=call_id)


CONVERSATION = (
    Message(role="user", parts=(TextPart(text="Go."),)),
    turn(("call_1", "look"), ("call_2", "ping")),
    result("call_2"),
    result("call_1"),
    turn(("call_1", "look")),  # the same id again: it is that of the latest call
    result("call_1"),
    result("of a call that was cut away"),
)


def test_calls_are_counted_through_the_conversation_and_results_follow() -> None:
    told = own_ids(CONVERSATION, READS_IDS)
    assert [call.id for message in told for call in message.tool_calls] == [
        "functions.look:0",
        "functions.ping:1",
        "functions.look:2",
    ]
    assert [message.tool_call_id for message in told if message.role == "tool"] == [
        "functions.ping:1",
        "functions.look:0",
        "functions.look:2",
        "of a call that was cut away",
    ]
    assert told[0] == CONVERSATION[0]


def test_long_ids_become_short_ones_and_results_follow() -> None:
    told = own_ids((*CONVERSATION, turn(("abcDEF123", "look"))), SHORT_IDS)
    first, second, third, own = (call.id for message in told for call in message.tool_calls)
    assert first == third != second
    assert own == "abcDEF123"
    results = [message.tool_call_id or "" for message in told if message.role == "tool"]
    assert results[:3] == [second, first, first]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call_id) for call_id in (first, second, *results))


def test_other_templates_get_the_ids_as_they_are() -> None:
    assert own_ids(CONVERSATION, "{{ call.id }}") == CONVERSATION
