"""Decoded JSON -> a dialect's typed body, and what is wrong with it in the API's own terms.

Holds the building blocks of wire models and the translation of pydantic's findings into the error
catalogue: a wrong JSON type or a missing field is `schema_validation_failed`, a value of the right
type that is not allowed is `unsupported_value`. Messages name the field and never quote the value,
unless it is the plain name of a kind of object that is not supported. Only the first finding is
reported. It knows no dialect.

Source: error catalogue, section 3 ("Request validation"); `param` uses paths such as
`messages[2].content[0].text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from schemas.errors import (
    InvalidJson,
    InvalidPrompt,
    RequestError,
    SchemaValidationFailed,
    UnsupportedParameter,
    UnsupportedValue,
)

MAX_DEPTH = 100
"""How deep free-form JSON that travels on with the Job may nest."""

MAX_ENTRIES = 100_000
"""Of one array. A body has room for millions, each of which takes microseconds to read."""

_KIND = re.compile(r"[a-z0-9_]{1,64}")

_INT64 = 2**63
_UINT64_MAX = 2**64 - 1


class WireModel(BaseModel):
    """Base of every typed body. Strict: `"1"` and `true` are not numbers. Extra fields are ignored.

    `null` means absent, so every optional field is declared `X | None = None`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


# --- Findings of our own validators --------------------------------------------------------------

_FINDINGS: Mapping[str, type[RequestError]] = {
    error.code: error
    for error in (UnsupportedValue, SchemaValidationFailed, UnsupportedParameter, InvalidPrompt)
}
TAG_PREFIX = "unknown_tag:"
"""Begins the kind of a finding about a tag; the name of the field that holds it follows."""


def bad_value(message: str, *, field: str | None = None) -> PydanticCustomError:
    """A value that is not allowed; `message` continues the sentence "`field` …"."""
    return _finding(UnsupportedValue, message, field)


def bad_shape(message: str, *, field: str | None = None) -> PydanticCustomError:
    """A missing field or a wrong JSON type; `message` as in `bad_value`."""
    return _finding(SchemaValidationFailed, message, field)


def bad_parameter(message: str, *, field: str | None = None) -> PydanticCustomError:
    """A field that cannot be honoured, whatever its value; `message` as in `bad_value`."""
    return _finding(UnsupportedParameter, message, field)


def bad_prompt(message: str, *, field: str | int | None = None) -> PydanticCustomError:
    """A prompt of token ids that is none; `message` as in `bad_value`.

    Args:
        message: See there.
        field: Which of several prompts it is.
    """
    return _finding(InvalidPrompt, message, field)


def bad_tag(field: str, allowed: Sequence[str]) -> PydanticCustomError:
    """An object whose kind, told by `field`, is none of those allowed in its place."""
    return PydanticCustomError(TAG_PREFIX + field, _one_of(allowed))


def _one_of(names: Sequence[str]) -> str:
    return f"must be one of {', '.join(names)}"


def _finding(
    error: type[RequestError], message: str, field: str | int | None
) -> PydanticCustomError:
    # The message goes in as context: as a template its braces would mean something.
    return PydanticCustomError(error.code, "{text}", {"text": message, "field": field})


# --- Building blocks -----------------------------------------------------------------------------


def _integer(value: Any) -> Any:
    if type(value) is not float:
        return value
    if value.is_integer() and abs(value) >= _INT64:
        # The JSON decoder turns integers beyond 64 bits into floats, and the encoder takes none.
        return min(int(value), _UINT64_MAX)
    raise bad_value("must be an integer")


def _false_if_null(value: Any) -> Any:
    return False if value is None else value


Integer = Annotated[int, BeforeValidator(_integer)]
"""A JSON integer of any size; what 64 bits do not hold is above every bound all the same."""

Flag = Annotated[
    bool,
    BeforeValidator(_false_if_null),
    WithJsonSchema({"type": ["boolean", "null"]}),
]
"""A boolean that is false when absent or null: `field: Flag = False`."""

Entry = TypeVar("Entry")
Entries: TypeAlias = Annotated[list[Entry], Field(max_length=MAX_ENTRIES, fail_fast=True)]
"""An array. Reading ends with its first bad entry: only one is reported, and finding a fault in
each of millions would hold up everybody."""


def _string_or_array(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<array>" if isinstance(value, list) else None


STRING_OR_ARRAY = Discriminator(
    _string_or_array,
    custom_error_type=SchemaValidationFailed.code,
    custom_error_message="must be a string or an array",
)
"""Picks the member of a union tagged `<string>` and `<array>`.

Tags are written in angle brackets so that they can be told from field names in an error's path.
"""


def _string_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<object>" if isinstance(value, dict) else None


STRING_OR_OBJECT = Discriminator(
    _string_or_object,
    custom_error_type=SchemaValidationFailed.code,
    custom_error_message="must be a string or an object",
)
"""Picks the member of a union tagged `<string>` and `<object>`."""


def by_field(field: str, *allowed: str) -> Discriminator:
    """Picks the member of a union of objects that is tagged `<value of field>`.

    Args:
        field: The field that tells the members apart.
        allowed: Its values that have a member.
    """

    def tag(value: Any) -> str | None:
        name = value.get(field) if isinstance(value, dict) else None
        return f"<{name}>" if isinstance(name, str) and name in allowed else None

    return Discriminator(
        tag,
        custom_error_type=TAG_PREFIX + field,
        custom_error_message=_one_of(allowed),
    )


def check_depth(value: Any) -> Any:
    """For free-form JSON: refuses what nests deeper than `MAX_DEPTH`. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return value
    raise bad_value(f"must not nest deeper than {MAX_DEPTH} levels")


# --- Validation ----------------------------------------------------------------------------------

Model = TypeVar("Model", bound=WireModel)


def validate(model: type[Model], body: Any, at: tuple[int | str, ...] = ()) -> Model:
    """The typed body, or a typed part of it.

    Args:
        model: Its type.
        body: Decoded JSON.
        at: Where in the body the part is, such as `("tools", 2)`.

    Raises:
        InvalidJson: The body is not an object.
        SchemaValidationFailed: A field is missing or has the wrong type.
        UnsupportedValue: A value is not allowed.
    """
    if not isinstance(body, dict):
        if at:
            raise _error(SchemaValidationFailed, at, "must be an object")
        raise InvalidJson("The request body must be a JSON object.")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    # Raised outside the handler: pydantic's error quotes the input and must not be chained.
    raise _translate(found, at)


def explain(found: ErrorDetails) -> RequestError:
    """A finding of pydantic, in the API's own terms."""
    return _translate(found, ())


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}

_LIMITS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be of another form",
}


def _translate(found: ErrorDetails, at: tuple[int | str, ...]) -> RequestError:
    kind, context, path = found["type"], found.get("ctx", {}), (*at, *found["loc"])
    if kind.startswith(TAG_PREFIX):
        return _translate_tag(found["input"], path, kind.removeprefix(TAG_PREFIX), found["msg"])
    if kind in _FINDINGS:
        text = context.get("text", found["msg"])
        field = context.get("field")
        where = path if field is None else (*path, field)
        return _error(_FINDINGS[kind], where, text)
    if kind in _LIMITS:
        limits = {name: _shortest(value) for name, value in context.items()}
        return _error(UnsupportedValue, path, _LIMITS[kind].format(**limits))
    if kind == "too_short":
        return _error(UnsupportedValue, path, "must not be empty")
    if kind == "too_long":
        most = context["max_length"]
        return _error(UnsupportedValue, path, f"must have at most {most} entries")
    if kind == "extra_forbidden":
        return _error(UnsupportedParameter, path, "is not known here")
    if kind == "missing":
        return _error(SchemaValidationFailed, path, "is required")
    expected = _EXPECTED.get(kind, "of another type")
    return _error(SchemaValidationFailed, path, f"must be {expected}")


def _shortest(limit: Any) -> Any:
    """`2.0` is written as `2`."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _translate_tag(
    value: Any, path: tuple[int | str, ...], field: str, unknown: str
) -> RequestError:
    if not isinstance(value, dict):
        return _error(SchemaValidationFailed, path, "must be an object")
    where = (*path, field)
    tag = value.get(field)
    if tag is None:
        return _error(SchemaValidationFailed, where, "is required")
    if not isinstance(tag, str):
        return _error(SchemaValidationFailed, where, "must be a string")
    named = f"is `{tag}`, which is not supported; it " if _KIND.fullmatch(tag) else ""
    return _error(UnsupportedValue, where, named + unknown)


def _error(error: type[RequestError], path: tuple[int | str, ...], text: str) -> RequestError:
    param = field_path(path)
    return error(f"`{param}` {text}.", param=param)


def field_path(path: tuple[int | str, ...]) -> str:
    """`("messages", 2, "<user>", "content")` -> `messages[2].content`."""
    param = ""
    for step in path:
        if isinstance(step, int):
            param += f"[{step}]"
        elif not step.startswith("<"):
            param += f".{step}" if param else step
    return param
