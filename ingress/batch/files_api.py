"""The Files API in the OpenAPI document.

Source: wire reference of the batch APIs, "Files"; OpenAPI 3.1.
"""

from __future__ import annotations

from typing import Any, Final

from ingress.batch.file_object import (
    DEFAULT_EXPIRY_S,
    LARGEST_PAGE,
    LONGEST_EXPIRY_S,
    SHORTEST_EXPIRY_S,
)
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
    record,
)
from ingress.openapi_terms import (
    CLIENT_ID,
    ID_HEADERS,
    Error,
    errors_by_status,
    json_answer,
    query_parameter,
    ref,
)
from schemas.errors import FileNotFound

SCHEMAS: Final[dict[str, Schema]] = {
    "File": record(
        {
            "id": STRING,
            "object": const("file"),
            "bytes": COUNT,
            "created_at": INTEGER,
            "expires_at": nullable(INTEGER),
            "filename": STRING,
            "purpose": enum("batch", "batch_output"),
            "status": const("processed"),
        }
    ),
    "FileList": record(
        {
            "object": const("list"),
            "data": array(ref("File")),
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
            "has_more": BOOLEAN,
        }
    ),
    "FileDeleted": record({"id": STRING, "object": const("file"), "deleted": const(True)}),
    "FileUpload": {
        "type": "object",
        "properties": {
            "file": {
                "type": "string",
                "format": "binary",
                "description": "The file, with its name; before or after the other fields.",
            },
            "purpose": const("batch"),
            "expires_after[anchor]": const("created_at"),
            "expires_after[seconds]": {
                "type": "integer",
                "minimum": SHORTEST_EXPIRY_S,
                "maximum": LONGEST_EXPIRY_S,
                "default": DEFAULT_EXPIRY_S,
            },
        },
        "required": ["file", "purpose"],
        "dependentRequired": {
            "expires_after[anchor]": ["expires_after[seconds]"],
            "expires_after[seconds]": ["expires_after[anchor]"],
        },
    },
}

_ERRORS: Final[tuple[Error, ...]] = (
    "missing_api_key",
    "invalid_api_key",
    "account_disabled",
    "endpoint_not_supported",
    "store_unavailable",
    "internal_error",
)
_FILE_ID: Final = {
    "name": "file_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "example": "file-0123456789abcdef01234567",
}


def paths() -> dict[str, Any]:
    """`/v1/files` and what is below it."""
    return {
        "/v1/files": {"post": _upload(), "get": _list()},
        "/v1/files/{file_id}": {
            "get": _of_one("retrieve_file", "Look a file up", "File"),
            "delete": _of_one("delete_file", "Delete a file", "FileDeleted", "file_in_use"),
        },
        "/v1/files/{file_id}/content": {"get": _content()},
    }


def _upload() -> dict[str, Any]:
    return {
        "operationId": "create_file",
        "tags": ["files"],
        "summary": "Upload a file",
        "description": (
            "A file of requests, one per line, to make a batch of. It may have 512 MB, as the "
            "input of a batch 200 MB and 50,000 lines."
        ),
        "parameters": [
            {
                "name": "Wafer-ZDR",
                "in": "header",
                "description": "`required` refuses the upload, since a file is stored.",
                "schema": STRING,
            },
            CLIENT_ID,
        ],
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": ref("FileUpload")}},
        },
        "responses": {
            "200": json_answer("The file.", "File"),
            **errors_by_status(
                (
                    *_ERRORS,
                    "schema_validation_failed",
                    "unsupported_value",
                    "unsupported_parameter",
                    "batch_zdr_not_supported",
                    "request_timeout",
                    "request_too_large",
                    "unsupported_media_type",
                    "server_shutting_down",
                )
            ),
        },
    }


def _list() -> dict[str, Any]:
    return {
        "operationId": "list_files",
        "tags": ["files"],
        "summary": "List the files",
        "description": "Those of the account of the key.",
        "parameters": [
            query_parameter("purpose", "Only these.", enum("batch", "batch_output")),
            query_parameter(
                "limit",
                "Files on a page.",
                {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": LARGEST_PAGE,
                    "default": LARGEST_PAGE,
                },
            ),
            query_parameter(
                "order", "By when they were created.", {**enum("asc", "desc"), "default": "desc"}
            ),
            query_parameter("after", "The page after this file.", STRING),
            CLIENT_ID,
        ],
        "responses": {
            "200": json_answer("The files.", "FileList"),
            **errors_by_status((*_ERRORS, "unsupported_value")),
        },
    }


def _of_one(name: str, summary: str, answer: str, *errors: Error) -> dict[str, Any]:
    return {
        "operationId": name,
        "tags": ["files"],
        "summary": summary,
        "parameters": [_FILE_ID, CLIENT_ID],
        "responses": {
            "200": json_answer("The file." if answer == "File" else "It is gone.", answer),
            **errors_by_status((*_ERRORS, FileNotFound, *errors)),
        },
    }


def _content() -> dict[str, Any]:
    return {
        "operationId": "file_content",
        "tags": ["files"],
        "summary": "Download a file",
        "parameters": [_FILE_ID, CLIENT_ID],
        "responses": {
            "200": {
                "description": "The content, byte for byte.",
                "headers": {
                    **ID_HEADERS,
                    "content-disposition": {"description": "Names the file.", "schema": STRING},
                },
                "content": {
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
                },
            },
            **errors_by_status((*_ERRORS, FileNotFound, "server_shutting_down")),
        },
    }
