"""The account store in an SQL database.

Every change begins by counting the revision up. The row of that figure is held until the change is
committed, so changes come one after the other: figures are committed in their order, and what one
change has counted stays true until it is done.

Source: the port, `ingress.accounts.store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.accounts.account import Account
from ingress.accounts.store import (
    MAX_ACTIVE_KEYS,
    AccountExists,
    AccountRecord,
    Changes,
    KeyChange,
    KeyRecord,
    TooManyKeys,
)
from ingress.stores.base import Page
from ingress.stores.database import Database
from ingress.stores.tables import accounts, api_keys, directory_revision, files

log = structlog.get_logger()

T = TypeVar("T")

_PAGE: Final = 500
"""So many are read at once, and others have a turn in between."""

_SHOWN: Final = tuple(api_keys.c[name] for name in KeyRecord.__struct_fields__)


class SqlAccounts:
    """An `AccountStore` in an SQL database."""

    def __init__(self, database: Database, *, page: int = _PAGE) -> None:
        self._database = database
        self._page = page
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._count_up = (
            insert(directory_revision)
            .values(only=1, revision=1)
            .on_conflict_do_update(
                index_elements=[directory_revision.c.only],
                set_={"revision": directory_revision.c.revision + 1},
            )
            .returning(directory_revision.c.revision)
        )

    async def revision(self) -> int:
        return await self._database.read(_revision)

    async def changes(self, since: int) -> AsyncIterator[Changes]:
        # Accounts first: a key is of use only with its account.
        async for rows in self._changed(accounts, accounts.c.account_id, _there, since):
            yield Changes(
                accounts={
                    row["account_id"]: None
                    if row["deleted_at"] is not None
                    else _account(row["account_id"], row["terms"])
                    for row in rows
                }
            )
        valid = api_keys.c.revoked_at.is_(None)
        async for rows in self._changed(api_keys, api_keys.c.key_id, valid, since):
            yield Changes(
                keys=[
                    KeyChange(
                        digest=row["digest"],
                        key_id=row["key_id"],
                        account_id=row["account_id"],
                        expires_at=row["expires_at"],
                        revoked=row["revoked_at"] is not None,
                    )
                    for row in rows
                ]
            )

    async def _changed(
        self, table: sa.Table, key: sa.Column[Any], valid: sa.ColumnElement[bool], since: int
    ) -> AsyncIterator[Sequence[sa.RowMapping]]:
        """Rows in the order of their changes, a page at a time; at first only valid ones."""
        page = sa.select(table).order_by(table.c.revision, key).limit(self._page)
        if not since:
            page = page.where(valid)
        rest = page.where(table.c.revision > since)
        while True:

            async def work(
                connection: AsyncConnection, query: sa.Select[Any] = rest
            ) -> Sequence[sa.RowMapping]:
                return list((await connection.execute(query)).mappings())

            rows = await self._database.read(work)
            if rows:
                yield rows
            if len(rows) < self._page:
                return
            last = (rows[-1]["revision"], rows[-1][key.name])
            rest = page.where(sa.tuple_(table.c.revision, key) > last)

    # --- Accounts ---------------------------------------------------------------------------------

    async def create_account(self, account: Account, now: float) -> AccountRecord:
        add = sa.insert(accounts).values(
            account_id=account.account_id, terms=_terms(account), created_at=now
        )

        async def work(connection: AsyncConnection, revision: int) -> AccountRecord:
            await connection.execute(add.values(revision=revision))
            return AccountRecord(account=account, created_at=now)

        try:
            return await self._change(work)
        except IntegrityError:
            raise AccountExists from None

    async def account(self, account_id: str) -> AccountRecord | None:
        async def work(connection: AsyncConnection) -> AccountRecord | None:
            return await _find(connection, account_id)

        return await self._database.read(work)

    async def accounts(self, *, limit: int, after: str | None = None) -> Page[AccountRecord]:
        query = sa.select(accounts).where(_there).order_by(accounts.c.account_id).limit(limit + 1)
        if after is not None:
            query = query.where(accounts.c.account_id > after)

        async def work(connection: AsyncConnection) -> Page[AccountRecord]:
            rows = (await connection.execute(query)).mappings().all()
            return Page(items=tuple(map(_record, rows[:limit])), more=len(rows) > limit)

        return await self._database.read(work)

    async def change_account(
        self, account_id: str, change: Callable[[Account], Account]
    ) -> AccountRecord | None:
        async def work(connection: AsyncConnection, revision: int) -> AccountRecord | None:
            before = await _find(connection, account_id)
            if before is None:
                return None
            after = change(before.account)
            await connection.execute(
                sa.update(accounts)
                .where(accounts.c.account_id == account_id)
                .values(terms=_terms(after), revision=revision)
            )
            return msgspec.structs.replace(before, account=after)

        return await self._change(work)

    async def delete_account(self, account_id: str, now: float) -> bool:
        delete = (
            sa.update(accounts)
            .where(accounts.c.account_id == account_id, _there)
            .values(deleted_at=now, terms={})
        )
        of_it = api_keys.c.account_id == account_id
        lapse = sa.update(files).where(files.c.account == account_id).values(expires_at=int(now))

        async def work(connection: AsyncConnection, revision: int) -> bool:
            if not (await connection.execute(delete.values(revision=revision))).rowcount:
                return False
            await connection.execute(sa.delete(api_keys).where(of_it))
            await connection.execute(lapse)
            return True

        return await self._change(work)

    # --- Keys -------------------------------------------------------------------------------------

    async def add_key(self, key: KeyRecord, digest: bytes) -> bool:
        async def work(connection: AsyncConnection, revision: int) -> bool:
            if await _find(connection, key.account_id) is None:
                return False
            await _add(connection, key, digest, revision)
            return True

        return await self._change(work)

    async def key(self, key_id: str) -> KeyRecord | None:
        async def work(connection: AsyncConnection) -> KeyRecord | None:
            return await _find_key(connection, key_id)

        return await self._database.read(work)

    async def keys(
        self, *, limit: int, account_id: str | None = None, after: str | None = None
    ) -> Page[KeyRecord] | None:
        place = (api_keys.c.account_id, api_keys.c.created_at, api_keys.c.key_id)
        query = sa.select(*_SHOWN).order_by(*place).limit(limit + 1)
        if account_id is not None:
            query = query.where(api_keys.c.account_id == account_id)

        async def work(connection: AsyncConnection) -> Page[KeyRecord] | None:
            page = query
            if after is not None:
                last = await _find_key(connection, after)
                if last is None:
                    return None
                page = page.where(
                    sa.tuple_(*place) > (last.account_id, last.created_at, last.key_id)
                )
            rows = (await connection.execute(page)).mappings().all()
            items = tuple(KeyRecord(**row) for row in rows[:limit])
            return Page(items=items, more=len(rows) > limit)

        return await self._database.read(work)

    async def revoke_key(self, key_id: str, now: float) -> KeyRecord | None:
        revoke = (
            sa.update(api_keys)
            .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )

        async def work(connection: AsyncConnection, revision: int) -> KeyRecord | None:
            await connection.execute(revoke.values(revision=revision))
            return await _find_key(connection, key_id)

        return await self._change(work, repeatable=True)

    async def rotate_key(
        self, key_id: str, replacement: KeyRecord, digest: bytes, *, now: float, overlap_s: float
    ) -> KeyRecord | None:
        async def work(connection: AsyncConnection, revision: int) -> KeyRecord | None:
            old = await _find_key(connection, key_id)
            if old is None or not old.active(now):
                return None
            if overlap_s:
                ends_at = now + overlap_s
                if old.expires_at is not None:
                    ends_at = min(ends_at, old.expires_at)
                end = {"expires_at": ends_at}
            else:
                end = {"revoked_at": now}
            await connection.execute(
                sa.update(api_keys)
                .where(api_keys.c.key_id == key_id)
                .values(**end, revision=revision)
            )
            new = msgspec.structs.replace(
                replacement, account_id=old.account_id, label=old.label, created_at=now
            )
            await _add(connection, new, digest, revision)
            return new

        return await self._change(work)

    async def _change(
        self,
        work: Callable[[AsyncConnection, int], Awaitable[T]],
        *,
        repeatable: bool = False,
    ) -> T:
        async def counted(connection: AsyncConnection) -> T:
            revision = (await connection.execute(self._count_up)).scalar_one()
            return await work(connection, revision)

        return await self._database.write(counted, repeatable=repeatable)


_there: Final = accounts.c.deleted_at.is_(None)


async def _revision(connection: AsyncConnection) -> int:
    found = (await connection.execute(sa.select(directory_revision.c.revision))).scalar()
    return found or 0


async def _find(connection: AsyncConnection, account_id: str) -> AccountRecord | None:
    query = sa.select(accounts).where(accounts.c.account_id == account_id, _there)
    row = (await connection.execute(query)).mappings().first()
    return _record(row) if row else None


async def _find_key(connection: AsyncConnection, key_id: str) -> KeyRecord | None:
    query = sa.select(*_SHOWN).where(api_keys.c.key_id == key_id)
    row = (await connection.execute(query)).mappings().first()
    return KeyRecord(**row) if row else None


async def _add(connection: AsyncConnection, key: KeyRecord, digest: bytes, revision: int) -> None:
    now = key.created_at
    active = sa.select(sa.func.count()).where(
        api_keys.c.account_id == key.account_id,
        api_keys.c.revoked_at.is_(None),
        sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > sa.literal(now, sa.Double)),
    )
    if (await connection.execute(active)).scalar_one() >= MAX_ACTIVE_KEYS:
        raise TooManyKeys
    row = {**msgspec.structs.asdict(key), "digest": digest, "revision": revision}
    await connection.execute(sa.insert(api_keys).values(row))


def _record(row: sa.RowMapping) -> AccountRecord:
    return AccountRecord(
        account=_account(row["account_id"], row["terms"]), created_at=row["created_at"]
    )


def _terms(account: Account) -> dict[str, Any]:
    terms = msgspec.to_builtins(account)
    del terms["account_id"]
    return dict(terms)


def _account(account_id: str, terms: dict[str, Any]) -> Account:
    """The account of stored terms; a disabled one if they are of a kind that we do not know."""
    try:
        return msgspec.convert({**terms, "account_id": account_id}, Account)
    except msgspec.ValidationError:
        log.error("accounts.unreadable", account=account_id)
        return Account(account_id=account_id, disabled=True)
