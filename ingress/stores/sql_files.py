"""Records of files in an SQL database: one half of `SqlStore`.

Source: the port, `ingress.stores.base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores.base import FileInUse, Page
from ingress.stores.database import Database
from ingress.stores.tables import UNFINISHED_SQL, batches, file_of, file_row, files
from schemas.batch import FilePurpose, StoredFile

_needed_by_a_batch = (
    sa.select(sa.literal(1))
    .select_from(batches)
    .where(batches.c.input_file_id == files.c.file_id, UNFINISHED_SQL)
    .exists()
)


class SqlFiles:
    """The part of the port that is about files."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_file(self, file: StoredFile) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(sa.insert(files).values(file_row(file)))

        await self._database.write(work)

    async def file(self, account: str, file_id: str, now: float) -> StoredFile | None:
        query = sa.select(files).where(*_named(account, file_id), _there(now))

        async def work(connection: AsyncConnection) -> StoredFile | None:
            row = (await connection.execute(query)).mappings().first()
            return file_of(row) if row else None

        return await self._database.read(work)

    async def files(
        self,
        account: str,
        *,
        now: float,
        limit: int,
        purpose: FilePurpose | None = None,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Page[StoredFile] | None:
        place = sa.tuple_(files.c.created_at, files.c.file_id)
        query = sa.select(files).where(files.c.account == account, _there(now))
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        columns = (files.c.created_at, files.c.file_id)
        query = query.order_by(*(getattr(column, order)() for column in columns)).limit(limit + 1)

        async def work(connection: AsyncConnection) -> Page[StoredFile] | None:
            page = query
            if after is not None:
                # One that has expired in the meantime still says where to go on.
                last = sa.select(*columns).where(*_named(account, after))
                found = (await connection.execute(last)).first()
                if found is None:
                    return None
                there = tuple(found)
                page = page.where(place > there if order == "asc" else place < there)
            rows = (await connection.execute(page)).mappings().all()
            return Page(items=tuple(map(file_of, rows[:limit])), more=len(rows) > limit)

        return await self._database.read(work)

    async def delete_file(self, account: str, file_id: str, now: float) -> StoredFile | None:
        there = (*_named(account, file_id), _there(now))
        delete = sa.delete(files).where(*there, ~_needed_by_a_batch).returning(*files.c)

        async def work(connection: AsyncConnection) -> StoredFile | None:
            deleted = (await connection.execute(delete)).mappings().first()
            if deleted is not None:
                return file_of(deleted)
            if (await connection.execute(sa.select(files.c.file_id).where(*there))).first():
                raise FileInUse
            return None

        return await self._database.write(work)

    async def expired_files(self, now: float, limit: int) -> Sequence[StoredFile]:
        query = (
            sa.select(files)
            .where(files.c.expires_at <= sa.literal(now, sa.Double), ~_needed_by_a_batch)
            .order_by(files.c.expires_at)
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[StoredFile]:
            return [file_of(row) for row in (await connection.execute(query)).mappings()]

        return await self._database.read(work)

    async def forget_file(self, file_id: str) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(sa.delete(files).where(files.c.file_id == file_id))

        await self._database.write(work, repeatable=True)


def _named(account: str, file_id: str) -> tuple[sa.ColumnElement[Any], ...]:
    return files.c.account == account, files.c.file_id == file_id


def _there(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(files.c.expires_at.is_(None), files.c.expires_at > sa.literal(now, sa.Double))
