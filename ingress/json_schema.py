"""JSON schemas made fit for constrained decoding: references inlined (pure).

Source: Chat Completions, section 10 ("Structured outputs"); error catalogue, `json_schema_refs_*`.
"""

from __future__ import annotations

from typing import Any

from schemas.errors import InvalidJsonSchema


def enforceable(schema: Any, *, param: str) -> dict[str, Any]:
    """The schema as a constraint may use it.

    Args:
        schema: As the client sent it.
        param: Where the request has it, for errors.

    Raises:
        InvalidJsonSchema: It is not a schema.
        JsonSchemaRefsRemote, JsonSchemaRefsUnresolvable, JsonSchemaRefsRecursive,
        JsonSchemaRefsTooLarge: Its references cannot be inlined.
    """
    if not isinstance(schema, dict):
        raise InvalidJsonSchema(f"`{param}` must be an object.", param=param)
    return schema
