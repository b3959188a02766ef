"""The OpenAPI document: every public endpoint, from the descriptions of the dialects.

Built once. It must not know how anything is served.

Source: OpenAPI 3.1; error catalogue, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ingress.batch import batches_api, files_api
from ingress.dialects.api import (
    BOOLEAN,
    COUNT,
    INTEGER,
    STRING,
    ApiDescription,
    Example,
    Schema,
    array,
    const,
    nullable,
    record,
)
from ingress.dialects.base import CountingDialect, Dialect
from ingress.dialects.registry import DIALECTS
from ingress.dialects.validation import TAG_PREFIX
from ingress.openapi_terms import (
    ANSWER_HEADERS,
    CLIENT_ID,
    IDEMPOTENCY_KEY,
    REPLAYED_HEADER,
    ZDR,
    errors_by_status,
    json_answer,
    query_parameter,
    ref,
)

_INFERENCE_ERRORS = (
    "missing_api_key",
    "invalid_api_key",
    "account_disabled",
    "invalid_json_request",
    "schema_validation_failed",
    "unsupported_value",
    "context_length_exceeded",
    "model_not_found",
    "model_access_denied",
    "model_zdr_not_supported",
    "request_timeout",
    "request_too_large",
    "unsupported_media_type",
    "model_overloaded",
    "model_unavailable",
    "server_shutting_down",
    "worker_failed",
    "generation_failed",
    "generation_timeout",
    "internal_error",
)
_GENERATING_ERRORS = (
    "insufficient_credits",
    "concurrency_limit_exceeded",
    "rate_limit_exceeded",
    "idempotency_key_reused",
    "idempotent_request_running",
)
_CATALOGUE_ERRORS = ("invalid_api_key", "account_disabled", "internal_error")


def build_document(version: str) -> dict[str, Any]:
    """The whole document."""
    schemas: dict[str, Schema] = {
        "Error": _openai_error(),
        "AnthropicError": _anthropic_error(),
        "Model": _model(),
        "ModelList": _model_list(),
        **files_api.SCHEMAS,
        **batches_api.SCHEMAS,
    }
    paths: dict[str, Any] = {}
    for dialect in DIALECTS.values():
        paths[dialect.path] = {"post": _operation(dialect, dialect.api, dialect.name, schemas)}
        if isinstance(dialect, CountingDialect):
            paths[dialect.count_path] = {
                "post": _operation(dialect, dialect.count_api, f"{dialect.name}_count", schemas)
            }
    paths["/v1/models"] = {"get": _list_models()}
    paths["/v1/models/{model}"] = {"get": _retrieve_model()}
    paths |= files_api.paths() | batches_api.paths()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "summary": "One public API over many workers.",
            "description": (
                "Chat Completions, Responses, Messages and token completions of self-hosted "
                "models. Each endpoint answers in the form that its clients know, errors included."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "inference", "description": "Answers of models."},
            {"name": "models", "description": "The catalogue."},
            {"name": "batches", "description": "Many requests, below live traffic."},
            {"name": "files", "description": "What batches are made of and what they give."},
        ],
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


# --- Inference -----------------------------------------------------------------------------------


def _operation(
    dialect: Dialect, api: ApiDescription, name: str, schemas: dict[str, Schema]
) -> dict[str, Any]:
    request = _request_schema(api, schemas)
    generates = api is dialect.api
    answer = f"{_camel(name)}Answer"
    schemas[answer] = api.answer
    content: dict[str, Any] = {"application/json": {"schema": ref(answer)}}
    if api.record is not None:
        schemas[f"{_camel(name)}Record"] = api.record
        content["text/event-stream"] = _stream(api, f"{_camel(name)}Record")
    headers = {
        **ANSWER_HEADERS,
        **(REPLAYED_HEADER if generates else {}),
        **{key: {"description": text, "schema": STRING} for key, text in api.headers.items()},
    }
    return {
        "operationId": name,
        "tags": ["inference"],
        "summary": api.summary,
        "description": api.description,
        "parameters": [*([IDEMPOTENCY_KEY] if generates else []), ZDR, CLIENT_ID],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": ref(request),
                    "examples": {key: _example(example) for key, example in api.examples.items()},
                }
            },
        },
        "responses": {
            "200": {"description": "The answer.", "headers": headers, "content": content},
            **errors_by_status(
                (
                    *_INFERENCE_ERRORS,
                    *(_GENERATING_ERRORS if generates else ()),
                    *api.errors,
                ),
                "AnthropicError" if dialect.name == "messages" else "Error",
            ),
        },
    }


def _example(example: Example) -> dict[str, Any]:
    return {"summary": example.summary, "value": example.body}


def _stream(api: ApiDescription, record_name: str) -> dict[str, Any]:
    ending = " The last line of a stream that did not fail is `data: [DONE]`." if api.done else ""
    lines = "An `event:` line and a `data:` line" if api.named_records else "A `data:` line"
    return {
        "schema": {
            "description": f"{lines} with a JSON object per record, then an empty line.{ending}",
        },
        "example": api.stream,
        # OpenAPI 3.1 has no word for the records of a stream.
        "x-record-schema": ref(record_name),
    }


# --- Request schemas -----------------------------------------------------------------------------


class _BodySchema(GenerateJsonSchema):
    """JSON Schema of a typed body, with the tags that its unions are told apart by.

    A dialect names the members of such a union `<value>`; the value is no field of the member.
    """

    tags: Mapping[str, Schema] = {}

    def tagged_union_schema(self, schema: Any) -> Schema:
        kind = schema.get("custom_error_type") or ""
        members = []
        for tag, choice in schema["choices"].items():
            member = self.generate_inner(choice)
            if kind.startswith(TAG_PREFIX):
                name = tag.strip("<>")
                value = self.tags.get(name, const(name))
                field = kind.removeprefix(TAG_PREFIX)
                tagged = {"properties": {field: value}, "required": [field]}
                member = {"type": "object", "allOf": [member], **tagged}
            members.append(member)
        return {"anyOf": members}


def _request_schema(api: ApiDescription, schemas: dict[str, Schema]) -> str:
    """Adds the schema of a body, and those it refers to; its name."""
    generator = type("_Body", (_BodySchema,), {"tags": api.tags})
    whole = api.request.model_json_schema(
        ref_template=f"#/components/schemas/{api.prefix}{{model}}", schema_generator=generator
    )
    for name, schema in whole.pop("$defs", {}).items():
        schemas[f"{api.prefix}{name}"] = schema
    for field, text in api.fields.items():
        whole["properties"][field] = {
            **api.schemas.get(field, whole["properties"][field]),
            "description": text,
        }
    name = f"{api.prefix}Request"
    schemas[name] = whole
    return name


# --- The catalogue -------------------------------------------------------------------------------


def _list_models() -> dict[str, Any]:
    return {
        "operationId": "list_models",
        "tags": ["models"],
        "summary": "List the models",
        "description": (
            "Needs no key, but one that is sent must be valid. Without one of the parameters and "
            "without the header `anthropic-version` the list is complete."
        ),
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "parameters": [
            query_parameter(
                "limit",
                "Models on a page.",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20},
            ),
            query_parameter("after_id", "The page after this model.", STRING),
            query_parameter("before_id", "The page before this model.", STRING),
            _ANTHROPIC_VERSION,
        ],
        "responses": {
            "200": json_answer("The models.", "ModelList"),
            **_catalogue_errors("unsupported_value"),
        },
    }


def _retrieve_model() -> dict[str, Any]:
    return {
        "operationId": "retrieve_model",
        "tags": ["models"],
        "summary": "Look a model up",
        "description": "By id or alias, in any case. An id may contain slashes, escaped or not.",
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "parameters": [
            {
                "name": "model",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
                "example": "demo-model",
            },
            _ANTHROPIC_VERSION,
        ],
        "responses": {
            "200": json_answer("The model.", "Model"),
            **_catalogue_errors("model_not_found"),
        },
    }


_ANTHROPIC_VERSION = {
    "name": "anthropic-version",
    "in": "header",
    "description": "Its presence asks for pages, and for errors in the form of Messages.",
    "schema": STRING,
}


def _catalogue_errors(*more: str) -> dict[str, Any]:
    found = errors_by_status((*_CATALOGUE_ERRORS, *more), "Error")
    for response in found.values():
        response["content"]["application/json"]["schema"] = {
            "anyOf": [ref("Error"), ref("AnthropicError")]
        }
    return found


# --- Schemas -------------------------------------------------------------------------------------


def _openai_error() -> Schema:
    return record(
        {
            "error": record(
                {
                    "message": STRING,
                    "type": STRING,
                    "param": nullable(STRING),
                    "code": nullable(STRING),
                    "request_id": STRING,
                }
            )
        }
    )


def _anthropic_error() -> Schema:
    error = _openai_error()["properties"]["error"]
    return record({"type": const("error"), "error": error, "request_id": STRING})


def _model() -> Schema:
    prices = record(
        {
            "currency": STRING,
            "input_cents_per_million": COUNT,
            "output_cents_per_million": COUNT,
        },
        {"cache_read_cents_per_million": COUNT, "cache_read_microcents_per_million": COUNT},
    )

    def flags(*names: str) -> Schema:
        return record(dict.fromkeys(names, BOOLEAN))

    able = record(
        {
            **dict.fromkeys(("vision", "tools", "reasoning", "completions"), BOOLEAN),
            "chat_completions": flags(
                *("streaming", "tools", "tool_streaming", "json_object", "json_schema"),
                *("tools_with_response_format", "n", "logprobs", "regex", "grammar"),
            ),
            "responses": flags("text_format", "tool_streaming"),
            "messages": flags("vision", "reasoning", "tool_streaming"),
        },
        {
            "reasoning_effort": record(
                {"control": STRING, "efforts": array(STRING), "default": STRING}
            )
        },
    )
    return record(
        {
            "id": STRING,
            "object": const("model"),
            "type": const("model"),
            "created": INTEGER,
            "created_at": {"type": "string", "format": "date-time"},
            "owned_by": STRING,
            "display_name": STRING,
            "lifecycle": const("active"),
            "max_model_len": COUNT,
            "max_input_tokens": COUNT,
            "max_tokens": COUNT,
            "zdr_supported": BOOLEAN,
            "supports_vision": BOOLEAN,
            "capabilities": {
                "type": "object",
                "description": "Objects with `supported`, as the Anthropic clients know them.",
            },
            "wafer": record(
                {
                    "display_name": STRING,
                    "context_length": COUNT,
                    "honors_sampling": BOOLEAN,
                    "reasoning_headroom_tokens": COUNT,
                    "capabilities": able,
                },
                {
                    "description": STRING,
                    "provider": STRING,
                    "tier": STRING,
                    "alias_of": STRING,
                    "max_output_tokens": COUNT,
                    "pricing": prices,
                },
            ),
        }
    )


def _model_list() -> Schema:
    return record(
        {
            "object": const("list"),
            "data": array(ref("Model")),
            "has_more": BOOLEAN,
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
        }
    )


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
