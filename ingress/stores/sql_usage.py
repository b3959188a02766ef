"""Usage records in an SQL database.

Source: the port, `ingress.usage.store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores.database import Database
from ingress.stores.tables import usage_records
from ingress.usage.store import Group, Selection, UsageSum
from schemas.delta import Usage
from schemas.usage_record import UsageRecord

_DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FORGOTTEN_AT_ONCE: Final = 2000

_FIELDS: Final = tuple(name for name in UsageRecord.__struct_fields__ if name != "usage")
_COLUMNS: Final = usage_records.c


class SqlUsage:
    """A `UsageStore` in an SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, records: Sequence[UsageRecord]) -> int:
        async def work(connection: AsyncConnection) -> int:
            return await add_records(connection, records)

        return await self._database.write(work, repeatable=True)

    async def sums(
        self,
        which: Selection,
        by: Sequence[Group] = (),
        *,
        limit: int | None = None,
        after: Sequence[str] | None = None,
    ) -> Sequence[UsageSum]:
        parts = [self._part(group) for group in by]
        conditions = [*_conditions(which)]
        if after is not None:
            last = [_value(group, part) for group, part in zip(by, after, strict=True)]
            conditions.append(sa.tuple_(*parts) > tuple(last))
        query = (
            sa.select(
                *(part.label(group) for group, part in zip(by, parts, strict=True)),
                sa.func.count().label("requests"),
                *(_total(_COLUMNS.outcome == name, name) for name in ("cancelled", "failed")),
                *(_total(_COLUMNS[name], name) for name in Usage.__struct_fields__),
                _total(_COLUMNS.microcents, "microcents"),
            )
            .where(*conditions)
            .group_by(*parts)
            .order_by(*parts)
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[UsageSum]:
            return [_sum_of(row) for row in (await connection.execute(query)).mappings()]

        return await self._database.read(work)

    async def records(
        self, which: Selection, *, limit: int, after: str | None = None
    ) -> Sequence[UsageRecord]:
        place = (_COLUMNS.began_at, _COLUMNS.record_id)
        query = (
            sa.select(usage_records)
            .where(*_conditions(which))
            .order_by(*(column.desc() for column in place))
            .limit(limit)
        )

        async def work(connection: AsyncConnection) -> Sequence[UsageRecord]:
            page = query
            if after is not None:
                named = sa.select(*place).where(_COLUMNS.record_id == after)
                found = (await connection.execute(named)).first()
                if found is None:
                    return ()
                page = page.where(sa.tuple_(*place) < tuple(found))
            return [record_of(row) for row in (await connection.execute(page)).mappings()]

        return await self._database.read(work)

    async def forget(self, before: float) -> int:
        old = (
            sa.select(_COLUMNS.record_id)
            .where(_COLUMNS.began_at < before)
            .order_by(_COLUMNS.began_at)
            .limit(_FORGOTTEN_AT_ONCE)
        )
        delete = sa.delete(usage_records).where(_COLUMNS.record_id.in_(old.scalar_subquery()))

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(delete)).rowcount

        forgotten = 0
        while deleted := await self._database.write(work, repeatable=True):
            forgotten += deleted
        if forgotten:
            await self._database.give_room_back()
        return forgotten

    def _part(self, group: Group) -> sa.ColumnElement[Any]:
        if group != "day":
            return _COLUMNS[group]
        days = _COLUMNS.began_at / float(_DAY_S)
        if not self._database.is_sqlite:  # which cuts off where PostgreSQL rounds
            days = sa.func.floor(days)
        return sa.cast(days, sa.Integer)


async def add_records(connection: AsyncConnection, records: Sequence[UsageRecord]) -> int:
    """Keep records within a transaction; returns how many were new."""
    if not records:
        return 0
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(usage_records).on_conflict_do_nothing().returning(_COLUMNS.record_id)
    rows = [row_of(record) for record in records]
    return len((await connection.execute(statement, rows)).scalars().all())


def row_of(record: UsageRecord) -> dict[str, Any]:
    """A record as a row."""
    fields = {name: getattr(record, name) for name in _FIELDS}
    return {**fields, **msgspec.structs.asdict(record.usage)}


def record_of(row: sa.RowMapping) -> UsageRecord:
    """A row as a record."""
    return UsageRecord(**{name: row[name] for name in _FIELDS}, usage=_usage_of(row))


def _conditions(which: Selection) -> Sequence[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = [
        _COLUMNS[name] == wanted
        for name in ("account", "key", "model")
        if (wanted := getattr(which, name)) is not None
    ]
    if which.start is not None:
        found.append(_COLUMNS.began_at >= which.start)
    if which.end is not None:
        found.append(_COLUMNS.began_at < which.end)
    return found


def _value(group: Group, part: str) -> int | str:
    """What is told of a sum, as the database has it."""
    return date.fromisoformat(part).toordinal() - _EPOCH if group == "day" else part


def _total(column: Any, name: str) -> sa.ColumnElement[int]:
    """A sum that is a whole number, also of nothing; PostgreSQL's own is a decimal."""
    if isinstance(column.type, sa.Boolean):
        column = sa.case((column, 1), else_=0)
    return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger).label(name)


def _sum_of(row: sa.RowMapping) -> UsageSum:
    day = row.get("day")
    return UsageSum(
        day=None if day is None else date.fromordinal(_EPOCH + day).isoformat(),
        model=row.get("model"),
        account=row.get("account"),
        key=row.get("key"),
        requests=row["requests"],
        cancelled=row["cancelled"],
        failed=row["failed"],
        usage=_usage_of(row),
        microcents=row["microcents"],
    )


def _usage_of(row: sa.RowMapping) -> Usage:
    return Usage(**{name: row[name] for name in Usage.__struct_fields__})
