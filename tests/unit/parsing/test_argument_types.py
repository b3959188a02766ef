"""Bare text to JSON by the tool's schema, and where a JSON value ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.message import ToolSpec
from workers.parsing.argument_types import ArgumentTypes, as_json
from workers.parsing.json_text import JsonScanner


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, " null ", " null "),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, " 3\n", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "None", None),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"type": "array"}, "['a', True]", ["a", True]),
        ({"type": "array"}, "{1, 2}", "{1, 2}"),
        ({"type": "object"}, "{'a': 1}", {"a": 1}),
        ({"type": "object"}, '{"a": 1', '{"a": 1'),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["a", 1]}, "1", "1"),
        ({"const": True}, "true", True),
        ({"allOf": [{"type": "integer"}]}, "1", 1),
        ({"properties": {}}, "{}", {}),
        ({"items": {}}, "[]", []),
        ({}, "3", "3"),
        (True, "3", "3"),
    ],
)
def test_a_value_becomes_what_its_schema_says(schema: Any, text: str, value: object) -> None:
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": schema}})
    written = as_json(text, ArgumentTypes([tool]).kinds("f", "a"))
    decoded = msgspec.json.decode(written)
    assert (decoded, type(decoded)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"$ref": "#/$defs/Place"}, {"object"}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, {"object", "null"}),
        ({"allOf": [{"$ref": "#/definitions/a~1b"}]}, {"integer"}),
        ({"$ref": "#/$defs/Far"}, {"integer"}),
        ({"$ref": "#/$defs/Loop"}, {"array", "string"}),
        ({"$ref": "#/$defs/Own"}, {"string"}),
        ({"$ref": "#/$defs/Missing"}, {"string"}),
        ({"$ref": "https://example.com/schema"}, {"string"}),
    ],
)
def test_references_within_the_schema_are_followed(schema: Any, kinds: set[str]) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": schema},
        "definitions": {"a/b": {"type": "integer"}},
        "$defs": {
            "Place": {"type": "object"},
            "Far": {"$ref": "#/definitions/a~1b"},
            "Loop": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/Loop"}]},
            "Own": {"$ref": "#/$defs/Own"},
        },
    }
    assert ArgumentTypes([ToolSpec(name="f", parameters=parameters)]).kinds("f", "a") == kinds


def test_arguments_that_no_schema_describes() -> None:
    anything = ArgumentTypes([ToolSpec(name="f")], unknown=frozenset())
    assert as_json("3", anything.kinds("f", "a")) == "3"
    assert as_json("three", anything.kinds("g", "a")) == '"three"'
    assert as_json("3", ArgumentTypes([]).kinds("f", "a")) == '"3"'


def test_properties_in_alternatives_are_found() -> None:
    parameters = {"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {}}]}
    types = ArgumentTypes([ToolSpec(name="f", parameters=parameters)])
    assert types.kinds("f", "a") == {"integer"}


@pytest.mark.parametrize(
    ("text", "length", "whole"),
    [
        ('{"a": "}\\"]"}, 1', 13, True),
        ("[1, {}] ", 7, True),
        ('"a" b', 3, True),
        ("12, 3", 2, True),
        ("true}", 4, True),
        ("} {", 0, False),
        (", 1", 0, False),
        ("{<", 1, False),
        ("12<", 2, False),
    ],
)
def test_where_a_value_ends(text: str, length: int, whole: bool) -> None:
    scanner = JsonScanner()
    assert scanner.feed(text) == length
    assert (scanner.ended, scanner.whole) == (True, whole)


@pytest.mark.parametrize(
    ("text", "whole"), [("12", True), ("{", False), ('"a', False), ("", False)]
)
def test_the_end_of_the_text_ends_a_number_only(text: str, whole: bool) -> None:
    scanner = JsonScanner()
    scanner.feed(text)
    assert not scanner.ended
    assert scanner.finish() is whole
