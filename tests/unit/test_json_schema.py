"""JSON schemas made fit for decoding."""

from __future__ import annotations

import time
from typing import Any

import pytest

from schemas.errors import (
    InvalidJsonSchema,
    JsonSchemaRefsRecursive,
    JsonSchemaRefsRemote,
    JsonSchemaRefsTooLarge,
    JsonSchemaRefsUnresolvable,
    RequestError,
)
from schemas.json_schema import enforceable

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def refused(schema: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        enforceable(schema, param="schema")
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(levels):
        schema = of(a=schema)
    return schema


# --- References ----------------------------------------------------------------------------------


@pytest.mark.rule("structured.local-references")
@pytest.mark.parametrize(
    ("reference", "elsewhere"),
    [
        ("#/$defs/b", {"$defs": {"b": STRING}}),
        ("#/definitions/b", {"definitions": {"b": STRING}}),
        ("#/$defs/group/b", {"$defs": {"group": {"b": STRING}}}),
        ("#/$defs/a~1b%20c~0", {"$defs": {"a/b c~": STRING}}),
        ("#/$defs/%C3%A9", {"$defs": {"é": STRING}}),
        ("#/$defs/u/anyOf/0", {"$defs": {"u": {"anyOf": [STRING]}}}),
        ("#here", {"$defs": {"b": {**STRING, "$anchor": "here"}}}),
        ("#/$defs/b", {"$defs": {"b": {"$ref": "#/$defs/c"}, "c": STRING}}),
        ("https://x.test/s#/$defs/b", {"$id": "https://x.test/s", "$defs": {"b": STRING}}),
        ("b.json", {"$defs": {"b": {**STRING, "$id": "b.json"}}}),
        (
            "b.json",
            {"$defs": {"b": {"$id": "b.json", "$ref": "#/$defs/c", "$defs": {"c": STRING}}}},
        ),
    ],
)
def test_local_references_are_inlined(reference: str, elsewhere: dict[str, Any]) -> None:
    schema = {**of(a={"$ref": reference}), **elsewhere}
    assert enforceable(schema, param="schema") == of(a=STRING)


@pytest.mark.rule("structured.local-references")
def test_references_to_other_properties_are_inlined() -> None:
    schema = of(a={"$ref": "#/properties/b"}, b=INTEGER)
    assert enforceable(schema, param="schema") == of(a=INTEGER, b=INTEGER)


@pytest.mark.rule("structured.local-references")
def test_keywords_beside_a_reference_hold_too() -> None:
    schema = {
        **of(a={"$ref": "#/$defs/b", "description": "Outer.", "required": ["y"]}),
        "$defs": {"b": {**of(x=STRING), "required": ["x"], "description": "Inner."}},
    }
    assert enforceable(schema, param="schema")["properties"]["a"] == {
        "description": "Outer.",
        "type": "object",
        "properties": {"x": STRING, "y": {}},
        "required": ["y", "x"],
    }


@pytest.mark.rule("structured.generated-schemas")
def test_what_pydantic_generates() -> None:
    schema = {
        "$defs": {
            "Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"},
            "Item": {
                "properties": {"color": {"$ref": "#/$defs/Color"}, "n": {"type": "integer"}},
                "required": ["color"],
                "title": "Item",
                "type": "object",
            },
        },
        "properties": {
            "items": {"items": {"$ref": "#/$defs/Item"}, "type": "array"},
            "best": {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}], "default": None},
        },
        "required": ["items"],
        "title": "Order",
        "type": "object",
    }
    item = {
        "title": "Item",
        "type": "object",
        "properties": {
            "color": {"title": "Color", "enum": ["red", "blue"]},
            "n": {"type": "integer"},
        },
        "required": ["color"],
    }
    assert enforceable(schema, param="schema") == {
        "title": "Order",
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": item},
            "best": {"anyOf": [item, {"type": "null"}]},
        },
        "required": ["items"],
    }


@pytest.mark.rule("structured.generated-schemas")
def test_what_zod_generates() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"mail": {"type": "string", "format": "email", "pattern": "^(?!\\.).+@.+$"}},
        "type": "object",
        "properties": {
            "mail": {"$ref": "#/definitions/mail"},
            "age": {"type": "number", "exclusiveMinimum": True, "minimum": 0},
            "pair": {"type": "array", "items": [STRING, INTEGER], "additionalItems": False},
        },
        "required": ["mail"],
        "additionalProperties": False,
    }
    pair = {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "maxItems": 2}
    assert enforceable(schema, param="schema") == {
        "type": "object",
        "properties": {
            "mail": STRING,
            "age": {"type": "number", "exclusiveMinimum": 0},
            "pair": pair,
        },
        "required": ["mail"],
        "additionalProperties": False,
    }


def test_properties_and_values_that_look_like_references_are_none() -> None:
    schema = of(**{"$ref": STRING, "a": {"enum": [{"$ref": "#/nowhere"}]}})
    assert enforceable(schema, param="schema") == of(
        **{"$ref": STRING, "a": {"const": {"$ref": "#/nowhere"}}}
    )


def test_a_recursive_definition_that_nothing_refers_to_does_no_harm() -> None:
    schema = {**of(a=STRING), "$defs": {"tree": of(kid={"$ref": "#/$defs/tree"})}}
    assert enforceable(schema, param="schema") == of(a=STRING)


@pytest.mark.rule("structured.references-refused")
@pytest.mark.parametrize(
    ("schema", "error", "param"),
    [
        (of(a={"$ref": "https://x.test/s"}), JsonSchemaRefsRemote, "schema.properties.a.$ref"),
        (of(a={"$ref": "other.json#/x"}), JsonSchemaRefsRemote, "schema.properties.a.$ref"),
        (of(a={"$ref": "#/$defs/b"}), JsonSchemaRefsUnresolvable, "schema.properties.a.$ref"),
        (of(a={"$ref": "#b"}), JsonSchemaRefsUnresolvable, "schema.properties.a.$ref"),
        ({"enum": [1], "items": {"$ref": "#/enum/0"}}, JsonSchemaRefsUnresolvable, None),
        ({"$ref": "#"}, JsonSchemaRefsRecursive, "schema.$ref"),
        (of(a={"$ref": "#/properties/a"}), JsonSchemaRefsRecursive, "schema.properties.a.$ref"),
        (
            {
                **of(root={"$ref": "#/$defs/Node"}),
                "$defs": {"Node": of(kids={"type": "array", "items": {"$ref": "#/$defs/Node"}})},
            },
            JsonSchemaRefsRecursive,
            "schema.$defs.Node.properties.kids.items.$ref",
        ),
    ],
)
def test_references_that_cannot_be_inlined(
    schema: Any, error: type[RequestError], param: str | None
) -> None:
    found = refused(schema)
    assert type(found) is error
    assert param is None or found.param == param


def doubling(levels: int) -> dict[str, Any]:
    """Each definition refers to the next one twice."""
    definitions: dict[str, Any] = {
        f"d{level}": of(a={"$ref": f"#/$defs/d{level + 1}"}, b={"$ref": f"#/$defs/d{level + 1}"})
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": STRING}}


@pytest.mark.rule("structured.references-refused")
@pytest.mark.parametrize(
    "schema",
    [
        doubling(14),
        doubling(5_000),
        {
            "$defs": {"long": {"enum": ["x" * 100_000, "y"]}},
            **of(**{f"p{index}": {"$ref": "#/$defs/long"} for index in range(20)}),
        },
    ],
)
def test_references_that_multiply_are_refused_at_once(schema: Any) -> None:
    begun = time.perf_counter()
    assert type(refused(schema)) is JsonSchemaRefsTooLarge
    assert time.perf_counter() - begun < 5


def test_a_chain_of_references_is_followed() -> None:
    definitions = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(2_000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d2000": STRING}}
    assert enforceable(schema, param="schema") == STRING


# --- Keywords ------------------------------------------------------------------------------------


@pytest.mark.rule("structured.dropped-keywords")
@pytest.mark.parametrize(
    "keywords",
    [
        {"if": {"minLength": 1}, "then": {"maxLength": 2}, "else": {"$ref": "#"}},
        {"not": {"const": "x"}},
        {"uniqueItems": True},
        {"multipleOf": 3},
        {"format": "date-time"},
        {"contains": STRING, "minContains": 2},
        {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": False}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "x"},
        {"default": "x", "examples": ["x"], "deprecated": True, "contentEncoding": "base64"},
        {"pattern": "^(?=.*[A-Z])"},
        {"pattern": "(a)\\1"},
        {"pattern": "["},
    ],
)
def test_keywords_that_cannot_be_enforced_are_dropped(keywords: dict[str, Any]) -> None:
    assert enforceable({**STRING, **keywords}, param="schema") == STRING


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({**STRING, "pattern": "^a+$"}, {**STRING, "pattern": "^a+$"}),
        ({**STRING, "minLength": 300, "maxLength": 5000}, {**STRING, "minLength": 256}),
        ({**STRING, "maxLength": 257}, STRING),
        ({**STRING, "maxLength": 0}, {**STRING, "maxLength": 0}),
        (
            {**STRING, "maxLength": 5000, "pattern": "^a+$"},
            {**STRING, "pattern": "^a+$"},
        ),
        (
            {**STRING, "maxLength": 9, "pattern": "^a+$", "minLength": 3},
            {**STRING, "pattern": "^a+$", "minLength": 3, "maxLength": 9},
        ),
        (
            {**STRING, "pattern": "^a+(-a+)*$", "maxLength": 9},
            {**STRING, "pattern": "^a+(-a+)*$"},
        ),
        ({"anyOf": [{**STRING, "pattern": "^aaa$", "maxLength": 2}, INTEGER]}, INTEGER),
        ({**STRING, "minLength": 2.0, "maxLength": 5}, {**STRING, "minLength": 2, "maxLength": 5}),
        (
            {**INTEGER, "minimum": 0.5, "exclusiveMaximum": 9},
            {**INTEGER, "minimum": 1, "maximum": 8},
        ),
        ({**INTEGER, "minimum": -1e30}, INTEGER),
        ({**INTEGER, "exclusiveMinimum": 0.5}, {**INTEGER, "minimum": 1}),
        (
            {
                "type": "object",
                "patternProperties": {"(?=x)": STRING},
                "additionalProperties": False,
            },
            {"type": "object", "additionalProperties": True},
        ),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({**STRING, "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": ["string", "null"], "minLength": 1},
            {"anyOf": [{**STRING, "minLength": 1}, {"type": "null"}]},
        ),
        ({**STRING, "enum": ["a", 5, "b"]}, {"enum": ["a", "b"]}),
        ({"enum": [1, 1.0, 2]}, {"enum": [1.0, 2]}),
        ({**INTEGER, "enum": [1, 2, 3], "minimum": 2}, {"enum": [2, 3]}),
        ({"enum": ["稼働", "fermé", "🛑"]}, {"enum": ["稼働", "fermé", "🛑"]}),
        ({"type": "array", "minItems": 2}, {"type": "array", "items": {}, "minItems": 2}),
        (
            {"type": "array", "items": STRING, "maxItems": 2**63},
            {"type": "array", "items": STRING, "maxItems": 2**31 - 1},
        ),
        ({**of(a=STRING), "maxProperties": 1e30}, {**of(a=STRING), "maxProperties": 2**31 - 1}),
        (
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        ),
        ({"properties": {"a": STRING}}, of(a=STRING)),
        ({"minimum": 3}, {"type": "number", "minimum": 3}),
        (of(a=False, b=STRING), of(b=STRING)),
        (True, {}),
        ({}, {}),
        ({"anyOf": [False, STRING]}, STRING),
        ({"oneOf": [STRING, INTEGER]}, {"type": ["string", "integer"]}),
        (
            {**of(a=STRING, b=STRING), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {
                "anyOf": [
                    {**of(a=STRING, b=STRING), "required": ["a"]},
                    {**of(a=STRING, b=STRING), "required": ["b"]},
                ]
            },
        ),
        (
            {"allOf": [of(a=STRING), {**of(b=INTEGER), "required": ["b"]}], "title": "T"},
            {"title": "T", **of(a=STRING, b=INTEGER), "required": ["b"]},
        ),
        ({"allOf": [{"type": "number"}, {"minimum": 1}, INTEGER]}, {**INTEGER, "minimum": 1}),
    ],
)
def test_keywords_are_brought_into_enforceable_form(schema: Any, expected: Any) -> None:
    found = enforceable(schema, param="schema")
    assert found == expected
    assert list(found) == list(expected)


def test_properties_keep_their_order() -> None:
    names = ["zeta", "alpha", "mid"]
    schema = {"allOf": [of(zeta=STRING), of(alpha=STRING)], "properties": {"mid": STRING}}
    assert list(enforceable(schema, param="schema")["properties"]) == names


# --- What is no schema ---------------------------------------------------------------------------


@pytest.mark.rule("structured.invalid-schema")
@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (5, "schema"),
        ([], "schema"),
        (None, "schema"),
        ({"type": "text"}, "schema.type"),
        ({"type": []}, "schema.type"),
        (of(a={"type": 5}), "schema.properties.a.type"),
        ({"properties": []}, "schema.properties"),
        ({"items": 3}, "schema.items"),
        ({"anyOf": {}}, "schema.anyOf"),
        ({"anyOf": [STRING, 3]}, "schema.anyOf[1]"),
        ({"required": "a"}, "schema.required"),
        ({"enum": "a"}, "schema.enum"),
        ({"minLength": -1}, "schema.minLength"),
        ({"maxItems": 1.5}, "schema.maxItems"),
        ({"minimum": "1"}, "schema.minimum"),
        ({"pattern": 5}, "schema.pattern"),
        ({"$ref": 5}, "schema.$ref"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, param: str) -> None:
    error = refused(schema)
    assert type(error) is InvalidJsonSchema
    assert error.param == param


@pytest.mark.rule("structured.invalid-schema")
@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"anyOf": [False, False]},
        {"anyOf": []},
        {**STRING, "enum": [5]},
        {**STRING, "minLength": 3, "maxLength": 2},
        {**INTEGER, "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"allOf": [STRING, INTEGER]},
        {**of(a=False), "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "array", "items": False, "minItems": 1},
        {"const": 1, "enum": [2]},
    ],
)
def test_what_nothing_obeys_is_refused(schema: Any) -> None:
    assert type(refused(schema)) is InvalidJsonSchema


@pytest.mark.rule("structured.limits")
@pytest.mark.parametrize(
    "schema",
    [
        nested(1_000),
        {"enum": ["x" * 2_000_000]},
        {"anyOf": [of(**{f"p{index}": STRING for index in range(200)}) for _ in range(100)]},
        {"allOf": [of(**{f"p{index}": STRING}) for index in range(4_000)]},
    ],
)
def test_what_is_too_large_is_refused_at_once(schema: Any) -> None:
    begun = time.perf_counter()
    assert type(refused(schema)) is InvalidJsonSchema
    assert time.perf_counter() - begun < 5


def test_depth_within_the_limit_is_served() -> None:
    assert enforceable(nested(49), param="schema") == nested(49)
