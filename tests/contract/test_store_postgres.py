from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores import schema
from ingress.stores.base import LeaseLost, StoreUnavailable
from ingress.stores.database import BadDatabaseUrl, open_database
from ingress.stores.sql import SqlStore
from tests.contract.store_suite import Opener, StoreSuite, a_file, a_result, claimed, the
from tests.fixtures.postgres import Postgres, PostgresServer


async def migrated(url: str) -> str:
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
    return url


@pytest.fixture(scope="module")
def tables(postgres: Postgres) -> Iterator[str]:
    """A database with tables, which the tests of this file fill in turn."""
    url = postgres.new_database()
    asyncio.run(migrated(url))
    yield url
    postgres.drop_database(url)


@pytest.fixture
def url(postgres: Postgres, tables: str) -> Iterator[str]:
    yield tables
    postgres.run("TRUNCATE files, batches, results, idempotency", url=tables)


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    opened = []

    async def open_one() -> SqlStore:
        opened.append(await SqlStore.open(url))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class TestPostgres(StoreSuite):
    """`SqlStore` in PostgreSQL."""


async def test_every_kind_of_url_finds_it(url: str) -> None:
    rest = url.removeprefix("postgresql://")
    wanted = None
    for scheme in ("postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg"):
        for options in ("", "?sslmode=disable&connect_timeout=20&pool_size=1", "?sslmode=prefer"):
            store = await SqlStore.open(f"{scheme}://{rest}{options}")
            wanted = wanted or await claimed(store)
            assert await store.batch("ours", wanted.batch_id) == wanted
            await store.close()


async def test_without_the_encryption_that_was_asked_for_there_is_no_connection(url: str) -> None:
    with pytest.raises(StoreUnavailable):
        await SqlStore.open(f"{url}?sslmode=require")
    with pytest.raises(StoreUnavailable):
        await SqlStore.open(f"{url}?sslmode=verify-full&sslrootcert=/nowhere.crt")
    with pytest.raises(BadDatabaseUrl, match="verify-full"):
        await SqlStore.open(f"{url}?sslmode=sometimes")


async def test_a_wrong_password_is_told_without_it(url: str) -> None:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    with pytest.raises(StoreUnavailable) as caught:
        await SqlStore.open(f"postgresql://{parts.username}:guessed@{host}{parts.path}")
    assert "password" in str(caught.value.diagnostic)
    assert "guessed" not in f"{caught.value.diagnostic}{caught.value.message}"


async def test_more_work_than_connections_waits(url: str) -> None:
    store = await SqlStore.open(f"{url}?pool_size=2")
    batch = await claimed(store)
    stored = await asyncio.gather(
        *(store.commit(batch.batch_id, "owner", [a_result(line)]) for line in range(40)),
        *(store.batch("ours", batch.batch_id) for _ in range(40)),
    )
    assert stored[:40] == [1] * 40
    await store.close()


async def test_connections_that_the_server_ended_are_made_anew(
    opener: Opener, postgres: Postgres
) -> None:
    store = await opener()
    batch = await claimed(store)
    committing = [
        asyncio.create_task(store.commit(batch.batch_id, "owner", [a_result(line)]))
        for line in range(1, 101)
    ]
    ended = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace'"
    )
    for _ in range(3):
        await asyncio.wait(committing, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(postgres.run, ended)
    told = await asyncio.gather(*committing)
    # A commit whose answer was lost is sent again, and finds its line there.
    assert set(told) <= {0, 1}
    after = await the(store.batch("ours", batch.batch_id))
    assert after.counts.succeeded == 100
    assert [line async for line in store.committed(batch.batch_id)] == list(range(1, 101))


async def test_what_the_database_rolled_back_is_run_again(url: str) -> None:
    database = open_database(url)
    for state, runs in (("40001", 3), ("40P01", 3), ("22012", 1)):
        ran = 0

        async def work(connection: AsyncConnection, state: str = state) -> int:
            nonlocal ran
            ran += 1
            if ran < 3:
                fail = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"
                await connection.exec_driver_sql(fail)
            return ran

        if runs == 1:
            with pytest.raises(StoreUnavailable):
                await database.write(work)
        else:
            assert await database.write(work) == 3
        assert ran == runs
    await database.close()


async def test_a_transaction_that_always_fails_ends(url: str) -> None:
    database = open_database(url)
    ran = 0

    async def work(connection: AsyncConnection) -> None:
        nonlocal ran
        ran += 1
        fail = "DO $$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '40001'; END $$"
        await connection.exec_driver_sql(fail)

    with pytest.raises(StoreUnavailable) as caught:
        await database.write(work)
    assert 3 <= ran <= 10
    assert "secret" not in caught.value.message
    await database.close()


async def test_only_what_may_happen_twice_is_run_again_after_a_lost_commit(url: str) -> None:
    database = open_database(url)
    for repeatable, runs in ((True, 2), (False, 1)):
        ran = 0

        async def work(connection: AsyncConnection) -> None:
            nonlocal ran
            ran += 1
            await connection.exec_driver_sql("SELECT 1")
            if ran == 1:  # the connection breaks with the next word, which is COMMIT
                raw = await connection.get_raw_connection()
                driver: Any = raw.driver_connection
                driver._transport.abort()

        if repeatable:
            await database.write(work, repeatable=True)
        else:
            with pytest.raises(StoreUnavailable):
                await database.write(work)
        assert ran == runs
    await database.close()


async def test_a_killed_server_is_told_and_found_again(own_postgres: PostgresServer) -> None:
    url = await migrated(own_postgres.url)
    store = await SqlStore.open(url)
    batch = await claimed(store)
    told = 0

    async def commit(line: int) -> None:
        nonlocal told
        told += await store.commit(batch.batch_id, "owner", [a_result(line)])

    committing = [asyncio.create_task(commit(line)) for line in range(50)]
    await asyncio.wait(committing, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(own_postgres.kill)
    for outcome in await asyncio.gather(*committing, return_exceptions=True):
        assert outcome is None or isinstance(outcome, StoreUnavailable)
    told_apart = await asyncio.gather(
        store.batch("ours", batch.batch_id),
        store.claim("other", now=0, lease_s=1),
        store.add_file(a_file(1)),
        store.drop_results(batch.batch_id),
        anext(store.results(batch.batch_id)),
        SqlStore.open(url),
        return_exceptions=True,
    )
    assert [type(answer) for answer in told_apart] == [StoreUnavailable] * 6

    waiting = asyncio.create_task(store.batch("ours", batch.batch_id))  # a restart is waited for
    await asyncio.to_thread(own_postgres.start)
    with contextlib.suppress(StoreUnavailable):  # unless it took longer
        await waiting
    after = await the(store.batch("ours", batch.batch_id))
    lines = [line async for line in store.committed(batch.batch_id)]
    assert told <= len(lines) == after.counts.succeeded
    assert await store.commit(batch.batch_id, "owner", [a_result(n) for n in range(50)]) == (
        50 - len(lines)
    )
    await store.close()


async def test_who_waits_behind_a_takeover_has_lost(opener: Opener, url: str) -> None:
    store = await opener()
    batch = await claimed(store)
    other = await asyncpg.connect(url)
    taking = other.transaction()
    await taking.start()
    await other.execute("UPDATE batches SET lease_owner = 'two'")
    waiting = [
        asyncio.create_task(attempt)
        for attempt in (
            store.commit(batch.batch_id, "owner", [a_result(1)]),
            store.renew(batch.batch_id, "owner", now=5, lease_s=30),
            store.change_batch(batch.batch_id, lambda batch: batch, owner="owner"),
        )
    ]
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(30):
        while await other.fetchval(blocked) < len(waiting):
            await asyncio.sleep(0.01)
    await taking.commit()
    await other.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [LeaseLost] * 3
    assert [line async for line in store.committed(batch.batch_id)] == []
