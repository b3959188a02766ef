"""What is made of the turns of a conversation, their images, and calls sent back."""

from typing import Any

import pytest

from schemas.errors import RequestError
from schemas.message import ImageLink, Message, TextPart, ToolCall
from tests.unit.dialects.chat_jobs import (
    CALL,
    IMAGE,
    SEEING,
    USER,
    VALUE,
    messages,
    said,
)


@pytest.mark.rule("chat.roles", "chat.content")
def test_roles_and_parts() -> None:
    turns = messages(
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        {"role": "system", "content": "And kind.", "name": "boss"},
        {"role": "user", "content": "a\x00b"},
        {"role": "user", "content": ""},
        {
            "role": "assistant",
            "content": "hm",
            "reasoning_content": "thought",
            "audio": {"id": "x"},
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "Never.", "tool_calls": None},
    )
    assert turns == (
        Message(role="system", parts=said("Be brief.")),
        Message(role="system", parts=said("And kind."), name="boss"),
        Message(role="user", parts=said("a\x00b")),
        Message(role="user"),
        Message(role="assistant", parts=said("hm"), reasoning="thought"),
        Message(role="assistant", parts=said("No.")),
        Message(role="assistant", parts=said("Never.")),
    )


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning": "thought"}, "thought"),
        ({"reasoning_content": "thought", "reasoning": "thought"}, "thought"),
        ({"reasoning_content": None, "reasoning": "thought"}, "thought"),
        ({"reasoning": {"effort": "high"}}, None),
        ({"reasoning": None}, None),
    ],
)
def test_reasoning_may_come_back_under_its_other_name(
    fields: dict[str, Any], reasoning: str | None
) -> None:
    (turn,) = messages({"role": "assistant", "content": "hm", **fields})
    assert (turn.text, turn.reasoning) == ("hm", reasoning)
    if reasoning:
        assert messages({"role": "assistant", **fields})[0].reasoning == reasoning


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_any_single_turn_is_served(role: Any) -> None:
    assert messages({"role": role, "content": "x"}) == (Message(role=role, parts=said("x")),)


@pytest.mark.rule("chat.no-content")
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_every_spelling_of_no_content_beside_calls(content: dict[str, Any]) -> None:
    turns = messages(
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "call_9", "content": [{"type": "text", "text": "up"}]},
    )
    assert turns == (
        Message(
            role="assistant", tool_calls=(ToolCall(id="call_9", name="probe", arguments="{}"),)
        ),
        Message(role="tool", parts=said("up"), tool_call_id="call_9"),
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":1}', '{"a":1}'), ({"a": [1]}, '{"a":[1]}'), ("", "{}"), (None, "{}"), ("{cut", "{cut")],
)
def test_arguments_sent_back(arguments: Any, text: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    (only,) = messages({"role": "assistant", "tool_calls": [call]})
    assert only.tool_calls == (ToolCall(id="c", name="f", arguments=text),)


@pytest.mark.rule("chat.images-dropped")
def test_images_are_left_out_on_a_model_without_vision() -> None:
    text = {"type": "text", "text": "What is this?"}
    assert messages({"role": "user", "content": [text, IMAGE]}) == (
        Message(role="user", parts=said("What is this?")),
    )
    assert messages({"role": "user", "content": [IMAGE]}) == (Message(role="user"),)


@pytest.mark.rule("chat.images")
def test_images_keep_their_places_on_a_model_with_vision() -> None:
    def text(text: str) -> dict[str, str]:
        return {"type": "text", "text": text}

    photo = {
        "type": "image_url",
        "image_url": {"url": "https://pics.example/a.png", "detail": "high"},
    }
    content = [text("One "), text("two"), IMAGE, photo, text("three"), text("")]
    assert messages(USER, {"role": "user", "content": content}, card=SEEING)[1].parts == (
        TextPart(text="One two"),
        ImageLink(url="data:image/png;base64,AA==", param="messages[1].content[2].image_url.url"),
        ImageLink(url="https://pics.example/a.png", param="messages[1].content[3].image_url.url"),
        TextPart(text="three"),
    )


def test_an_image_file_cannot_be_used_where_it_would_be_seen() -> None:
    filed = {"type": "image_url", "image_url": {"file_id": "file-1"}}
    with pytest.raises(RequestError) as caught:
        messages({"role": "user", "content": [filed]}, card=SEEING)
    assert (caught.value.code, caught.value.param) == (
        VALUE,
        "messages[0].content[0].image_url.file_id",
    )
    assert messages({"role": "user", "content": [filed]}) == (Message(role="user"),)
