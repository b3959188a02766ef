"""Requests that are sent again to another process: two pods over one transport and one database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.requests import Request

from ingress.idempotency.key import KeyedRequest, keyed_request
from ingress.idempotency.settings import IdempotencySettings
from ingress.stores.sql import SqlStore
from ingress.stores.sql_idempotency import SqlIdempotency
from schemas.blobs.directory import DirectoryStore
from schemas.transport.memory import MemoryTransport
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, Pod, run_worker, serve_pod, until
from tests.sdk.test_idempotency import KEY, WORDS, Runs
from workers.engines.scripted import ScriptedEngine

LONG_S = 60.0


class Pods:
    """Two pods, and what they share."""

    def __init__(self, files: Path, exits: AsyncExitStack, script: Runs) -> None:
        self.files = files
        self.script = script
        self.blobs = DirectoryStore.open(files / "blobs")
        self.pods: list[Pod] = []
        self._exits = exits
        self._memory = MemoryTransport()
        self.store: SqlStore
        self.leaving: list[AsyncExitStack] = []

    async def open(self, **idempotency: Any) -> None:
        engine = ScriptedEngine(served_id=MODEL, script=self.script)
        source = self._memory.job_source(model=MODEL, slots=4)
        self._exits.push_async_callback(source.close)
        await self._exits.enter_async_context(run_worker(engine, source))
        self.store = await self._opened()
        for _ in range(2):
            dispatcher = self._memory.dispatcher()
            self._exits.push_async_callback(dispatcher.close)
            serving = serve_pod(
                dispatcher,
                store=await self._opened(),
                blobs=self.blobs,
                model=MODEL,
                idempotency=IdempotencySettings(look_s=0.01, **idempotency),
            )
            self.leaving.append(await self._exits.enter_async_context(AsyncExitStack()))
            self.pods.append(await self.leaving[-1].enter_async_context(serving))
            await until(self.pods[-1].services.dispatcher.workers)

    async def _opened(self) -> SqlStore:
        store = await SqlStore.open(f"sqlite:///{self.files / 'headrace.db'}")
        self._exits.push_async_callback(store.close)
        return store

    @property
    def keys(self) -> SqlIdempotency:
        return SqlIdempotency(self.store.database)

    async def ask(self, pod: int, dialect: str = "chat", text: str = "Go.", **changes: Any) -> Any:
        async with httpx.AsyncClient(base_url=self.pods[pod].url, timeout=10) as http:
            body = request_body(dialect, text, **changes)
            return await http.post(path_of(dialect), json=body, headers=KEY)

    async def ended(self, pod: int) -> None:
        """Wait until what ran there is written down."""
        await until(lambda: not self.pods[pod].services.keyed_requests.running)


@asynccontextmanager
async def pods(files: Path, script: Runs, **idempotency: Any) -> AsyncIterator[Pods]:
    async with AsyncExitStack() as exits:
        both = Pods(files, exits, script)
        await both.open(**idempotency)
        yield both


@pytest.mark.rule("idempotency.kept")
async def test_a_kept_answer(tmp_path: Path) -> None:
    script = Runs(WORDS)
    async with pods(tmp_path, script, keep_answers=True, linger_s=0) as both:
        for number, dialect in enumerate(ALL):
            for stream in (False, True):
                runs = script.runs
                text = f"Go {number} {stream}"
                key = {"Idempotency-Key": f"{dialect} {stream}"}
                body = orjson.dumps(request_body(dialect, text, stream=stream))
                async with AsyncExitStack() as exits:
                    first, *others = [
                        await (
                            await exits.enter_async_context(httpx.AsyncClient(base_url=pod.url))
                        ).post(
                            path_of(dialect),
                            content=body,
                            headers={**key, "content-type": "application/json"},
                        )
                        for pod in (both.pods[0], both.pods[1], both.pods[0])
                        if await _all_ended(both)
                    ]
                assert (first.status_code, script.runs) == (200, runs + 1)
                for other in others:
                    assert other.content == first.content
                    for name in ("content-type", "content-length", "cache-control"):
                        assert other.headers.get(name) == first.headers.get(name)
                    assert other.headers["x-headrace-replayed"] == "true"
                    assert other.headers["x-request-id"] != first.headers["x-request-id"]
        assert len(await both.blobs.list("answers")) == 2 * len(ALL)
        assert (await both.ask(1)).status_code == 200
        await both.ended(1)
        for blob in await both.blobs.list("answers"):
            await both.blobs.delete(blob)
        runs = script.runs
        assert (await both.ask(0)).status_code == 200  # it is lost, and made anew
        assert script.runs == runs + 1


async def _all_ended(both: Pods) -> bool:
    for pod in (0, 1):
        await both.ended(pod)
    return True


@pytest.mark.rule("idempotency.elsewhere")
async def test_what_runs_elsewhere_is_waited_for(tmp_path: Path) -> None:
    script = Runs(WORDS, 2)
    async with pods(tmp_path, script, keep_answers=True) as both:
        asking = [asyncio.create_task(both.ask(0, stream=True))]
        await script.reached.wait()
        asking += [asyncio.create_task(both.ask(1, stream=True)) for _ in range(2)]
        await until(lambda: both.pods[1].services.keyed_requests.held)
        assert (await both.ask(1, text="Something else.")).status_code == 409
        script.gate.set()
        answers = [await asked for asked in asking]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
    assert script.runs == 1


@pytest.mark.rule("idempotency.elsewhere", "idempotency.failures")
async def test_what_runs_elsewhere_and_is_not_kept(tmp_path: Path) -> None:
    script = Runs(WORDS, 2)
    async with pods(tmp_path, script, linger_s=0) as both:
        asking = asyncio.create_task(both.ask(0))
        await script.reached.wait()
        refused = await both.ask(1)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "idempotent_request_running"
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("5", "true")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await both.ended(0)
        script.gate.set()
        assert (await both.ask(1)).status_code == 200
        await both.ended(1)
        assert (await both.ask(0, text="Something else.")).status_code == 409
        assert (await both.ask(0)).status_code == 200  # it is made anew
    assert script.runs == 3


@pytest.mark.rule("idempotency.store.lease")
async def test_what_a_killed_process_ran(tmp_path: Path) -> None:
    script = Runs(WORDS)
    async with pods(tmp_path, script) as both:
        mine = keyed_of(request_body("chat", "Go."))
        assert await both.keys.claim(mine, "killed", lease_s=LONG_S) is None
        assert (await both.ask(0)).status_code == 409
        await both.keys.renew(["killed"], lease_s=0)
        answers = await asyncio.gather(both.ask(0), both.ask(1))
        assert sorted(answer.status_code for answer in answers) in ([200, 200], [200, 409])
        assert not await both.keys.end(mine, "killed", window_s=LONG_S, kept=True)


@pytest.mark.rule("idempotency.store.lease")
async def test_a_running_request_keeps_its_key(tmp_path: Path) -> None:
    script = Runs(WORDS, 2)
    async with pods(tmp_path, script, lease_s=0.6) as both:
        asking = asyncio.create_task(both.ask(0))
        await script.reached.wait()
        before = await in_database(tmp_path, EXPIRY)

        async def extended() -> bool:
            return await in_database(tmp_path, EXPIRY) > before

        await until(extended)
        script.gate.set()
        assert (await asking).status_code == 200


EXPIRY = "SELECT expires_at FROM idempotent_requests"


async def in_database(files: Path, statement: str) -> list[Any]:
    """In a thread: whoever holds the lock at this moment needs the loop to let go of it."""

    def run() -> list[Any]:
        with closing(sqlite3.connect(files / "headrace.db")) as database, database:
            return database.execute(statement).fetchall()

    return await asyncio.to_thread(run)


@pytest.mark.rule("idempotency.expiry", "idempotency.store.window")
async def test_what_is_kept_is_deleted_after_the_window(tmp_path: Path) -> None:
    script = Runs(WORDS)
    settings = {"keep_answers": True, "linger_s": 0, "sweep_s": 0.05}
    async with pods(tmp_path, script, **settings) as both:
        first = await both.ask(0)
        await both.ended(0)
        assert len(await both.blobs.list("answers")) == 1
        await in_database(tmp_path, "UPDATE idempotent_requests SET expires_at = 1")

        async def gone() -> bool:
            return not await in_database(tmp_path, EXPIRY) and not await both.blobs.list("answers")

        await until(gone)
        other = await both.ask(1, text="Something else.")
        assert (first.status_code, other.status_code) == (200, 200)
        assert "x-headrace-replayed" not in other.headers


@pytest.mark.rule("idempotency.shutdown")
async def test_a_process_that_ends_gives_its_keys_back(tmp_path: Path) -> None:
    script = Runs(WORDS, 2)
    async with pods(tmp_path, script) as both:
        asking = asyncio.create_task(both.ask(0))
        await script.reached.wait()
        await both.leaving[0].aclose()
        assert (await asking).status_code == 503
        script.gate.set()
        assert (await both.ask(1, text="Something else.")).status_code == 200


def keyed_of(body: Any) -> KeyedRequest:
    headers = [(name.lower().encode(), value.encode()) for name, value in KEY.items()]
    request = Request({"type": "http", "headers": headers})
    keyed = keyed_request(request, "anonymous", path_of("chat"), body)
    assert keyed is not None
    return keyed
