"""Uploads and downloads that go wrong, at the socket, in the stores, in time; and what they hold.

Whatever it is, the client is told so in the shape of its API, and nothing stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
import structlog

from ingress.settings import TimeLimits
from schemas.blobs.directory import DirectoryStore
from tests.fixtures.forms import CONTENT_TYPE, PURPOSE, Part, field, file, form
from tests.fixtures.raw_client import RawClient
from tests.fixtures.stack import Stack, memory_stack, until

FILES = "/v1/files"
MAX_FILE_BYTES = 3_000_000
STORED_BYTES = 2_000_000
"""So much that its beginning is stored before its end has come."""
HEADERS = {"content-type": CONTENT_TYPE}
CANARY = b"canary-3e9a"


class Watched(DirectoryStore):
    """A directory that counts who reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.readers = 0

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        self.readers += 1
        try:
            async with aclosing(super().read(key)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self.readers -= 1


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(files=tmp_path, worker=False, max_file_bytes=MAX_FILE_BYTES) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(stack) as client:
        yield client


def client_of(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, timeout=20, verify=False)


def stored(directory: Path) -> list[str]:
    """What there is of contents, finished or not."""
    return [path.name for path in (directory / "blobs" / "files").glob("*")]


def check_error(response: httpx.Response, status: int, code: str, param: str | None = None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    if status == 503:
        assert int(response.headers["retry-after"]) >= 1


async def create(http: httpx.AsyncClient, content: bytes = b"x") -> str:
    response = await http.post(FILES, content=form(PURPOSE, file(content)), headers=HEADERS)
    assert response.status_code == 200, response.text
    file_id: str = response.json()["id"]
    return file_id


def head(length: int | str, *more: str) -> bytes:
    lines = (
        f"POST {FILES} HTTP/1.1",
        "host: x",
        f"content-type: {CONTENT_TYPE}",
        "transfer-encoding: chunked" if length == "chunked" else f"content-length: {length}",
        *more,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


# --- Refused uploads ------------------------------------------------------------------------------


@pytest.mark.rule("files.fields-in-any-order", "files.nothing-left", "files.delete")
async def test_of_a_refused_upload_nothing_is_left(http: httpx.AsyncClient, tmp_path: Path) -> None:
    content = b"x" * STORED_BYTES
    bad: list[tuple[Sequence[Part], int, str, str | None]] = [
        ((file(content), field("purpose", "vision")), 400, "unsupported_value", "purpose"),
        ((file(content), PURPOSE, PURPOSE), 400, "schema_validation_failed", "purpose"),
        ((file(content),), 400, "schema_validation_failed", "purpose"),
        ((PURPOSE,), 400, "schema_validation_failed", "file"),
        ((PURPOSE, file(content), file(b"y")), 400, "schema_validation_failed", "file"),
        ((PURPOSE, file(b"x" * (MAX_FILE_BYTES + 1))), 413, "request_too_large", "file"),
    ]
    for parts, status, code, param in bad:
        response = await http.post(FILES, content=form(*parts), headers=HEADERS)
        check_error(response, status, code, param)
    response = await http.post(FILES, content=form(PURPOSE, file(content))[:-20], headers=HEADERS)
    check_error(response, 400, "schema_validation_failed")
    assert stored(tmp_path) == []
    await create(http, b"x" * MAX_FILE_BYTES)
    listed = (await http.get(FILES)).json()["data"]
    assert ([entry["bytes"] for entry in listed], len(stored(tmp_path))) == ([MAX_FILE_BYTES], 1)
    await http.delete(f"{FILES}/{listed[0]['id']}")
    assert stored(tmp_path) == []


@pytest.mark.rule("files.multipart-only", "files.raw-form")
async def test_what_is_no_form(http: httpx.AsyncClient) -> None:
    body = form(PURPOSE, file(b"x"))
    raw = {"x-wafer-purpose": "vision", "content-type": "image/png"}
    for headers, status, code, param in (
        ({}, 415, "unsupported_media_type", None),
        ({"content-type": "application/json"}, 415, "unsupported_media_type", None),
        (HEADERS | {"content-encoding": "gzip"}, 415, "unsupported_media_type", None),
        ({"content-type": "multipart/form-data"}, 400, "schema_validation_failed", None),
        (raw, 400, "unsupported_parameter", "X-Wafer-Purpose"),
    ):
        check_error(await http.post(FILES, content=body, headers=headers), status, code, param)
    # A form is a form, whatever else is said of it.
    response = await http.post(FILES, content=body, headers=HEADERS | {"x-wafer-purpose": "vision"})
    assert response.status_code == 200


@pytest.mark.rule("files.size-limit")
async def test_an_upload_that_announces_too_much_is_refused_before_it_comes(stack: Stack) -> None:
    for extra in ((), ("authorization: Bearer x",)):
        raw = RawClient(stack.url)
        await raw.send(head(600_000_000, *extra))
        answer = await raw.read_until(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        raw.close()


@pytest.mark.rule("files.size-limit", "files.nothing-left")
async def test_an_upload_that_announces_nothing_is_refused_where_it_is_too_large(
    stack: Stack, tmp_path: Path
) -> None:
    raw = RawClient(stack.url)
    await raw.send(head("chunked"))
    start = form(PURPOSE, file(b""))[: -len("\r\n--frontier-7c1f--\r\n")]
    await raw.send(b"%x\r\n%b\r\n" % (len(start), start))
    piece = b"%x\r\n%b\r\n" % (MAX_FILE_BYTES // 10, b"x" * (MAX_FILE_BYTES // 10))
    for _ in range(10):
        await raw.send(piece)
    # All that is allowed has come; no answer yet, and its first piece is being stored.
    await until(lambda: stored(tmp_path))
    await raw.send(b"64\r\n" + b"x" * 100 + b"\r\n")
    answer = await raw.read_until(b"request_too_large")
    assert answer.startswith(b"HTTP/1.1 413 ")
    raw.close()
    await until(lambda: not stored(tmp_path))


# --- Clients and time -----------------------------------------------------------------------------


@pytest.mark.rule("files.nothing-left", "files.log")
@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_of_a_client_that_leaves_nothing_is_left(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, leave: str
) -> None:
    with structlog.testing.capture_logs() as lines:
        raw = RawClient(stack.url)
        await raw.send(head(STORED_BYTES + 1000) + form(PURPOSE, file(b"x" * STORED_BYTES))[:-30])
        await until(lambda: stored(tmp_path))
        getattr(raw, leave)()
        await until(lambda: not stack.services.answers)
        await until(lambda: not stored(tmp_path))
    (line,) = lines
    assert (line["event"], line["outcome"], line["status"]) == (
        "file.transferred",
        "cancelled",
        499,
    )
    assert (await http.get(FILES)).json()["data"] == []


@pytest.mark.rule("files.upload-time", "files.nothing-left")
@pytest.mark.parametrize(
    "limits", [TimeLimits(body_s=0.3), TimeLimits(body_s=5, file_upload_s=0.4)]
)
async def test_a_slow_upload_is_given_up(tmp_path: Path, limits: TimeLimits) -> None:
    async with memory_stack(files=tmp_path, worker=False, limits=limits) as stack:
        raw = RawClient(stack.url)
        await raw.send(head(STORED_BYTES + 1000) + form(PURPOSE, file(b"x" * STORED_BYTES))[:-30])
        if limits.body_s > 1:  # it never pauses for long, but does not come to an end either

            async def drip() -> None:
                while True:
                    await raw.send(b"x")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            answer = await raw.read_until(b"request_timeout")
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        else:
            answer = await raw.read_until(b"request_timeout")
        assert answer.startswith(b"HTTP/1.1 408 ")
        raw.close()
        await until(lambda: not stored(tmp_path))


@pytest.mark.rule("files.download-left")
async def test_who_leaves_a_download_frees_its_reader(tmp_path: Path) -> None:
    size = 8_000_000
    limits = TimeLimits(write_s=0.4)
    async with memory_stack(files=tmp_path, worker=False, limits=limits) as stack:
        watched = Watched(tmp_path / "blobs")
        stack.services.blobs = watched
        async with client_of(stack) as http:
            file_id = await create(http, b"x" * size)
            ask = f"GET {FILES}/{file_id}/content HTTP/1.1\r\nhost: x\r\n\r\n".encode()
            for way in ("leaves", "stops reading"):
                with structlog.testing.capture_logs() as lines:
                    raw = RawClient(stack.url, receive_bytes=4096)
                    await raw.send(ask)
                    await raw.read_until(b"xxx")
                    assert watched.readers == 1
                    if way == "leaves":
                        raw.reset()
                    await until(lambda: not watched.readers)
                    await until(lambda: not stack.services.answers)
                (line,) = lines
                assert (line["outcome"], line["direction"]) == ("cancelled", "download")
                assert 0 < line["bytes"] < size
                raw.close()
            assert len((await http.get(f"{FILES}/{file_id}/content")).content) == size


@pytest.mark.rule("files.head")
async def test_only_the_head_of_a_download(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    file_id = await create(http, b"12345")
    watched = Watched(tmp_path / "blobs")
    stack.services.blobs = watched
    response = await http.head(f"{FILES}/{file_id}/content")
    assert (response.status_code, response.headers["content-length"]) == (200, "5")
    assert watched.readers == 0
    assert (await http.head(FILES)).status_code == 200
    assert (await http.head(f"{FILES}/{file_id}")).status_code == 200
    response = await http.patch(f"{FILES}/{file_id}")
    check_error(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}


# --- The end of a process -------------------------------------------------------------------------


@pytest.mark.rule("files.shutdown")
async def test_an_upload_ends_before_its_process_does(tmp_path: Path) -> None:
    async with memory_stack(files=tmp_path, worker=False, grace_s=20) as stack:
        body = form(PURPOSE, file(b"x" * STORED_BYTES))
        uploading, late = RawClient(stack.url), RawClient(stack.url)
        await uploading.send(head(len(body)) + body[:-30])
        await late.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await late.read_until(b"openapi.json")
        await until(lambda: stored(tmp_path))
        stack.pods[0].server.end()
        await late.send(head(len(body)) + body)
        answer = await late.read_until(b"server_shutting_down")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer
        assert not stack.pods[0].serving.done()
        await uploading.send(body[-30:])
        answer = await uploading.read_all()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["bytes"] == STORED_BYTES
        uploading.close()
        late.close()
        await asyncio.wait_for(asyncio.shield(stack.pods[0].serving), 10)


@pytest.mark.rule("files.shutdown", "files.nothing-left")
async def test_an_upload_is_given_up_when_the_time_is_over(tmp_path: Path) -> None:
    async with memory_stack(files=tmp_path, worker=False) as stack:
        raw = RawClient(stack.url)
        await raw.send(head(STORED_BYTES + 1000) + form(PURPOSE, file(b"x" * STORED_BYTES))[:-30])
        await until(lambda: stored(tmp_path))
        stack.services.end_answers()
        await asyncio.sleep(0)  # it is being given up
        stack.services.end_answers()
        answer = await raw.read_until(b"server_shutting_down")
        assert answer.startswith(b"HTTP/1.1 503 ")
        raw.close()
        await until(lambda: not stored(tmp_path))


# --- Stores ---------------------------------------------------------------------------------------


@pytest.mark.rule("files.stores-away")
async def test_without_its_blob_store_a_server_asks_to_come_again(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    file_id = await create(http)
    (tmp_path / "blobs").rename(tmp_path / "away")
    body = form(PURPOSE, file(b"x"))
    check_error(await http.post(FILES, content=body, headers=HEADERS), 503, "store_unavailable")
    check_error(await http.get(f"{FILES}/{file_id}/content"), 503, "store_unavailable")
    assert (await http.get(f"{FILES}/{file_id}")).status_code == 200
    (tmp_path / "away").rename(tmp_path / "blobs")
    assert (await http.get(f"{FILES}/{file_id}/content")).content == b"x"


@pytest.mark.rule("files.stores-away", "files.nothing-left")
async def test_without_its_database_a_server_asks_to_come_again(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    file_id = await create(http)
    before = stored(tmp_path)
    assert stack.services.store is not None
    await stack.services.store.close()
    (tmp_path / "headrace.db").rename(tmp_path / "away.db")
    (tmp_path / "headrace.db").mkdir()
    body = form(PURPOSE, file(b"x"))
    for method, path in (
        ("POST", FILES),
        ("GET", FILES),
        ("GET", f"{FILES}/{file_id}"),
        ("DELETE", f"{FILES}/{file_id}"),
        ("GET", f"{FILES}/{file_id}/content"),
    ):
        content = body if method == "POST" else None
        response = await http.request(method, path, content=content, headers=HEADERS)
        check_error(response, 503, "store_unavailable")
    assert stored(tmp_path) == before


@pytest.mark.rule("files.stores-away")
async def test_a_content_that_is_gone_is_not_found(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file_id = await create(http)
    (tmp_path / "blobs" / "files" / file_id).unlink()
    check_error(await http.get(f"{FILES}/{file_id}/content"), 404, "file_not_found", "file_id")
    assert (await http.delete(f"{FILES}/{file_id}")).status_code == 200


@pytest.mark.rule("files.stores-away")
async def test_a_download_that_cannot_go_on_breaks_off(
    http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_id = await create(http, b"x" * MAX_FILE_BYTES)
    with (tmp_path / "blobs" / "files" / file_id).open("r+b") as blob:
        blob.truncate(STORED_BYTES)
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(f"{FILES}/{file_id}/content")
    assert (await http.get(FILES)).status_code == 200
    assert [entry for entry in caplog.records if entry.levelname == "ERROR"] == []  # no crash


# --- What is told of them -------------------------------------------------------------------------


@pytest.mark.rule("files.log")
async def test_logs_and_metrics_tell_of_transfers_but_not_what_they_carry(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    body = form(PURPOSE, file(CANARY * 10, f"{CANARY.decode()}.jsonl"))
    with structlog.testing.capture_logs() as lines:
        response = await http.post(FILES, content=body, headers=HEADERS)
        file_id = response.json()["id"]
        await http.get(f"{FILES}/{file_id}/content")
        await until(lambda: len(lines) == 2)  # written once the client has it all
        await http.post(FILES, content=body[:-10], headers=HEADERS)
        await until(lambda: not stack.services.answers)
    keys = ("event", "direction", "bytes", "status", "outcome", "code", "principal")
    size = len(CANARY) * 10
    assert [tuple(line[key] for key in keys) for line in lines] == [
        ("file.transferred", "upload", size, 200, "completed", None, "anonymous"),
        ("file.transferred", "download", size, 200, "completed", None, "anonymous"),
        (
            *("file.transferred", "upload", size, 400, "failed"),
            *("schema_validation_failed", "anonymous"),
        ),
    ]
    assert [line["file_id"] == file_id for line in lines] == [True, True, False]
    assert CANARY.decode() not in repr(lines)
    metrics = (await http.get("/metrics")).text
    for line in (
        'headrace_file_transfers_total{direction="upload",outcome="completed"} 1.0',
        'headrace_file_transfers_total{direction="upload",outcome="failed"} 1.0',
        'headrace_file_transfers_total{direction="download",outcome="completed"} 1.0',
        f'headrace_file_bytes_total{{direction="download"}} {float(size)}',
    ):
        assert line in metrics


# --- Memory ---------------------------------------------------------------------------------------


@pytest.mark.rule("files.constant-memory")
async def test_a_large_file_passes_through_little_memory(tmp_path: Path) -> None:
    size = 48 << 20
    start, _, end = form(PURPOSE, file(b"@")).partition(b"@")
    piece = b"x" * (1 << 16)

    async def body() -> AsyncIterator[bytes]:
        yield start
        for _ in range(size // len(piece)):
            yield piece
        yield end

    async with (
        memory_stack(files=tmp_path, worker=False) as stack,
        client_of(stack) as http,
        Peak() as peak,
    ):
        await create(http, piece)  # whatever is loaded once has been loaded
        peak.begin()
        response = await http.post(FILES, content=body(), headers=HEADERS)
        assert response.json()["bytes"] == size
        received = 0
        async with http.stream("GET", f"{FILES}/{response.json()['id']}/content") as answer:
            async for part in answer.aiter_bytes():
                received += len(part)
        assert received == size
        assert peak.grown_bytes < 24 << 20


class Peak:
    """By how much this process has grown at most."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._base = self._largest = 0

    def begin(self) -> None:
        self._base = self._largest = self._process.memory_info().rss

    @property
    def grown_bytes(self) -> int:
        return self._largest - self._base

    async def __aenter__(self) -> Peak:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._largest = max(self._largest, self._process.memory_info().rss)
            await asyncio.sleep(0.005)
