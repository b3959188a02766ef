"""The turns of a conversation -> messages for the model.

Source: Responses, section 3 (input items); dialect profiles, #1 and #6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import orjson

from ingress.dialects.profile import Profile
from ingress.dialects.responses_items import (
    Answered,
    Called,
    Content,
    Found,
    ImageInput,
    Offered,
    Said,
    Turn,
)
from schemas.errors import (
    ModelRequestRejected,
    SchemaValidationFailed,
    UnsupportedInputItem,
    UnsupportedValue,
)
from schemas.message import ImageLink, Message, Part, TextPart, ToolCall


def conversation(
    instructions: str | None,
    turns: Sequence[Turn],
    *,
    profile: Profile,
    vision: bool,
    searches: bool,
) -> tuple[Message, ...]:
    """The messages for the model.

    Everything that the assistant said and called in a row is one turn. Results are linked to their
    calls by id and keep their order.

    Args:
        instructions: System text to stand first.
        turns: The rest, in order.
        profile: Whether the short form of messages is allowed, and what becomes of images.
        vision: The model can see.
        searches: The client runs tool searches; otherwise they are no turns.

    Raises:
        UnsupportedInputItem: A message has the short form and may not.
        RequestError: There is an image that cannot be shown, or nothing at all.
    """
    messages: list[Message] = []
    if instructions:
        messages.append(Message(role="system", parts=(TextPart(text=instructions),)))
    assistant: _AssistantTurn | None = None
    for turn in turns:
        if isinstance(turn, Offered):
            continue
        if not searches and (isinstance(turn, Found) or (isinstance(turn, Called) and turn.search)):
            continue
        if isinstance(turn, Said) and turn.untyped is not None and not profile.untyped_messages:
            raise _short_form(turn.untyped)
        if isinstance(turn, Called) or (isinstance(turn, Said) and turn.role == "assistant"):
            assistant = assistant or _AssistantTurn()
            assistant.add(turn, profile, vision)
            continue
        if assistant is not None:
            messages.append(assistant.message())
            assistant = None
        messages.append(_message_of(turn, profile, vision))
    if assistant is not None:
        messages.append(assistant.message())
    if not messages:
        raise UnsupportedValue("`input` has nothing for the model to read.", param="input")
    return tuple(messages)


def _message_of(turn: Said | Answered | Found, profile: Profile, vision: bool) -> Message:
    match turn:
        case Said(role=role, content=content):
            return Message(role=role, parts=_parts(content, profile, vision))
        case Answered(call_id=call_id, content=content):
            parts = _parts(content, profile, vision)
            return Message(role="tool", parts=parts, tool_call_id=call_id)
        case Found(call_id=call_id, tools=tools):
            text = TextPart(text=orjson.dumps(tools).decode())
            return Message(role="tool", parts=(text,), tool_call_id=call_id)


class _AssistantTurn:
    """Texts and calls in a row; texts of several items are paragraphs."""

    def __init__(self) -> None:
        self._content: list[Part] = []
        self._calls: list[ToolCall] = []

    def add(self, turn: Said | Called, profile: Profile, vision: bool) -> None:
        if isinstance(turn, Called):
            self._calls.append(turn.call)
            return
        parts = _parts(turn.content, profile, vision)
        if parts and self._content:
            self._content.append(TextPart(text="\n\n"))
        self._content += parts

    def message(self) -> Message:
        return Message(
            role="assistant", parts=_joined(self._content), tool_calls=tuple(self._calls)
        )


def _short_form(param: str) -> UnsupportedInputItem:
    return UnsupportedInputItem(
        f"`{param}` is required: write a message as "
        '{"type": "message", "role": ..., "content": ...}, or use Chat Completions. '
        "Servers with the setting `profile: official` take messages without it.",
        param=param,
    )


def _parts(content: Content, profile: Profile, vision: bool) -> tuple[Part, ...]:
    shown = (_shown(piece, profile, vision) for piece in content)
    return _joined([part for part in shown if part is not None])


def _shown(piece: str | ImageInput, profile: Profile, vision: bool) -> Part | None:
    if isinstance(piece, str):
        return TextPart(text=piece) if piece else None
    if profile.drop_response_images:
        return None
    if not vision:
        raise ModelRequestRejected(
            f"`{piece.param}` is an image, and this model takes text only.", param=piece.param
        )
    if piece.url is None:
        raise SchemaValidationFailed(
            f"`{piece.param}` is required: no files are stored here.", param=piece.param
        )
    if not isinstance(piece.url, str):
        raise SchemaValidationFailed(f"`{piece.param}` must be a URL.", param=piece.param)
    return ImageLink(url=piece.url, param=piece.param)


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Neighbouring texts as one."""
    joined: list[Part] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, TextPart)):
        if is_text:
            text = "".join(part.text for part in run if isinstance(part, TextPart))
            joined.append(TextPart(text=text))
        else:
            joined += run
    return tuple(joined)
