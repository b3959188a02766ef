"""How a call is written in a chat answer: as a function, as a custom tool, or in the legacy form.

A call gives the value of `delta` for each of its chunks, and its object in the body. It knows
nothing of chunks or choices.

Source: Chat Completions, sections 8 (tools) and 12 (legacy function calling).
"""

from __future__ import annotations

from typing import Any, Protocol

from ingress.dialects import wire_json
from ingress.dialects.custom_tools import InputUnwrapper


class Call(Protocol):
    """One call of one choice. What it has nothing to say in has no chunk: None."""

    def open(self) -> bytes:
        """Its identity, sent once and whole: clients join the strings of every fragment."""
        ...

    def grow(self, text: str) -> bytes | None:
        """A fragment of its argument JSON."""
        ...

    def close(self, *, complete: bool) -> bytes | None:
        """It has ended, or was cut off."""
        ...

    def written(self) -> dict[str, Any]:
        """The whole call, for the body."""
        ...


class _Arguments:
    """The argument JSON of a call.

    A call without arguments has an empty object: clients parse what they are sent. Not so one that
    was cut off.
    """

    __slots__ = ("_fragments",)

    def __init__(self) -> None:
        self._fragments: list[str] = []

    def grow(self, text: str) -> str:
        self._fragments.append(text)
        return text

    def close(self, *, complete: bool) -> str:
        if not complete or any(fragment.strip() for fragment in self._fragments):
            return ""
        return self.grow("{}")

    def text(self) -> str:
        return "".join(self._fragments)


class FunctionCall:
    """`{"id", "type": "function", "function": {"name", "arguments"}}`."""

    __slots__ = ("_arguments", "_id", "_index", "_name")

    def __init__(self, call_id: str, index: int, name: str) -> None:
        self._id = call_id
        self._index = index
        self._name = name
        self._arguments = _Arguments()

    def open(self) -> bytes:
        call = {
            "id": self._id,
            "index": self._index,
            "type": "function",
            "function": {"name": self._name, "arguments": ""},
        }
        return wire_json.encode({"tool_calls": [call]})

    def grow(self, text: str) -> bytes | None:
        return self._fragment(self._arguments.grow(text))

    def close(self, *, complete: bool) -> bytes | None:
        return self._fragment(self._arguments.close(complete=complete))

    def written(self) -> dict[str, Any]:
        function = {"name": self._name, "arguments": self._arguments.text()}
        return {"id": self._id, "type": "function", "function": function}

    def _fragment(self, text: str) -> bytes | None:
        if not text:
            return None
        return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (
            self._index,
            wire_json.encode_text(text),
        )


class CustomCall:
    """`{"id", "type": "custom", "custom": {"name", "input"}}`."""

    __slots__ = ("_id", "_index", "_input", "_name", "_unwrapper")

    def __init__(self, call_id: str, index: int, name: str) -> None:
        self._id = call_id
        self._index = index
        self._name = name
        self._input: list[str] = []
        self._unwrapper = InputUnwrapper()

    def open(self) -> bytes:
        call = {
            "id": self._id,
            "index": self._index,
            "type": "custom",
            "custom": {"name": self._name, "input": ""},
        }
        return wire_json.encode({"tool_calls": [call]})

    def grow(self, text: str) -> bytes | None:
        return self._fragment(self._unwrapper.feed(text))

    def close(self, *, complete: bool) -> bytes | None:
        return self._fragment(self._unwrapper.finish())

    def written(self) -> dict[str, Any]:
        custom = {"name": self._name, "input": "".join(self._input)}
        return {"id": self._id, "type": "custom", "custom": custom}

    def _fragment(self, text: str) -> bytes | None:
        if not text:
            return None
        self._input.append(text)
        return b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}' % (
            self._index,
            wire_json.encode_text(text),
        )


class LegacyCall:
    """`{"name", "arguments"}`; there is no place for an id or for a second one."""

    __slots__ = ("_arguments", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._arguments = _Arguments()

    def open(self) -> bytes:
        return wire_json.encode({"function_call": {"name": self._name, "arguments": ""}})

    def grow(self, text: str) -> bytes | None:
        return self._fragment(self._arguments.grow(text))

    def close(self, *, complete: bool) -> bytes | None:
        return self._fragment(self._arguments.close(complete=complete))

    def written(self) -> dict[str, Any]:
        return {"name": self._name, "arguments": self._arguments.text()}

    def _fragment(self, text: str) -> bytes | None:
        if not text:
            return None
        return b'{"function_call":{"arguments":%b}}' % wire_json.encode_text(text)
