"""Anthropic message batches through the official client, over a loopback socket.

No batcher runs: what one would do is done to the records and blobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import orjson
import pytest

from ingress.batch import lifecycle, result_lines
from ingress.stores.base import BatchStore
from schemas.batch import Batch
from schemas.blobs.base import BlobStore
from tests.fixtures.stack import Stack, memory_stack

KEYS = ("key-one", "key-two")
PARAMS: Any = {
    "model": "demo-model",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "Hi\u2028\n\\ \U0001f600"}],
}
LIMIT = 22
MAX_BYTES = 300_000


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(
        files=tmp_path,
        api_keys=KEYS,
        worker=False,
        max_unfinished_batches=LIMIT,
        max_batch_body_bytes=MAX_BYTES,
    ) as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=stack.url, api_key=KEYS[0], max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def stranger(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=stack.url, api_key=KEYS[1], max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"{stack.v1}/messages", headers={"x-api-key": KEYS[0]}, timeout=10
    ) as client:
        yield client


def requests(*custom_ids: str) -> Any:
    return [{"custom_id": name, "params": PARAMS} for name in custom_ids or ("a",)]


def store_of(stack: Stack) -> BatchStore:
    assert stack.services.store is not None
    return stack.services.store


def blobs_of(stack: Stack) -> BlobStore:
    assert stack.services.blobs is not None
    return stack.services.blobs


async def blobs(stack: Stack) -> Sequence[str]:
    """Everything that is kept of batches."""
    return [key for folder in ("batches", "results") for key in await blobs_of(stack).list(folder)]


async def finish(stack: Stack, batch_id: str, *lines: bytes, **left: int) -> None:
    """Let a batch end with these results."""

    async def pieces() -> AsyncIterator[bytes]:
        for line in lines:
            yield line + b"\n"

    await blobs_of(stack).write(f"results/{batch_id}", pieces())
    rest = {"cancelled": 0, "expired": 0, **left}
    await store_of(stack).change_batch(
        batch_id,
        lambda batch: lifecycle.finished(
            lifecycle.finalizing(lifecycle.valid(batch, total=len(lines), model=None, now=2.5), 3),
            now=4.5,
            results_blob=f"results/{batch_id}",
            **rest,
        ),
    )


async def input_of(stack: Stack, batch_id: str) -> bytes:
    return b"".join([piece async for piece in blobs_of(stack).read(f"batches/{batch_id}")])


def error_of(error: anthropic.APIStatusError) -> dict[str, Any]:
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["request_id"] == error.request_id
    found: dict[str, Any] = error.body["error"]
    return found


# --- The life of a batch --------------------------------------------------------------------------


@pytest.mark.rule("message-batches.create", "message-batches.object", "message-batches.counts")
async def test_creating(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    before = time.time()
    batch = await client.messages.batches.create(requests=requests("a", "b-_9", "x" * 64))
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert batch.request_counts.to_dict() == {
        "processing": 3,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    assert before - 0.01 <= batch.created_at.timestamp() <= time.time()
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    for field in ("ended_at", "cancel_initiated_at", "archived_at", "results_url"):
        assert field in batch.model_fields_set
        assert getattr(batch, field) is None
    assert await client.messages.batches.retrieve(batch.id) == batch
    lines = (await input_of(stack, batch.id)).split(b"\n")
    assert lines.pop() == b""
    assert [orjson.loads(line) for line in lines] == requests("a", "b-_9", "x" * 64)
    stored = await store_of(stack).claim("me", now=time.time(), lease_s=60)
    assert stored is not None
    assert (stored.status, stored.shape, stored.endpoint) == (
        "validating",
        "messages",
        "/v1/messages",
    )
    assert stored.input_blob == f"batches/{batch.id}"


@pytest.mark.rule("message-batches.create")
async def test_a_request_is_kept_as_it_came(stack: Stack, http: httpx.AsyncClient) -> None:
    numbers = b'"i":1,"f":1.0,"e":1E5,"big":123456789012345678901234567890'
    params = b'{%b,"s":"\\u00e9\\/\\ud83d\\ude00"}' % numbers
    body = b'\r\n{"x":[{"]":"}"}],"requests":[\n{"custom_id":"a",\r\n"params":%b}\n]}\n' % params
    response = await http.post("/batches", content=body)
    assert response.status_code == 200, response.text
    text = await input_of(stack, response.json()["id"])
    assert text == b'{"custom_id":"a",  "params":%b}\n' % params


@pytest.mark.rule(
    "message-batches.results", "message-batches.result-line", "message-batches.states"
)
async def test_results(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    batch = await client.messages.batches.create(requests=requests("a", "b", "c", "d"))
    with pytest.raises((anthropic.AnthropicError, anthropic.BadRequestError)):
        await client.messages.batches.results(batch.id)
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "demo-model",
        "content": [{"type": "text", "text": "Yes\u2028."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    error = {
        "type": "error",
        "error": {"type": "not_found_error", "message": "There is no such model."},
        "request_id": "req_1",
    }
    ids: Any = {"result_id": "batch_req_1"}
    await finish(
        stack,
        batch.id,
        result_lines.succeeded(
            "messages", custom_id="a", request_id="r", body=orjson.dumps(message), **ids
        ),
        result_lines.errored(
            "messages", custom_id="b", request_id="r", status=404, body=orjson.dumps(error), **ids
        ),
        result_lines.not_executed("messages", custom_id="c", why="cancelled", **ids),
        result_lines.not_executed("messages", custom_id="d", why="expired", **ids),
        expired=1,
    )
    batch = await client.messages.batches.retrieve(batch.id)
    assert batch.processing_status == "ended"
    assert batch.ended_at is not None
    assert batch.results_url == f"{stack.v1}/messages/batches/{batch.id}/results"
    results = [line async for line in await client.messages.batches.results(batch.id)]
    assert [(line.custom_id, line.result.type) for line in results] == [
        ("a", "succeeded"),
        ("b", "errored"),
        ("c", "canceled"),
        ("d", "expired"),
    ]
    done, failed = results[0].result, results[1].result
    assert done.type == "succeeded"
    assert done.message.content[0].to_dict()["text"] == "Yes\u2028."
    assert failed.type == "errored"
    assert failed.error.error.type == "not_found_error"
    assert failed.error.request_id == "req_1"


@pytest.mark.rule("message-batches.results", "message-batches.methods")
async def test_the_stream_of_results(
    stack: Stack, client: anthropic.AsyncAnthropic, http: httpx.AsyncClient
) -> None:
    batch = await client.messages.batches.create(requests=requests())
    path = f"/batches/{batch.id}/results"
    response = await http.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "batch_not_ended")
    lines = [b"%d" % number * 1000 for number in range(300)]
    await finish(stack, batch.id, *lines)
    response = await http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-jsonl"
    assert response.content == b"".join(line + b"\n" for line in lines)
    head = await http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == "application/x-jsonl"
    await blobs_of(stack).delete(f"results/{batch.id}")
    response = await http.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.rule("message-batches.results")
async def test_results_that_have_been_archived(
    stack: Stack, client: anthropic.AsyncAnthropic, http: httpx.AsyncClient
) -> None:
    batch = await client.messages.batches.create(requests=requests())
    await finish(stack, batch.id, b"{}")

    def archive(old: Batch) -> Batch:
        return msgspec.structs.replace(old, archived_at=9.0, results_blob=None)

    await store_of(stack).change_batch(batch.id, archive)
    shown = await client.messages.batches.retrieve(batch.id)
    assert shown.archived_at is not None
    assert shown.results_url is None
    response = await http.get(f"/batches/{batch.id}/results")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert "29 days" in response.json()["error"]["message"]


@pytest.mark.rule("message-batches.results-url")
async def test_the_address_of_results(tmp_path: Path) -> None:
    async with (
        memory_stack(files=tmp_path, worker=False, public_url="https://llm.example/x") as stack,
        anthropic.AsyncAnthropic(base_url=stack.url, api_key="k", max_retries=0) as client,
    ):
        batch = await client.messages.batches.create(requests=requests())
        await finish(stack, batch.id, b"{}")
        batch = await client.messages.batches.retrieve(batch.id)
        assert batch.results_url == f"https://llm.example/x/v1/messages/batches/{batch.id}/results"


@pytest.mark.rule("message-batches.cancel", "message-batches.states")
async def test_cancelling(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    batch = await client.messages.batches.create(requests=requests("a", "b"))
    batch = await client.messages.batches.cancel(batch.id)
    assert batch.processing_status == "canceling"
    assert batch.cancel_initiated_at is not None
    assert batch.request_counts.processing == 2
    assert await client.messages.batches.cancel(batch.id) == batch
    await finish(stack, batch.id, b"{}", b"{}", cancelled=2)
    batch = await client.messages.batches.retrieve(batch.id)
    assert batch.processing_status == "ended"
    assert (batch.request_counts.canceled, batch.request_counts.processing) == (2, 0)
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.batches.cancel(batch.id)
    assert error_of(raised.value)["code"] == "batch_not_cancellable"


@pytest.mark.rule("message-batches.delete")
async def test_deleting(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    batch = await client.messages.batches.create(requests=requests())
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.batches.delete(batch.id)
    assert error_of(raised.value)["code"] == "batch_not_ended"
    await finish(stack, batch.id, b"{}")
    assert set(await blobs(stack)) == {f"batches/{batch.id}", f"results/{batch.id}"}
    deleted = await client.messages.batches.delete(batch.id)
    assert deleted.to_dict() == {"id": batch.id, "type": "message_batch_deleted"}
    assert await blobs(stack) == []
    for call in (client.messages.batches.delete, client.messages.batches.retrieve):
        with pytest.raises(anthropic.NotFoundError):
            await call(batch.id)


@pytest.mark.rule("message-batches.list")
async def test_lists(client: anthropic.AsyncAnthropic) -> None:
    page = await client.messages.batches.list()
    assert (page.data, page.has_more, page.first_id, page.last_id) == ([], False, None, None)
    made = [(await client.messages.batches.create(requests=requests())).id for _ in range(LIMIT)]
    newest_first = made[::-1]
    page = await client.messages.batches.list()
    assert [batch.id for batch in page.data] == newest_first[:20]
    assert (page.has_more, page.first_id, page.last_id) == (
        True,
        newest_first[0],
        newest_first[19],
    )
    for limit in (6, 1000):
        listed = [batch.id async for batch in client.messages.batches.list(limit=limit)]
        assert listed == newest_first
    page = await client.messages.batches.list(before_id=newest_first[-1], limit=5)
    assert [batch.id for batch in page.data] == newest_first[-6:-1]
    seen = [page.data]
    while page.has_next_page():
        page = await page.get_next_page()
        seen.insert(0, page.data)
    assert [batch.id for data in seen for batch in data] == newest_first[:-1]


BAD_PAGES = [
    ("limit=0", "limit"),
    ("limit=1001", "limit"),
    ("limit=x", "limit"),
    ("after_id=msgbatch_000000000000000000000000", "after_id"),
    ("before_id=msgbatch_000000000000000000000000", "before_id"),
    ("before_id=%00", "before_id"),
    ("after_id=batch_000000000000000000000000", "after_id"),
    (
        "after_id=msgbatch_000000000000000000000000&before_id=msgbatch_000000000000000000000000",
        "before_id",
    ),
]


@pytest.mark.rule("message-batches.list", "message-batches.errors")
async def test_bad_pages(http: httpx.AsyncClient) -> None:
    for query, param in BAD_PAGES:
        response = await http.get(f"/batches?{query}")
        assert response.status_code == 400
        error = response.json()["error"]
        told = (error["type"], error["code"], error["param"])
        assert told == ("invalid_request_error", "unsupported_value", param), query


# --- Creations that are refused -------------------------------------------------------------------

GOOD = '{"custom_id":"a","params":{}}'
JSON, SHAPE, VALUE = "invalid_json_request", "schema_validation_failed", "unsupported_value"
CUSTOM_ID = "requests[1].custom_id"
BAD_BODIES = [
    ("", JSON, None),
    ("[]", JSON, None),
    ('{"requests":[GOOD]', JSON, None),
    ('{"requests":[GOOD]} x', JSON, None),
    ('{"requests":[GOOD,]}', JSON, None),
    ('{"requests":[GOOD] "a":1}', JSON, None),
    ('{"requests":[GOOD];"a":1}', JSON, None),
    ('{"requests":[GOOD;GOOD]}', JSON, None),
    ('{"requests" [GOOD]}', JSON, None),
    ("{requests:[GOOD]}", JSON, None),
    ('{"requests":[GOOD],}', JSON, None),
    ('{"requests":[GOOD],"requests":[]}', JSON, None),
    ('{"requests":[GOOD],"a":{"b":1,"b":2}}', JSON, None),
    ('{"requests":[GOOD],"a":nothing}', JSON, None),
    ('{"requests":[GOOD,{"custom_id":"b","params":{"x":NaN}}]}', JSON, None),
    ('{"requests":[{"custom_id":"b","params":{"x":1,"x":1}}]}', JSON, None),
    ('{"requests":[{"custom_id":"b","params":{"x":"\\ud800"}}]}', JSON, None),
    ('{"requests":[{"custom_id":"b","params":%s}]}' % ("[" * 9999), JSON, None),
    ('{"requests":[%s]}' % ("[" * 999 + "]" * 999), JSON, None),
    ("{}", SHAPE, "requests"),
    ('{"requests":null}', SHAPE, "requests"),
    ('{"requests":{}}', SHAPE, "requests"),
    ('{"requests":[]}', VALUE, "requests"),
    ('{"requests":[GOOD,7]}', SHAPE, "requests[1]"),
    ('{"requests":[GOOD,{}]}', SHAPE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":7,"params":{}}]}', SHAPE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"a.b","params":{}}]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"","params":{}}]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"ID65","params":{}}]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"a\\n","params":{}}]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"é","params":{}}]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,GOOD]}', VALUE, CUSTOM_ID),
    ('{"requests":[GOOD,{"custom_id":"b"}]}', SHAPE, "requests[1].params"),
    ('{"requests":[GOOD,{"custom_id":"b","params":[]}]}', SHAPE, "requests[1].params"),
]


@pytest.mark.rule("message-batches.envelope", "message-batches.strict-json")
@pytest.mark.rule("message-batches.nothing-left", "message-batches.errors")
async def test_bodies_that_are_no_batch(stack: Stack, http: httpx.AsyncClient) -> None:
    for template, code, param in BAD_BODIES:
        body = template.replace("GOOD", GOOD).replace("ID65", "x" * 65)
        response = await http.post("/batches", content=body.encode())
        error = response.json()["error"]
        told = (response.status_code, error["code"], error["param"])
        assert told == (400, code, param), template[:60]
        assert response.json()["type"] == "error"
        assert len(error["message"]) < 120
    assert await blobs(stack) == []
    assert (await http.get("/batches")).json()["data"] == []


@pytest.mark.rule("message-batches.params-later")
async def test_params_are_not_judged(client: anthropic.AsyncAnthropic) -> None:
    bad: Any = [
        {"custom_id": "a", "params": {"stream": True, "max_tokens": 0, "model": "nobody"}},
        {"custom_id": "b", "params": {}},
    ]
    batch = await client.messages.batches.create(requests=bad)
    assert batch.request_counts.processing == 2


@pytest.mark.rule("message-batches.too-large", "message-batches.nothing-left")
async def test_bodies_that_are_too_large(stack: Stack, http: httpx.AsyncClient) -> None:
    big = b'{"requests":[{"custom_id":"a","params":{"x":"%b"}}]}' % (b"x" * MAX_BYTES)

    async def in_pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(big), 10_000):
            yield big[at : at + 10_000]

    for content in (big, in_pieces()):
        response = await http.post("/batches", content=content)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (413, "request_too_large")
        assert error["type"] == "request_too_large"
    assert await blobs(stack) == []


@pytest.mark.rule("message-batches.nothing-left")
async def test_a_client_that_leaves_in_the_middle(stack: Stack) -> None:
    host, port = stack.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/messages/batches HTTP/1.1\r\nhost: x\r\nx-api-key: {KEYS[0]}\r\n"
        'content-length: 9999\r\n\r\n{"requests":['.encode()
        + GOOD.encode()
        + b",",
    )
    await writer.drain()
    async with asyncio.timeout(5):
        while not stack.services.answers:
            await asyncio.sleep(0.005)
        writer.close()
        await writer.wait_closed()
        while stack.services.answers:
            await asyncio.sleep(0.005)
    assert await blobs(stack) == []


@pytest.mark.rule("message-batches.limit")
async def test_too_many_unfinished_batches(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    for _ in range(LIMIT):
        await client.messages.batches.create(requests=requests())
    with pytest.raises(anthropic.RateLimitError) as raised:
        await client.messages.batches.create(requests=requests())
    assert error_of(raised.value)["code"] == "batch_limit_exceeded"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert len(await blobs(stack)) == LIMIT


@pytest.mark.rule("message-batches.idempotency")
async def test_a_creation_repeated(
    stack: Stack, client: anthropic.AsyncAnthropic, http: httpx.AsyncClient
) -> None:
    async def create(key: str, *custom_ids: str) -> str:
        headers = {"Idempotency-Key": key}
        batch = await client.messages.batches.create(
            requests=requests(*custom_ids), extra_headers=headers
        )
        return batch.id

    same = await asyncio.gather(*(create("k") for _ in range(3)))
    assert len(set(same)) == 1
    spaced = orjson.dumps({"requests": requests()}, option=orjson.OPT_INDENT_2)
    headers = {"Idempotency-Key": "k", "content-type": "application/json"}
    assert (await http.post("/batches", content=spaced, headers=headers)).json()["id"] == same[0]
    with pytest.raises(anthropic.ConflictError) as raised:
        await create("k", "other")
    assert error_of(raised.value)["code"] == "idempotency_key_reused"
    assert await blobs(stack) == [f"batches/{same[0]}"]


@pytest.mark.rule("message-batches.zdr")
async def test_nothing_is_stored_with_zero_data_retention(
    stack: Stack, client: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(anthropic.UnprocessableEntityError) as raised:
        await client.messages.batches.create(
            requests=requests(), extra_headers={"Wafer-ZDR": "required"}
        )
    assert error_of(raised.value)["code"] == "batch_zdr_not_supported"
    assert await blobs(stack) == []


# --- Whose, where, how ----------------------------------------------------------------------------


@pytest.mark.rule("message-batches.not-found", "message-batches.errors")
async def test_what_is_not_there_for_this_client(
    stack: Stack, client: anthropic.AsyncAnthropic, stranger: anthropic.AsyncAnthropic
) -> None:
    mine = (await client.messages.batches.create(requests=requests())).id
    await finish(stack, mine, b"{}")
    assert (await stranger.messages.batches.list()).data == []
    with pytest.raises(anthropic.BadRequestError):
        await stranger.messages.batches.list(after_id=mine)
    names = ("msgbatch_" + "0" * 24, mine[3:], mine + "x", "\x00", "é x")
    for asking, name in ((stranger, mine), *((client, name) for name in names)):
        batches = asking.messages.batches
        for call in (batches.retrieve, batches.cancel, batches.delete, batches.results):
            with pytest.raises(anthropic.NotFoundError) as raised:
                await call(name)
            error = error_of(raised.value)
            assert (error["type"], error["code"]) == ("not_found_error", "batch_not_found")
    assert (await client.messages.batches.retrieve(mine)).processing_status == "ended"


@pytest.mark.rule("message-batches.methods", "message-batches.errors")
async def test_other_methods(http: httpx.AsyncClient, client: anthropic.AsyncAnthropic) -> None:
    mine = (await client.messages.batches.create(requests=requests())).id
    allowed = {
        "/batches": {"GET", "HEAD", "POST"},
        f"/batches/{mine}": {"GET", "HEAD", "DELETE"},
        f"/batches/{mine}/cancel": {"POST"},
        f"/batches/{mine}/results": {"GET", "HEAD"},
    }
    for path, methods in allowed.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
            response = await http.request(method, path)
            assert response.status_code == 405
            assert response.json()["type"] == "error"
            assert set(response.headers["allow"].split(", ")) == methods
    for path in ("/batches", f"/batches/{mine}"):
        head = await http.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.rule("batches.no-store", "batches.keys")
async def test_a_server_without_a_store_or_a_client_without_a_key(stack: Stack) -> None:
    async with memory_stack(worker=False) as bare, httpx.AsyncClient() as http:
        for method, path in (("GET", ""), ("POST", ""), ("GET", "/x"), ("GET", "/x/results")):
            response = await http.request(method, f"{bare.v1}/messages/batches{path}")
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (404, "endpoint_not_supported")
            response = await http.request(method, f"{stack.v1}/messages/batches{path}")
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (401, "missing_api_key")
            assert response.json()["type"] == "error"


@pytest.mark.rule("batches.store-away")
async def test_a_store_that_is_away(stack: Stack, tmp_path: Path) -> None:
    await store_of(stack).close()
    (tmp_path / "headrace.db").unlink()
    (tmp_path / "headrace.db").mkdir()
    async with httpx.AsyncClient(headers={"x-api-key": KEYS[0]}) as http:
        for path, status in (("/batches", 503), ("/messages/batches", 529)):
            body = (
                {"requests": requests()}
                if status == 529
                else {
                    "input_file_id": "file-" + "0" * 24,
                    "endpoint": "/v1/responses",
                    "completion_window": "24h",
                }
            )
            for response in (
                await http.get(stack.v1 + path),
                await http.post(stack.v1 + path, json=body),
            ):
                assert response.status_code == status, response.text
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("overloaded_error", "store_unavailable")
                assert int(response.headers["retry-after"]) > 0
    assert await blobs(stack) == []
