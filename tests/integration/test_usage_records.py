"""One record of every request, whatever its end, over a real broker and through its restart.

What is compared: what clients were told, what the engine counted itself, and what is in the store.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry

from ingress.stores.database import open_database
from ingress.stores.sql import SqlStore
from ingress.stores.sql_usage import SqlUsage
from ingress.usage.keeper import Keeper, keeping
from ingress.usage.metrics import UsageMetrics
from ingress.usage.store import Selection
from schemas.codec import encode_records
from schemas.delta import Usage
from schemas.transport import topology
from schemas.transport.rabbit import RabbitDispatcher
from schemas.usage_record import UsageRecord
from tests.contract.test_usage_stores import a_record
from tests.fixtures.answers import read_body, read_stream
from tests.fixtures.broker import BrokerNode
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import Stack, rabbit_stack, sse_data, until
from tests.integration.test_usage import neutral
from workers.engines.base import EngineChunk, EngineRequest
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.broker


class Counted(ScriptedEngine):
    """Counts what it generates, by Job."""

    def __init__(self, model: str) -> None:
        super().__init__(served_id=model)
        self.generated: Counter[str] = Counter()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        async for chunk in super().generate(request):
            self.generated[request.job.job_id] += chunk.output_tokens
            yield chunk


class Client:
    """Asks, and adds up what it is told.

    Attributes:
        told: Usage of the whole answers, all together.
        ends: How many answers were whole, failed and given up.
    """

    def __init__(self, http: httpx.AsyncClient, stack: Stack, model: str) -> None:
        self._http = http
        self._stack = stack
        self._model = model
        self.told: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def ask(
        self, number: int, text: str, *, leave_after_s: float | None = None
    ) -> Literal["whole", "failed", "left"]:
        dialect, stream = ALL[number % len(ALL)], bool(number // len(ALL) % 2)
        body = {**request_body(dialect, text), "model": self._model, "stream": stream}
        if stream and dialect in ("chat", "completions"):
            body["stream_options"] = {"include_usage": True}
        pod = self._stack.pods[number % len(self._stack.pods)]
        try:
            async with asyncio.timeout(leave_after_s):
                response = await self._http.post(pod.url + path_of(dialect), json=body)
        except TimeoutError:
            return self._end("left")
        usage = told_usage(dialect, stream, response)
        if usage is None:
            return self._end("failed")
        self.told.update(input=usage.input_tokens, output=usage.output_tokens)
        return self._end("whole")

    def _end(self, how: Literal["whole", "failed", "left"]) -> Literal["whole", "failed", "left"]:
        self.ends[how] += 1
        return how


def told_usage(dialect: str, stream: bool, response: httpx.Response) -> Usage | None:
    """What a whole answer tells; None of one that failed."""
    if response.status_code != 200:
        return None
    if dialect == "completions":
        data = sse_data(response.content) if stream else [response.content]
        usage = orjson.loads([piece for piece in data if piece != b"[DONE]"][-1]).get("usage")
        return None if usage is None else neutral(dialect, usage)
    answer = (read_stream if stream else read_body)(dialect, response.content)
    return None if answer.failed else neutral(dialect, answer.usage)


@asynccontextmanager
async def kept(url: str, store: SqlStore) -> AsyncIterator[None]:
    """What a batcher does for usage."""
    dispatcher = await RabbitDispatcher.connect(url, name="batcher")
    metrics = UsageMetrics(CollectorRegistry())
    try:
        async with keeping(Keeper(dispatcher.records, SqlUsage(store.database), metrics)):
            yield
    finally:
        await dispatcher.close()


async def records_in(store: SqlStore) -> Sequence[UsageRecord]:
    return await SqlUsage(store.database).records(Selection(), limit=10_000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await SqlStore.open(f"sqlite:///{tmp_path / 'headrace.db'}")
    yield opened
    await opened.close()


def output_of(records: Sequence[UsageRecord]) -> int:
    return sum(record.usage.output_tokens for record in records)


@pytest.mark.rule("usage.every-request", "usage.outlasts")
async def test_every_request_has_one_true_record(
    own_broker: BrokerNode, model: str, store: SqlStore
) -> None:
    dice = random.Random(3)
    engine = Counted(model)
    with structlog.testing.capture_logs() as lines:
        async with (
            rabbit_stack(own_broker.url, [engine], pods=2, store=store) as stack,
            httpx.AsyncClient(timeout=30, limits=httpx.Limits()) as http,
        ):
            client = Client(http, stack, model)

            async def load(count: int) -> None:
                async with asyncio.TaskGroup() as asking:
                    for number in range(count):
                        text = f"[[k={dice.randrange(1, 12)} gap=5]]"
                        leave_after_s = None
                        if number % 3 == 0:
                            text = "[[k=60 gap=40]]"
                            leave_after_s = dice.uniform(0.0, 1.5)
                        elif number % 7 == 0:
                            text += f"[[fail:{dice.choice(['start', '1', '4'])}]]"
                        asking.create_task(client.ask(number, text, leave_after_s=leave_after_s))

            await load(60)
            await until(lambda: is_over(stack))
            before = set(engine.generated)
            # These go on with another attempt when the broker is back.
            moved = [asyncio.create_task(client.ask(n, "[[k=20 gap=100]]")) for n in range(8)]
            await until(lambda: len(set(engine.generated) - before) == 8)
            await asyncio.to_thread(own_broker.stop)
            through = set(engine.generated) - before
            await asyncio.to_thread(own_broker.start)
            assert await asyncio.gather(*moved) == ["whole"] * 8
            async with kept(own_broker.url, store):
                await load(60)
                await until(lambda: is_over(stack))
                ended = [line for line in lines if line["event"] == "request.completed"]
                await until(lambda: _has(store, len(ended)), timeout_s=10)
        records = await records_in(store)
    assert {record.record_id for record in records} == {line["job_id"] for line in ended}
    assert len(records) == len(ended)
    outcomes = Counter(record.outcome for record in records)
    assert outcomes["completed"] == client.ends["whole"] > 70
    assert outcomes["failed"] == client.ends["failed"] > 9
    assert 10 < outcomes["cancelled"] <= client.ends["left"]  # some leave before they are known

    whole = [record for record in records if record.outcome == "completed"]
    assert sum(record.usage.input_tokens for record in whole) == client.told["input"]
    assert output_of(whole) == client.told["output"]
    for record in records:
        if record.record_id not in through:
            assert record.usage.output_tokens == engine.generated[record.record_id], record
    aborted = [record for record in records if record.outcome == "cancelled"]
    assert output_of(aborted) > 20


def is_over(stack: Stack) -> bool:
    return not any(pod.services.answers for pod in stack.pods)


async def _has(store: SqlStore, count: int) -> bool:
    return len(await records_in(store)) >= count


@pytest.mark.rule("usage.kept-once-over-broker")
async def test_what_was_not_kept_comes_again_and_what_makes_no_sense_is_set_aside(
    own_broker: BrokerNode, store: SqlStore, tmp_path: Path
) -> None:
    path = tmp_path / "headrace.db"
    impatient = SqlStore(open_database(f"sqlite:///{path}", busy_timeout_s=0.1))
    other = sqlite3.connect(path, isolation_level=None)
    dispatcher = await RabbitDispatcher.connect(own_broker.url, name="ingress")
    try:
        records = [a_record(number, model="m") for number in range(5)]
        await dispatcher.records.put(encode_records(records[:3]))
        senseless = (
            b"not json",
            b'{"version":999,"records":[]}',
            encode_records([a_record(9, usage=Usage(2**63, 0, 0, 0))]),
        )
        for body in senseless:
            await dispatcher.records.put(body)
        await dispatcher.records.put(encode_records(records[2:]))
        other.execute("BEGIN IMMEDIATE")  # now nobody else can write
        with structlog.testing.capture_logs() as lines:
            async with kept(own_broker.url, impatient):
                await until(lambda: any(line["event"] == "batch.store_away" for line in lines))
                assert await records_in(store) == []
                other.execute("COMMIT")
                await until(lambda: _has(store, 5))
                await until(lambda: _ready(own_broker, topology.USAGE_QUEUE, 0))
        assert await records_in(store) == records[::-1]
        await until(lambda: _ready(own_broker, topology.DEAD_QUEUE, len(senseless)))

        # Somebody deletes the queue: it is there again for the next records.
        await asyncio.to_thread(own_broker.ctl, "delete_queue", topology.USAGE_QUEUE)
        late = a_record(6)
        with pytest.raises(ConnectionError):
            await dispatcher.records.put(encode_records([late]))
        await dispatcher.records.put(encode_records([late]))
        async with kept(own_broker.url, store):
            await until(lambda: _has(store, 6))
    finally:
        other.close()
        await impatient.close()
        await dispatcher.close()
        await asyncio.to_thread(own_broker.ctl, "purge_queue", topology.DEAD_QUEUE)


async def _ready(broker: BrokerNode, queue: str, count: int) -> bool:
    rows: list[Any] = await broker.rows("queues", "name", "messages")
    return [queue, str(count)] in rows
