"""What every blob store promises; run against each by a subclass that says how to make one."""

from __future__ import annotations

import asyncio
import secrets
from typing import Protocol

import pytest

from schemas.blobs.base import BlobMissing, BlobStore, BlobStoreUnavailable

LARGE = 8_000_000


class Harness(Protocol):
    """How the suite gets hold of a store."""

    def store(self) -> BlobStore:
        """A client of the one store; each call stands for another process."""
        ...

    def leave_unfinished(self, key: str) -> None:
        """What a writer leaves that was killed half way."""
        ...

    def take_away(self) -> None:
        """Make the store unreachable for everybody."""
        ...


def a_key() -> str:
    return f"jobs/1760000000-{secrets.token_hex(8)}"


class BlobSuite:
    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40_000])
    async def test_another_process_reads_what_was_put(self, harness: Harness, data: bytes) -> None:
        key = a_key()
        await harness.store().put(key, data)
        assert await harness.store().get(key) == data

    async def test_there_is_no_blob_before_it_is_put_and_after_it_is_deleted(
        self, harness: Harness
    ) -> None:
        store, key = harness.store(), a_key()
        with pytest.raises(BlobMissing):
            await store.get(key)
        await store.put(key, b"data")
        await store.delete(key)
        with pytest.raises(BlobMissing):
            await store.get(key)

    async def test_deleting_what_is_not_there_does_nothing(self, harness: Harness) -> None:
        store, other, key = harness.store(), harness.store(), a_key()
        await store.delete(key)
        await store.put(key, b"data")
        await asyncio.gather(*(who.delete(key) for who in (store, other) * 8))
        assert list(await store.list("jobs")) == []

    async def test_blobs_are_listed_by_folder(self, harness: Harness) -> None:
        store, keys = harness.store(), {a_key() for _ in range(20)}
        assert list(await store.list("jobs")) == []
        await asyncio.gather(*(store.put(key, b"data") for key in keys))
        await store.put("files/other", b"data")
        assert set(await harness.store().list("jobs")) == keys
        assert list(await store.list("files")) == ["files/other"]

    async def test_a_reader_finds_the_whole_blob_or_none(self, harness: Harness) -> None:
        writer, reader, key = harness.store(), harness.store(), a_key()
        putting = asyncio.create_task(writer.put(key, b"x" * LARGE))
        seen = 0
        while not putting.done() or not seen:
            try:
                seen = len(await reader.get(key))
            except BlobMissing:
                continue
            assert seen == LARGE
        await putting

    async def test_what_a_killed_writer_left_is_no_blob_and_can_be_deleted(
        self, harness: Harness
    ) -> None:
        store, key = harness.store(), a_key()
        harness.leave_unfinished(key)
        with pytest.raises(BlobMissing):
            await store.get(key)
        (left,) = await store.list("jobs")
        assert left.startswith(f"{key}.")
        await store.delete(left)
        assert list(await store.list("jobs")) == []

    async def test_a_store_that_is_away_says_so(self, harness: Harness) -> None:
        store, key = harness.store(), a_key()
        await store.put(key, b"data")
        harness.take_away()
        for attempt in (store.put(a_key(), b"data"), store.get(key), store.list("jobs")):
            with pytest.raises(BlobStoreUnavailable) as caught:
                await attempt
            assert str(caught.value), "the reason is for the log"

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "jobs",
            "jobs/",
            "/jobs/a",
            "jobs/../a",
            "../jobs/a",
            "jobs/.a",
            "jobs/a/b",
            "jobs/A ",
        ],
    )
    async def test_keys_name_blobs_and_nothing_else(self, harness: Harness, key: str) -> None:
        store = harness.store()
        for attempt in (store.put(key, b""), store.get(key), store.delete(key)):
            with pytest.raises(ValueError, match="key"):
                await attempt

    async def test_the_event_loop_goes_on(self, harness: Harness) -> None:
        store, key, loop = harness.store(), a_key(), asyncio.get_running_loop()
        turns, stop = 0, asyncio.Event()

        async def turn() -> None:
            nonlocal turns
            while not stop.is_set():
                await asyncio.sleep(0)
                turns += 1

        turning = loop.create_task(turn())
        await store.put(key, b"x" * LARGE)
        put = turns
        assert len(await store.get(key)) == LARGE
        stop.set()
        await turning
        assert put > 2
        assert turns > put + 2
