"""OpenAI batches through the official client, over a loopback socket.

No batcher runs: what one would do is done to the records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ingress.batch import lifecycle
from ingress.stores.base import BatchStore
from schemas.batch import Batch, LineError, StoredFile
from tests.fixtures.stack import Stack, memory_stack

KEYS = ("key-one", "key-two")
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"model":"demo-model"}}\n'
CREATE: dict[str, Any] = {"endpoint": "/v1/responses", "completion_window": "24h"}
LIMIT = 22


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(
        files=tmp_path, api_keys=KEYS, worker=False, max_unfinished_batches=LIMIT
    ) as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key=KEYS[0], max_retries=0) as client:
        yield client


@pytest.fixture
async def stranger(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.v1, api_key=KEYS[1], max_retries=0) as client:
        yield client


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    async with httpx.AsyncClient(base_url=stack.v1, headers=headers, timeout=10) as client:
        yield client


def store_of(stack: Stack) -> BatchStore:
    assert stack.services.store is not None
    return stack.services.store


async def upload(client: openai.AsyncOpenAI) -> str:
    return (await client.files.create(file=("in.jsonl", LINE), purpose="batch")).id


async def change(stack: Stack, batch_id: str, to: Callable[[Batch], Batch]) -> None:
    assert await store_of(stack).change_batch(batch_id, to) is not None


# --- The life of a batch --------------------------------------------------------------------------


@pytest.mark.rule("batches.create", "batches.object", "batches.states", "batches.metadata")
async def test_a_batch_from_beginning_to_end(stack: Stack, client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client)
    before = int(time.time())
    batch = await client.batches.create(
        input_file_id=file_id,
        metadata={"k" * 64: "v" * 512, "\u2028": "\x00é"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
        **CREATE,
    )
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", "/v1/responses")
    assert (batch.input_file_id, batch.completion_window) == (file_id, "24h")
    assert batch.metadata == {"k" * 64: "v" * 512, "\u2028": "\x00é"}
    assert before <= batch.created_at <= time.time()
    assert batch.expires_at == batch.created_at + 24 * 3600
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
    for field in ("model", "errors", "output_file_id", "error_file_id", "usage", "failed_at"):
        assert field in batch.model_fields_set
        assert getattr(batch, field) is None
    stored = await store_of(stack).claim("me", now=time.time(), lease_s=60)
    assert stored is not None
    assert (stored.batch_id, stored.output_expires_after_s) == (batch.id, 3600)
    assert b"".join([piece async for piece in stack.services.blobs.read(stored.input_blob)]) == LINE  # type: ignore[union-attr]

    await change(stack, batch.id, lambda old: lifecycle.valid(old, total=1, model="m", now=2.5))
    batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.in_progress_at, batch.model) == ("in_progress", 2, "m")
    await change(stack, batch.id, lambda old: lifecycle.finalizing(old, 3.5))
    await change(
        stack,
        batch.id,
        lambda old: lifecycle.finished(
            old, now=4.5, cancelled=0, expired=0, output_file_id="file-1"
        ),
    )
    batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.completed_at, batch.output_file_id) == ("completed", 4, "file-1")
    assert batch.usage is not None
    assert batch.usage.total_tokens == 0


@pytest.mark.rule("batches.states", "batches.every-error")
async def test_a_batch_that_fails_in_validation(stack: Stack, client: openai.AsyncOpenAI) -> None:
    batch = await client.batches.create(input_file_id=await upload(client), **CREATE)
    errors = [
        LineError(code="invalid_json_line", message="The line is not UTF-8.", line=7),
        LineError(code="duplicate_custom_id", message="…", param="custom_id", line=9),
    ]
    await change(stack, batch.id, lambda old: lifecycle.invalid(old, errors, 2.5))
    batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.failed_at) == ("failed", 2)
    assert batch.errors is not None
    assert batch.errors.object == "list"
    assert [
        (error.code, error.line, error.param, error.message) for error in batch.errors.data or ()
    ] == [(error.code, error.line, error.param, error.message) for error in errors]


@pytest.mark.rule("batches.cancel")
async def test_cancelling(stack: Stack, client: openai.AsyncOpenAI) -> None:
    batch = await client.batches.create(input_file_id=await upload(client), **CREATE)
    batch = await client.batches.cancel(batch.id)
    assert batch.status == "cancelling"
    assert batch.cancelling_at is not None
    assert await client.batches.cancel(batch.id) == batch
    await change(
        stack, batch.id, lambda old: lifecycle.finished(old, now=9.5, cancelled=1, expired=0)
    )
    assert (await client.batches.retrieve(batch.id)).status == "cancelled"
    with pytest.raises(openai.BadRequestError) as raised:
        await client.batches.cancel(batch.id)
    assert raised.value.code == "batch_not_cancellable"


@pytest.mark.rule("batches.list")
async def test_lists(stack: Stack, client: openai.AsyncOpenAI) -> None:
    page = await client.batches.list()
    assert (page.data, page.has_more) == ([], False)
    file_id = await upload(client)
    made = [(await client.batches.create(input_file_id=file_id, **CREATE)).id for _ in range(LIMIT)]
    newest_first = made[::-1]
    page = await client.batches.list()
    assert [batch.id for batch in page.data] == newest_first[:20]
    assert page.has_more
    assert page.model_extra is not None
    assert page.model_extra["object"] == "list"
    assert (page.model_extra["first_id"], page.model_extra["last_id"]) == (
        newest_first[0],
        newest_first[19],
    )
    for limit in (6, 100):
        assert [batch.id async for batch in client.batches.list(limit=limit)] == newest_first
    page = await client.batches.list(after=newest_first[4], limit=2)
    assert [batch.id for batch in page.data] == newest_first[5:7]


BAD_PAGES = [
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=-1", "limit"),
    ("limit=", "limit"),
    ("limit=%D9%A3", "limit"),
    ("limit=9999999999999999999999", "limit"),
    ("after=batch_000000000000000000000000", "after"),
    ("after=%00%ff", "after"),
]


@pytest.mark.rule("batches.list")
async def test_bad_pages(http: httpx.AsyncClient) -> None:
    for query, param in BAD_PAGES:
        response = await http.get(f"/batches?{query}")
        error = response.json()["error"]
        told = (response.status_code, error["code"], error["param"])
        assert told == (400, "unsupported_value", param), query


# --- Creations that are refused -------------------------------------------------------------------


BAD_BODIES: Sequence[tuple[dict[str, Any], str, str]] = [
    ({"input_file_id": None}, "schema_validation_failed", "input_file_id"),
    ({"input_file_id": 7}, "schema_validation_failed", "input_file_id"),
    ({"input_file_id": ...}, "schema_validation_failed", "input_file_id"),
    ({"endpoint": ...}, "schema_validation_failed", "endpoint"),
    ({"endpoint": "/v1/embeddings"}, "unsupported_value", "endpoint"),
    ({"endpoint": "/v1/messages"}, "unsupported_value", "endpoint"),
    ({"completion_window": ...}, "schema_validation_failed", "completion_window"),
    ({"completion_window": "1h"}, "unsupported_value", "completion_window"),
    ({"completion_window": 24}, "unsupported_value", "completion_window"),
    ({"metadata": []}, "schema_validation_failed", "metadata"),
    ({"metadata": {"k": 1}}, "schema_validation_failed", "metadata"),
    ({"metadata": {"k": None}}, "schema_validation_failed", "metadata"),
    ({"metadata": {str(n): "" for n in range(17)}}, "unsupported_value", "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "unsupported_value", "metadata"),
    ({"metadata": {"k": "v" * 513}}, "unsupported_value", "metadata"),
    ({"output_expires_after": 1}, "schema_validation_failed", "output_expires_after"),
    (
        {"output_expires_after": {"anchor": "created_at"}},
        "schema_validation_failed",
        "output_expires_after.seconds",
    ),
    (
        {"output_expires_after": {"anchor": "used_at", "seconds": 3600}},
        "unsupported_value",
        "output_expires_after.anchor",
    ),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
        "unsupported_value",
        "output_expires_after.seconds",
    ),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 2592001}},
        "unsupported_value",
        "output_expires_after.seconds",
    ),
]


@pytest.mark.rule("batches.create-errors", "batches.metadata", "batches.output-expiry")
async def test_bodies_that_ask_for_no_batch(http: httpx.AsyncClient) -> None:
    for changes, code, param in BAD_BODIES:
        # The body is judged before the file is looked for.
        body = {"input_file_id": "file-" + "0" * 24, **CREATE, **changes}
        sent = {name: value for name, value in body.items() if value is not ...}
        response = await http.post("/batches", json=sent)
        error = response.json()["error"]
        told = (response.status_code, error["code"], error["param"])
        assert told == (400, code, param), changes


NO_BODIES: Sequence[tuple[bytes, dict[str, str], int, str]] = [
    (b"", {}, 400, "invalid_json_request"),
    (b"[]", {}, 400, "invalid_json_request"),
    (b'{"endpoint":"a","endpoint":"b"}', {}, 400, "invalid_json_request"),
    (b'{"metadata":{"a":"\\ud800"}}', {}, 400, "invalid_json_request"),
    (b"[" * 10_000, {}, 400, "invalid_json_request"),
    (b" " * 1_000_000, {}, 413, "request_too_large"),
    (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    (b"{}", {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
    (b"{}", {"authorization": "Bearer bad"}, 401, "invalid_api_key"),
]


@pytest.mark.rule("batches.create-errors")
async def test_bodies_that_are_none(http: httpx.AsyncClient) -> None:
    for content, headers, status, code in NO_BODIES:
        response = await http.post("/batches", content=content, headers=headers)
        told = (response.status_code, response.json()["error"]["code"])
        assert told == (status, code), (content[:40], headers)


@pytest.mark.rule("batches.input-file")
async def test_the_input_must_be_a_file_for_batches(
    stack: Stack, client: openai.AsyncOpenAI, stranger: openai.AsyncOpenAI
) -> None:
    theirs = await upload(stranger)
    deleted = await upload(client)
    await client.files.delete(deleted)
    account = stack.services.authenticator.authenticate([(b"x-api-key", KEYS[0].encode())]).account
    now = int(time.time())
    output, expired = (
        StoredFile(
            file_id=f"file-{number:024x}",
            account=account,
            filename="x",
            purpose=purpose,  # type: ignore[arg-type]
            size=1,
            created_at=now - 10,
            expires_at=expires_at,
            blob="files/x",
        )
        for number, purpose, expires_at in ((1, "batch_output", None), (2, "batch", now - 1))
    )
    for file in (output, expired):
        await store_of(stack).add_file(file)
    for file_id in ("file-" + "0" * 24, "x", "\x00\n", theirs, deleted, expired.file_id):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.batches.create(input_file_id=file_id, **CREATE)
        assert (raised.value.code, raised.value.param) == ("file_not_found", "input_file_id")
    with pytest.raises(openai.BadRequestError) as raised:
        await client.batches.create(input_file_id=output.file_id, **CREATE)
    assert (raised.value.code, raised.value.param) == ("unsupported_value", "input_file_id")
    assert (await client.batches.list()).data == []


@pytest.mark.rule("batches.limit")
async def test_too_many_unfinished_batches(
    stack: Stack, client: openai.AsyncOpenAI, stranger: openai.AsyncOpenAI
) -> None:
    file_id = await upload(client)
    made = [await client.batches.create(input_file_id=file_id, **CREATE) for _ in range(LIMIT)]
    with pytest.raises(openai.RateLimitError) as raised:
        await client.with_options(max_retries=2).batches.create(input_file_id=file_id, **CREATE)
    assert raised.value.code == "batch_limit_exceeded"
    headers = raised.value.response.headers
    assert (headers["x-should-retry"], headers["retry-after"]) == ("false", "60")
    await stranger.batches.create(input_file_id=await upload(stranger), **CREATE)
    await change(stack, made[3].id, lambda old: lifecycle.invalid(old, (), 1.0))
    await client.batches.create(input_file_id=file_id, **CREATE)


@pytest.mark.rule("batches.idempotency")
async def test_a_creation_repeated(stack: Stack, client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client)

    async def create(key: str, **changes: Any) -> str:
        headers = {"Idempotency-Key": key}
        body = {"input_file_id": file_id, **CREATE, **changes}
        return (await client.batches.create(**body, extra_headers=headers)).id

    same = await asyncio.gather(*(create("k") for _ in range(4)))
    assert len(set(same)) == 1
    assert await create("other") != same[0]
    with pytest.raises(openai.ConflictError) as raised:
        await create("k", metadata={"a": "b"})
    assert raised.value.code == "idempotency_key_reused"
    with pytest.raises(openai.BadRequestError) as raised:
        await create("k" * 256)
    assert raised.value.code == "unsupported_value"
    assert len((await client.batches.list()).data) == 2
    for made in (await client.batches.list()).data:
        await change(stack, made.id, lambda old: lifecycle.invalid(old, (), 1.0))
    await client.files.delete(file_id)
    assert await create("k") == same[0]
    for key, code in (("new", "file_not_found"), ("k", "idempotency_key_reused")):
        with pytest.raises(openai.APIStatusError) as refused:
            await create(key, metadata={"a": "b"})
        assert refused.value.code == code


@pytest.mark.rule("batches.zdr")
async def test_nothing_is_stored_with_zero_data_retention(client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client)
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        await client.batches.create(
            input_file_id=file_id, **CREATE, extra_headers={"Wafer-ZDR": "Required"}
        )
    assert raised.value.code == "batch_zdr_not_supported"
    assert (await client.batches.list()).data == []


# --- Whose, where, how ----------------------------------------------------------------------------


@pytest.mark.rule("batches.not-found", "batches.keys")
async def test_what_is_not_there_for_this_client(
    client: openai.AsyncOpenAI, stranger: openai.AsyncOpenAI
) -> None:
    mine = (await client.batches.create(input_file_id=await upload(client), **CREATE)).id
    assert (await stranger.batches.list()).data == []
    with pytest.raises(openai.BadRequestError):
        await stranger.batches.list(after=mine)
    names = ("batch_" + "0" * 24, mine.upper(), mine + "\n", "msgbatch_" + mine[6:], "\x00", "é x")
    for asking, name in ((stranger, mine), *((client, name) for name in names)):
        for call in (asking.batches.retrieve, asking.batches.cancel):
            with pytest.raises(openai.NotFoundError) as raised:
                await call(name)
            assert (raised.value.code, raised.value.status_code) == ("batch_not_found", 404)
            assert raised.value.type == "not_found_error"
    assert (await client.batches.retrieve(mine)).status == "validating"


@pytest.mark.rule("batches.keys")
async def test_a_key_is_needed(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.v1) as http:
        for method, path in (
            ("GET", "/batches"),
            ("POST", "/batches"),
            ("GET", "/batches/x"),
            ("POST", "/batches/x/cancel"),
        ):
            response = await http.request(method, path)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "missing_api_key"


@pytest.mark.rule("batches.methods")
async def test_other_methods(http: httpx.AsyncClient, client: openai.AsyncOpenAI) -> None:
    mine = (await client.batches.create(input_file_id=await upload(client), **CREATE)).id
    allowed = {
        "/batches": {"GET", "HEAD", "POST"},
        f"/batches/{mine}": {"GET", "HEAD"},
        f"/batches/{mine}/cancel": {"POST"},
    }
    for path, methods in allowed.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
            response = await http.request(method, path)
            assert response.status_code == 405
            assert response.json()["error"]["code"] == "method_not_allowed"
            assert set(response.headers["allow"].split(", ")) == methods
        if "HEAD" in methods:
            response = await http.head(path)
            assert (response.status_code, response.content) == (200, b"")


@pytest.mark.rule("batches.no-store")
async def test_a_server_without_a_store() -> None:
    async with (
        memory_stack(worker=False) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="k", max_retries=0) as client,
    ):
        for call in (
            client.batches.list(),
            client.batches.retrieve("batch_" + "0" * 24),
            client.batches.create(input_file_id="file-1", **CREATE),
        ):
            with pytest.raises(openai.NotFoundError) as raised:
                await call
            assert raised.value.code == "endpoint_not_supported"
            assert "without a database" in raised.value.message
