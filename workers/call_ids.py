"""Ids of calls in the form that a model was trained with (pure).

To a client an id is a name and nothing more, but some models read it. One was trained with ids of
one length, and its template refuses others. Another shows an earlier call by its id alone: given
ids that name no tool, it takes them for an example and goes on to write calls that name none. So a
conversation gets such ids before the template sees it; clients never do.

Source: the chat templates of Mistral ("alphanumeric strings with length 9") and of Kimi K2
(`functions.NAME:NUMBER`, counted through the conversation).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from schemas.message import Message

_NUMBERED_SIGN: Final = "<|tool_call_argument_begin|>"
_SHORT_SIGN: Final = "[TOOL_CALLS]"
_SHORT: Final = re.compile(r"[a-zA-Z0-9]{9}")


def own_ids(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """The conversation with the ids that go with this chat template."""
    if _NUMBERED_SIGN in template:
        return _numbered(messages)
    if _SHORT_SIGN in template:
        return _shortened(messages)
    return messages


def _numbered(messages: Sequence[Message]) -> list[Message]:
    renamed = []
    ids: dict[str, str] = {}
    number = 0
    for message in messages:
        own = []
        for call in message.tool_calls:
            ids[call.id] = f"functions.{call.name}:{number}"
            number += 1
            own.append(ids[call.id])
        result_of = message.tool_call_id
        renamed.append(_with_ids(message, own, ids.get(result_of or "", result_of)))
    return renamed


def _shortened(messages: Sequence[Message]) -> list[Message]:
    return [
        _with_ids(
            message,
            [_short(call.id) for call in message.tool_calls],
            None if message.tool_call_id is None else _short(message.tool_call_id),
        )
        for message in messages
    ]


def _short(call_id: str) -> str:
    if _SHORT.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def _with_ids(message: Message, of_calls: Sequence[str], result_of: str | None) -> Message:
    calls = tuple(
        msgspec.structs.replace(call, id=own)
        for call, own in zip(message.tool_calls, of_calls, strict=True)
    )
    return msgspec.structs.replace(message, tool_calls=calls, tool_call_id=result_of)
