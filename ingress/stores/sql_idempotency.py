"""Keys of idempotent requests in an SQL database, by its own clock.

A key is claimed by inserting its row, which only one can. Whoever finds a row there holds it until
the transaction ends, as in `ingress.stores.sql`.

Source: the port, `ingress.idempotency.store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.idempotency.key import KeyedRequest
from ingress.idempotency.store import Earlier, KeyConflict
from ingress.stores.database import Database
from ingress.stores.tables import idempotent_requests as requests

_OWNERS_AT_ONCE: Final = 500


class SqlIdempotency:
    """An `IdempotencyStore` in an SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._now: sa.ColumnElement[float] = (
            (sa.func.julianday("now") - 2440587.5) * 86400.0
            if database.is_sqlite
            else sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
        )

    async def claim(self, request: KeyedRequest, owner: str, *, lease_s: float) -> Earlier | None:
        """See the port."""
        claimed = {
            "request_digest": request.digest,
            "owner": owner,
            "running": True,
            "kept": False,
            "created_at": self._now,
            "expires_at": self._now + lease_s,
        }
        insert = (
            self._insert(requests)
            .values(account=request.account, key_digest=request.key, **claimed)
            .on_conflict_do_nothing()
        )
        find = sa.select(requests, self._now.label("now")).where(*_of(request)).with_for_update()
        take = sa.update(requests).where(*_of(request)).values(claimed)

        async def work(connection: AsyncConnection) -> Earlier | None:
            while not (await connection.execute(insert)).rowcount:
                row = (await connection.execute(find)).first()
                if row is None:
                    continue  # it was deleted in between
                if row.expires_at > row.now:
                    if row.request_digest != request.digest:
                        raise KeyConflict
                    if row.kept or (row.running and row.owner != owner):
                        return _earlier(row)
                await connection.execute(take)
                return None
            return None

        return await self._database.write(work, repeatable=True)

    async def renew(self, owners: Sequence[str], *, lease_s: float) -> None:
        """See the port."""
        renew = sa.update(requests).values(expires_at=self._now + lease_s)

        async def work(connection: AsyncConnection) -> None:
            for first in range(0, len(owners), _OWNERS_AT_ONCE):
                some = owners[first : first + _OWNERS_AT_ONCE]
                theirs = requests.c.owner.in_(some)
                await connection.execute(renew.where(theirs, requests.c.running))

        await self._database.write(work, repeatable=True)

    async def end(self, request: KeyedRequest, owner: str, *, window_s: float, kept: bool) -> bool:
        """See the port."""
        mine = (*_of(request), requests.c.owner == owner)
        find = sa.select(requests.c.running).where(*mine).with_for_update()
        end = (
            sa.update(requests)
            .where(*mine, requests.c.running)
            .values(running=False, kept=kept, expires_at=requests.c.created_at + window_s)
        )

        async def work(connection: AsyncConnection) -> bool:
            found = (await connection.execute(find)).first() is not None
            await connection.execute(end)
            return found

        return await self._database.write(work, repeatable=True)

    async def release(self, request: KeyedRequest, owner: str) -> None:
        """See the port."""
        await self._delete(*_of(request), requests.c.owner == owner, requests.c.running)

    async def expired(self, limit: int) -> Sequence[Earlier]:
        """See the port."""
        find = (
            sa.select(requests)
            .where(requests.c.expires_at <= self._now)
            .order_by(requests.c.expires_at)
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[Earlier]:
            return [_earlier(row) for row in await connection.execute(find)]

        return await self._database.read(work)

    async def forget(self, earlier: Earlier) -> None:
        """See the port."""
        await self._delete(
            requests.c.account == earlier.account,
            requests.c.key_digest == earlier.key,
            requests.c.created_at == earlier.created_at,
        )

    async def _delete(self, *where: sa.ColumnElement[bool]) -> None:
        delete = sa.delete(requests).where(*where)

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete)

        await self._database.write(work, repeatable=True)


def _of(request: KeyedRequest) -> tuple[sa.ColumnElement[bool], ...]:
    return requests.c.account == request.account, requests.c.key_digest == request.key


def _earlier(row: Any) -> Earlier:
    return Earlier(
        account=row.account, key=row.key_digest, created_at=row.created_at, kept=row.kept
    )
