"""Batches of both shapes in the OpenAPI document.

Source: wire reference of the batch APIs; OpenAPI 3.1.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from ingress.batch.message_requests import MAX_REQUESTS
from ingress.batch.objects import DEFAULT_PAGE, LARGEST_MESSAGES_PAGE, LARGEST_PAGE
from ingress.batch.openai_request import MAX_KEY, MAX_PAIRS, MAX_VALUE, Endpoint
from ingress.dialects.api import (
    BOOLEAN,
    COUNT,
    INTEGER,
    STRING,
    Schema,
    array,
    const,
    enum,
    nullable,
    one_of,
    record,
)
from ingress.dialects.messages import Messages
from ingress.openapi_terms import (
    CLIENT_ID,
    ID_HEADERS,
    Error,
    errors_by_status,
    json_answer,
    query_parameter,
    ref,
)
from schemas.batch import Status
from schemas.errors import BatchNotFound, InputFileNotFound, NotFound

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_ENDPOINTS: Final = get_args(Endpoint)
_METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": MAX_PAIRS,
    "propertyNames": {"maxLength": MAX_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
}
_LATER: Final = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


def _pages(entry: str) -> dict[str, Schema]:
    return {
        "data": array(ref(entry)),
        "first_id": nullable(STRING),
        "last_id": nullable(STRING),
        "has_more": BOOLEAN,
    }


SCHEMAS: Final[dict[str, Schema]] = {
    "Batch": record(
        {
            "id": STRING,
            "object": const("batch"),
            "endpoint": enum(*_ENDPOINTS),
            "model": nullable(STRING),
            "errors": nullable(
                record(
                    {
                        "object": const("list"),
                        "data": array(
                            record(
                                {
                                    "code": STRING,
                                    "message": STRING,
                                    "param": nullable(STRING),
                                    "line": nullable(INTEGER),
                                }
                            )
                        ),
                    }
                )
            ),
            "input_file_id": STRING,
            "completion_window": const("24h"),
            "status": enum(*get_args(Status)),
            "output_file_id": nullable(STRING),
            "error_file_id": nullable(STRING),
            "created_at": INTEGER,
            "expires_at": INTEGER,
            **dict.fromkeys(_LATER, nullable(INTEGER)),
            "request_counts": record(dict.fromkeys(("total", "completed", "failed"), COUNT)),
            "usage": nullable(
                record(
                    {
                        "input_tokens": COUNT,
                        "input_tokens_details": record({"cached_tokens": COUNT}),
                        "output_tokens": COUNT,
                        "output_tokens_details": record({"reasoning_tokens": COUNT}),
                        "total_tokens": COUNT,
                    }
                )
            ),
            "metadata": nullable(_METADATA),
        }
    ),
    "BatchList": record({"object": const("list"), **_pages("Batch")}),
    "BatchRequest": record(
        {
            "input_file_id": STRING,
            "endpoint": enum(*_ENDPOINTS),
            "completion_window": const("24h"),
        },
        {
            "metadata": nullable(_METADATA),
            "output_expires_after": nullable(
                record(
                    {
                        "anchor": const("created_at"),
                        "seconds": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
                    }
                )
            ),
        },
    ),
    "MessageBatch": record(
        {
            "id": STRING,
            "type": const("message_batch"),
            "processing_status": enum("in_progress", "canceling", "ended"),
            "request_counts": record(
                dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), COUNT)
            ),
            "created_at": _TIME,
            "expires_at": _TIME,
            "ended_at": nullable(_TIME),
            "cancel_initiated_at": nullable(_TIME),
            "archived_at": nullable(_TIME),
            "results_url": nullable({"type": "string", "format": "uri"}),
        }
    ),
    "MessageBatchList": record(_pages("MessageBatch")),
    "MessageBatchDeleted": record({"id": STRING, "type": const("message_batch_deleted")}),
    "MessageBatchRequest": record(
        {
            "requests": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_REQUESTS,
                "items": record(
                    {
                        "custom_id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                        "params": {
                            "description": "A request as to Messages, judged when it is executed.",
                            "type": "object",
                        },
                    }
                ),
            }
        }
    ),
    "MessageBatchResult": record(
        {
            "custom_id": STRING,
            "result": one_of(
                record({"type": const("succeeded"), "message": {"type": "object"}}),
                record({"type": const("errored"), "error": ref("AnthropicError")}),
                record({"type": const("canceled")}),
                record({"type": const("expired")}),
            ),
        }
    ),
}

_ERRORS: Final[tuple[Error, ...]] = (
    "missing_api_key",
    "invalid_api_key",
    "account_disabled",
    "endpoint_not_supported",
    "store_unavailable",
    "internal_error",
)
_BODY_ERRORS: Final[tuple[Error, ...]] = (
    "invalid_json_request",
    "schema_validation_failed",
    "unsupported_value",
    "idempotency_key_reused",
    "batch_zdr_not_supported",
    "batch_limit_exceeded",
    "request_timeout",
    "request_too_large",
    "unsupported_media_type",
    "server_shutting_down",
)
_CREATE_PARAMETERS: Final = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same key and body give the first batch again, for 24 hours or as set.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    {
        "name": "Wafer-ZDR",
        "in": "header",
        "description": "`required` refuses the batch, since it is stored.",
        "schema": STRING,
    },
    CLIENT_ID,
]


def paths() -> dict[str, Any]:
    """`/v1/batches`, `/v1/messages/batches` and what is below them."""
    ours = _Operations("Batch", "batch", "Error", "batch_0123456789abcdef01234567")
    theirs = _Operations(
        "MessageBatch", "message_batch", "AnthropicError", "msgbatch_0123456789abcdef01234567"
    )
    root = f"{Messages.path}/batches"
    after = query_parameter("after", "The page after this batch.", STRING)
    after_id = query_parameter("after_id", "The page after this batch.", STRING)
    before_id = query_parameter("before_id", "The page before this batch.", STRING)
    return {
        "/v1/batches": {
            "get": ours.list(LARGEST_PAGE, after),
            "post": ours.create(
                "Make a batch of an uploaded file. Each line is a request of one endpoint; its "
                "answer, or its error, comes in the output files.",
                InputFileNotFound,
            ),
        },
        "/v1/batches/{batch_id}": {"get": ours.one("retrieve", "Look a batch up")},
        "/v1/batches/{batch_id}/cancel": {
            "post": ours.one("cancel", "Cancel a batch", "batch_not_cancellable")
        },
        root: {
            "get": theirs.list(LARGEST_MESSAGES_PAGE, after_id, before_id),
            "post": theirs.create("Make a batch of the requests in the body, up to 256 MB."),
        },
        f"{root}/{{batch_id}}": {
            "get": theirs.one("retrieve", "Look a batch up"),
            "delete": theirs.one(
                "delete", "Delete a batch that has ended", "batch_not_ended", answer="Deleted"
            ),
        },
        f"{root}/{{batch_id}}/cancel": {
            "post": theirs.one("cancel", "Cancel a batch", "batch_not_cancellable")
        },
        f"{root}/{{batch_id}}/results": {"get": theirs.results()},
    }


class _Operations:
    """The operations of one shape.

    Args:
        schema: Its name in the document.
        name: In the names of its operations.
        envelope: Of its errors.
        example: An id.
    """

    def __init__(self, schema: str, name: str, envelope: str, example: str) -> None:
        self._schema = schema
        self._name = name
        self._envelope = envelope
        self._id = {
            "name": "batch_id",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
            "example": example,
        }

    def create(self, description: str, *errors: Error) -> dict[str, Any]:
        request = {"application/json": {"schema": ref(f"{self._schema}Request")}}
        return {
            "operationId": f"create_{self._name}",
            "tags": ["batches"],
            "summary": "Create a batch",
            "description": description,
            "parameters": _CREATE_PARAMETERS,
            "requestBody": {"required": True, "content": request},
            "responses": {
                "200": json_answer("The batch.", self._schema),
                **self._errors(*_BODY_ERRORS, *errors),
            },
        }

    def list(self, largest: int, *parameters: dict[str, Any]) -> dict[str, Any]:
        limit = {"type": "integer", "minimum": 1, "maximum": largest, "default": DEFAULT_PAGE}
        return {
            "operationId": f"list_{self._name}es",
            "tags": ["batches"],
            "summary": "List the batches",
            "description": "Those of the account of the key, newest first.",
            "parameters": [
                query_parameter("limit", "Batches on a page.", limit),
                *parameters,
                CLIENT_ID,
            ],
            "responses": {
                "200": json_answer("The batches.", f"{self._schema}List"),
                **self._errors("unsupported_value"),
            },
        }

    def one(self, verb: str, summary: str, *errors: Error, answer: str = "") -> dict[str, Any]:
        return {
            "operationId": f"{verb}_{self._name}",
            "tags": ["batches"],
            "summary": summary,
            "parameters": [self._id, CLIENT_ID],
            "responses": {
                "200": json_answer(
                    "It is gone." if answer else "The batch.", self._schema + answer
                ),
                **self._errors(BatchNotFound, *errors),
            },
        }

    def results(self) -> dict[str, Any]:
        lines = {
            "schema": {"description": "A JSON object in each line."},
            "x-record-schema": ref(f"{self._schema}Result"),
        }
        return {
            "operationId": f"{self._name}_results",
            "tags": ["batches"],
            "summary": "Download the results",
            "description": "In any order; once the batch has ended, and for 29 days.",
            "parameters": [self._id, CLIENT_ID],
            "responses": {
                "200": {
                    "description": "The results.",
                    "headers": ID_HEADERS,
                    "content": {"application/x-jsonl": lines},
                },
                **self._errors(BatchNotFound, NotFound, "batch_not_ended", "server_shutting_down"),
            },
        }

    def _errors(self, *errors: Error) -> dict[str, Any]:
        return errors_by_status((*_ERRORS, *errors), self._envelope)
