"""`enforceable` for any schema: no references, stable, and never narrower than the original."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.errors import RequestError
from schemas.json_schema import enforceable

NAMES = st.sampled_from(["a", "b", "c", "d/e", "f~g", "été"])
DEFINITIONS = [f"d{index}" for index in range(2)]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-6, 6)
    | st.sampled_from([0.5, 2.0, -1.5])
    | st.text("ab1é", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def typed(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return optional(**fields).map(lambda keywords: {"type": kind, **keywords})


def schemas(definitions: list[str]) -> st.SearchStrategy[Any]:
    """Schemas whose references go to `definitions` only."""
    count = st.integers(0, 3)
    bound = st.integers(-3, 3) | st.sampled_from([0.5, -1.5])
    leaves = [
        st.booleans(),
        st.just({}),
        st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
        typed("string", minLength=count, maxLength=count, pattern=st.sampled_from(["a", "^b+$"])),
        typed("integer", minimum=bound, exclusiveMaximum=bound, multipleOf=st.just(2)),
        typed("number", exclusiveMinimum=bound, maximum=bound),
        st.sampled_from([{"type": ["string", "null"]}, {"type": "boolean"}, {"type": "null"}]),
    ]
    if definitions:
        leaves.append(
            st.sampled_from(definitions).flatmap(
                lambda name: optional(
                    title=st.just("T"), type=st.just("object"), required=st.just(["a"])
                ).map(lambda beside: {"$ref": f"#/$defs/{name}", **beside})
            )
        )

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=3)
        objects = typed(
            "object",
            properties=st.dictionaries(NAMES, inner, max_size=3),
            required=st.lists(NAMES, max_size=2, unique=True),
            additionalProperties=inner,
            patternProperties=st.dictionaries(st.sampled_from(["^a", "(?=x)"]), inner, max_size=1),
            minProperties=count,
            maxProperties=count,
            propertyNames=inner,
        )
        arrays = typed(
            "array",
            prefixItems=st.lists(inner, min_size=1, max_size=2),
            items=inner,
            minItems=count,
            maxItems=count,
            uniqueItems=st.booleans(),
        )
        combined = optional(anyOf=several, oneOf=several, allOf=several, **{"not": inner})
        beside = st.tuples(objects, combined).map(lambda pair: {**pair[0], **pair[1]})
        return st.one_of(objects, arrays, combined, beside)

    return st.recursive(st.one_of(leaves), extend, max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A schema with definitions, each of which refers to later ones only."""
    definitions = {
        name: draw(schemas(DEFINITIONS[index + 1 :])) for index, name in enumerate(DEFINITIONS)
    }
    root = draw(schemas(DEFINITIONS).filter(lambda schema: isinstance(schema, dict)))
    return {**root, "$defs": definitions}


def keywords(schema: Any) -> set[str]:
    """All keys anywhere in a schema."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found |= value.keys()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


@given(documents(), st.lists(VALUES, min_size=3, max_size=10))
def test_the_result_has_no_references_is_stable_and_accepts_all_that_the_original_does(
    document: dict[str, Any], values: list[Any]
) -> None:
    accepted = [value for value in values if Draft202012Validator(document).is_valid(value)]
    try:
        schema = enforceable(document, param="schema")
    except RequestError:
        assert not accepted
        return

    assert not keywords(schema) & {"$ref", "$defs", "allOf", "oneOf", "not", "uniqueItems"}
    assert enforceable(schema, param="schema") == schema
    for value in accepted:
        assert Draft202012Validator(schema).is_valid(value), (schema, value)
