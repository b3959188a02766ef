"""The port of the account store: accounts and the digests of their keys.

It knows no key, only its digest. Every change counts a revision up, in the same transaction, so
that every process sees by one figure that there was one.

All methods raise `StoreUnavailable` where the database cannot be reached or fails. If that comes
while a change is made, the change may have happened all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from ingress.accounts.account import Account
from ingress.stores.base import Page

MAX_ACTIVE_KEYS: Final = 25
"""Of one account: neither revoked nor expired. Source: model catalogue, section 5."""


class AccountExists(Exception):
    """The id is taken, or was, by an account that has been deleted."""


class TooManyKeys(Exception):
    """The account has as many active keys as it may have."""


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An account and when it was made, in Unix seconds."""

    account: Account
    created_at: float


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of a key. Times are Unix seconds.

    Attributes:
        expires_at: It is not valid from then on.
        revoked_at: It has not been valid since.
    """

    key_id: str
    account_id: str
    label: str = ""
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def active(self, now: float) -> bool:
        """Whether it is valid."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyChange(msgspec.Struct, frozen=True):
    """What it takes to know a key, or to forget one that is revoked."""

    digest: bytes
    key_id: str
    account_id: str
    expires_at: float | None
    revoked: bool


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of some accounts and keys.

    Attributes:
        accounts: By id; None is one that was deleted, and its keys with it.
    """

    accounts: Mapping[str, Account | None] = {}
    keys: Sequence[KeyChange] = ()


class AccountStore(Protocol):
    """Where accounts and keys are kept. `now` is Unix seconds."""

    async def revision(self) -> int:
        """Which has moved if anything has changed."""
        ...

    def changes(self, since: int) -> AsyncIterator[Changes]:
        """What was changed after a revision, as it is now, in parts; after 0 all that is there.

        Everything up to the revision that was read before this began is among it.
        """
        ...

    # --- Accounts ---------------------------------------------------------------------------------

    async def create_account(self, account: Account, now: float) -> AccountRecord:
        """Add one.

        Raises:
            AccountExists: Its id cannot be had.
        """
        ...

    async def account(self, account_id: str) -> AccountRecord | None: ...

    async def accounts(self, *, limit: int, after: str | None = None) -> Page[AccountRecord]:
        """By id, from the first that comes `after` this one."""
        ...

    async def change_account(
        self, account_id: str, change: Callable[[Account], Account]
    ) -> AccountRecord | None:
        """Replace an account by what a function makes of it, which may be called more than once.

        What the function raises is raised, and nothing has changed. None if there is none.
        """
        ...

    async def delete_account(self, account_id: str, now: float) -> bool:
        """Delete it with its keys; returns whether it was there.

        Its files expire now. Its id is never given again: whoever got it would see what is left.
        """
        ...

    # --- Keys -------------------------------------------------------------------------------------

    async def add_key(self, key: KeyRecord, digest: bytes) -> bool:
        """Add one; returns whether there is such an account.

        Raises:
            TooManyKeys: The account has enough.
        """
        ...

    async def key(self, key_id: str) -> KeyRecord | None: ...

    async def keys(
        self, *, limit: int, account_id: str | None = None, after: str | None = None
    ) -> Page[KeyRecord] | None:
        """By account and creation; None if there is no key `after`."""
        ...

    async def revoke_key(self, key_id: str, now: float) -> KeyRecord | None:
        """It is not valid any more; one that was revoked stays as it is. None if there is none."""
        ...

    async def rotate_key(
        self, key_id: str, replacement: KeyRecord, digest: bytes, *, now: float, overlap_s: float
    ) -> KeyRecord | None:
        """Add a key of the same account and label; the old one is valid for `overlap_s` more.

        Both happen, or neither. An old key that expires sooner does so.

        Args:
            key_id: Of the old one.
            replacement: The new one, of whatever account and label.
            digest: Of the new one.
            now: When.
            overlap_s: How long both are valid.

        Returns:
            The new key; None if the old one is not there or not valid.

        Raises:
            TooManyKeys: With the overlap there would be too many.
        """
        ...
