"""The batch store in an SQL database: SQLite for one machine, PostgreSQL for many.

Whoever changes a batch holds its row until the transaction ends: by `SELECT … FOR UPDATE` in
PostgreSQL, and in SQLite since there is one writer at a time. Lists and results are read by key, a
part at a time, so that neither memory nor a transaction grows with what there is to read.

Source: the port, `ingress.stores.base`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores import schema
from ingress.stores.base import (
    BatchLimitReached,
    Idempotency,
    IdempotencyConflict,
    LeaseLost,
    Page,
    StoreUnavailable,
)
from ingress.stores.database import UNAVAILABLE, Database, Work, open_database
from ingress.stores.sql_files import SqlFiles
from ingress.stores.sql_usage import add_records
from ingress.stores.tables import (
    BATCH_COLUMNS,
    ENDED_SQL,
    UNFINISHED_SQL,
    batch_of,
    batch_row,
    batches,
    file_row,
    files,
    idempotency,
    result_row,
    results,
)
from schemas.batch import Batch, LineResult, Outcome, Shape, StoredFile
from schemas.delta import Usage

T = TypeVar("T")

Row: TypeAlias = sa.Row[*tuple[Any, ...]]

_INDEX_PAGE: Final = 2000
"""Lines whose numbers, or sizes, are read at once."""

_PAGE_BYTES: Final = 4 << 20
"""Results that are read at once, unless a single one is larger."""

_DROPPED_AT_ONCE: Final = 2000

_COUNTED: Final = ("succeeded", "errored", "cancelled", "expired")


class _LookedAtLater(Database):
    """A database that is not worked with before its tables have been found to be the right ones."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.engine, one_writer=database.is_sqlite)
        self._unseen: Database | None = database

    async def read(self, work: Work[T]) -> T:
        await self._look()
        return await super().read(work)

    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        await self._look()
        return await super().write(work, repeatable=repeatable)

    async def _look(self) -> None:
        if self._unseen is None:
            return
        found = await schema.status(self._unseen)
        try:
            schema.require_current(found)
        except schema.SchemaMismatch as error:
            raise StoreUnavailable(UNAVAILABLE, diagnostic=str(error)) from error
        self._unseen = None


class SqlStore(SqlFiles):
    """A `BatchStore` in an SQL database."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert

    @classmethod
    async def open(cls, url: str) -> SqlStore:
        """The store at a URL. A new or older SQLite database is brought up to date.

        Raises:
            BadDatabaseUrl: There cannot be a database at this URL.
            SchemaMismatch: The tables are not those that this program needs.
            StoreUnavailable: The database cannot be reached.
        """
        database = open_database(url)
        try:
            found = await schema.status(database)
            if database.is_sqlite and found.revision != found.newest:
                await schema.upgrade(database)
            else:
                schema.require_current(found)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @classmethod
    def at(cls, url: str) -> SqlStore:
        """The store at a URL, where nothing may be yet: its tables are looked at when it is there.

        Until they are as they must be, every method raises `StoreUnavailable`.

        Raises:
            BadDatabaseUrl: There cannot be a database at this URL.
        """
        return cls(_LookedAtLater(open_database(url)))

    @property
    def database(self) -> Database:
        """Where it is, for the other stores in it."""
        return self._database

    async def close(self) -> None:
        await self._database.close()

    # --- Batches ----------------------------------------------------------------------------------

    async def add_batch(
        self, batch: Batch, *, idempotency: Idempotency | None = None, max_unfinished: int
    ) -> Batch:
        unfinished = (
            sa.select(sa.func.count())
            .select_from(batches)
            .where(batches.c.account == batch.account, UNFINISHED_SQL)
        )

        async def work(connection: AsyncConnection) -> Batch:
            await self._hold_account(connection, batch.account)
            if idempotency is not None:
                await _forget_old(connection, batch.account, idempotency)
                first = await _first_made(connection, batch.account, idempotency)
                if first is not None:
                    return first
            if (await connection.execute(unfinished)).scalar_one() >= max_unfinished:
                raise BatchLimitReached
            await connection.execute(sa.insert(batches).values(batch_row(batch)))
            if idempotency is not None:
                await _remember(connection, batch, idempotency)
            return batch

        return await self._database.write(work)

    async def made_before(self, account: str, idempotency: Idempotency) -> Batch | None:
        async def work(connection: AsyncConnection) -> Batch | None:
            return await _first_made(connection, account, idempotency)

        return await self._database.read(work)

    async def batch(self, account: str, batch_id: str) -> Batch | None:
        async def work(connection: AsyncConnection) -> Batch | None:
            return await _batch(connection, batch_id, account=account)

        return await self._database.read(work)

    async def batches(
        self,
        account: str,
        shape: Shape,
        *,
        limit: int,
        after: str | None = None,
        before: str | None = None,
    ) -> Page[Batch] | None:
        place = (batches.c.created_at, batches.c.batch_id)
        mine = (batches.c.account == account, batches.c.shape == shape)
        newest_first = before is None
        query = (
            sa.select(*BATCH_COLUMNS)
            .where(*mine)
            .order_by(*(column.desc() if newest_first else column.asc() for column in place))
            .limit(limit + 1)
        )
        cursors = [cursor for cursor in (after, before) if cursor is not None]

        async def work(connection: AsyncConnection) -> Page[Batch] | None:
            page = query
            for cursor in cursors:
                named = sa.select(*place).where(*mine, batches.c.batch_id == cursor)
                found = (await connection.execute(named)).first()
                if found is None:
                    return None
                if cursor == after:
                    page = page.where(sa.tuple_(*place) < tuple(found))
                if cursor == before:
                    page = page.where(sa.tuple_(*place) > tuple(found))
            rows = (await connection.execute(page)).mappings().all()
            items = tuple(map(batch_of, rows[:limit]))
            return Page(items=items if newest_first else items[::-1], more=len(rows) > limit)

        return await self._database.read(work)

    async def change_batch(
        self,
        batch_id: str,
        change: Callable[[Batch], Batch],
        *,
        account: str | None = None,
        owner: str | None = None,
        files: Sequence[StoredFile] = (),
    ) -> Batch | None:
        async def work(connection: AsyncConnection) -> Batch | None:
            before = await _batch(connection, batch_id, account=account, owner=owner, held=True)
            if before is None:
                return None
            after = change(before)
            if after != before:
                this = batches.c.batch_id == batch_id
                await connection.execute(sa.update(batches).where(this).values(batch_row(after)))
            await self._add_files(connection, files)
            return after

        # Not run again if nobody knows whether it happened: a change may depend on what it changes.
        return await self._database.write(work)

    async def delete_batch(
        self, account: str, batch_id: str, allowed: Callable[[Batch], None]
    ) -> Batch | None:
        async def work(connection: AsyncConnection) -> Batch | None:
            batch = await _batch(connection, batch_id, account=account, held=True)
            if batch is None:
                return None
            allowed(batch)
            await connection.execute(sa.delete(batches).where(batches.c.batch_id == batch_id))
            return batch

        return await self._database.write(work)

    async def archivable(self, created_before: float, limit: int) -> Sequence[Batch]:
        query = (
            sa.select(*BATCH_COLUMNS)
            .where(
                batches.c.shape == "messages",
                batches.c.results_blob.is_not(None),
                batches.c.created_at < created_before,
                ENDED_SQL,
            )
            .order_by(batches.c.created_at)
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[Batch]:
            return [batch_of(row) for row in (await connection.execute(query)).mappings()]

        return await self._database.read(work)

    # --- What a batcher does ----------------------------------------------------------------------

    async def claim(
        self, owner: str, *, now: float, lease_s: float, without: Collection[str] = ()
    ) -> Batch | None:
        free = sa.or_(batches.c.lease_until.is_(None), batches.c.lease_until <= now)
        if without:
            free = sa.and_(free, batches.c.batch_id.not_in(without))
        oldest = (
            sa.select(batches.c.batch_id)
            .where(UNFINISHED_SQL, free)
            .order_by(batches.c.created_at, batches.c.batch_id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        # If this runs again because its first answer was lost, the batch is held already.
        held = sa.select(*BATCH_COLUMNS).where(UNFINISHED_SQL, batches.c.lease_owner == owner)
        take = (
            sa.update(batches)
            .where(batches.c.batch_id == oldest)
            .values(lease_owner=owner, lease_until=now + lease_s)
            .returning(*BATCH_COLUMNS)
        )

        async def work(connection: AsyncConnection) -> Batch | None:
            row = (await connection.execute(held)).mappings().first()
            row = row or (await connection.execute(take)).mappings().first()
            return batch_of(row) if row else None

        return await self._database.write(work, repeatable=True)

    async def renew(self, batch_id: str, owner: str, *, now: float, lease_s: float) -> Batch:
        renew = (
            sa.update(batches)
            .where(batches.c.batch_id == batch_id, batches.c.lease_owner == owner)
            .values(lease_until=now + lease_s)
            .returning(*BATCH_COLUMNS)
        )

        async def work(connection: AsyncConnection) -> Batch:
            row = (await connection.execute(renew)).mappings().first()
            if row is None:
                raise LeaseLost
            return batch_of(row)

        return await self._database.write(work, repeatable=True)

    async def release(self, batch_id: str, owner: str) -> None:
        release = (
            sa.update(batches)
            .where(batches.c.batch_id == batch_id, batches.c.lease_owner == owner)
            .values(lease_owner=None, lease_until=None)
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(release)

        await self._database.write(work, repeatable=True)

    async def commit(self, batch_id: str, owner: str, results: Sequence[LineResult]) -> int:
        by_line = {result.line: result for result in reversed(results)}  # the first of a line

        async def work(connection: AsyncConnection) -> int:
            batch = await _batch(connection, batch_id, owner=owner, held=True)
            if batch is None:
                raise LeaseLost
            lines = await self._add_results(connection, batch_id, list(by_line.values()))
            new = [by_line[line] for line in lines]
            await _count(connection, batch_id, new)
            await add_records(connection, [r.record for r in new if r.record is not None])
            return len(new)

        return await self._database.write(work, repeatable=True)

    async def committed(self, batch_id: str) -> AsyncIterator[int]:
        last = -1
        while True:
            page = await self._lines(batch_id, results.c.line, after=last)
            for row in page:
                yield row.line
            if len(page) < _INDEX_PAGE:
                return
            last = page[-1].line

    async def results(self, batch_id: str) -> AsyncIterator[tuple[int, Outcome, bytes]]:
        last = -1
        while True:
            size = sa.func.length(results.c.text).label("size")
            page = await self._lines(batch_id, results.c.line, size, after=last)
            for first, final in _parts([(row.line, row.size) for row in page]):
                for row in await self._texts(batch_id, first, final):
                    yield row.line, row.outcome, row.text
            if len(page) < _INDEX_PAGE:
                return
            last = page[-1].line

    async def named_blobs(self, keys: Collection[str]) -> Collection[str]:
        ids = [key.rpartition("/")[2] for key in keys]
        of_files = sa.select(files.c.blob).where(files.c.file_id.in_(ids))
        of_results = sa.select(batches.c.results_blob).where(batches.c.batch_id.in_(ids))
        of_inputs = sa.select(batches.c.input_blob).where(
            UNFINISHED_SQL, sa.or_(batches.c.batch_id.in_(ids), batches.c.input_file_id.in_(ids))
        )

        async def work(connection: AsyncConnection) -> Collection[str]:
            named: set[str] = set()
            for query in (of_files, of_results, of_inputs):
                named.update((await connection.execute(query)).scalars())
            return named.intersection(keys)

        return await self._database.read(work)

    async def unfinished_batches(self, limit: int) -> Sequence[Batch]:
        place = (batches.c.created_at, batches.c.batch_id)
        query = sa.select(*BATCH_COLUMNS).where(UNFINISHED_SQL).order_by(*place).limit(limit)

        async def work(connection: AsyncConnection) -> Sequence[Batch]:
            return [batch_of(row) for row in (await connection.execute(query)).mappings()]

        return await self._database.read(work)

    async def unfinished(self) -> AsyncIterator[str]:
        place = (batches.c.created_at, batches.c.batch_id)
        query = sa.select(*place).where(UNFINISHED_SQL).order_by(*place).limit(_INDEX_PAGE)
        while True:
            page = await self._rows(query)
            for row in page:
                yield row.batch_id
            if len(page) < _INDEX_PAGE:
                return
            query = query.where(sa.tuple_(*place) > tuple(page[-1]))

    async def undropped(self, limit: int) -> Sequence[str]:
        query = (
            sa.select(batches.c.batch_id)
            .where(
                ENDED_SQL,
                sa.exists().where(results.c.batch_id == batches.c.batch_id),
            )
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[str]:
            return (await connection.execute(query)).scalars().all()

        return await self._database.read(work)

    async def drop_results(self, batch_id: str) -> None:
        some = (
            sa.select(results.c.line)
            .where(results.c.batch_id == batch_id)
            .order_by(results.c.line)
            .limit(_DROPPED_AT_ONCE)
        )
        delete = sa.delete(results).where(
            results.c.batch_id == batch_id, results.c.line.in_(some.scalar_subquery())
        )

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(delete)).rowcount

        while await self._database.write(work, repeatable=True) == _DROPPED_AT_ONCE:
            pass
        await self._database.give_room_back()

    # --- Parts of transactions --------------------------------------------------------------------

    async def _hold_account(self, connection: AsyncConnection, account: str) -> None:
        """Let nobody else add a batch of this account until the transaction ends."""
        if not self._database.is_sqlite:
            digest = hashlib.sha256(b"headrace account " + _bytes(account)).digest()
            number = int.from_bytes(digest[:8], "big", signed=True)
            lock = sa.select(sa.func.pg_advisory_xact_lock(sa.literal(number, sa.BigInteger)))
            await connection.execute(lock)

    async def _add_files(self, connection: AsyncConnection, new: Sequence[StoredFile]) -> None:
        for file in new:
            insert = self._insert(files).values(file_row(file)).on_conflict_do_nothing()
            await connection.execute(insert)

    async def _add_results(
        self, connection: AsyncConnection, batch_id: str, new: Sequence[LineResult]
    ) -> Sequence[int]:
        """The lines that had no result before."""
        if not new:
            return ()
        insert = self._insert(results).on_conflict_do_nothing().returning(results.c.line)
        rows = [result_row(batch_id, result) for result in new]
        inserted: Sequence[int] = (await connection.execute(insert, rows)).scalars().all()
        return inserted

    async def _lines(self, batch_id: str, *columns: Any, after: int) -> Sequence[Row]:
        query = (
            sa.select(*columns)
            .where(results.c.batch_id == batch_id, results.c.line > after)
            .order_by(results.c.line)
            .limit(_INDEX_PAGE)
        )
        return await self._rows(query)

    async def _texts(self, batch_id: str, first: int, final: int) -> Sequence[Row]:
        query = (
            sa.select(results.c.line, results.c.outcome, results.c.text)
            .where(results.c.batch_id == batch_id, results.c.line.between(first, final))
            .order_by(results.c.line)
        )
        return await self._rows(query)

    async def _rows(self, query: sa.Select[Any]) -> Sequence[Row]:
        async def work(connection: AsyncConnection) -> Sequence[Row]:
            rows: Sequence[Row] = (await connection.execute(query)).all()
            return rows

        return await self._database.read(work)


async def _batch(
    connection: AsyncConnection,
    batch_id: str,
    *,
    account: str | None = None,
    owner: str | None = None,
    held: bool = False,
) -> Batch | None:
    """One batch, `held` until the transaction ends.

    Raises:
        LeaseLost: Not `owner` has its lease.
    """
    query = sa.select(*BATCH_COLUMNS, batches.c.lease_owner).where(batches.c.batch_id == batch_id)
    if account is not None:
        query = query.where(batches.c.account == account)
    if held:
        query = query.with_for_update()
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        return None
    if owner is not None and row["lease_owner"] != owner:
        raise LeaseLost
    return batch_of(row)


async def _first_made(
    connection: AsyncConnection, account: str, request: Idempotency
) -> Batch | None:
    """What the same request made before."""
    query = sa.select(idempotency).where(
        idempotency.c.account == account,
        idempotency.c.key_digest == _digest(request.key),
        idempotency.c.created_at >= request.since,
    )
    used = (await connection.execute(query)).first()
    if used is None:
        return None
    if used.request_digest != request.digest:
        raise IdempotencyConflict
    return await _batch(connection, used.batch_id, account=account)


async def _forget_old(connection: AsyncConnection, account: str, request: Idempotency) -> None:
    too_old = idempotency.c.created_at < request.since
    await connection.execute(
        sa.delete(idempotency).where(idempotency.c.account == account, too_old)
    )


async def _remember(connection: AsyncConnection, batch: Batch, request: Idempotency) -> None:
    insert = sa.insert(idempotency).values(
        account=batch.account,
        key_digest=_digest(request.key),
        request_digest=request.digest,
        batch_id=batch.batch_id,
        created_at=batch.created_at,
    )
    await connection.execute(insert)


async def _count(connection: AsyncConnection, batch_id: str, new: Sequence[LineResult]) -> None:
    added = {
        **{name: sum(result.outcome == name for result in new) for name in _COUNTED},
        **{
            name: sum(getattr(result.usage, name) for result in new)
            for name in Usage.__struct_fields__
        },
    }
    changes = {name: batches.c[name] + amount for name, amount in added.items() if amount}
    if changes:
        this = batches.c.batch_id == batch_id
        await connection.execute(sa.update(batches).where(this).values(changes))


def _parts(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last lines of runs of lines that are small enough together."""
    parts: list[tuple[int, int]] = []
    room = -1
    for line, size in sizes:
        room -= size
        if room < 0:
            parts.append((line, line))
            room = _PAGE_BYTES - size
        else:
            parts[-1] = (parts[-1][0], line)
    return parts


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
