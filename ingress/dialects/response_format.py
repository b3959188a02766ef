"""`response_format`: the form of the answer, its wire models and the constraint they become.

The same for chat and text completions; it knows neither.

`response_format` of type `grammar` has two spellings: the grammar as a string, as in the official
types, and `{"syntax": "ebnf" | "regex", "definition": "..."}`. Its notation is XGrammar's EBNF.

Source: Chat Completions, section 10 ("Structured outputs").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, Tag, model_validator

from ingress.dialects.validation import (
    STRING_OR_OBJECT,
    Entries,
    WireModel,
    bad_shape,
    bad_value,
    by_field,
    check_depth,
)
from schemas import json_schema
from schemas.errors import UnsupportedParameter, UnsupportedValue
from schemas.model_card import Capabilities
from schemas.sampling import Constraint, Ebnf, JsonObject, JsonSchema, Regex, StructuralTag

Pattern: TypeAlias = Annotated[str, Field(min_length=1)]


class TextFormat(WireModel):
    """Any text: the default."""


class JsonObjectFormat(WireModel):
    """JSON mode."""


class SchemaDefinition(WireModel):
    """A schema; `name`, `description` and `strict` have no effect."""

    definition: Annotated[Any, AfterValidator(check_depth)] = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _has_a_schema(self) -> SchemaDefinition:
        if self.definition is None:
            raise bad_value("is required", field="schema")
        return self


class JsonSchemaFormat(WireModel):
    """JSON that obeys a schema."""

    json_schema: SchemaDefinition


class GrammarDefinition(WireModel):
    """A grammar together with its notation."""

    syntax: Literal["ebnf", "regex"] = "ebnf"
    definition: Pattern


class GrammarFormat(WireModel):
    """Text that a grammar derives."""

    grammar: Annotated[
        Annotated[Pattern, Tag("<string>")] | Annotated[GrammarDefinition, Tag("<object>")],
        STRING_OR_OBJECT,
    ]


FreeObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(check_depth)]


class StructuralTagFormat(WireModel):
    """Text with constrained parts, in either form that XGrammar has for it."""

    format: FreeObject | None = None
    structures: Entries[FreeObject] | None = None
    triggers: Entries[str] | None = None

    @model_validator(mode="after")
    def _is_one_of_two_forms(self) -> StructuralTagFormat:
        if self.format is None and (self.structures is None or self.triggers is None):
            raise bad_shape("is required, or `structures` and `triggers`", field="format")
        return self

    @property
    def spec(self) -> dict[str, Any]:
        """As the engine reads it."""
        if self.format is not None:
            return {"type": "structural_tag", "format": self.format}
        return {
            "type": "structural_tag",
            "structures": self.structures,
            "triggers": self.triggers,
        }


ResponseFormat: TypeAlias = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonObjectFormat, Tag("<json_object>")]
    | Annotated[JsonSchemaFormat, Tag("<json_schema>")]
    | Annotated[GrammarFormat, Tag("<grammar>")]
    | Annotated[StructuralTagFormat, Tag("<structural_tag>")],
    by_field("type", "text", "json_object", "json_schema", "grammar", "structural_tag"),
]


def constraint(
    form: ResponseFormat | None, regex: str | None, able: Capabilities
) -> Constraint | None:
    """What restricts the answer.

    Raises:
        UnsupportedParameter: The model cannot be constrained so.
        UnsupportedValue: Two constraints at once.
        RequestError: The schema cannot be enforced; see `json_schema.enforceable`.
    """
    formed = _of_format(form, able)
    if regex is None:
        return formed
    if not able.regex:
        raise UnsupportedParameter("`regex` is not available on this model.", param="regex")
    if formed is not None:
        raise UnsupportedValue("`regex` cannot be combined with `response_format`.", param="regex")
    return Regex(pattern=regex)


def _of_format(form: ResponseFormat | None, able: Capabilities) -> Constraint | None:
    match form:
        case None | TextFormat():
            return None
        case JsonObjectFormat():
            _require("json_object", able.json_object)
            return JsonObject()
        case JsonSchemaFormat(json_schema=wanted):
            _require("json_schema", able.json_schema)
            param = "response_format.json_schema.schema"
            return JsonSchema(schema=json_schema.enforceable(wanted.definition, param=param))
        case GrammarFormat(grammar=grammar):
            _require("grammar", able.grammar)
            if isinstance(grammar, str):
                return Ebnf(grammar=grammar)
            if grammar.syntax == "regex":
                return Regex(pattern=grammar.definition)
            return Ebnf(grammar=grammar.definition)
        case StructuralTagFormat():
            _require("structural_tag", able.grammar)
            return StructuralTag(spec=form.spec)


def _require(kind: str, able: bool) -> None:
    if not able:
        raise UnsupportedParameter(
            f"`response_format` of type {kind} is not available on this model.",
            param="response_format",
        )
