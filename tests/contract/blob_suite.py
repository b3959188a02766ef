"""What every blob store promises; run against each by a subclass that says how to make one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import pytest

from schemas.blobs.base import UNFINISHED, BlobMissing, BlobStore, BlobStoreUnavailable
from schemas.blobs.orphans import FOLDERS, YOUNGEST_S, sweep_orphans, sweep_unfinished
from tests.contract.blob_memory import LARGE as OF_MEMORY
from tests.fixtures.stack import until

LARGE = 8_000_000


class Harness(Protocol):
    """How the suite gets hold of a store.

    Attributes:
        part_bytes: What the store moves in one turn.
        location: As an operator writes it.
        env: What a process needs besides, to use it.
    """

    part_bytes: int
    location: str
    env: Mapping[str, str]

    def store(self) -> BlobStore:
        """A client of the one store; each call stands for another process."""
        ...

    def leave_unfinished(self, key: str) -> None:
        """What a writer leaves that was killed half way."""
        ...

    def unfinished(self) -> int:
        """How many writes have left something and not ended, whether or not the store shows it."""
        ...

    def held(self) -> int:
        """How many blobs this process has open to read."""
        ...

    async def take_away(self) -> None:
        """Make the store unreachable for everybody."""
        ...


def a_key() -> str:
    return f"jobs/1760000000-{secrets.token_hex(8)}"


async def in_pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def all_of(store: BlobStore, key: str) -> bytes:
    return b"".join([piece async for piece in store.read(key)])


class Broken(OSError):
    """What a writer's own source raises. It may be of any kind, even the store's own."""


def breaking(after: int, of: Callable[[], BaseException] = Broken) -> AsyncIterator[bytes]:
    """So many bytes, and then an error."""

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in in_pieces(bytes(after)):
            yield piece
        raise of()

    return pieces()


class Held:
    """A writer's source that stops after so many bytes.

    Attributes:
        reached: It has stopped.
        gate: Opened, it ends.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in in_pieces(bytes(self._after)):
            yield piece
        self.reached.set()
        await self.gate.wait()


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

    async def test_what_is_written_in_pieces_is_read_in_pieces(self, harness: Harness) -> None:
        part, key = harness.part_bytes, "files/odd"
        data = os.urandom(2 * part + 7)
        for size in (0, 1, part - 1, part, part + 1, len(data)):
            assert await harness.store().write(key, in_pieces(data[:size], 70_001)) == size
            assert await all_of(harness.store(), key) == data[:size], size
        assert harness.unfinished() == 0

    async def test_pieces_of_any_size(self, harness: Harness) -> None:
        sizes = (0, 1, 0, 2 * harness.part_bytes + 3, 2, 0)
        made = [os.urandom(size) for size in sizes]

        async def pieces() -> AsyncIterator[bytes]:
            for piece in made:
                yield piece

        store = harness.store()
        assert await store.write("files/any", pieces()) == sum(sizes)
        assert await all_of(store, "files/any") == b"".join(made)

    async def test_there_is_nothing_to_read_before_the_first_piece(self, harness: Harness) -> None:
        pieces = harness.store().read("files/none")
        with pytest.raises(BlobMissing):
            await anext(pieces)
        assert harness.held() == 0

    @pytest.mark.parametrize("parts", [0, 1, 3])
    async def test_nothing_is_left_of_a_writer_whose_source_breaks(
        self, harness: Harness, parts: int
    ) -> None:
        store = harness.store()
        await store.write("files/kept", in_pieces(b"as it was"))
        size = parts * harness.part_bytes + 5
        for key in ("files/none", "files/kept"):
            with pytest.raises(Broken):
                await store.write(key, breaking(size))
        with pytest.raises(asyncio.CancelledError):
            await store.write("files/none", breaking(size, asyncio.CancelledError))
        assert harness.unfinished() == 0
        assert list(await store.list("files")) == ["files/kept"]
        assert await all_of(store, "files/kept") == b"as it was"

    @pytest.mark.parametrize("parts", [0, 1, 3])
    async def test_nothing_is_left_of_a_writer_that_is_cancelled(
        self, harness: Harness, parts: int
    ) -> None:
        store, source = harness.store(), Held(parts * harness.part_bytes + 5)
        writing = asyncio.create_task(store.write("files/none", source))
        await asyncio.wait_for(source.reached.wait(), 20)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert harness.unfinished() == 0
        assert dict(await store.list("files")) == {}

    async def test_a_source_runs_in_the_task_of_its_writer(self, harness: Harness) -> None:
        """So time limits and cancellation within it work as everywhere."""
        tasks = set[asyncio.Task[object] | None]()

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                tasks.add(asyncio.current_task())
                yield bytes(harness.part_bytes)

        await harness.store().write("files/own", pieces())
        assert tasks == {asyncio.current_task()}

    async def test_a_reader_finds_the_old_blob_or_the_new_one(self, harness: Harness) -> None:
        size, key = 2 * harness.part_bytes + 1, "files/replaced"
        versions = [bytes([number]) * (size + number) for number in range(3)]
        writer, reader = harness.store(), harness.store()
        await writer.write(key, in_pieces(versions[0]))

        async def replace() -> None:
            for version in versions[1:]:
                await writer.write(key, in_pieces(version, 1_000_000))

        replacing, seen = asyncio.create_task(replace()), list[int]()
        while not replacing.done():
            found = await all_of(reader, key)
            assert found == versions[found[0]]
            seen.append(found[0])
        await replacing
        assert seen == sorted(seen)
        assert await all_of(reader, key) == versions[-1]

    async def test_of_writers_at_once_one_wins(self, harness: Harness) -> None:
        size = harness.part_bytes + 1
        versions = [bytes([number]) * (size + number) for number in range(4)]
        sizes = await asyncio.gather(
            *(harness.store().write("files/one", in_pieces(version)) for version in versions)
        )
        assert sizes == [len(version) for version in versions]
        assert await all_of(harness.store(), "files/one") in versions
        assert harness.unfinished() == 0

    async def test_a_reader_that_stops_lets_go_of_the_blob(self, harness: Harness) -> None:
        store = harness.store()
        await store.write("files/long", in_pieces(bytes(4 * harness.part_bytes)))
        async with aclosing(store.read("files/long")) as pieces:
            assert await anext(pieces)
            await until(lambda: harness.held() == 1)
        await until(lambda: harness.held() == 0)

        forgotten = store.read("files/long")
        assert await anext(forgotten)
        await until(lambda: harness.held() == 1)
        del forgotten
        gc.collect()
        await until(lambda: harness.held() == 0)

    async def test_a_blob_that_is_deleted_while_it_is_read_is_not_cut_short(
        self, harness: Harness
    ) -> None:
        store, data = harness.store(), os.urandom(3 * harness.part_bytes)
        await store.write("files/gone", in_pieces(data))
        found, pieces = b"", store.read("files/gone")
        try:
            async for piece in pieces:
                found += piece
                await store.delete("files/gone")
        except BlobStoreUnavailable:
            return
        assert found == data

    async def test_memory_does_not_grow_with_the_blob(self, harness: Harness) -> None:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.contract.blob_memory", harness.location),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **harness.env},  # noqa: TID251 - a child needs all of it
        )
        said, _ = await program.communicate()
        assert program.returncode == 0
        assert int(said) < OF_MEMORY * 0.6

    async def test_what_a_killed_writer_left_is_no_blob_and_can_be_deleted(
        self, harness: Harness
    ) -> None:
        store, key = harness.store(), a_key()
        harness.leave_unfinished(key)
        with pytest.raises(BlobMissing):
            await store.get(key)
        for left in await store.list("jobs"):  # not every store shows it
            assert left.startswith(f"{key}.")
            assert UNFINISHED.search(left)
            await store.delete(left)
        assert list(await store.list("jobs")) == []

    async def test_a_listing_tells_when_a_blob_was_written(self, harness: Harness) -> None:
        store = harness.store()
        await store.put("files/one", b"data")
        (written,) = (await store.list("files")).values()
        assert abs(written - time.time()) < 60

    async def test_a_sweep_spares_what_is_young_or_named(self, harness: Harness) -> None:
        store = harness.store()
        keys = {f"{folder}/{name}" for folder in FOLDERS for name in ("named", "nobodys")}
        for key in (*keys, "jobs/9999999999-a"):
            await store.put(key, b"data")
        harness.leave_unfinished("files/named")
        asked: list[str] = []

        async def named(some: Sequence[str]) -> Collection[str]:
            asked.extend(some)
            return {key for key in some if key.endswith("/named")}

        async def listed() -> set[str]:
            everywhere = [await store.list(folder) for folder in (*FOLDERS, "jobs")]
            return set(itertools.chain(*everywhere))

        before = await listed()
        assert await sweep_orphans(store, time.time() + YOUNGEST_S - 60, named) == 0
        assert asked == []
        assert await listed() == before

        shown = len(before) - len(keys) - 1
        assert await sweep_unfinished(store, time.time() + YOUNGEST_S + 60) == shown
        assert await listed() == keys | {"jobs/9999999999-a"}

        assert await sweep_orphans(store, time.time() + YOUNGEST_S + 60, named) == len(FOLDERS)
        assert set(asked) == keys
        assert await listed() == {f"{folder}/named" for folder in FOLDERS} | {"jobs/9999999999-a"}

    async def test_a_store_that_is_away_says_so(self, harness: Harness) -> None:
        store, key = harness.store(), a_key()
        await store.put(key, b"data")
        await harness.take_away()
        for attempt in (
            store.put(a_key(), b"data"),
            store.get(key),
            store.list("jobs"),
            store.write(key, in_pieces(b"data")),
            anext(store.read(key)),
        ):
            with pytest.raises(BlobStoreUnavailable) as caught:
                await attempt
            assert str(caught.value), "the reason is for the log"

    async def test_a_store_that_goes_away_meanwhile_says_so(self, harness: Harness) -> None:
        store, data = harness.store(), os.urandom(4 * harness.part_bytes)
        await store.write("files/read", in_pieces(data))
        pieces = store.read("files/read")
        found = await anext(pieces)

        async def vanishing() -> AsyncIterator[bytes]:
            async for piece in in_pieces(data):
                yield piece
            await harness.take_away()
            yield data

        with pytest.raises(BlobStoreUnavailable) as caught:
            await store.write("files/written", vanishing())
        assert str(caught.value)
        try:
            async for piece in pieces:
                found += piece
        except BlobStoreUnavailable:
            return
        assert found == data, "never less without a word"

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
        for attempt in (
            store.put(key, b""),
            store.get(key),
            store.delete(key),
            store.write(key, in_pieces(b"")),
            anext(store.read(key)),
        ):
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
