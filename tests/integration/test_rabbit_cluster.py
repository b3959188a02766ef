"""A broker of three nodes, of which any one may die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from schemas.errors import ModelOverloaded, ModelUnavailable
from schemas.job import Job, JobClass
from schemas.transport import topology
from schemas.transport.base import Reply, ReplyLost
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.contract.transport_suite import (
    a_job,
    a_message,
    answer,
    eventually,
    is_set,
    known,
    read,
    read_to_end,
    serving,
    take_one,
)
from tests.fixtures.broker import BrokerNode

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


def urls(nodes: list[BrokerNode]) -> str:
    return ", ".join(node.url for node in nodes)


@contextlib.asynccontextmanager
async def both_ends(
    model: str, nodes: list[BrokerNode]
) -> AsyncIterator[tuple[RabbitDispatcher, RabbitJobSource]]:
    source = await RabbitJobSource.connect(
        urls(nodes), model=model, slots=4, settings=SourceSettings(), name=f"{model}.source"
    )
    dispatcher = await RabbitDispatcher.connect(
        urls(nodes), DispatcherSettings(reply_queues=8), name=f"{model}.dispatcher"
    )
    try:
        yield dispatcher, source
    finally:
        await dispatcher.close()
        await source.close()


async def node_of(nodes: list[BrokerNode], connection: str) -> BrokerNode:
    """The node that a named connection leads to."""
    rows = await nodes[0].rows("connections", "client_properties", "pid")
    (pid,) = (pid for properties, pid in rows if connection in properties)
    (node,) = (node for node in nodes if node.name in pid)
    return node


async def eventually_answered(
    dispatcher: RabbitDispatcher,
    model: str,
    job_classes: Sequence[JobClass] = ("interactive", "batch"),
    *,
    zdr: bool = False,
) -> None:
    async with asyncio.timeout(20):
        for job_class in job_classes:
            while True:
                with contextlib.suppress(ModelUnavailable, ModelOverloaded, ReplyLost):
                    reply = await dispatcher.dispatch(a_job(model, job_class, zdr=zdr))
                    assert len(await read_to_end(reply)) == 6
                    await reply.close()
                    break
                await asyncio.sleep(0.05)


async def test_a_node_dies_under_a_running_reply(cluster: list[BrokerNode], model: str) -> None:
    """The dispatcher's node, and by chance the source's or the job queue's leader with it."""
    async with both_ends(model, cluster) as (dispatcher, source):
        await known(dispatcher, source, model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        delivery.send(a_message(job, 0))
        await read(reply, 1)
        node = await node_of(cluster, f"{model}.dispatcher")
        survivors = [other for other in cluster if other is not node]
        receiving = asyncio.create_task(reply.receive())
        await asyncio.to_thread(node.kill)
        try:
            with pytest.raises(ReplyLost):
                async with asyncio.timeout(5):
                    await receiving
            async with asyncio.timeout(8):
                await eventually(
                    lambda: dispatcher.connected() and source.connected(), "both are back"
                )
            assert dispatcher.reconnects == 1
            await redispatch(reply, a_job(model, attempt=2, job_id=job.job_id))
            async with serving(source, answer):
                messages = await read_to_end(reply)
                assert [m.seq for m in messages if m.attempt == 2] == list(range(6))
                delivery.send(a_message(job, 1))
                assert await is_set(delivery.cancelled)  # by its connection, or by what came back
                await eventually_answered(dispatcher, model)
            rows = await survivors[0].rows("consumers", "queue_name")
            assert [topology.job_queue(model, "interactive")] in rows
        finally:
            await asyncio.to_thread(node.start)
        async with serving(source, answer):  # queues that lie on one node are back with it
            await eventually_answered(dispatcher, model, ("count",))
            await eventually_answered(dispatcher, model, ("interactive",), zdr=True)


async def redispatch(reply: Reply, job: Job) -> None:
    """As an owner does it, until it is accepted."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await reply.redispatch(job)
            except (ModelUnavailable, ModelOverloaded):
                await asyncio.sleep(0.05)
