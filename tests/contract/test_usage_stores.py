"""What every store of usage records promises: in SQLite, and in PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from ingress.stores import schema
from ingress.stores.base import LeaseLost
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from ingress.stores.sql_usage import SqlUsage
from ingress.usage.store import GROUPS, Group, Selection, UsageSum
from schemas.batch import LineResult
from schemas.delta import Usage
from schemas.usage_record import UsageRecord
from tests.contract.store_suite import claimed
from tests.fixtures.postgres import Postgres

DAY = 86_400.0
BEGAN = 20_000 * DAY  # 2024-10-04


def a_record(number: int, **changes: Any) -> UsageRecord:
    return UsageRecord(
        **{
            "record_id": f"{number:032x}",
            "request_id": f"req_{number:012x}",
            "account": "ours",
            "key": "key_1",
            "model": "demo-model",
            "dialect": "chat",
            "began_at": BEGAN + number,
            "status": 200,
            "outcome": "completed",
            "ttft_ms": 1.5,
            "duration_ms": 2.5,
            "usage": Usage(10, 4, 3, 1),
            "microcents": 1_500_000_000_000,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def tables(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'headrace.db'}"
    else:
        url = request.getfixturevalue("tables")
        database = open_database(url)
        await schema.upgrade(database)
        await database.close()
    opened = await SqlStore.open(url)
    yield opened
    await opened.close()
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres")
        await asyncio.to_thread(postgres.run, "TRUNCATE usage_records, batches CASCADE", url=url)


@pytest.fixture
def usage(store: SqlStore) -> SqlUsage:
    return SqlUsage(store.database)


ODD = {
    "request_id": "client_\x00\ud800",
    "key": "\\",
    "batch_id": "batch_1",
    "job_class": "batch",
    "stream": True,
    "zdr": True,
    "outcome": "failed",
    "code": "worker_failed",
    "finish_reason": "length",
    "queue_ms": 0.25,
    "usage": Usage(2**62, 2**61, 2**60, 2**59),
    "worker": "worker-1",
}


@pytest.mark.rule("usage.once")
async def test_a_record_comes_back_as_it_was_and_once(usage: SqlUsage) -> None:
    records = [a_record(1), a_record(2, **ODD)]
    assert await usage.add([*records, records[0]]) == 2
    assert await usage.add([a_record(3), msgspec.structs.replace(records[0], key="later")]) == 1
    assert await usage.records(Selection(), limit=9) == [a_record(3), records[1], records[0]]
    assert await usage.add([]) == 0


async def test_a_large_group_is_kept_whole(usage: SqlUsage) -> None:
    assert await usage.add([a_record(number) for number in range(5000)]) == 5000
    (total,) = await usage.sums(Selection())
    assert (total.requests, total.usage) == (5000, Usage(50_000, 20_000, 15_000, 5_000))
    assert total.microcents == 5000 * 1_500_000_000_000


async def test_pages_hold_each_record_once(usage: SqlUsage) -> None:
    await usage.add([a_record(number, began_at=BEGAN + number // 3) for number in range(10)])
    seen: list[UsageRecord] = []
    while page := await usage.records(
        Selection(), limit=4, after=seen[-1].record_id if seen else None
    ):
        seen += page
    assert seen == [a_record(n, began_at=BEGAN + n // 3) for n in reversed(range(10))]
    assert await usage.records(Selection(), limit=4, after="nobody") == ()


@pytest.mark.rule("usage.sums")
async def test_sums_are_those_of_the_records(usage: SqlUsage) -> None:
    dice = random.Random(7)
    records = [
        a_record(
            number,
            account=dice.choice(["ours", "theirs"]),
            key=dice.choice(["key_1", "key_2"]),
            model=dice.choice(["a", "B"]),
            outcome=dice.choice(["completed", "cancelled", "failed"]),
            began_at=BEGAN + dice.choice([0.0, 0.5, DAY - 0.001, DAY, 1.5 * DAY, 3 * DAY]),
            usage=Usage(*(dice.randrange(1000) for _ in range(4))),
            microcents=dice.randrange(10**9),
        )
        for number in range(200)
    ]
    await usage.add(records)
    everything: list[tuple[Group, ...]] = [(), *((group,) for group in GROUPS), GROUPS]
    for by in everything:
        for which in (
            Selection(),
            Selection(account="ours"),
            Selection(key="key_1", model="B"),
            Selection(start=BEGAN + 0.5, end=BEGAN + 1.5 * DAY, account="theirs"),
        ):
            chosen = [record for record in records if is_chosen(record, which)]
            assert list(await usage.sums(which, by)) == expected(chosen, by)
    assert await usage.sums(Selection(account="nobody"), ("day",)) == []
    assert await usage.sums(Selection(account="nobody")) == [UsageSum()]


@pytest.mark.rule("usage.sums")
async def test_pages_of_sums_hold_each_once(usage: SqlUsage) -> None:
    await usage.add(
        [
            a_record(
                number,
                began_at=BEGAN + number % 3 * DAY,
                account=("ours", "theirs\x00")[number % 2],
                model=("a", "B", "\\b", "\ud800")[number % 4],
            )
            for number in range(24)
        ]
    )
    ways: list[tuple[Group, ...]] = [("day", "account", "model"), ("model", "day"), ("account",)]
    for by in ways:
        seen: list[UsageSum] = []
        after = None
        while page := await usage.sums(Selection(), by, limit=2, after=after):
            assert len(page) <= 2
            seen += page
            after = [getattr(seen[-1], group) for group in by]
        assert seen == await usage.sums(Selection(), by)
    between = await usage.sums(Selection(), ("account", "day"), after=("p", "2024-10-05"))
    assert {used.account for used in between} == {"theirs\x00"}


def is_chosen(record: UsageRecord, which: Selection) -> bool:
    wanted = {"account": which.account, "key": which.key, "model": which.model}
    return (
        all(value in (None, getattr(record, name)) for name, value in wanted.items())
        and (which.start is None or record.began_at >= which.start)
        and (which.end is None or record.began_at < which.end)
    )


def expected(records: list[UsageRecord], by: tuple[Group, ...]) -> list[UsageSum]:
    def place(record: UsageRecord) -> tuple[Any, ...]:
        day = f"2024-10-{4 + int((record.began_at - BEGAN) // DAY):02}"
        return tuple(day if group == "day" else getattr(record, group) for group in by)

    sums = []
    for parts, group in groupby(sorted(records, key=place), key=place):
        found = list(group)
        columns = zip(*(msgspec.structs.astuple(record.usage) for record in found), strict=True)
        sums.append(
            UsageSum(
                **dict(zip(by, parts, strict=True)),
                requests=len(found),
                cancelled=sum(record.outcome == "cancelled" for record in found),
                failed=sum(record.outcome == "failed" for record in found),
                usage=Usage(*map(sum, columns)),
                microcents=sum(record.microcents for record in found),
            )
        )
    return sums


@pytest.mark.rule("usage.kept")
async def test_what_is_too_old_is_forgotten(usage: SqlUsage) -> None:
    await usage.add([a_record(number) for number in range(4500)])
    assert await usage.forget(BEGAN + 4498) == 4498
    assert await usage.forget(BEGAN + 4498) == 0
    assert await usage.records(Selection(), limit=9) == [a_record(4499), a_record(4498)]


def a_line(number: int) -> LineResult:
    record = a_record(number, record_id=f"batch:{number}", usage=Usage(10, 0, number, 0))
    return LineResult(
        line=number, outcome="succeeded", text=b"{}", usage=record.usage, record=record
    )


@pytest.mark.rule("usage.lines")
async def test_a_line_is_kept_with_its_record_or_not_at_all(
    store: SqlStore, usage: SqlUsage
) -> None:
    batch = await claimed(store)
    with pytest.raises(LeaseLost):
        await store.commit(batch.batch_id, "another", [a_line(1)])
    assert await usage.records(Selection(), limit=9) == []
    assert await store.commit(batch.batch_id, "owner", [a_line(1), a_line(2)]) == 2
    again = msgspec.structs.replace(a_line(2), record=a_record(7, record_id="batch:2b"))
    assert await store.commit(batch.batch_id, "owner", [again, a_line(3)]) == 1
    assert await usage.records(Selection(), limit=9) == [a_line(n).record for n in (3, 2, 1)]


async def test_what_is_asked_for_often_has_an_index(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    store = await SqlStore.open(f"sqlite:///{path}")
    usage = SqlUsage(store.database)
    await usage.add([a_record(1)])
    seen: list[tuple[str, Any]] = []

    @sa.event.listens_for(store.database.engine.sync_engine, "before_cursor_execute")
    def see(connection: object, cursor: object, sql: str, parameters: object, *_: object) -> None:
        seen.append((sql, parameters))

    asked = {
        "account": Selection(account="ours", start=BEGAN, end=BEGAN + DAY),
        "all": Selection(start=BEGAN),
    }
    plans = {}
    for name, which in asked.items():
        await usage.sums(which, ("day", "model"))
        await usage.records(which, limit=9)
        await usage.records(which, limit=9, after=a_record(1).record_id)
        plans[name], seen = seen, []
    await usage.forget(BEGAN)
    plans["forget"] = seen
    await store.close()
    indexes = {"account": "account", "all": "began_at", "forget": "began_at"}
    with closing(sqlite3.connect(path)) as connection:
        for name, statements in plans.items():
            for sql, parameters in statements:
                if not sql.startswith(("SELECT", "DELETE")):
                    continue
                plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
                steps = [step[-1] for step in plan]
                index = f"INDEX usage_records_{indexes[name]}_idx"
                by_id = "usage_records_1 (record_id=?)"
                assert any(index in step or by_id in step for step in steps) or (
                    "WHERE usage_records.record_id = ?" in sql
                ), steps
                assert not any(step.startswith("SCAN") for step in steps), steps
                if "GROUP BY" not in sql:
                    assert not any("TEMP B-TREE" in step for step in steps), steps
