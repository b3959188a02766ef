from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ingress.stores import schema
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from ingress.stores.sql_accounts import SqlAccounts
from tests.contract.account_suite import AccountStoreSuite, Opener
from tests.fixtures.postgres import Postgres


async def _migrate(url: str) -> None:
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    asyncio.run(_migrate(url))
    yield url
    postgres.drop_database(url)


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    opened = []

    async def open_one() -> SqlAccounts:
        opened.append(await SqlStore.open(url))
        return SqlAccounts(opened[-1].database)

    yield open_one
    for store in opened:
        await store.close()


class TestPostgres(AccountStoreSuite):
    """`SqlAccounts` in PostgreSQL."""
