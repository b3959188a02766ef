"""What restricts the answer."""

from typing import Any

import pytest

from schemas.json_schema import enforceable
from schemas.message import ToolChoice
from schemas.model_card import Capabilities
from schemas.sampling import Constraint, Ebnf, JsonObject, JsonSchema, Regex, StructuralTag
from tests.unit.dialects.chat_jobs import (
    PARAMETER,
    VALUE,
    card,
    chat,
    chosen,
    form,
    refusal,
    tool,
)

ABLE = card(capabilities=Capabilities(tools=True, regex=True, grammar=True))
UNABLE = card(capabilities=Capabilities(json_object=False, json_schema=False))

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ENFORCED = JsonSchema(schema=enforceable(PERSON, param="schema"))
STRUCTURES = [{"begin": "<a>", "schema": {}, "end": "</a>"}]


def constraint(**fields: Any) -> Constraint | None:
    return chat(ABLE, **fields).sampling.constraint


def schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return form("json_schema", json_schema={"name": "person", "schema": schema, **fields})


@pytest.mark.parametrize("fields", [{}, form("text"), {"response_format": None, "regex": None}])
def test_text_is_free(fields: dict[str, Any]) -> None:
    assert constraint(**fields) is None


@pytest.mark.rule("chat.json-mode")
def test_json_mode() -> None:
    assert constraint(**form("json_object")) == JsonObject()


@pytest.mark.rule("chat.json-schema")
@pytest.mark.parametrize("more", [{}, {"strict": True}, {"strict": False}, {"description": "P."}])
def test_a_json_schema_is_enforced_strict_or_not(more: dict[str, Any]) -> None:
    assert constraint(**schema(PERSON, **more)) == ENFORCED


def test_a_schema_needs_no_name() -> None:
    nameless = form("json_schema", json_schema={"schema": PERSON})
    assert constraint(**nameless) == ENFORCED


@pytest.mark.rule("chat.regex")
def test_regex() -> None:
    assert constraint(regex="[0-9]{3}") == Regex(pattern="[0-9]{3}")
    assert constraint(regex="a", **form("text")) == Regex(pattern="a")


@pytest.mark.rule("chat.grammar")
@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('root ::= "yes" | "no"', Ebnf(grammar='root ::= "yes" | "no"')),
        ({"definition": "root ::= [0-9]"}, Ebnf(grammar="root ::= [0-9]")),
        ({"syntax": "ebnf", "definition": "root ::= [0-9]"}, Ebnf(grammar="root ::= [0-9]")),
        ({"syntax": "regex", "definition": "[0-9]+"}, Regex(pattern="[0-9]+")),
    ],
)
def test_grammar(grammar: Any, expected: Constraint) -> None:
    assert constraint(**form("grammar", grammar=grammar)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"format": {"type": "const_string", "value": "x"}},
        {"structures": STRUCTURES, "triggers": ["<a>"]},
    ],
)
def test_structural_tag_in_both_its_forms(fields: dict[str, Any]) -> None:
    spec = {"type": "structural_tag", **fields}
    assert constraint(**form("structural_tag", **fields)) == StructuralTag(spec=spec)


@pytest.mark.rule("chat.constraint-flags")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a+"}, "regex"),
        (form("grammar", grammar="root ::= x"), "response_format"),
        (form("structural_tag", format={}), "response_format"),
        (form("json_object"), "response_format"),
        (schema(PERSON), "response_format"),
    ],
)
def test_a_model_that_cannot_be_constrained_so_refuses(fields: dict[str, Any], param: str) -> None:
    assert refusal(UNABLE, **fields) == (PARAMETER, param)


@pytest.mark.parametrize(
    "fields",
    [form("json_object"), schema(PERSON), form("grammar", grammar="root ::= x")],
)
def test_there_is_one_constraint_at_most(fields: dict[str, Any]) -> None:
    assert refusal(ABLE, regex="a+", **fields) == (VALUE, "regex")


# --- Together with tools -------------------------------------------------------------------------


@pytest.mark.rule("chat.format-with-tools-auto", "chat.format-with-forced-tools")
@pytest.mark.parametrize(
    ("choice", "constrained"),
    [
        (None, True),
        ("auto", True),
        ("none", True),
        ("required", False),
        (chosen("f"), False),
    ],
)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [(schema(PERSON), ENFORCED), ({"regex": "a+"}, Regex(pattern="a+"))],
)
def test_a_forced_call_wins_over_the_form_and_else_the_form_wins(
    choice: Any, constrained: bool, fields: dict[str, Any], expected: Constraint
) -> None:
    job = chat(ABLE, tools=[tool()], tool_choice=choice, **fields)
    assert job.sampling.constraint == (expected if constrained else None)


@pytest.mark.rule("chat.format-with-forced-tools")
def test_a_forced_legacy_call_wins_too() -> None:
    fields: dict[str, Any] = {"functions": [{"name": "f"}], **schema(PERSON)}
    assert chat(ABLE, **fields).sampling.constraint == ENFORCED
    forced = chat(ABLE, function_call={"name": "f"}, **fields)
    assert forced.sampling.constraint is None
    assert forced.prompt.tool_choice == ToolChoice(mode="named", name="f", parallel=False)  # type: ignore[union-attr]  # a chat prompt


# --- Schemas -------------------------------------------------------------------------------------

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}


@pytest.mark.rule("chat.schema-refs-inlined")
@pytest.mark.parametrize("where", ["$defs", "definitions"])
def test_local_references_are_inlined(where: str) -> None:
    city = {"type": "string"}
    referring = {
        "type": "object",
        "properties": {"city": {"$ref": f"#/{where}/City"}},
        where: {"City": city},
    }
    plain = {"type": "object", "properties": {"city": city}}
    assert constraint(**schema(referring)) == constraint(**schema(plain))


@pytest.mark.rule("chat.schema-refs-refused")
@pytest.mark.parametrize(
    ("definition", "code"),
    [
        ({"$ref": "https://example.com/schema.json"}, "json_schema_refs_remote"),
        ({"$ref": "#/$defs/Nobody"}, "json_schema_refs_unresolvable"),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, "json_schema_refs_recursive"),
        (
            {
                "$ref": "#/$defs/L0",
                "$defs": {
                    **{
                        f"L{n}": {
                            "type": "object",
                            "properties": {k: {"$ref": f"#/$defs/L{n + 1}"} for k in "abcdefgh"},
                        }
                        for n in range(6)
                    },
                    "L6": {"type": "string"},
                },
            },
            "json_schema_refs_too_large",
        ),
    ],
    ids=["remote", "unresolvable", "recursive", "oversized"],
)
def test_references_that_cannot_be_inlined(definition: dict[str, Any], code: str) -> None:
    where = "response_format.json_schema.schema"
    found, param = refusal(ABLE, **schema(definition))
    assert found == code
    assert param is not None
    assert param.startswith(where)


@pytest.mark.rule("chat.schema-unenforceable")
@pytest.mark.parametrize(
    "keyword",
    [
        {"format": "email"},
        {"not": {"const": "x"}},
        {"if": {"const": "x"}, "then": {"minLength": 2}, "else": {"maxLength": 9}},
    ],
)
def test_keywords_that_cannot_be_enforced_are_dropped(keyword: dict[str, Any]) -> None:
    def with_name(name: dict[str, Any]) -> Constraint | None:
        return constraint(**schema({"type": "object", "properties": {"name": name}}))

    assert with_name({"type": "string", **keyword}) == with_name({"type": "string"})
