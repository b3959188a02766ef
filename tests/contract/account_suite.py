"""What every account store promises; run against each by a subclass that says how to open one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ingress.accounts.account import Account, Budget, Limits
from ingress.accounts.keys import new_key
from ingress.accounts.store import (
    MAX_ACTIVE_KEYS,
    AccountExists,
    AccountStore,
    KeyRecord,
    TooManyKeys,
)

Opener = Callable[[], Awaitable[AccountStore]]
"""Opens the one store; each call stands for another process."""

NOW = 1_760_000_000.25
FULL = Account(
    account_id="full",
    name="all of it é😀\x00\\",
    disabled=True,
    models=("one", "org/Two"),
    aliases={"fast": "one", "a.b": "org/Two"},
    always_zdr=True,
    profile="official",
    priorities=(-5, 7),
    limits=Limits(
        concurrency=3,
        requests_per_minute=60,
        tokens_per_minute=1 << 40,
        budget=Budget(cents=5, period="day"),
    ),
)


def account_id() -> str:
    return f"a-{secrets.token_hex(4)}"


def a_key(account: str, **changes: Any) -> tuple[KeyRecord, bytes]:
    key = new_key()
    record = KeyRecord(
        **{"key_id": key.key_id, "account_id": account, "created_at": NOW, **changes}
    )
    return record, key.digest


async def contents(store: AccountStore) -> tuple[dict[str, Account | None], set[bytes]]:
    """All accounts by id, and the digests of all valid keys."""
    accounts: dict[str, Account | None] = {}
    digests: set[bytes] = set()
    async for changes in store.changes(0):
        accounts |= changes.accounts
        digests |= {key.digest for key in changes.keys}
    return accounts, digests


class AccountStoreSuite:
    """The promises; `opener` is a fixture."""

    async def test_an_account_comes_back_as_it_was(self, opener: Opener) -> None:
        store, other = await opener(), await opener()
        for account in (FULL, Account(account_id="least")):
            record = await store.create_account(account, NOW)
            assert (record.account, record.created_at) == (account, NOW)
            assert await other.account(account.account_id) == record
        assert await other.account("nobody") is None

    async def test_an_id_is_given_once_for_ever(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        with pytest.raises(AccountExists):
            await store.create_account(Account(account_id=name, name="other"), NOW)
        assert await store.delete_account(name, NOW)
        assert not await store.delete_account(name, NOW)
        assert await store.account(name) is None
        assert await store.change_account(name, lambda account: account) is None
        assert not await store.add_key(*a_key(name))
        with pytest.raises(AccountExists):
            await store.create_account(Account(account_id=name), NOW)

    async def test_what_goes_with_an_account(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        record, digest = a_key(name)
        assert await store.add_key(record, digest)
        assert digest in (await contents(store))[1]
        await store.delete_account(name, NOW)
        found, digests = await contents(store)
        assert digest not in digests
        assert name not in found
        assert await store.key(record.key_id) is None

    async def test_terms_are_changed_one_after_the_other(self, opener: Opener) -> None:
        stores, name = [await opener(), await opener()], account_id()
        await stores[0].create_account(Account(account_id=name, models=()), NOW)

        def add(model: str) -> Callable[[Account], Account]:
            return lambda account: msgspec.structs.replace(
                account, models=(*(account.models or ()), model)
            )

        await asyncio.gather(*(stores[n % 2].change_account(name, add(f"m{n}")) for n in range(12)))
        record = await stores[1].account(name)
        assert record is not None
        assert sorted(record.account.models or ()) == sorted(f"m{n}" for n in range(12))

    async def test_a_change_that_is_refused_changes_nothing(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        before = await store.create_account(Account(account_id=name), NOW)
        revision = await store.revision()

        def refuse(account: Account) -> Account:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await store.change_account(name, refuse)
        assert await store.account(name) == before
        assert await store.revision() == revision

    async def test_every_change_moves_the_revision_and_nothing_else_does(
        self, opener: Opener
    ) -> None:
        store, other, name = await opener(), await opener(), account_id()
        record, digest = a_key(name)
        new, new_digest = a_key("")
        changes: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.create_account(Account(account_id=name), NOW),
            lambda: store.change_account(name, lambda account: account),
            lambda: store.add_key(record, digest),
            lambda: store.rotate_key(record.key_id, new, new_digest, now=NOW, overlap_s=0),
            lambda: store.revoke_key(new.key_id, NOW),
            lambda: store.delete_account(name, NOW),
        ]
        seen = {await other.revision()}
        for number, change in enumerate(changes, start=2):
            await change()
            seen.add(await other.revision())
            assert len(seen) == number
        revision = await store.revision()
        await contents(store)
        await store.accounts(limit=1)
        await store.keys(limit=1)
        assert await other.revision() == revision

    async def test_every_change_is_told_since_any_revision_before_it(self, opener: Opener) -> None:
        store, other, name = await opener(), await opener(), account_id()
        record, digest = a_key(name)
        new, new_digest = a_key("")

        async def told(since: int) -> tuple[dict[str, Account | None], dict[bytes, bool]]:
            accounts: dict[str, Account | None] = {}
            keys: dict[bytes, bool] = {}
            async for changes in other.changes(since):
                accounts |= changes.accounts
                keys |= {key.digest: key.revoked for key in changes.keys}
            return accounts, keys

        account, renamed = Account(account_id=name), Account(account_id=name, name="new")
        await store.create_account(Account(account_id=account_id()), NOW)
        at = await store.revision()
        await store.create_account(account, NOW)
        assert await told(at) == ({name: account}, {})
        made_at = await store.revision()
        assert await told(made_at) == ({}, {})
        await store.change_account(name, lambda _: renamed)
        await store.add_key(record, digest)
        assert await told(made_at) == ({name: renamed}, {digest: False})
        changed_at = await store.revision()
        await store.rotate_key(record.key_id, new, new_digest, now=NOW, overlap_s=0)
        assert await told(changed_at) == ({}, {digest: True, new_digest: False})
        await store.revoke_key(new.key_id, NOW)
        assert await told(changed_at) == ({}, {digest: True, new_digest: True})
        await store.delete_account(name, NOW)
        assert await told(changed_at) == ({name: None}, {})

    async def test_changes_of_many_at_once_all_count(self, opener: Opener) -> None:
        stores, name = [await opener(), await opener()], account_id()
        before = await stores[0].revision()
        await asyncio.gather(
            *(
                stores[n % 2].create_account(Account(account_id=f"{name}-{n}"), NOW)
                for n in range(10)
            )
        )
        assert await stores[1].revision() == before + 10

    async def test_accounts_in_pages(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        for n in range(5):
            await store.create_account(Account(account_id=f"{name}-{n}"), NOW)
        page = await store.accounts(limit=2, after=name)
        assert [record.account.account_id for record in page.items] == [f"{name}-0", f"{name}-1"]
        assert page.more
        page = await store.accounts(limit=3, after=f"{name}-1")
        assert [record.account.account_id for record in page.items][:3] == [
            f"{name}-{n}" for n in (2, 3, 4)
        ]

    # --- Keys -------------------------------------------------------------------------------------

    async def test_keys_in_pages(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        made = []
        for n in range(5):
            record, digest = a_key(name, label=f"l{n}", created_at=NOW + n)
            made.append(record)
            await store.add_key(record, digest)
        first = await store.keys(limit=3, account_id=name)
        assert first is not None
        assert (list(first.items), first.more) == (made[:3], True)
        second = await store.keys(limit=3, account_id=name, after=made[2].key_id)
        assert second is not None
        assert (list(second.items), second.more) == (made[3:], False)
        assert await store.keys(limit=3, after="key_nobody") is None

    async def test_a_key_is_revoked_once(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        record, digest = a_key(name)
        await store.add_key(record, digest)
        for now in (NOW + 5, NOW + 9):
            revoked = await store.revoke_key(record.key_id, now)
            assert revoked is not None
            assert revoked.revoked_at == NOW + 5
        assert digest not in (await contents(store))[1]
        assert await store.key(record.key_id) == revoked
        assert await store.revoke_key("key_nobody", NOW) is None

    @pytest.mark.parametrize(
        ("overlap_s", "expires_at", "ends_at"),
        [(0.0, None, None), (60.0, None, NOW + 61), (60.0, NOW + 30, NOW + 30)],
    )
    async def test_a_key_is_rotated(
        self, opener: Opener, overlap_s: float, expires_at: float | None, ends_at: float | None
    ) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        old, old_digest = a_key(name, label="ci", expires_at=expires_at)
        await store.add_key(old, old_digest)
        new, digest = a_key("")
        rotated = await store.rotate_key(old.key_id, new, digest, now=NOW + 1, overlap_s=overlap_s)
        assert rotated is not None
        assert (rotated.key_id, rotated.account_id, rotated.label, rotated.created_at) == (
            *(new.key_id, name, "ci", NOW + 1),
        )
        after = await store.key(old.key_id)
        assert after is not None
        assert after.active(NOW + 2) == (ends_at is not None)
        assert after.expires_at == (expires_at if ends_at is None else ends_at)
        assert digest in (await contents(store))[1]

    async def test_only_a_valid_key_is_rotated(self, opener: Opener) -> None:
        store, name = await opener(), account_id()
        await store.create_account(Account(account_id=name), NOW)
        expired, digest = a_key(name, expires_at=NOW + 1)
        await store.add_key(expired, digest)
        new, new_digest = a_key("")
        for key_id in (expired.key_id, "key_nobody"):
            given = await store.rotate_key(key_id, new, new_digest, now=NOW + 1, overlap_s=0)
            assert given is None
        assert await store.key(new.key_id) is None

    async def test_so_many_keys_and_no_more_also_at_once(self, opener: Opener) -> None:
        stores, name = [await opener(), await opener()], account_id()
        await stores[0].create_account(Account(account_id=name), NOW)
        first, digest = a_key(name)
        await stores[0].add_key(first, digest)
        for gone in (a_key(name, revoked_at=NOW), a_key(name, expires_at=NOW)):
            await stores[0].add_key(*gone)  # these count for nothing
        outcomes = await asyncio.gather(
            *(stores[n % 2].add_key(*a_key(name)) for n in range(MAX_ACTIVE_KEYS + 3)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes].count(TooManyKeys) == 4
        assert outcomes.count(True) == MAX_ACTIVE_KEYS - 1
        new, new_digest = a_key("")
        with pytest.raises(TooManyKeys):
            await stores[0].rotate_key(first.key_id, new, new_digest, now=NOW, overlap_s=9)
        assert await stores[0].rotate_key(first.key_id, new, new_digest, now=NOW, overlap_s=0)
