"""What a batch needs goes away while it runs, and comes back: it waits, and loses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from ingress.app import build_services
from ingress.settings import IngressSettings
from ingress.stores import schema
from ingress.stores.base import BatchStore, StoreUnavailable
from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from schemas.batch import Batch
from schemas.blobs.base import BlobStore
from schemas.blobs.directory import DirectoryStore
from schemas.transport.base import Dispatcher
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource
from tests.fixtures.batches import add_batch, ended, errors, ids, openai_line, output, run_batcher
from tests.fixtures.broker import Broker, Proxy
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.stack import MODEL, memory_stack, run_worker, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text

pytestmark = pytest.mark.timeout(120)

LEASE_S = 0.4
NAMES = [f"fast{n}" for n in range(3)] + [f"slow{n}" for n in range(5)]
LINES = [openai_line(name, name) for name in NAMES]


class Answers:
    """An engine that answers the slow lines when the gate is opened.

    Attributes:
        runs: How often each line was run.
    """

    def __init__(self, served_id: str = MODEL) -> None:
        self.gate = asyncio.Event()
        self.runs: Counter[str] = Counter()
        self.engine = ScriptedEngine(served_id=served_id, script=self._script, slots=8)

    def _script(self, request: EngineRequest) -> Iterator[Step]:
        name = next(name for name in NAMES if name.encode() in bytes_of(request))
        self.runs[name] += 1
        if name.startswith("slow"):
            yield Gate(self.gate)
        yield Text(name)


def bytes_of(request: EngineRequest) -> bytes:
    return bytes(i for i in request.prompt_ids if i < 256)


@asynccontextmanager
async def running(
    dispatcher: Dispatcher, store: BatchStore, blobs: BlobStore, **settings: Any
) -> AsyncIterator[None]:
    """A batcher on these stores."""
    given = IngressSettings(model=settings.pop("model", MODEL))
    services = build_services(given, dispatcher, store=store, blobs=blobs)
    async with run_batcher(services, **settings):
        yield


async def has_done(store: BatchStore, batch: Batch, lines: int) -> bool:
    found = await store.batch(batch.account, batch.batch_id)
    return found is not None and found.counts.succeeded >= lines


async def require_whole(blobs: BlobStore, batch: Batch) -> None:
    """Every line succeeded, and is in its place once."""
    assert (batch.status, batch.counts.succeeded) == ("completed", len(NAMES))
    assert ids(await output(blobs, batch)) == NAMES
    assert await errors(blobs, batch) == []


@pytest.mark.rule("batch.one-owner")
async def test_a_database_that_is_locked_for_longer_than_a_lease_costs_nobody_a_batch(
    tmp_path: Path,
) -> None:
    answers, path = Answers(), tmp_path / "headrace.db"

    def lease() -> tuple[str, float]:
        row: tuple[str, float] = other.execute(
            "SELECT lease_owner, lease_until FROM batches"
        ).fetchone()
        return row

    async with memory_stack(answers.engine, files=tmp_path) as stack:
        store, blobs = stack.services.store, stack.services.blobs
        assert store is not None
        assert blobs is not None
        added = await add_batch(store, blobs, LINES)
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            async with running(stack.services.dispatcher, store, blobs, lease_s=LEASE_S):
                await until(lambda: has_done(store, added, 3))
                # Whom it waits for is a transaction of this very loop.
                await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
                (owner, _), over_at = lease(), time.time() + 3 * LEASE_S
                await until(lambda: time.time() > over_at)
                other.execute("COMMIT")
                # There is only this one batcher, and it has held the batch all the time.
                await until(lambda: lease()[1] > time.time())
                over_at = lease()[1]
                await until(lambda: time.time() > over_at)
                assert lease()[0] == owner
                answers.gate.set()
                batch = await ended(store, added)
        await require_whole(blobs, batch)
    assert answers.runs == dict.fromkeys(NAMES, 1)


@pytest.mark.rule("batch.outages")
async def test_a_database_that_dies_and_comes_back_has_every_line(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    answers = Answers()
    database = open_database(own_postgres.url)
    await schema.upgrade(database)
    await database.close()
    store, blobs = await SqlStore.open(own_postgres.url), DirectoryStore.open(tmp_path)
    async with memory_stack(answers.engine) as stack:
        added = await add_batch(store, blobs, LINES)
        async with running(stack.services.dispatcher, store, blobs):
            await until(lambda: has_done(store, added, 3))
            await asyncio.to_thread(own_postgres.kill)
            with pytest.raises(StoreUnavailable):
                await has_done(store, added, 3)
            answers.gate.set()  # they end, and nobody can store that
            await until(lambda: not answers.engine._running)
            await asyncio.to_thread(own_postgres.start)
            batch = await ended(store, added)
    await require_whole(blobs, batch)
    assert answers.runs == dict.fromkeys(NAMES, 1)
    await store.close()


@pytest.mark.rule("batch.outages")
async def test_blobs_that_are_away_at_the_start_and_at_the_end_are_waited_for(
    tmp_path: Path,
) -> None:
    answers, there, away = Answers(), tmp_path / "blobs", tmp_path / "elsewhere"
    async with memory_stack(answers.engine, files=tmp_path) as stack:
        store, blobs = stack.services.store, stack.services.blobs
        assert store is not None
        assert blobs is not None
        added = await add_batch(store, blobs, LINES)
        there.rename(away)
        async with running(stack.services.dispatcher, store, blobs):
            await until(lambda: _status_is(store, added, "validating"))
            away.rename(there)
            await until(lambda: has_done(store, added, 3))
            there.rename(away)
            answers.gate.set()
            await until(lambda: _status_is(store, added, "finalizing"))
            assert not there.exists()
            away.rename(there)
            batch = await ended(store, added)
        await require_whole(blobs, batch)
        assert not [key for key in await blobs.list("files") if key.endswith(".part")]
    assert answers.runs == dict.fromkeys(NAMES, 1)


@pytest.mark.rule("batch.outages")
async def test_a_broker_that_is_away_is_waited_for(
    broker: Broker, proxy: Proxy, model: str, tmp_path: Path
) -> None:
    answers = Answers(model)
    lines = [openai_line(name, name, model=model) for name in NAMES]
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    blobs = DirectoryStore.open(tmp_path / "blobs")
    source = await RabbitJobSource.connect(broker.url, model=model, slots=8, name="worker")
    dispatcher = await RabbitDispatcher.connect(proxy.url, name="batcher")
    added = await add_batch(store, blobs, lines)
    async with (
        run_worker(answers.engine, source, announce_interval_s=0.2),
        running(dispatcher, store, blobs, model=model),
    ):
        await until(lambda: has_done(store, added, 3), timeout_s=20)
        await until(lambda: len(answers.runs) == len(NAMES))
        await proxy.refuse()
        await until(lambda: not dispatcher.connected())
        answers.gate.set()  # they end, and nobody hears it
        await until(lambda: not answers.engine._running)
        await proxy.open()
        batch = await ended(store, added, timeout_s=40)
    await dispatcher.close()
    await source.close()
    await require_whole(blobs, batch)
    await store.close()


async def _status_is(store: BatchStore, batch: Batch, status: str) -> bool:
    found = await store.batch(batch.account, batch.batch_id)
    return found is not None and found.status == status
