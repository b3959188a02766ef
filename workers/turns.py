"""Simpler forms of a conversation, for chat templates that refuse it as it is.

Some refuse a second system message or leave it out; some want user and assistant to alternate,
also after results, or the user to begin. The messages are mappings as templates know them. It knows
neither a template nor a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

Messages: TypeAlias = list[dict[str, Any]]

_ACKNOWLEDGED: Final = "OK."

_UNREADABLE: Final = "INVALID_JSON"


def simpler_forms(messages: Messages) -> Iterator[Messages]:
    """The conversation itself, then simpler ones: one change at a time, then more and more."""
    yield messages
    tried = [messages]
    together = accumulate(_CHANGES, lambda form, change: change(form), initial=messages)
    for form in (*(change(messages) for change in _CHANGES), *together):
        if form not in tried:
            yield form
            tried.append(form)


def merge_system(messages: Messages) -> Messages:
    """The same with all system messages as one at the start."""
    if all(message["role"] != "system" for message in messages[1:]):
        return messages
    system = [message for message in messages if message["role"] == "system"]
    merged: Any = "\n\n".join(text for message in system if (text := _text_of(message)))
    if any(isinstance(message["content"], list) for message in system):
        merged = [{"type": "text", "text": merged}]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": merged}, *rest]


def join_turns(messages: Messages) -> Messages:
    """The same with neighbouring turns of one speaker as one.

    Turns that have more than content, such as calls, stay as they are.
    """
    joined: Messages = []
    for message in messages:
        last = joined[-1] if joined else {}
        if last.keys() == message.keys() == {"role", "content"} and last["role"] == message["role"]:
            joined[-1] = {**last, "content": _join_content(last["content"], message["content"])}
        else:
            joined.append(message)
    return joined


def acknowledge_results(messages: Messages) -> Messages:
    """The same with a turn of the assistant between results and what the user says next."""
    answered: Messages = []
    for message in messages:
        if message["role"] == "user" and answered and answered[-1]["role"] == "tool":
            content = _content_like(messages, _ACKNOWLEDGED)
            answered.append({"role": "assistant", "content": content})
        answered.append(message)
    return answered


def begin_with_user(messages: Messages) -> Messages:
    """The same with an empty turn of the user before anything that is not the user's or system."""
    start = next(
        (place for place, message in enumerate(messages) if message["role"] != "system"),
        len(messages),
    )
    if start < len(messages) and messages[start]["role"] == "user":
        return messages
    empty = {"role": "user", "content": _content_like(messages, "")}
    return [*messages[:start], empty, *messages[start:]]


def _content_like(messages: Messages, text: str) -> Any:
    """Content in the form that these messages have: one string, or parts."""
    in_parts = any(isinstance(message["content"], list) for message in messages)
    return [{"type": "text", "text": text}] if in_parts else text


def arguments_as_mappings(messages: Messages) -> Messages:
    """The same with arguments that are no JSON object as one: some templates walk through them."""
    changed = []
    for message in messages:
        if "tool_calls" in message:
            calls = [
                {**call, "function": _readable(call["function"])} for call in message["tool_calls"]
            ]
            message = {**message, "tool_calls": calls}
        changed.append(message)
    return changed


def _readable(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    if isinstance(arguments, dict):
        return function
    return {**function, "arguments": {_UNREADABLE: arguments}}


_CHANGES: Final[tuple[Callable[[Messages], Messages], ...]] = (
    arguments_as_mappings,
    merge_system,
    join_turns,
    acknowledge_results,
    begin_with_user,
)
"""What takes the least away comes first."""


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
