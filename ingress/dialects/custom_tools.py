"""Custom tools: their input is any text, where a model's calls carry JSON (pure).

Such a tool is offered to the model as a function with one string parameter `input`, and what the
model writes is unwrapped again. It knows no dialect; two of them have such tools.

Source: Chat Completions, section 8 (`custom`); Responses, custom tools.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from schemas.message import ToolSpec

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}

_OPENING: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')

_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_WHOLE: Final = re.compile(
    r'(?:[^"\\]'  # strict JSON has no control characters here, but models write them
    r'|\\["\\/bfnrt]'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rf"|{_HIGH}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
    # A half that will stay alone: what follows is known and is not its other half.
    rf"|{_HIGH}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])"
    r")*"
)
"""As much of a JSON string's inside as is certain, whatever follows."""

_ESCAPE: Final = re.compile(
    rf"{_HIGH}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}|\\u[0-9a-fA-F]{{4}}|\\.", re.DOTALL
)

_CUT: Final = re.compile(rf"\\(?:u[0-9a-fA-F]{{0,3}})?|{_HIGH}(?:\\(?:u(?:[dD][c-fC-F]?.?)?)?)?")
"""What an escape looks like that ends too early."""


def custom_tool(name: str, description: str | None, grammar: str | None = None) -> ToolSpec:
    """The function that stands in for a custom tool.

    Args:
        name: Already checked.
        description: What the client says it does.
        grammar: A definition that the input must follow. The model is told; nothing enforces it.
    """
    if grammar is not None:
        rule = f"`input` must follow this grammar:\n{grammar}"
        description = f"{description}\n\n{rule}" if description else rule
    return ToolSpec(name=name, description=description, parameters=_PARAMETERS, strict=True)


def wrap_input(text: str) -> str:
    """The argument JSON of an earlier call with this input."""
    return orjson.dumps({"input": text}).decode()


class InputUnwrapper:
    """The argument JSON of one call, in fragments -> the text of its `input`, in fragments.

    Text comes out as soon as it is certain, and cutting the JSON elsewhere changes nothing about
    all of it together. Arguments that do not begin with `input` come out at the end: the input if
    there is one somewhere in them, or the only text they have, else themselves.
    """

    __slots__ = ("_closed", "_held", "_open")

    def __init__(self) -> None:
        self._held = ""
        self._open = False  # inside the string
        self._closed = False  # after it

    def feed(self, fragment: str) -> str:
        """What is certain now."""
        if self._closed:
            return ""
        self._held += fragment
        if not self._open:
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            self._open = True
            self._held = self._held[opening.end() :]
        whole = _WHOLE.match(self._held)
        assert whole is not None, "it matches the empty string"
        text = _decoded(whole.group())
        self._held = self._held[whole.end() :]
        if self._held.startswith('"'):
            self._closed = True
            self._held = ""
        return text

    def finish(self) -> str:
        """The arguments have ended: what was held back. Half an escape is no text."""
        held, self._held = self._held, ""
        if self._open:
            return "" if _CUT.fullmatch(held) else held
        try:
            arguments = orjson.loads(held)
        except orjson.JSONDecodeError:
            return held
        if isinstance(arguments, dict):
            # Models that know the tool under another form give the text another name.
            only = next(iter(arguments.values())) if len(arguments) == 1 else None
            arguments = arguments.get("input", arguments if only is None else only)
        if isinstance(arguments, str):
            return arguments
        return held if arguments else ""


def _decoded(inside: str) -> str:
    return _ESCAPE.sub(_character, inside) if "\\" in inside else inside


def _character(escape: re.Match[str]) -> str:
    try:
        return str(orjson.loads(f'"{escape.group()}"'))
    except orjson.JSONDecodeError:
        return "\ufffd"  # half a pair cannot be sent
