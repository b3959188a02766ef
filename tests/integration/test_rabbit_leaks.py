"""After any amount of trouble, both ends and the broker hold what they held when idle."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from schemas.errors import ServiceError
from schemas.transport import topology
from schemas.transport.base import Delivery, ReplyLost
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.contract.transport_suite import a_job, a_message, serving, the_end
from tests.fixtures.broker import BrokerNode, Proxy
from tests.fixtures.stack import until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

REQUESTS = 300


async def at_broker(node: BrokerNode, model: str) -> dict[str, Any]:
    """What the broker holds, by kind and number; names of private queues change.

    Job queues of other models are left out: some go by themselves, a while after their workers.
    """

    def kind(name: str) -> str:
        return name.rpartition(".")[0] if "jobs" not in name else name

    queues = await node.rows("queues", "name", "messages")
    channels = await node.rows("channels", "messages_unacknowledged")
    return {
        "queues": Counter(kind(name) for name, _ in queues if model in name or "jobs" not in name),
        "messages": {name: int(count) for name, count in queues if int(count)},
        "consumers": len(await node.rows("consumers", "queue_name")),
        "channels": len(channels),
        "unacknowledged": sum(int(count) for (count,) in channels),
        "connections": len(await node.rows("connections", "pid")),
    }


def in_objects(dispatcher: RabbitDispatcher, sources: list[RabbitJobSource]) -> dict[str, Any]:
    pool = dispatcher._pool
    connections = [dispatcher._connection, *(source._connection for source in sources)]
    sessions = [connection._session for connection in connections]
    return {
        "replies": len(dispatcher._replies),
        "cancels": len(dispatcher._cancels),
        "reply queues": (len(pool._leases), pool._leases.free),
        "leased": pool._leases.taken,
        "publishing": len(dispatcher._publisher._waiting),
        "held": [len(source._held) for source in sources],
        "incoming": [len(source._incoming) for source in sources],
        "consumers": [len(source._queues) for source in sources],
        "addresses": [len(source._outbox._addresses) for source in sources],
        "channels": [
            sum(not channel.is_closed for channel in session._channels)
            for session in sessions
            if session is not None
        ],
        "tasks": len(asyncio.all_tasks()),
    }


async def run(delivery: Delivery) -> None:
    """As a worker does: slowly, until nobody waits any more."""
    seq = 0
    while seq < 20 and not delivery.cancelled.is_set():
        delivery.send(a_message(delivery.job, seq))
        seq += 1
        await asyncio.sleep(0.002)
    delivery.send(the_end(delivery.job, seq))
    await delivery.ack()


async def ask(dispatcher: RabbitDispatcher, model: str, chance: random.Random) -> str:
    """One request as its owner treats it; whatever happens, it closes its reply."""
    job = a_job(model, chance.choice(topology.JOB_CLASSES))
    leaves_after = chance.choice((1, 2, 5, 1000))
    redispatches = chance.random() < 0.2
    try:
        reply = await dispatcher.dispatch(job)
    except ServiceError:
        return "refused"
    try:
        for turn in range(1000):
            if turn >= leaves_after:
                await reply.cancel()
                return "left"
            if redispatches and turn == 1:
                reply.interrupt("doubted")
            try:
                messages = await reply.receive()
            except ReplyLost:
                await reply.cancel()
                job = msgspec.structs.replace(job, attempt=job.attempt + 1)
                try:
                    await reply.redispatch(job)
                except ServiceError:
                    await asyncio.sleep(0.1)
                continue
            if any(message == the_end(job, 20) for message in messages):
                return "whole"
        return "given up"
    finally:
        await reply.close()


async def test_counts_return_to_the_idle_ones(own_broker: BrokerNode, model: str) -> None:
    chance = random.Random(4)
    proxy = Proxy(own_broker.url)
    await proxy.open()
    settings = SourceSettings(poll_s=0.02)
    sources = [
        await RabbitJobSource.connect(url, model=model, slots=8, settings=settings)
        for url in (own_broker.url, proxy.url)
    ]
    dispatcher = await RabbitDispatcher.connect(proxy.url, DispatcherSettings(reply_queues=16))
    async with contextlib.AsyncExitStack() as exits:
        exits.push_async_callback(proxy.close)
        exits.push_async_callback(dispatcher.close)
        for source in sources:
            exits.push_async_callback(source.close)
            await exits.enter_async_context(serving(source, run))
        await until(lambda: len(dispatcher._pool._leases) == 16)
        before, idle = await at_broker(own_broker, model), in_objects(dispatcher, sources)
        outcomes: Counter[str] = Counter()

        async def asks() -> None:
            for _ in range(REQUESTS // 20):
                async with asyncio.timeout(60):
                    outcomes[await ask(dispatcher, model, chance)] += 1

        async with asyncio.TaskGroup() as owners:
            for _ in range(20):
                owners.create_task(asks())
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                proxy.cut()
        assert sum(outcomes.values()) == REQUESTS
        assert outcomes["whole"] > 20, outcomes
        assert outcomes["left"] > 50, outcomes
        # Both were cut; who waited longer between two tries may be back only now.
        await until(lambda: dispatcher.reconnects > 0 and sources[1].reconnects > 0, timeout_s=20)
        await until(lambda: in_objects(dispatcher, sources) == idle, timeout_s=20)
        after: dict[str, Any] = {}

        async def is_as_before() -> bool:
            after.update(await at_broker(own_broker, model))
            return after == before

        with contextlib.suppress(TimeoutError):  # what is closed is gone there a moment later
            await until(is_as_before, timeout_s=10)
        assert after == before
        assert not [queue for queue in after["messages"] if model in queue]
