"""The directory over a real store: what it knows, when it sees changes, and that it never opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.accounts.account import UNLIMITED, Account
from ingress.accounts.administration import Administration
from ingress.accounts.directory import AccountDirectory, Entries, configured
from ingress.accounts.keys import digest_of
from ingress.accounts.terms import AccountTerms
from ingress.auth import Authenticator
from ingress.config import Config
from ingress.stores.base import StoreUnavailable
from ingress.stores.database import Database, Work
from ingress.stores.sql import SqlStore
from ingress.stores.sql_accounts import SqlAccounts
from schemas.errors import InvalidApiKey, MissingApiKey
from tests.fixtures.stack import until

T = TypeVar("T")

FAST_S = 0.01
EMPTY = Entries()


class Flaky(Database):
    """A database that can be taken away."""

    away = False
    fault: Exception | None = None

    async def read(self, work: Work[T]) -> T:
        if self.away:
            raise StoreUnavailable("away", diagnostic="taken away")
        if self.fault is not None:
            raise self.fault
        return await super().read(work)


class Place:
    """A store, and who administers it from another process."""

    def __init__(self, store: SqlStore) -> None:
        self.database = Flaky(store.database.engine, one_writer=True)
        self.accounts = SqlAccounts(self.database)
        self.admin = Administration(SqlAccounts(store.database))
        self.now = 1_760_000_000.0

    def directory(self, fixed: Entries = EMPTY) -> AccountDirectory:
        return AccountDirectory(fixed, self.accounts, clock=lambda: self.now)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    yield Place(store)
    await store.close()


@asynccontextmanager
async def following(directory: AccountDirectory) -> AsyncIterator[AccountDirectory]:
    async with directory.following(every_s=FAST_S):
        yield directory


def headers(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


async def seen(found: Callable[[], object]) -> None:
    await until(found, timeout_s=5)


@pytest.mark.rule("accounts.revocation")
async def test_changes_are_seen_while_it_follows(place: Place) -> None:
    async with following(place.directory()) as directory:
        assert not directory.required
        await place.admin.create_account(AccountTerms(name="A"), "a")
        await seen(lambda: directory.required)
        issued = await place.admin.create_key("a", label="x")
        digest = digest_of(issued.text.encode())
        await seen(lambda: directory.find(digest))
        found = directory.find(digest)
        assert found is not None
        assert (found.name, found.account, found.terms.name) == (issued.record.key_id, "a", "A")
        await place.admin.change_account("a", {"disabled": True})
        await seen(
            lambda: directory.account("a") == msgspec.structs.replace(found.terms, disabled=True)
        )
        await place.admin.revoke_key(issued.record.key_id)
        await seen(lambda: directory.find(digest) is None)


@pytest.mark.rule("accounts.never-open")
async def test_once_keys_were_asked_for_they_are_asked_for(place: Place) -> None:
    await place.admin.create_account(AccountTerms(), "a")
    async with following(place.directory()) as directory:
        await place.admin.delete_account("a")
        await seen(lambda: directory.account("a") is None)
        assert directory.required
        with pytest.raises(MissingApiKey):
            Authenticator(directory).authenticate([])


@pytest.mark.rule("accounts.store-away")
async def test_what_was_read_stays_in_force_while_the_store_is_away(place: Place) -> None:
    await place.admin.create_account(AccountTerms(), "a")
    issued = await place.admin.create_key("a", expires_at=None)
    lasting = digest_of(issued.text.encode())
    place.now = issued.record.created_at
    until_then = await place.admin.create_key("a", expires_at=place.now + 60)
    with structlog.testing.capture_logs() as lines:
        async with following(place.directory()) as directory:
            place.database.away = True
            await place.admin.revoke_key(issued.record.key_id)
            await seen(lambda: any(line["event"] == "accounts.unreachable" for line in lines))
            assert directory.find(lasting)
            assert directory.find(digest_of(until_then.text.encode()))
            place.now += 60  # the clock goes on all the same
            assert directory.find(digest_of(until_then.text.encode())) is None
            with pytest.raises(InvalidApiKey):
                Authenticator(directory).authenticate(headers("unknown"))
            place.database.away = False
            await seen(lambda: directory.find(lasting) is None)
    events = [line["event"] for line in lines]
    assert events.count("accounts.unreachable") == 1  # not one a second
    assert events.count("accounts.back") == 1


@pytest.mark.rule("accounts.never-open", "accounts.store-away-at-start")
async def test_a_store_that_is_away_at_the_start_opens_nothing(place: Place) -> None:
    await place.admin.create_account(AccountTerms(), "a")
    issued = await place.admin.create_key("a")
    place.now = issued.record.created_at
    place.database.away = True
    fixed = configured(Config(), ["of-the-file"])
    async with following(place.directory(fixed)) as directory, following(place.directory()) as bare:
        for authenticator in (Authenticator(directory), Authenticator(bare)):
            assert authenticator.required
            with pytest.raises(MissingApiKey):
                authenticator.authenticate([])
            for key in (issued.text, "unknown"):  # nobody can tell them apart now
                with pytest.raises(StoreUnavailable) as raised:
                    authenticator.authenticate(headers(key))
                assert raised.value.retry_after_s
                assert key not in raised.value.message
            with pytest.raises(InvalidApiKey):
                authenticator.authenticate([*headers("one"), (b"x-api-key", b"two")])
        assert Authenticator(directory).authenticate(headers("of-the-file")).name == "key-1"
        place.database.away = False
        await seen(lambda: directory.find(digest_of(issued.text.encode())))
        with pytest.raises(InvalidApiKey):
            Authenticator(directory).authenticate(headers("unknown"))


@pytest.mark.rule("accounts.never-open")
async def test_a_store_that_was_away_and_turns_out_to_be_empty_opens_nothing(place: Place) -> None:
    place.database.away = True
    async with following(place.directory()) as directory:
        place.database.away = False
        await seen(lambda: directory.complete)
        assert directory.required


@pytest.mark.rule("accounts.never-open")
async def test_a_store_that_was_never_read_opens_nothing(place: Place) -> None:
    assert place.directory().required
    assert not AccountDirectory(EMPTY).required


def test_an_empty_key_is_none_whatever_is_listed() -> None:
    authenticator = Authenticator(AccountDirectory(configured(Config(), ["", "good"])))
    assert authenticator.authenticate(headers("good"))
    for value in (b"", b"  ", b"Bearer", b"Bearer  "):
        for name in (b"authorization", b"x-api-key"):
            with pytest.raises(InvalidApiKey):
                authenticator.authenticate([(name, value)])


@pytest.mark.rule("accounts.file-first")
async def test_an_account_of_the_file_hides_that_of_the_store(place: Place) -> None:
    await place.admin.create_account(AccountTerms(name="store's"), "a")
    issued = await place.admin.create_key("a")
    config = Config.model_validate(
        {"accounts": [{"id": "a", "name": "file's", "keys": [{"key": "k"}]}]}
    )
    with structlog.testing.capture_logs() as lines:
        async with following(place.directory(configured(config))) as directory:
            known = directory.account("a")
            assert known is not None
            assert known.name == "file's"
            assert directory.find(digest_of(issued.text.encode())) is None
            assert directory.find(digest_of(b"k"))
    assert [line["account"] for line in lines if line["event"] == "accounts.hidden"] == ["a"]


async def test_a_database_that_went_back_to_an_older_state_is_read_anew(place: Place) -> None:
    for name in ("a", "b"):
        await place.admin.create_account(AccountTerms(), name)
    issued = await place.admin.create_key("b")

    async def restore(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("DELETE FROM accounts WHERE account_id = 'b'")
        await connection.exec_driver_sql("UPDATE directory_revision SET revision = 1")

    async with following(place.directory()) as directory:
        assert directory.find(digest_of(issued.text.encode()))
        await place.database.write(restore)
        await seen(lambda: directory.account("b") is None)
        assert directory.find(digest_of(issued.text.encode())) is None
        assert directory.account("a")


async def test_accounts_by_id(place: Place) -> None:
    directory = place.directory()
    await place.admin.create_account(AccountTerms(), "new")
    assert directory.account("new") is None
    await directory.require_known("new")  # it may have been made a moment ago
    assert directory.account("new") == Account(account_id="new")
    assert directory.account("gone") is None
    assert directory.account("anonymous") == UNLIMITED
    assert directory.account("0" * 24) == Account(account_id="0" * 24)
    place.database.away = True
    await directory.require_known("new")
    with pytest.raises(StoreUnavailable):
        await directory.require_known("gone")


async def test_a_fault_of_ours_does_not_end_the_following(place: Place) -> None:
    with structlog.testing.capture_logs() as lines:
        async with following(place.directory()) as directory:
            place.database.fault = RuntimeError("a fault")
            await seen(lambda: [line["event"] for line in lines].count("accounts.crashed") > 1)
            place.database.fault = None
            await place.admin.create_account(AccountTerms(), "a")
            await seen(lambda: directory.account("a"))
