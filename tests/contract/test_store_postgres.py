from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ingress.stores import schema
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from tests.contract.store_suite import Opener, StoreSuite
from tests.fixtures.postgres import Postgres


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
