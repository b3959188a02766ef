"""The Files API through the official OpenAI client, over a loopback socket."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import openai
import pytest

from ingress.batch import lifecycle
from schemas.batch import Batch, StoredFile
from tests.fixtures.stack import Stack, memory_stack

LINES = b'{"custom_id": "a"}\r\n\xef\xbb\xbf\n' + bytes(range(256))
DAY_S = 24 * 3600
KEYS = ("key-one", "key-two")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    (tmp_path / "server").mkdir()
    async with memory_stack(files=tmp_path / "server", api_keys=KEYS, worker=False) as stack:
        yield stack


def client_of(stack: Stack, key: str = KEYS[0]) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=False)  # plain HTTP: no certificates to load
    return openai.AsyncOpenAI(base_url=stack.v1, api_key=key, max_retries=0, http_client=http)


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(stack) as client:
        yield client


def account_of(stack: Stack) -> str:
    headers = [(b"authorization", f"Bearer {KEYS[0]}".encode())]
    return stack.services.authenticator.authenticate(headers).account


async def record(stack: Stack, number: int, **values: Any) -> StoredFile:
    """A file that is only a record, created `number` seconds after others."""
    file_id = f"file-{number:024x}"
    values = {
        "file_id": file_id,
        "account": account_of(stack),
        "filename": f"{number}.jsonl",
        "purpose": "batch",
        "size": number,
        "created_at": int(time.time()) - 1000 + number,
        "expires_at": None,
        "blob": f"files/{file_id}",
        **values,
    }
    file = StoredFile(**values)
    assert stack.services.store is not None
    await stack.services.store.add_file(file)
    return file


# --- One file and its life ------------------------------------------------------------------------


class Named(io.BytesIO):
    name = "/some/where/lines.jsonl"


@pytest.mark.rule("files.object", "files.content", "files.delete")
async def test_the_life_of_a_file(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    path = tmp_path / "größe.jsonl"
    path.write_bytes(LINES)
    for given, name in (
        (path, "größe.jsonl"),
        (LINES, "upload"),
        (Named(LINES), "lines.jsonl"),
        (("a b.jsonl", LINES), "a b.jsonl"),
        (('"quoted".jsonl', io.BytesIO(LINES), "application/jsonl"), '"quoted".jsonl'),
    ):
        await check_life(client, given, name)


async def check_life(client: openai.AsyncOpenAI, given: Any, name: str) -> None:
    began = int(time.time())
    file = await client.files.create(file=given, purpose="batch")
    assert file.to_dict() == {
        "id": file.id,
        "object": "file",
        "bytes": len(LINES),
        "created_at": file.created_at,
        "expires_at": file.created_at + 30 * DAY_S,
        "filename": name,
        "purpose": "batch",
        "status": "processed",
    }
    assert began <= file.created_at <= time.time()
    assert await client.files.retrieve(file.id) == file
    assert [listed async for listed in client.files.list()] == [file]
    assert (await client.files.content(file.id)).content == LINES
    deleted = await client.files.delete(file.id)
    assert deleted.to_dict() == {"id": file.id, "object": "file", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    assert [listed async for listed in client.files.list()] == []


async def test_the_synchronous_client(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)

    def use() -> None:
        with openai.OpenAI(base_url=stack.v1, api_key=KEYS[0], max_retries=0) as client:
            with path.open("rb") as opened:
                file = client.files.create(
                    file=opened,
                    purpose="batch",
                    expires_after={"anchor": "created_at", "seconds": 3600},
                )
            assert file.expires_at == file.created_at + 3600
            assert list(client.files.list(purpose="batch", order="asc", limit=1)) == [file]
            with client.files.with_streaming_response.content(file.id) as response:
                response.stream_to_file(tmp_path / "back.jsonl")
            client.files.delete(file.id)

    await asyncio.to_thread(use)
    assert (tmp_path / "back.jsonl").read_bytes() == LINES


async def test_an_empty_file_is_a_file(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=("empty.jsonl", b""), purpose="batch")
    assert file.bytes == 0
    assert (await client.files.content(file.id)).content == b""


@pytest.mark.rule("files.download-name")
async def test_a_download_is_named(client: openai.AsyncOpenAI) -> None:
    for name in ("a.jsonl", 'größe "x" 100%; 日本.jsonl', "a b'c.jsonl"):
        file = await client.files.create(file=(name, LINES), purpose="batch")
        response = await client.files.with_raw_response.content(file.id)
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-length"] == str(len(LINES))
        assert response.headers["x-content-type-options"] == "nosniff"
        disposition = response.headers["content-disposition"]
        plain, _, extended = disposition.removeprefix('attachment; filename="').partition('"')
        assert set(plain) <= {*map(chr, range(0x20, 0x7F))} - {*'"\\%'}
        encoded = extended.removeprefix("; filename*=UTF-8''")
        assert re.fullmatch(r"([A-Za-z0-9._~-]|%[0-9A-F]{2})+", encoded)
        assert unquote(encoded) == name


@pytest.mark.rule("files.expires-after")
async def test_a_file_expires_when_its_client_says(client: openai.AsyncOpenAI) -> None:
    for seconds in (3600, 2_592_000):
        file = await client.files.create(
            file=LINES,
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": seconds},
        )
        assert file.expires_at == file.created_at + seconds


# --- Lists ----------------------------------------------------------------------------------------


@pytest.mark.rule("files.list")
async def test_files_are_listed_in_pages(stack: Stack, client: openai.AsyncOpenAI) -> None:
    files = [await record(stack, number) for number in range(5)]
    files.append(await record(stack, 5, purpose="batch_output"))
    ids = [file.file_id for file in files]
    everything = await client.files.list()
    assert [file.id for file in everything.data] == ids[::-1]
    assert everything.to_dict() | {"data": ...} == {
        "object": "list",
        "data": ...,
        "first_id": ids[5],
        "last_id": ids[0],
        "has_more": False,
    }
    assert [file.id async for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == ids
    assert [file.id async for file in client.files.list(limit=1, purpose="batch")] == ids[4::-1]
    page = await client.files.list(after=ids[4], limit=3)
    assert ([file.id for file in page.data], page.has_more) == ([ids[3], ids[2], ids[1]], True)
    page = await client.files.list(after=ids[4], limit=4)
    assert ([file.id for file in page.data][-1], page.has_more) == (ids[0], False)
    page = await client.files.list(after=ids[0])
    assert page.to_dict() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.rule("files.list")
async def test_lists_that_cannot_be_given(client: openai.AsyncOpenAI) -> None:
    bad = {
        "limit": ("0", "10001", "-1", "1.5", "x", "", "٣", "9" * 5000),
        "order": ("", "up", "DESC"),
        "purpose": ("", "vision", "Batch"),
        "after": ("", "x", "file-" + "0" * 24, "file-\0", "\udcff"),
    }
    for name, value in ((name, value) for name, values in bad.items() for value in values):
        query = {name: value.encode("utf-8", "surrogateescape")}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.files.list(extra_query=query)
        assert (caught.value.code, caught.value.param) == ("unsupported_value", name), value


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.rule("files.purpose")
async def test_other_purposes_are_refused(client: openai.AsyncOpenAI) -> None:
    purposes: list[Any] = ["assistants", "fine-tune", "batch_output", "", "Batch"]
    for purpose in purposes:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.files.create(file=LINES, purpose=purpose)
        assert (caught.value.code, caught.value.param) == ("unsupported_value", "purpose")


@pytest.mark.rule("files.expires-after")
async def test_an_expiry_that_cannot_be_had(client: openai.AsyncOpenAI) -> None:
    bad: list[tuple[Any, str, str | None]] = [
        ({"anchor": "created_at", "seconds": 3599}, "unsupported_value", "seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "unsupported_value", "seconds"),
        ({"anchor": "created_at", "seconds": -3600}, "schema_validation_failed", "seconds"),
        ({"anchor": "created_at", "seconds": "1h"}, "schema_validation_failed", "seconds"),
        ({"anchor": "last_active_at", "seconds": 3600}, "unsupported_value", "anchor"),
        ({"seconds": 3600}, "schema_validation_failed", "anchor"),
        ({"anchor": "created_at"}, "schema_validation_failed", "seconds"),
        ('{"anchor":"created_at","seconds":3600}', "schema_validation_failed", None),
    ]
    for expires_after, code, field in bad:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.files.create(file=LINES, purpose="batch", expires_after=expires_after)
        expected = f"expires_after[{field}]" if field else "expires_after"
        assert (caught.value.code, caught.value.param) == (code, expected)


@pytest.mark.rule("files.purpose")
async def test_a_file_needs_a_purpose(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.create(file=LINES, purpose=openai.omit)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == ("schema_validation_failed", "purpose")


@pytest.mark.rule("files.not-found")
async def test_what_is_not_there_for_a_client_is_not_found(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    foreign = await record(stack, 1, account="somebody")
    expired = await record(stack, 2, expires_at=int(time.time()) - 1)
    gone = await record(stack, 3)  # a record whose content is not there any more
    ids = [foreign.file_id, expired.file_id, "file-" + "0" * 24, "x", "file-\0", "\ud800", "💥"]
    uses: list[Callable[[str], Any]] = [
        client.files.retrieve,
        client.files.content,
        client.files.delete,
    ]
    for file_id, use in [(i, use) for i in ids for use in uses] + [
        (gone.file_id, client.files.content)
    ]:
        with pytest.raises(openai.NotFoundError) as caught:
            await use(file_id.encode("utf-8", "surrogatepass").decode("latin-1"))
        assert (caught.value.code, caught.value.type) == ("file_not_found", "not_found_error")
    assert [file.id async for file in client.files.list()] == [gone.file_id]
    with pytest.raises(openai.BadRequestError):
        await client.files.list(after=foreign.file_id)


@pytest.mark.rule("files.account")
async def test_accounts_do_not_see_each_others_files(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    file = await client.files.create(file=LINES, purpose="batch")
    async with client_of(stack, KEYS[1]) as other:
        for use in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                await use(file.id)
        assert [listed async for listed in other.files.list()] == []
    assert await client.files.retrieve(file.id) == file


@pytest.mark.rule("files.in-use")
async def test_the_input_of_a_batch_stays_until_it_has_ended(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    file = await client.files.create(file=LINES, purpose="batch")
    store, account = stack.services.store, account_of(stack)
    assert store is not None
    batch = Batch(
        batch_id="batch_" + "0" * 24,
        account=account,
        shape="openai",
        endpoint="/v1/chat/completions",
        input_file_id=file.id,
        input_blob=f"files/{file.id}",
        created_at=time.time(),
        expires_at=time.time() + DAY_S,
    )
    await store.add_batch(batch, max_unfinished=10)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.delete(file.id)
    assert caught.value.code == "file_in_use"
    assert (await client.files.content(file.id)).content == LINES
    await store.change_batch(
        batch.batch_id, lambda batch: lifecycle.invalid(batch, (), time.time()), account=account
    )
    assert (await client.files.delete(file.id)).deleted


@pytest.mark.rule("files.zdr")
async def test_nothing_is_stored_for_who_requires_zero_data_retention(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        await client.files.create(
            file=LINES, purpose="batch", extra_headers={"Wafer-ZDR": "Required"}
        )
    assert caught.value.code == "batch_zdr_not_supported"
    assert [file async for file in client.files.list()] == []


@pytest.mark.rule("files.no-store")
async def test_a_server_without_stores_has_no_files() -> None:
    async with memory_stack(worker=False) as stack, client_of(stack) as client:
        uses: list[Callable[[], Any]] = [
            lambda: client.files.create(file=LINES, purpose="batch"),
            lambda: client.files.retrieve("file-1"),
            lambda: client.files.delete("file-1"),
            lambda: client.files.content("file-1"),
            client.files.list,
        ]
        for use in uses:
            with pytest.raises(openai.NotFoundError) as caught:
                await use()
            assert caught.value.code == "endpoint_not_supported"


@pytest.mark.rule("files.authentication")
async def test_the_key_comes_first(stack: Stack) -> None:
    async with client_of(stack, "wrong") as client:
        uses: list[Callable[[], Any]] = [
            lambda: client.files.create(file=LINES, purpose="vision"),
            lambda: client.files.retrieve("x"),
            lambda: client.files.delete("x"),
            lambda: client.files.content("x"),
            lambda: client.files.list(limit=0),
        ]
        for use in uses:
            with pytest.raises(openai.AuthenticationError) as caught:
                await use()
            assert caught.value.code == "invalid_api_key"
