"""Who is who: every key and every account that this process knows, in memory.

What the configuration file says is there from the start. What the store has is read once, and again
within a second of any change there. A key is found by one look into a dict.

It never falls open. As long as the store has not been read, a key is asked for, and one that is not
in the file cannot be judged. If the store is away later, what was read last stays in force; keys
expire by the clock all the same. And once keys were asked for they are asked for until the process
ends, whatever is deleted.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from ingress.accounts.account import UNLIMITED, Account
from ingress.accounts.keys import digest_of, own_account
from ingress.accounts.principal import Principal
from ingress.accounts.store import AccountStore, Changes
from ingress.config import Config
from ingress.stores.base import StoreUnavailable

log = structlog.get_logger()

REFRESH_S: Final = 1.0
_START_S: Final = 5.0
"""How long a start waits for the store, which goes on being asked afterwards."""

_OWN: Final = re.compile("[0-9a-f]{24}")


class KnownKey(msgspec.Struct, frozen=True):
    """Whose a key is, what names it, and until when it is valid; None is for ever."""

    key_id: str
    account_id: str
    expires_at: float | None = None


class Entries(msgspec.Struct, frozen=True):
    """Keys by digest, and accounts by id."""

    keys: Mapping[bytes, KnownKey] = {}
    accounts: Mapping[str, Account] = {}


def configured(config: Config, api_keys: Iterable[str] = ()) -> Entries:
    """What the configuration file has, and keys that were given beside it.

    Each key without an account is an account of its own, without limits.
    """
    keys: dict[bytes, KnownKey] = {}
    accounts: dict[str, Account] = {}
    for number, text in enumerate((*config.api_keys, *api_keys), start=1):
        digest = digest_of(text.encode())
        account = Account(account_id=own_account(digest))
        accounts[account.account_id] = account
        keys[digest] = KnownKey(f"key-{number}", account.account_id)
    for written in config.accounts:
        accounts[written.id] = written.account(written.id)
        for name, key in written.named_keys():
            expires_at = key.expires_at.timestamp() if key.expires_at else None
            keys[key.digest] = KnownKey(name, written.id, expires_at)
    return Entries(keys, accounts)


class AccountDirectory:
    """Finds principals by key and accounts by id. Call `run` beside, if there is a store.

    Args:
        fixed: Of the configuration; they come before the store's.
        store: Where further ones are.
        clock: Gives Unix seconds.
    """

    def __init__(
        self,
        fixed: Entries,
        store: AccountStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fixed = fixed
        self._store = store
        self._clock = clock
        self._revision: int | None = None
        self._stale = False
        self._refreshing = asyncio.Lock()
        self._keys = dict(fixed.keys)
        self._accounts = dict(fixed.accounts)
        self._required = bool(fixed.keys or fixed.accounts)

    @property
    def reserved(self) -> Collection[str]:
        """Ids of accounts that the store cannot have."""
        return self._fixed.accounts.keys()

    @property
    def complete(self) -> bool:
        """Whether the store has been read, if there is one."""
        return self._store is None or self._revision is not None

    @property
    def required(self) -> bool:
        """Whether a key is asked for."""
        return self._required or not self.complete

    def find(self, digest: bytes) -> Principal | None:
        """Whom the key of this digest names."""
        known = self._keys.get(digest)
        if known is None or (known.expires_at is not None and self._clock() >= known.expires_at):
            return None
        account = self._accounts.get(known.account_id)  # it may have been deleted with its keys
        return None if account is None else Principal(known.key_id, account)

    def account(self, account_id: str) -> Account | None:
        """The account of an id that was a principal's once; None if it is not there any more.

        One that is not ours to know has no terms: of whoever came without a key, and of a key that
        is listed for other processes only, such as `--api-key` of an ingress.
        """
        found = self._accounts.get(account_id)
        if found is None and (account_id == UNLIMITED.account_id or _OWN.fullmatch(account_id)):
            return Account(account_id=account_id)
        return found

    async def require_known(self, account_id: str) -> None:
        """Look into the store once more if an account is not known: it may be new.

        Raises:
            StoreUnavailable: Then nobody can tell whether it is there.
        """
        if self.account(account_id) is None:
            await self.refresh()

    async def refresh(self) -> None:
        """See what has changed.

        Raises:
            StoreUnavailable: What was known is still.
        """
        if self._store is None:
            return
        async with self._refreshing:
            revision = await self._store.revision()
            if revision == self._revision:
                return
            # One that went back is another database, or an older state of it.
            since = self._revision if self._revision and self._revision < revision else 0
            keys = self._keys if since else dict(self._fixed.keys)
            accounts = self._accounts if since else dict(self._fixed.accounts)
            async for changes in self._store.changes(since):
                self._apply(changes, keys, accounts)
            self._keys, self._accounts, self._revision = keys, accounts, revision
            # Unread, it might have had some: then there are to be keys in any case.
            self._required = self._required or bool(accounts)
            log.debug("accounts.read", revision=revision, since=since, accounts=len(accounts))

    def _apply(
        self, changes: Changes, keys: dict[bytes, KnownKey], accounts: dict[str, Account]
    ) -> None:
        fixed = self._fixed
        for account_id, account in changes.accounts.items():
            if account_id in fixed.accounts:
                log.warning("accounts.hidden", account=account_id, by="configuration file")
            elif account is None:
                accounts.pop(account_id, None)
            else:
                accounts[account_id] = account
        for key in changes.keys:
            if key.account_id in fixed.accounts or key.digest in fixed.keys:
                continue
            if key.revoked:
                keys.pop(key.digest, None)
            else:
                keys[key.digest] = KnownKey(key.key_id, key.account_id, key.expires_at)

    @asynccontextmanager
    async def following(self, *, every_s: float = REFRESH_S) -> AsyncIterator[None]:
        """While the block runs, changes of the store are seen.

        It begins with what the store has, unless that is away.
        """
        if self._store is None:
            yield
            return
        await self._begin()
        task = asyncio.create_task(self._follow(every_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(_START_S):
                await self.refresh()
        except (StoreUnavailable, TimeoutError) as error:
            self._missed(error)
            # Whoever may be in there, the service was never meant to be without them.
            self._required = True

    async def _follow(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except StoreUnavailable as error:
                self._missed(error)
            except Exception as error:  # a fault of ours must not freeze the keys for ever
                log.error("accounts.crashed", error=type(error).__name__, exc_info=error)
            else:
                if self._stale:
                    self._stale = False
                    log.info("accounts.back", revision=self._revision)

    def _missed(self, error: Exception) -> None:
        if not self._stale:
            self._stale = True
            log.warning(
                "accounts.unreachable",
                diagnostic=getattr(error, "diagnostic", None) or type(error).__name__,
                effect="what was read last stays in force"
                if self.complete
                else "only the configuration file's keys are known",
            )
