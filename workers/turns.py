"""Simpler forms of a conversation, for chat templates that refuse it as it is.

Some refuse a second system message or leave it out; some want user and assistant to alternate. The
messages are mappings as templates know them. It knows neither a template nor a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with all system messages as one at the start."""
    system = [message for message in messages if message["role"] == "system"]
    merged: Any = "\n\n".join(text for message in system if (text := _text_of(message)))
    if any(isinstance(message["content"], list) for message in system):
        merged = [{"type": "text", "text": merged}]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": merged}, *rest]


def join_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with neighbouring turns of one speaker as one.

    Turns that have more than content, such as calls, stay as they are.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if last.keys() == message.keys() == {"role", "content"} and last["role"] == message["role"]:
            joined[-1] = {**last, "content": _join_content(last["content"], message["content"])}
        else:
            joined.append(message)
    return joined


def _join_content(first: Any, second: Any) -> Any:
    if first and second:
        between: Any = [{"type": "text", "text": "\n\n"}] if isinstance(first, list) else "\n\n"
        return first + between + second
    return first or second


def shows(text: str, messages: Sequence[dict[str, Any]]) -> bool:
    """Whether a rendered text has what these messages say."""
    return all(_text_of(message).strip() in text for message in messages)


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
