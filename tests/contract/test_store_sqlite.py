from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ingress.stores import schema
from ingress.stores.base import StoreUnavailable
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from tests.contract.store_suite import Opener, StoreSuite, a_batch, a_file, a_result, claimed, the


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'deep' / 'headrace.db'}"


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    opened = []

    async def open_one() -> SqlStore:
        opened.append(await SqlStore.open(url))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class TestSqlite(StoreSuite):
    """`SqlStore` in a file."""


@pytest.fixture
def path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)


def size(path: Path) -> int:
    return path.stat().st_size


async def test_many_may_open_a_new_file_at_once(url: str) -> None:
    stores = await asyncio.gather(*(SqlStore.open(url) for _ in range(8)))
    await stores[0].add_batch(a_batch(1), max_unfinished=9)
    for store in stores:
        assert await store.batch("ours", a_batch(1).batch_id) == a_batch(1)
        await store.close()


async def test_many_may_open_several_new_files_at_once(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / f'{number % 4}.db'}" for number in range(8)]
    stores = await asyncio.gather(*map(SqlStore.open, urls))
    for number, store in enumerate(stores):
        await store.add_file(a_file(number))
    for number, store in enumerate(stores):
        told = (await the(store.files("ours", now=0, limit=9))).items
        assert {file.file_id for file in told} == {
            a_file(n).file_id for n in (number % 4, number % 4 + 4)
        }
        await store.close()


async def test_nobody_else_can_read_it(url: str, path: Path) -> None:
    before = os.umask(0)
    try:
        store = await SqlStore.open(url)
        await claimed(store)
        found = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
        assert path.parent.stat().st_mode & 0o777 == 0o700
        await store.close()
    finally:
        os.umask(before)
    assert found == {"headrace.db": 0o600, "headrace.db-wal": 0o600, "headrace.db-shm": 0o600}


async def test_a_file_that_somebody_has_locked_can_be_read_and_later_written(
    opener: Opener, url: str, path: Path
) -> None:
    batch = await claimed(await opener())
    store = SqlStore(open_database(url, busy_timeout_s=0.2))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await store.batch("ours", batch.batch_id) == batch
        for attempt in (
            store.commit(batch.batch_id, "owner", [a_result(1)]),
            store.claim("other", now=0, lease_s=1),
            store.add_file(a_file(1)),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await attempt
            assert "locked" in str(caught.value.diagnostic)
            assert "locked" not in caught.value.message
        other.execute("COMMIT")
        assert await store.commit(batch.batch_id, "owner", [a_result(1)]) == 1

        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task((await opener()).commit(batch.batch_id, "owner", []))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        other.execute("COMMIT")
        assert await waiting == 0
    await store.close()


async def test_a_write_that_is_given_up_leaves_no_lock(opener: Opener, path: Path) -> None:
    store = await opener()
    batch = await claimed(store)
    for pause in range(40):
        group = [a_result(100 * pause + line) for line in range(100)]
        writing = asyncio.create_task(store.commit(batch.batch_id, "owner", group))
        for _ in range(pause):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")


async def test_a_full_disk_is_told_and_loses_nothing(opener: Opener) -> None:
    store = await opener()
    batch = await claimed(store)
    await store.commit(batch.batch_id, "owner", [a_result(1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StoreUnavailable):
            await store.commit(batch.batch_id, "owner", [a_result(2, text=b"x" * (4 << 20))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [line async for line in store.committed(batch.batch_id)] == [1]
    assert await store.commit(batch.batch_id, "owner", [a_result(2, text=b"x" * (4 << 20))]) == 1


async def test_a_file_that_is_no_database_is_told(path: Path, url: str) -> None:
    put(path, b"something else entirely" * 1000)
    with pytest.raises(StoreUnavailable) as caught:
        await SqlStore.open(url)
    assert "not a database" in str(caught.value.diagnostic)


async def test_dropped_results_make_the_file_small_again(opener: Opener, path: Path) -> None:
    store = await opener()
    batch = await claimed(store)
    for start in (1, 65, 129):
        group = [a_result(line, text=os.urandom(64_000)) for line in range(start, start + 64)]
        await store.commit(batch.batch_id, "owner", group)
    await store.close()
    assert size(path) > 12_000_000
    store = await opener()
    await store.drop_results(batch.batch_id)
    await store.close()
    assert size(path) < 500_000


async def test_a_file_that_cannot_shrink_is_left_as_it_is(url: str, path: Path) -> None:
    put(path, b"")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE theirs (id)")
    store = await SqlStore.open(url)
    batch = await claimed(store)
    await store.commit(batch.batch_id, "owner", [a_result(1, text=b"x" * 100_000)])
    async with asyncio.timeout(60):
        await store.drop_results(batch.batch_id)
    assert [line async for line in store.committed(batch.batch_id)] == []
    await store.close()


KILLED = """
import asyncio, sys
from ingress.stores.sql import SqlStore
from schemas.batch import LineResult
from schemas.delta import Usage

def a_result(line, text):
    return LineResult(line=line, outcome="succeeded", text=text, usage=Usage(10, 4, 3, 1))

async def main():
    store = await SqlStore.open(sys.argv[1])
    for start in range(1, 1_000_000, 16):
        group = [a_result(line, text=b"x" * 4096) for line in range(start, start + 16)]
        await store.commit(sys.argv[2], "owner", group)
        print(start + 15, flush=True)

asyncio.run(main())
"""


async def test_what_was_committed_outlives_a_killed_process(opener: Opener, url: str) -> None:
    store = await opener()
    batch = await claimed(store)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, url, batch.batch_id, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    last = 0
    while last < 100:
        last = int(await process.stdout.readline())
    process.kill()
    told = [last, *map(int, (await process.communicate())[0].split())]
    lines = [line async for line in store.committed(batch.batch_id)]
    assert lines == list(range(1, len(lines) + 1))
    assert len(lines) - told[-1] in (0, 16)
    after = await the(store.batch("ours", batch.batch_id))
    assert after.counts.succeeded == len(lines)
    assert after.usage.input_tokens == 10 * len(lines)
    assert await store.commit(batch.batch_id, "owner", [a_result(1), a_result(999_999)]) == 1


@pytest.mark.parametrize(
    ("index", "query"),
    [
        ("batches_unfinished ", "claim"),
        ("batches_unfinished_input ", "delete"),
        ("batches_listed ", "list"),
        ("files_listed ", "files"),
        ("batches_results_blob ", "archive"),
    ],
)
async def test_what_is_asked_for_often_has_an_index(
    url: str, path: Path, index: str, query: str
) -> None:
    store = SqlStore(open_database(url))
    await schema.upgrade(store._database)
    await store.add_batch(a_batch(1), max_unfinished=9)
    await store.add_file(a_file(1))
    seen: list[tuple[str, Any]] = []

    @sa.event.listens_for(store._database.engine.sync_engine, "before_cursor_execute")
    def see(connection: object, cursor: object, sql: str, parameters: object, *_: object) -> None:
        seen.append((sql, parameters))

    match query:
        case "claim":
            await store.claim("owner", now=0, lease_s=30)
        case "delete":
            await store.delete_file("ours", a_file(1).file_id, 0)
        case "list":
            await store.batches("ours", "openai", limit=9, after=a_batch(1).batch_id)
        case "files":
            await store.files("ours", now=0, limit=9, after=a_file(2).file_id)
            await store.files("ours", now=0, limit=9)
        case "archive":
            await store.archivable(5.0, 9)
    await store.close()
    plans = []
    with closing(sqlite3.connect(path)) as connection:
        for sql, parameters in seen:
            if sql.startswith(("SELECT", "UPDATE", "DELETE")):
                plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
                plans += [f"{step[-1]} " for step in plan]
    assert [
        step
        for step in plans
        if f"USING INDEX {index}" in step or f"USING COVERING INDEX {index}" in step
    ], plans
    assert not [step for step in plans if "TEMP B-TREE" in step], plans
