from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.accounts.account import Account
from ingress.stores.sql import SqlStore
from ingress.stores.sql_accounts import SqlAccounts
from tests.contract.account_suite import NOW, AccountStoreSuite, Opener, contents
from tests.contract.store_suite import a_file


@pytest.fixture
async def opener(tmp_path: Path) -> AsyncIterator[Opener]:
    opened = []

    async def open_one() -> SqlAccounts:
        opened.append(await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}"))
        return SqlAccounts(opened[-1].database)

    yield open_one
    for store in opened:
        await store.close()


class TestSqlite(AccountStoreSuite):
    """`SqlAccounts` in a file."""

    @pytest.mark.rule("accounts.revision")
    async def test_every_change_moves_the_revision_and_nothing_else_does(
        self, opener: Opener
    ) -> None:
        await super().test_every_change_moves_the_revision_and_nothing_else_does(opener)


async def test_files_of_a_deleted_account_expire_and_others_stay(tmp_path: Path) -> None:
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    accounts = SqlAccounts(store.database)
    await accounts.create_account(Account(account_id="ours"), NOW)
    await store.add_file(a_file(1))
    await store.add_file(a_file(2, account="theirs"))
    await accounts.delete_account("ours", NOW)
    assert [file.file_id for file in await store.expired_files(NOW, 10)] == [a_file(1).file_id]
    assert await store.file("ours", a_file(1).file_id, NOW) is None
    assert await store.file("theirs", a_file(2).file_id, NOW) is not None
    await store.close()


async def test_terms_that_nobody_can_read_disable_their_account_alone(tmp_path: Path) -> None:
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    accounts = SqlAccounts(store.database)
    for name in ("one", "two"):
        await accounts.create_account(Account(account_id=name), NOW)

    async def spoil(connection: AsyncConnection) -> None:
        await connection.execute(
            sa.text("UPDATE accounts SET terms = :terms WHERE account_id = 'one'"),
            {"terms": '{"profile":"of another release"}'},
        )

    await store.database.write(spoil)
    found, _ = await contents(accounts)
    assert found["one"] is not None
    assert found["one"].disabled
    assert found["two"] == Account(account_id="two")
    await store.close()


async def test_what_has_changed_comes_in_pages(tmp_path: Path) -> None:
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    accounts = SqlAccounts(store.database, page=2)
    names = [f"a{n}" for n in range(5)]
    for name in names:
        await accounts.create_account(Account(account_id=name), NOW)
    pages = [list(changes.accounts) async for changes in accounts.changes(0)]
    assert pages == [names[:2], names[2:4], names[4:]]
    assert [list(changes.accounts) async for changes in accounts.changes(3)] == [names[3:]]
    await store.close()
