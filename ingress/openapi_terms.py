"""Terms that the parts of the OpenAPI document share: headers, parameters, answers and errors.

Source: OpenAPI 3.1; error catalogue, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ingress.dialects.api import INTEGER, STRING, Schema, enum
from schemas.errors import ServingError

REQUEST_ID = {
    "description": "Id of the request; the same under both names.",
    "schema": STRING,
}
ID_HEADERS = {"x-request-id": REQUEST_ID, "request-id": REQUEST_ID}
ANSWER_HEADERS = {
    **ID_HEADERS,
    "x-headrace-ignored": {
        "description": "What of the request has no effect: in the profile `official` some of its "
        "fields, and `Idempotency-Key` under zero data retention.",
        "schema": STRING,
    },
}
REPLAYED_HEADER = {
    "x-headrace-replayed": {
        "description": "`true`: nothing was generated; the answer is that of an earlier request "
        "with the same `Idempotency-Key`.",
        "schema": enum("true"),
    }
}
RETRY_AFTER = {"description": "Seconds after which to try again.", "schema": INTEGER}
SHOULD_RETRY = {
    "description": "Sent where the status alone would mislead.",
    "schema": enum("true", "false"),
}


ZDR = {
    "name": "Wafer-ZDR",
    "in": "header",
    "description": "`required`: only a model with zero data retention may answer.",
    "schema": STRING,
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes a repeated request the same one: it joins the first or gets its answer "
    "again. With another body it is refused. Without effect under zero data retention.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
CLIENT_ID = {
    "name": "x-request-id",
    "in": "header",
    "description": "An id of the client's own; it comes back as `client_` and its safe characters.",
    "schema": STRING,
}


def ref(name: str) -> Schema:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def query_parameter(name: str, text: str, schema: Schema) -> dict[str, Any]:
    """One that may be left out."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def json_answer(description: str, schema: str) -> dict[str, Any]:
    """An answer that is a JSON object."""
    return {
        "description": description,
        "headers": ID_HEADERS,
        "content": {"application/json": {"schema": ref(schema)}},
    }


Error: TypeAlias = str | type[ServingError]
"""A code, or the class of one that several statuses share."""


def errors_by_status(errors: Sequence[Error], envelope: str = "Error") -> dict[str, Any]:
    """The error responses, by status."""
    by_status: dict[int, list[type[ServingError]]] = {}
    known = {error.code: error for error in _concrete(ServingError)}
    for named in errors:
        error = known[named] if isinstance(named, str) else named
        anthropic_overload = envelope == "AnthropicError" and error.status == 503
        by_status.setdefault(529 if anthropic_overload else error.status, []).append(error)
    return {
        str(status): {
            "description": " · ".join(f"`{error.code}`" for error in told),
            "headers": {
                **ID_HEADERS,
                "x-should-retry": SHOULD_RETRY,
                **({"retry-after": RETRY_AFTER} if status in (409, 429, 503, 529) else {}),
            },
            "content": {"application/json": {"schema": ref(envelope)}},
        }
        for status, told in sorted(by_status.items())
    }


def _concrete(error: type[ServingError]) -> Iterator[type[ServingError]]:
    if "code" in vars(error):
        yield error
    for below in error.__subclasses__():
        yield from _concrete(below)
