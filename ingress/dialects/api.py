"""How a dialect describes itself to people and programs: the material of the OpenAPI document.

A description is data. What a request may hold comes from the dialect's own typed body; what the
typed body cannot say (fields that are read freely, the meaning of a field) is added here. Answers
and stream records have schemas of their own, written with the few terms at the end of this file.

Source: OpenAPI 3.1; JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from pydantic import BaseModel

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema."""

EXAMPLE_MODEL = "demo-model"
"""What every example calls its model."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is served as it stands."""

    summary: str
    body: Mapping[str, Any]


class ApiDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint.

    Attributes:
        prefix: Of the names of its schemas in the document.
        request: The typed body.
        fields: What each of its fields means.
        schemas: Of the fields that the typed body reads freely, by name.
        tags: Values of a tag in the typed body that stands for several, by tag.
        answer: The whole answer.
        record: The data of one record of the stream; None without streaming.
        stream: A short stream.
        done: The stream ends with `[DONE]`.
        named_records: Each record has an `event:` line.
        headers: Of the answer, besides those of every answer: name and meaning.
        errors: Codes that this endpoint has besides those of every inference endpoint.
    """

    prefix: str
    summary: str
    description: str
    request: type[BaseModel]
    fields: Mapping[str, str]
    schemas: Mapping[str, Schema] = {}
    tags: Mapping[str, Schema] = {}
    examples: Mapping[str, Example]
    answer: Schema
    record: Schema | None = None
    stream: str = ""
    done: bool = False
    named_records: bool = False
    headers: Mapping[str, str] = {}
    errors: tuple[str, ...] = ()


# --- Terms for schemas ---------------------------------------------------------------------------

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
ANY: Schema = {}
OBJECT: Schema = {"type": "object"}
OPENAI_ERROR: Schema = {"$ref": "#/components/schemas/Error"}
ANTHROPIC_ERROR: Schema = {"$ref": "#/components/schemas/AnthropicError"}


def const(value: Any) -> Schema:
    return {"const": value}


def enum(*values: Any) -> Schema:
    return {"enum": list(values)}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(*schemas: Schema) -> Schema:
    """Exactly one of them."""
    return {"oneOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these properties."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }
