"""Argument values that a model writes as bare text, turned into JSON by the tool's schema.

Some formats mark where an argument begins and ends but not what it is: `3` may be a number or the
text of one. The schema decides:

* Where text is allowed, it is text; but `null` is null where null is allowed, too.
* Otherwise it is what it reads as, in JSON or, failing that, as a Python literal.
* What reads as nothing that the schema allows stays text: honest, and for the caller to judge.

Source: SGLang 0.5.23, `srt/function_call/utils.infer_type_from_json_schema` and the converters of
`qwen3_coder_detector`, `minimax_m2` and `glm4_moe_detector`, without their silent defaults.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from schemas.message import ToolSpec
from workers.parsing.json_text import decoded

TEXT: Final = frozenset({"string"})
"""The kinds of an argument that can only be text; such a value need not wait for its end."""

_PYTHON_TYPES: Final = (
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("string", str),
    ("array", list),
    ("object", dict),
)


class ArgumentTypes:
    """What the offered tools say of their arguments.

    Args:
        tools: Those offered.
        unknown: Kinds of an argument that no schema describes.
    """

    def __init__(self, tools: Sequence[ToolSpec], *, unknown: frozenset[str] = TEXT) -> None:
        self._schemas = {tool.name: tool.parameters or {} for tool in tools}
        self._properties = {name: _properties(schema) for name, schema in self._schemas.items()}
        self._unknown = unknown

    def names(self, tool: str) -> Sequence[str]:
        """The arguments that a schema describes."""
        return tuple(self._properties.get(tool, ()))

    def kinds(self, tool: str, argument: str) -> frozenset[str]:
        """The JSON types that an argument may have; empty for any."""
        schema = self._properties.get(tool, {}).get(argument)
        if schema is None:
            return self._unknown
        return _kinds(schema, _References(self._schemas[tool]))


def as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON text of a value written as bare text.

    Args:
        text: As the model wrote it.
        kinds: What it may be; empty for any.
    """
    stripped = text.strip()
    if "string" in kinds:
        null = "null" in kinds and stripped.lower() in ("null", "none")
        return "null" if null else string(text)
    if "boolean" in kinds and stripped.lower() in ("true", "false"):
        return stripped.lower()
    if stripped in ("null", "None"):
        return "null"
    if (value := decoded(stripped)) is not None:
        # What it says stands as it was written; only its kind is looked at.
        return stripped if not kinds or kinds & _kinds_of(value) else string(text)
    literal = _literal(stripped)
    if literal is None or (kinds and not kinds & _kinds_of(literal)):
        return string(text)
    try:
        return msgspec.json.encode(literal).decode()
    except (TypeError, ValueError, OverflowError):  # a set, bytes, a key that is no string
        return string(text)


def string(text: str) -> str:
    """Text as a JSON string. Characters are escaped one by one, so pieces may be joined."""
    return msgspec.json.encode(text).decode()


def string_piece(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return string(text)[1:-1]


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of an object schema, also where they stand in its alternatives."""
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return properties
    found: dict[str, Any] = {}
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in _list(schema.get(keyword)):
            if isinstance(branch, dict):
                found = {**_properties(branch), **found}
    return found


class _References:
    """Follows the references within one document, each once: they may go in circles."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._followed: set[str] = set()

    def follow(self, reference: str) -> Any:
        """What it points to; None if that is not in the document or has been followed before."""
        if not reference.startswith("#/") or reference in self._followed:
            return None
        self._followed.add(reference)
        found = self._document
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _kinds(schema: Any, references: _References) -> frozenset[str]:
    """The types that a schema allows; text if it does not say."""
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = references.follow(schema["$ref"])
    if not isinstance(schema, dict):
        return TEXT
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if _list(kind):
        return frozenset(map(str, _list(kind)))
    for keyword in ("anyOf", "oneOf"):
        if branches := _list(schema.get(keyword)):
            return frozenset().union(*(_kinds(branch, references) for branch in branches))
    if "const" in schema:
        return _kinds_of(schema["const"])
    if values := _list(schema.get("enum")):
        return frozenset().union(*map(_kinds_of, values))
    if branches := _list(schema.get("allOf")):
        kinds = (_kinds(branch, references) for branch in branches)
        return frozenset.intersection(*kinds) or TEXT
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else TEXT


def _kinds_of(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    kind = next((name for name, python in _PYTHON_TYPES if isinstance(value, python)), "")
    return frozenset({"integer", "number"}) if kind == "integer" else frozenset({kind})


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
