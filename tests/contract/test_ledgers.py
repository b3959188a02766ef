from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from ingress.limits.ledger import Ledger, MemoryLedger
from ingress.stores.database import Database
from ingress.stores.postgres_ledger import PostgresLedger
from ingress.stores.sql import SqlStore
from ingress.stores.sqlite_ledger import SqliteLedger
from tests.contract.ledger_suite import HOLD_S, LedgerOpener, LedgerSuite, a_turn, granted
from tests.contract.test_store_postgres import migrated
from tests.fixtures.postgres import Postgres


class TestMemory(LedgerSuite):
    """`MemoryLedger`: there is one process, which may speak for several."""

    @pytest.fixture
    def open_ledger(self) -> LedgerOpener:
        ledger = MemoryLedger(hold_s=HOLD_S)

        async def open_ledger() -> Ledger:
            return ledger

        return open_ledger


class Databases:
    """Opens connections of their own to one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: list[SqlStore] = []
        self._ledgers: list[Ledger] = []

    async def open(self) -> Database:
        self._stores.append(await SqlStore.open(self._url))
        return self._stores[-1].database

    async def open_ledger(self) -> Ledger:
        database = await self.open()
        of_kind = SqliteLedger if database.is_sqlite else PostgresLedger
        self._ledgers.append(of_kind(database, hold_s=HOLD_S))
        return self._ledgers[-1]

    async def close(self) -> None:
        for ledger in self._ledgers:
            await ledger.close()
        for store in self._stores:
            await store.close()


class TestSqlite(LedgerSuite):
    """`SqliteLedger`."""

    @pytest.fixture
    async def open_ledger(self, tmp_path: Path) -> AsyncIterator[LedgerOpener]:
        databases = Databases(f"sqlite:///{tmp_path / 'headrace.db'}")
        yield databases.open_ledger
        await databases.close()

    async def test_it_outlives_its_process(self, tmp_path: Path) -> None:
        for expected in (3, 2):
            databases = Databases(f"sqlite:///{tmp_path / 'headrace.db'}")
            ledger = await databases.open_ledger()
            (outcome,) = await ledger.exchange(f"to {expected}", [a_turn(asks=3)])
            assert granted(outcome.verdicts) == expected
            await databases.close()


@pytest.fixture(scope="module")
def tables(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    asyncio.run(migrated(url))
    yield url
    postgres.drop_database(url)


class TestPostgres(LedgerSuite):
    """`PostgresLedger`."""

    @pytest.fixture
    async def open_ledger(self, postgres: Postgres, tables: str) -> AsyncIterator[LedgerOpener]:
        databases = Databases(tables)
        yield databases.open_ledger
        await databases.close()
        postgres.run("TRUNCATE account_states", url=tables)

    async def test_the_clock_is_the_databases(
        self, open_ledger: LedgerOpener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        (outcome,) = await (await open_ledger()).exchange("one", [a_turn()])
        assert outcome.now > 1_700_000_000

    async def test_whoever_waits_for_a_row_is_judged_when_it_has_it(
        self, open_ledger: LedgerOpener, tables: str
    ) -> None:
        ledger = await open_ledger()
        (before,) = await ledger.exchange("one", [a_turn()])
        other = await asyncpg.connect(tables)
        holding = other.transaction()
        await holding.start()
        await other.execute("SELECT * FROM account_states FOR UPDATE")
        waiting = asyncio.create_task(ledger.exchange("one", [a_turn()]))
        async with asyncio.timeout(10):
            while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        released_at = await other.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        await holding.commit()
        await other.close()
        (after,) = await waiting
        assert before.now < released_at < after.now
