"""The OpenAPI document tells the truth about batches."""

from __future__ import annotations

import msgspec
import orjson
import pytest
from jsonschema import ValidationError

from ingress.batch.objects import (
    batch_list,
    batch_object,
    deleted_message_batch,
    message_batch_list,
    message_batch_object,
)
from ingress.dialects import messages_errors
from ingress.stores.base import Page
from schemas.errors import GenerationFailed
from tests.integration.test_openapi import DOCUMENT, check
from tests.unit.test_batch_lines import ends
from tests.unit.test_batch_objects import STATES

SCHEMAS = DOCUMENT["components"]["schemas"]


def answer_of(path: str, method: str) -> dict[str, str]:
    content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
    found: dict[str, str] = content["application/json"]["schema"]
    return found


@pytest.mark.rule("openapi.answers")
@pytest.mark.parametrize("status", STATES)
def test_batches_are_as_described(status: str) -> None:
    batch = STATES[status]()
    check(batch_object(batch), answer_of("/v1/batches/{batch_id}", "get"))
    check(batch_list(Page(items=(batch,), more=True)), answer_of("/v1/batches", "get"))
    there = msgspec.structs.replace(batch, results_blob="results/1", archived_at=None)
    for shown in (batch, there):
        check(message_batch_object(shown, "https://x"), SCHEMAS["MessageBatch"])
        page = message_batch_list(Page(items=(shown,), more=False), "https://x")
        check(page, answer_of("/v1/messages/batches", "get"))


@pytest.mark.rule("openapi.answers")
def test_what_else_is_told_of_batches_is_as_described() -> None:
    deleted = answer_of("/v1/messages/batches/{batch_id}", "delete")
    check(deleted_message_batch("msgbatch_1"), deleted)
    check(batch_list(Page(items=(), more=False)), answer_of("/v1/batches", "get"))
    lines = [orjson.loads(line.replace(b"\\ud83d", b"")) for line in ends("messages")]
    lines[1]["result"]["error"] = orjson.loads(
        messages_errors.error_body(GenerationFailed("It failed.").info(), "req_1")
    )
    for line in lines:
        check(line, SCHEMAS["MessageBatchResult"])


@pytest.mark.rule("openapi.fields")
def test_requests_for_batches() -> None:
    good = {
        "input_file_id": "file-1",
        "endpoint": "/v1/responses",
        "completion_window": "24h",
        "metadata": {"a": "b"},
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    }
    check(good, SCHEMAS["BatchRequest"])
    for wrong in ({"endpoint": "/v1/messages"}, {"completion_window": "1h"}, {"more": 1}):
        with pytest.raises(ValidationError):
            check({**good, **wrong}, SCHEMAS["BatchRequest"])
    request = {"custom_id": "a", "params": {}}
    check({"requests": [request]}, SCHEMAS["MessageBatchRequest"])
    for bad in ([], [{**request, "custom_id": "a.b"}], [{"custom_id": "a"}]):
        with pytest.raises(ValidationError):
            check({"requests": bad}, SCHEMAS["MessageBatchRequest"])
