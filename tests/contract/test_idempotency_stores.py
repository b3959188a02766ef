"""One suite for every store of idempotency keys: in memory, in SQLite, in PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.idempotency.key import KeyedRequest
from ingress.idempotency.store import IdempotencyStore, KeyConflict, MemoryIdempotencyStore
from ingress.stores import schema
from ingress.stores.database import Database, open_database
from ingress.stores.sql_idempotency import SqlIdempotency
from ingress.stores.tables import idempotent_requests
from tests.fixtures.postgres import Postgres
from tests.fixtures.stack import until

LONG_S = 60.0
SHORT_S = 0.02
ONE = KeyedRequest("ours", b"key", b"one")
OTHER = KeyedRequest("ours", b"key", b"other")


@pytest.fixture(scope="module")
def tables(postgres: Postgres) -> Iterator[str]:
    """A database that the tests fill in turn."""
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


async def two_of(url: str, exits: contextlib.AsyncExitStack) -> Sequence[IdempotencyStore]:
    databases: list[Database] = []
    for _ in range(2):
        databases.append(open_database(url))
        exits.push_async_callback(databases[-1].close)
    await schema.upgrade(databases[0])
    await databases[0].write(_emptied)
    return [SqlIdempotency(database) for database in databases]


async def _emptied(connection: AsyncConnection) -> None:
    await connection.execute(sa.delete(idempotent_requests))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Sequence[IdempotencyStore]]:
    """Those of two processes."""
    async with contextlib.AsyncExitStack() as exits:
        if request.param == "memory":
            yield [MemoryIdempotencyStore()] * 2
        elif request.param == "sqlite":
            yield await two_of(f"sqlite:///{tmp_path / 'headrace.db'}", exits)
        else:
            yield await two_of(request.getfixturevalue("tables"), exits)


@pytest.mark.rule("idempotency.store.one-claims")
async def test_one_of_several_claims_a_key(stores: Sequence[IdempotencyStore]) -> None:
    found = await asyncio.gather(
        *(stores[n % 2].claim(ONE, f"pod-{n}", lease_s=LONG_S) for n in range(8))
    )
    assert found.count(None) == 1
    winner = f"pod-{found.index(None)}"
    assert not any(earlier.kept for earlier in found if earlier)
    assert await stores[0].claim(ONE, winner, lease_s=LONG_S) is None  # who asks twice has it
    others = (KeyedRequest("theirs", b"key", b"one"), KeyedRequest("ours", b"key 2", b"one"))
    for other in others:
        assert await stores[1].claim(other, "pod", lease_s=LONG_S) is None


@pytest.mark.rule("idempotency.store.another-request", "idempotency.store.window")
async def test_a_key_belongs_to_one_request(stores: Sequence[IdempotencyStore]) -> None:
    one, two = stores
    assert await one.claim(ONE, "a", lease_s=LONG_S) is None
    for owner in ("a", "b"):
        with pytest.raises(KeyConflict):
            await two.claim(OTHER, owner, lease_s=LONG_S)
    assert await one.end(ONE, "a", window_s=LONG_S, kept=True)
    with pytest.raises(KeyConflict):
        await two.claim(OTHER, "b", lease_s=LONG_S)
    earlier = await two.claim(ONE, "b", lease_s=LONG_S)
    assert earlier is not None
    assert (earlier.account, earlier.key, earlier.kept) == ("ours", b"key", True)
    await two.forget(earlier)
    assert await two.claim(OTHER, "b", lease_s=LONG_S) is None
    assert await two.end(OTHER, "b", window_s=LONG_S, kept=False)
    assert await one.claim(OTHER, "c", lease_s=LONG_S) is None  # not kept: run again
    with pytest.raises(KeyConflict):
        await two.claim(ONE, "c", lease_s=LONG_S)


@pytest.mark.rule("idempotency.store.release")
async def test_a_key_that_is_given_back(stores: Sequence[IdempotencyStore]) -> None:
    one, two = stores
    assert await one.claim(ONE, "a", lease_s=LONG_S) is None
    await two.release(ONE, "b")  # it is not b's to give
    assert await two.claim(ONE, "b", lease_s=LONG_S) is not None
    await one.release(ONE, "a")
    await one.release(ONE, "a")
    assert await two.claim(OTHER, "b", lease_s=LONG_S) is None
    await two.end(OTHER, "b", window_s=LONG_S, kept=True)
    await two.release(OTHER, "b")  # it has ended
    assert await one.claim(OTHER, "a", lease_s=LONG_S) is not None


@pytest.mark.rule("idempotency.store.lease")
async def test_who_is_silent_loses_its_keys(stores: Sequence[IdempotencyStore]) -> None:
    one, two = stores
    assert await one.claim(ONE, "a", lease_s=SHORT_S) is None

    await until(lambda: is_free(two, OTHER, "b"))
    assert not await one.end(ONE, "a", window_s=LONG_S, kept=True)
    await one.release(ONE, "a")
    earlier = await one.claim(OTHER, "a", lease_s=LONG_S)
    assert earlier is not None
    assert not earlier.kept


async def is_free(store: IdempotencyStore, request: KeyedRequest, owner: str) -> bool:
    try:
        return await store.claim(request, owner, lease_s=LONG_S) is None
    except KeyConflict:
        return False


@pytest.mark.rule("idempotency.store.lease")
async def test_who_speaks_keeps_them(stores: Sequence[IdempotencyStore]) -> None:
    one, two = stores
    mine = [KeyedRequest("ours", name, b"one") for name in (b"1", b"2")]
    for request in mine:
        assert await one.claim(request, "a", lease_s=SHORT_S) is None
    ended = KeyedRequest("ours", b"3", b"one")
    assert await one.claim(ended, "a", lease_s=LONG_S) is None
    await one.end(ended, "a", window_s=SHORT_S, kept=True)
    await one.renew(["a", "unknown"], lease_s=LONG_S)
    await until(lambda: is_free(two, ended, "b"))  # by then so had their leases, but for the rest
    for request in mine:
        assert await two.claim(request, "b", lease_s=LONG_S) is not None


@pytest.mark.rule("idempotency.store.window")
async def test_what_is_over_is_found_and_forgotten(stores: Sequence[IdempotencyStore]) -> None:
    one, two = stores
    for number in range(4):
        request = KeyedRequest("ours", bytes([number]), b"one")
        assert await one.claim(request, "a", lease_s=LONG_S) is None
        if number < 3:
            await one.end(request, "a", window_s=SHORT_S, kept=number == 2)

    async def over() -> bool:
        return len(await two.expired(10)) == 3

    await until(over)
    assert len(await two.expired(2)) == 2
    old = await two.expired(10)
    assert {(one.key, one.kept) for one in old} == {(b"\0", False), (b"\1", False), (b"\2", True)}
    again = KeyedRequest("ours", b"\1", b"other")
    assert await one.claim(again, "b", lease_s=LONG_S) is None
    for earlier in old:
        await two.forget(earlier)
    assert await two.expired(10) == []
    assert await two.claim(again, "c", lease_s=LONG_S) is not None  # a later one is not forgotten


async def test_a_process_remembers_so_many_keys() -> None:
    store = MemoryIdempotencyStore()
    store.MAX_KEYS = 3  # type: ignore[misc]
    for number in range(4):
        await store.claim(KeyedRequest("ours", bytes([number]), b""), "a", lease_s=LONG_S)
    assert await store.claim(KeyedRequest("ours", b"\3", b""), "b", lease_s=LONG_S) is not None
    assert await store.claim(KeyedRequest("ours", b"\0", b""), "b", lease_s=LONG_S) is None
