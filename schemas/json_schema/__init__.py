"""JSON schemas made fit for constrained decoding (pure).

    as sent ─► references inlined ─► reduced to what decoding enforces

Source: Chat Completions, "Structured outputs"; error catalogue, `json_schema_refs_*` and
`invalid_json_schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import InvalidJsonSchema
from schemas.json_schema.canonical import TooComplex, canonical
from schemas.json_schema.limits import MAX_BYTES
from schemas.json_schema.references import inline

__all__ = ["enforceable"]


def enforceable(schema: Any, *, param: str) -> dict[str, Any]:
    """The schema as a constraint may use it; it accepts at least what `schema` accepts.

    Args:
        schema: As the client sent it.
        param: Where the request has it, for errors.

    Raises:
        InvalidJsonSchema: It is not a schema, accepts nothing, or is too large to be enforced.
        JsonSchemaRefsRemote, JsonSchemaRefsUnresolvable, JsonSchemaRefsRecursive,
        JsonSchemaRefsTooLarge: Its references cannot be inlined.
    """
    inlined = inline(schema, param=param)
    try:
        reduced = canonical(inlined)
    except TooComplex:
        raise InvalidJsonSchema(f"`{param}` is too complex.", param=param) from None
    if reduced is None:
        raise InvalidJsonSchema(f"`{param}` accepts no value at all.", param=param)
    if len(msgspec.json.encode(reduced)) > MAX_BYTES:
        raise InvalidJsonSchema(f"`{param}` is too large.", param=param)
    return reduced
