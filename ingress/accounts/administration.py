"""What those do who run the service: make, change and delete accounts, give and take keys.

The admin API and the command line are two ways to this; it knows neither.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

import msgspec

from ingress.accounts.keys import NewKey, new_key
from ingress.accounts.store import (
    MAX_ACTIVE_KEYS,
    AccountExists,
    AccountRecord,
    AccountStore,
    KeyRecord,
    TooManyKeys,
)
from ingress.accounts.terms import AccountTerms, changed
from ingress.stores.base import Page
from schemas.errors import (
    AccountIdTaken,
    AccountNotFound,
    KeyLimitExceeded,
    KeyNotActive,
    KeyNotFound,
    UnsupportedValue,
)

LONGEST_OVERLAP_S: Final = 90 * 86_400.0


class IssuedKey(msgspec.Struct, frozen=True):
    """A key at the only time it can be shown."""

    text: str
    record: KeyRecord

    def __repr__(self) -> str:
        """Without the key."""
        return f"IssuedKey({self.record.key_id})"


class Administration:
    """Changes accounts and keys of a store.

    Args:
        reserved: Ids that accounts of the configuration have.
        clock: Gives Unix seconds.
    """

    def __init__(
        self,
        store: AccountStore,
        *,
        reserved: Container[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._clock = clock

    # --- Accounts ---------------------------------------------------------------------------------

    async def create_account(self, terms: AccountTerms, account_id: str | None) -> AccountRecord:
        """Make one; its id is made up if none is given.

        Raises:
            AccountIdTaken: The id belongs, or belonged, to another.
        """
        chosen = account_id or f"acct_{secrets.token_hex(6)}"
        try:
            if chosen in self._reserved:
                raise AccountExists
            return await self._store.create_account(terms.account(chosen), self._clock())
        except AccountExists:
            raise AccountIdTaken(
                "There is, or was, an account of this id, and no other can have it.", param="id"
            ) from None

    async def account(self, account_id: str) -> AccountRecord:
        """One account.

        Raises:
            AccountNotFound: There is none.
        """
        return _account(await self._store.account(account_id))

    async def accounts(self, *, limit: int, after: str | None = None) -> Page[AccountRecord]:
        """By id."""
        return await self._store.accounts(limit=limit, after=after)

    async def change_account(self, account_id: str, changes: Mapping[str, Any]) -> AccountRecord:
        """Replace some of its terms.

        Raises:
            AccountNotFound: There is none.
            ValidationError: The terms would make no sense.
        """
        return _account(
            await self._store.change_account(account_id, lambda account: changed(account, changes))
        )

    async def delete_account(self, account_id: str) -> None:
        """Delete it, its keys and its files.

        Raises:
            AccountNotFound: There is none.
        """
        if not await self._store.delete_account(account_id, self._clock()):
            raise _no_account()

    # --- Keys -------------------------------------------------------------------------------------

    async def create_key(
        self, account_id: str, *, label: str = "", expires_at: float | None = None
    ) -> IssuedKey:
        """Make a key of an account.

        Raises:
            AccountNotFound: There is no such account.
            KeyLimitExceeded: It has enough.
            UnsupportedValue: It would have expired.
        """
        record, key = self._new(account_id, label, expires_at)
        if expires_at is not None and expires_at <= record.created_at:
            raise UnsupportedValue("A key cannot expire in the past.", param="expires_at")
        try:
            if not await self._store.add_key(record, key.digest):
                raise _no_account(param="account_id")
        except TooManyKeys:
            raise _enough_keys() from None
        return IssuedKey(key.text, record)

    async def key(self, key_id: str) -> KeyRecord:
        """What may be known of a key.

        Raises:
            KeyNotFound: There is none.
        """
        return _key(await self._store.key(key_id))

    async def keys(
        self, *, limit: int, account_id: str | None = None, after: str | None = None
    ) -> Page[KeyRecord]:
        """By account and creation.

        Raises:
            KeyNotFound: There is no key `after`.
        """
        page = await self._store.keys(limit=limit, account_id=account_id, after=after)
        if page is None:
            raise _no_key(param="after")
        return page

    async def revoke_key(self, key_id: str) -> KeyRecord:
        """Have it not be valid any more, whatever it was.

        Raises:
            KeyNotFound: There is none.
        """
        return _key(await self._store.revoke_key(key_id, self._clock()))

    async def rotate_key(
        self, key_id: str, *, overlap_s: float = 0.0, expires_at: float | None = None
    ) -> IssuedKey:
        """Give a new key for an old one, which is valid for `overlap_s` more.

        Raises:
            KeyNotFound: There is no old one.
            KeyNotActive: It is revoked, or has expired.
            KeyLimitExceeded: With the overlap the account would have too many.
            UnsupportedValue: The new one would have expired.
        """
        record, key = self._new("", "", expires_at)
        if expires_at is not None and expires_at <= record.created_at:
            raise UnsupportedValue("A key cannot expire in the past.", param="expires_at")
        try:
            rotated = await self._store.rotate_key(
                key_id, record, key.digest, now=record.created_at, overlap_s=overlap_s
            )
        except TooManyKeys:
            raise _enough_keys() from None
        if rotated is None:
            await self.key(key_id)
            raise KeyNotActive("Only a valid key can be rotated; make a new one.", param="key_id")
        return IssuedKey(key.text, rotated)

    def _new(
        self, account_id: str, label: str, expires_at: float | None
    ) -> tuple[KeyRecord, NewKey]:
        key = new_key()
        record = KeyRecord(
            key_id=key.key_id,
            account_id=account_id,
            label=label,
            created_at=self._clock(),
            expires_at=expires_at,
        )
        return record, key


def _account(record: AccountRecord | None) -> AccountRecord:
    if record is None:
        raise _no_account()
    return record


def _key(record: KeyRecord | None) -> KeyRecord:
    if record is None:
        raise _no_key()
    return record


def _no_account(param: str = "id") -> AccountNotFound:
    return AccountNotFound("There is no such account.", param=param)


def _no_key(param: str = "id") -> KeyNotFound:
    return KeyNotFound("There is no such key.", param=param)


def _enough_keys() -> KeyLimitExceeded:
    return KeyLimitExceeded(
        f"An account has at most {MAX_ACTIVE_KEYS} active keys; revoke one first."
    )
