"""The Files API is as the OpenAPI document says, also to requests made up from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import schemathesis
import structlog
from hypothesis import given

from ingress.dialects.api import Schema
from tests.fixtures.forms import CONTENT_TYPE, PURPOSE, field, file, form
from tests.fixtures.stack import Stack, memory_stack, until
from tests.integration.test_fuzz import CHECKS, FEW
from tests.integration.test_openapi import DOCUMENT, answers, check

FILES = "/v1/files"
ONE = "/v1/files/{file_id}"
CONTENT = "/v1/files/{file_id}/content"
OPERATIONS = [(FILES, "POST"), (FILES, "GET"), (CONTENT, "GET")]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(files=tmp_path, worker=False, max_file_bytes=100_000) as stack:
        yield stack


def schema_of(path: str, method: str, status: int = 200) -> Schema:
    schema: Schema = answers(path, method, str(status))["application/json"]["schema"]
    return schema


@pytest.mark.rule("openapi.answers", "openapi.errors")
async def test_answers_are_as_described(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as http:
        headers = {"content-type": CONTENT_TYPE}
        body = form(PURPOSE, file(b"x"))
        created = await http.post(FILES, content=body, headers=headers)
        check(created.json(), schema_of(FILES, "post"))
        check((await http.get(FILES)).json(), schema_of(FILES, "get"))
        one = f"{FILES}/{created.json()['id']}"
        check((await http.get(one)).json(), schema_of(ONE, "get"))
        content = await http.get(f"{one}/content")
        assert list(answers(CONTENT, "get")) == [content.headers["content-type"]]
        check((await http.delete(one)).json(), schema_of(ONE, "delete"))
        check((await http.get(FILES)).json(), schema_of(FILES, "get"))
        for path, method, url, sent in (
            (FILES, "post", FILES, form(field("purpose", "x"))),
            (FILES, "post", FILES, form(PURPOSE, file(b"x" * 100_001))),
            (FILES, "get", f"{FILES}?limit=0", None),
            (ONE, "get", one, None),
            (ONE, "delete", one, None),
            (CONTENT, "get", f"{one}/content", None),
        ):
            refused = await http.request(method, url, content=sent, headers=headers)
            check(refused.json(), schema_of(path, method, refused.status_code))


@pytest.mark.rule("errors.nothing-breaks")
async def test_requests_from_the_document(stack: Stack) -> None:
    document = schemathesis.openapi.from_dict(orjson.loads(orjson.dumps(DOCUMENT)))

    def attack(path: str, method: str) -> None:
        @given(document[path][method].as_strategy())
        @FEW
        def send(case: Any) -> None:
            response = case.call(base_url=stack.url, timeout=10)
            case.validate_response(response, checks=CHECKS)

        send()

    with structlog.testing.capture_logs() as logs:
        for path, method in OPERATIONS:
            await asyncio.to_thread(attack, path, method)
        await until(lambda: not stack.services.answers)
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []
