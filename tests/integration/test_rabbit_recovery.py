"""What happens to both ends when the broker, or the way to it, goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas.delta import Interrupted
from schemas.errors import ModelUnavailable, ServerShuttingDown, WorkerFailed
from schemas.job import JobClass
from schemas.transport import topology
from schemas.transport.base import SourceBroken
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.contract.transport_suite import (
    a_job,
    a_message,
    a_worker,
    answer,
    eventually,
    is_set,
    known,
    read,
    read_to_end,
    serving,
    take_one,
    the_end,
)
from tests.fixtures.broker import Broker, BrokerNode, Proxy

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

DISPATCHER = DispatcherSettings(reply_queues=8, reconnect_min_s=0.1, reconnect_max_s=0.5)
SOURCE = SourceSettings(poll_s=0.02, reconnect_min_s=0.1, reconnect_max_s=0.5)


@contextlib.asynccontextmanager
async def both_ends(
    model: str, dispatcher_url: str, source_url: str, slots: int = 4
) -> AsyncIterator[tuple[RabbitDispatcher, RabbitJobSource]]:
    source = await RabbitJobSource.connect(source_url, model=model, slots=slots, settings=SOURCE)
    dispatcher = await RabbitDispatcher.connect(dispatcher_url, DISPATCHER)
    try:
        yield dispatcher, source
    finally:
        await dispatcher.close()
        await source.close()


async def answered(dispatcher: RabbitDispatcher, model: str, *, zdr: bool = False) -> None:
    for job_class in ("interactive", "count") if zdr else topology.JOB_CLASSES:
        reply = await dispatcher.dispatch(a_job(model, job_class, zdr=zdr))
        assert len(await read_to_end(reply)) == 6
        await reply.close()


async def consumers(node: BrokerNode, queue: str) -> int:
    return sum(row[0] == queue for row in await node.rows("consumers", "queue_name"))


async def test_everything_is_back_after_a_restart_and_after_a_crash(
    own_broker: BrokerNode, model: str
) -> None:
    async with both_ends(model, own_broker.url, own_broker.url) as (dispatcher, source):
        await source.announce(worker := a_worker(model))

        def workers() -> list[str]:
            return [worker.worker_id for worker in dispatcher.workers()]

        async with serving(source, answer):
            await answered(dispatcher, model)
            for restart, end in enumerate((own_broker.stop, own_broker.kill), start=1):
                await asyncio.to_thread(end)
                await eventually(lambda: not dispatcher.connected(), "notices")
                await eventually(lambda: not source.connected(), "notices")
                await asyncio.to_thread(own_broker.start)
                await eventually(lambda: dispatcher.connected() and source.connected(), "is back")
                assert (dispatcher.reconnects, source.reconnects) == (restart, restart)
                assert await consumers(own_broker, topology.job_queue(model, "interactive")) == 1
                await answered(dispatcher, model)
                await eventually(lambda: workers() == [worker.worker_id], "heard of again")
                await answered(dispatcher, model, zdr=True)


@pytest.mark.rule("zdr.broker-restart")
async def test_a_running_reply_ends_with_an_error_when_the_broker_dies(
    own_broker: BrokerNode, model: str
) -> None:
    async with both_ends(model, own_broker.url, own_broker.url, slots=2) as (dispatcher, source):
        await known(dispatcher, source, model)
        job, secret = a_job(model), a_job(model, zdr=True)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        delivery.send(a_message(job, 0))
        await read(reply, 1)
        secret_reply = await dispatcher.dispatch(secret)
        secret_delivery = await take_one(source)
        waiting = [asyncio.ensure_future(each.receive()) for each in (reply, secret_reply)]
        await asyncio.to_thread(own_broker.kill)
        for receiving in waiting:
            with pytest.raises(WorkerFailed) as caught:
                async with asyncio.timeout(15):
                    await receiving
            assert "connection lost" in (caught.value.diagnostic or "")
        assert await is_set(delivery.cancelled)
        assert await is_set(secret_delivery.cancelled)
        await secret_delivery.ack()
        with pytest.raises(ModelUnavailable):
            await dispatcher.dispatch(a_job(model))
        await delivery.ack()
        await asyncio.to_thread(own_broker.start)
        await eventually(lambda: dispatcher.connected() and source.connected(), "is back")
        # The Job survived; whoever gets it reports, and the owner goes on with the same reply.
        ghost = await take_one(source)
        assert (ghost.job, ghost.redelivered) == (job, True)
        await ghost.ack()
        await reply.redispatch(a_job(model, attempt=2, job_id=job.job_id))
        await answer(await take_one(source))
        assert len(await read_to_end(reply)) == 6
        # What may not be kept did not; only its owner can send it again.
        further = a_job(model, attempt=2, job_id=secret.job_id, zdr=True)
        await secret_reply.redispatch(further)
        delivery = await take_one(source)
        assert (delivery.job, delivery.redelivered) == (further, False)
        await answer(delivery)
        assert len(await read_to_end(secret_reply)) == 6


async def test_a_worker_cut_off_hands_its_job_on_and_is_fenced(
    broker: Broker, proxy: Proxy, model: str
) -> None:
    async with both_ends(model, broker.url, proxy.url) as (dispatcher, source):
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        for seq in range(10):
            first.send(a_message(job, seq))
        assert len(await read(reply, 10)) == 10
        second_source = await RabbitJobSource.connect(
            broker.url, model=model, slots=4, settings=SOURCE
        )
        await proxy.refuse()
        assert await is_set(first.cancelled)
        first.send(a_message(job, 10))
        second = await take_one(second_source)
        assert second.redelivered
        second.send(a_message(job, 0, Interrupted("redelivered")))
        await second.ack()
        (message,) = await read(reply, 1)
        assert message.deltas == (Interrupted("redelivered"),)
        assert not source.connected()
        await second_source.close()


async def test_a_pod_cut_off_stops_its_jobs(broker: Broker, proxy: Proxy, model: str) -> None:
    async with both_ends(model, proxy.url, broker.url) as (dispatcher, source):
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        proxy.cut()
        with pytest.raises(WorkerFailed):
            await read(reply, 1)
        async with asyncio.timeout(15):
            seq = 0
            while not delivery.cancelled.is_set():  # a worker that goes on speaking finds out
                delivery.send(a_message(job, seq))
                seq += 1
                await asyncio.sleep(0.01)
        assert source.returned_frames
        await delivery.ack()
        await eventually(dispatcher.connected, "is back")
        await reply.redispatch(a_job(model, attempt=2, job_id=job.job_id))
        await answer(await take_one(source))
        assert len(await read_to_end(reply)) == 6


async def test_a_cancel_without_a_connection_is_told_afterwards(
    broker: Broker, proxy: Proxy, model: str
) -> None:
    async with both_ends(model, proxy.url, broker.url) as (dispatcher, source):
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        proxy.cut()
        await eventually(lambda: not dispatcher.connected(), "notices")
        await reply.cancel()
        assert await is_set(delivery.cancelled)


async def test_a_silent_connection_is_given_up_and_made_again(
    own_broker: BrokerNode, model: str
) -> None:
    proxy = Proxy(own_broker.url)
    await proxy.open()
    source = await RabbitJobSource.connect(
        f"{proxy.url}?heartbeat=1", model=model, slots=4, settings=SOURCE
    )
    dispatcher = await RabbitDispatcher.connect(own_broker.url, DISPATCHER)
    try:
        proxy.hold()
        await eventually(lambda: not source.connected(), "notices the silence")
        proxy.release()
        await eventually(source.connected, "is back")
        assert await consumers(own_broker, topology.job_queue(model, "interactive")) == 1
        async with serving(source, answer):
            await answered(dispatcher, model)
    finally:
        await dispatcher.close()
        await source.close()
        await proxy.close()


async def test_a_busy_connection_without_heartbeats_is_kept(broker: Broker, model: str) -> None:
    source = await RabbitJobSource.connect(broker.url, model=model, slots=4, settings=SOURCE)
    dispatcher = await RabbitDispatcher.connect(f"{broker.url}?heartbeat=1", DISPATCHER)
    try:
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        loop = asyncio.get_running_loop()
        until, seq = loop.time() + 8, 0  # longer than aiormq lets a connection be silent
        while loop.time() < until:
            delivery.send(a_message(job, seq))
            seq += 1
            await read(reply, 1)
        assert dispatcher.reconnects == 0
        assert dispatcher.connected()
    finally:
        await dispatcher.close()
        await source.close()


@pytest.fixture
async def short_ack_timeout(own_broker: BrokerNode) -> AsyncIterator[None]:
    await own_broker.set_env(consumer_timeout=1000, channel_tick_interval=200)
    yield
    await own_broker.set_env(consumer_timeout=1_800_000, channel_tick_interval=60_000)


@pytest.mark.usefixtures("short_ack_timeout")
@pytest.mark.parametrize("job_class", topology.JOB_CLASSES)
async def test_an_acknowledgement_timeout_costs_no_generation(
    own_broker: BrokerNode, model: str, job_class: JobClass
) -> None:
    """The broker closes only the channel; the worker goes on, and is served again."""
    async with both_ends(model, own_broker.url, own_broker.url) as (dispatcher, source):
        job = a_job(model, job_class)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        again = await take_one(source)  # the channel was closed
        assert (again.job, again.redelivered) == (job, True)
        await again.ack()
        assert not delivery.cancelled.is_set()
        delivery.send(the_end(job, 0))
        await delivery.ack()
        assert await read_to_end(reply) == [the_end(job, 0)]
        assert source.reconnects == 0
        assert source.connected()
        async with serving(source, answer):
            await answered(dispatcher, model)


@pytest.mark.usefixtures("short_ack_timeout")
async def test_an_acknowledgement_timeout_gives_no_slots_away(
    own_broker: BrokerNode, model: str
) -> None:
    """The worker is still running what it held; the new channel alone would bring as much again."""
    async with both_ends(model, own_broker.url, own_broker.url, slots=2) as (dispatcher, source):
        for _ in range(2):
            await dispatcher.dispatch(a_job(model))
        running = [await take_one(source) for _ in range(2)]
        for _ in range(2):
            again = await take_one(source)
            assert again.redelivered
            await again.ack()
        fresh = [a_job(model) for _ in range(2)]
        for job in fresh:
            await dispatcher.dispatch(job)
        following = asyncio.ensure_future(anext(source.deliveries()))
        await eventually(lambda: len(source._incoming) == 2, "both have come")
        assert not following.done()
        await running.pop().ack()
        async with asyncio.timeout(5):
            first = await following
        assert first.job == fresh[0]
        assert len(source._incoming) == 1
        await running.pop().ack()
        second = await take_one(source)
        assert second.job == fresh[1]
        for delivery in (first, second):
            await delivery.ack()


async def test_consumers_that_cannot_be_restored_are_told_and_in_the_end_fatal(
    own_broker: BrokerNode, model: str
) -> None:
    async def permit(configure: str) -> None:
        await asyncio.to_thread(own_broker.ctl, "set_permissions", "guest", configure, ".*", ".*")

    async def take_queue_away() -> None:
        await permit(f"^(?!headrace.jobs.{model}).*")
        queue = topology.job_queue(model, "interactive")
        await asyncio.to_thread(own_broker.ctl, "delete_queue", queue)

    settings = msgspec.structs.replace(SOURCE, restore_s=4)
    source = await RabbitJobSource.connect(own_broker.url, model=model, slots=4, settings=settings)
    dispatcher = await RabbitDispatcher.connect(
        own_broker.url, msgspec.structs.replace(DISPATCHER, worker_ttl_s=0.5)
    )
    serving = asyncio.ensure_future(anext(source.deliveries()))
    try:
        await take_queue_away()
        await eventually(lambda: not source.connected(), "notices")
        await source.announce(a_worker(model))
        with pytest.raises(ModelUnavailable):
            await dispatcher.dispatch(a_job(model))
        assert dispatcher.workers() == []  # it does not advertise what it cannot do
        await permit(".*")
        await eventually(source.connected, "consumes again")
        await source.announce(a_worker(model))
        await eventually(lambda: len(dispatcher.workers()) == 1, "advertises again")
        await take_queue_away()
        with pytest.raises(SourceBroken):
            async with asyncio.timeout(30):
                await serving
        assert not source.connected()
    finally:
        serving.cancel()
        await permit(".*")
        await dispatcher.close()
        await source.close()


@pytest.mark.rule("broker.returns")
async def test_credentials_that_are_refused_for_a_while(own_broker: BrokerNode, model: str) -> None:
    """As while a password is changed: those who had to connect again do it when they may."""

    async def ctl(*arguments: str) -> None:
        await asyncio.to_thread(own_broker.ctl, *arguments)

    async with both_ends(model, own_broker.url, own_broker.url) as (dispatcher, source):
        try:
            await ctl("change_password", "guest", "another")
            await ctl("close_all_connections", "maintenance")
            await eventually(lambda: not dispatcher.connected(), "notices")
            await eventually(lambda: not source.connected(), "notices")
            with pytest.raises(ModelUnavailable):
                await dispatcher.dispatch(a_job(model))
        finally:
            await ctl("change_password", "guest", "guest")
        await eventually(lambda: dispatcher.connected() and source.connected(), "is back")
        assert await consumers(own_broker, topology.job_queue(model, "interactive")) == 1
        async with serving(source, answer):
            await answered(dispatcher, model)


async def test_a_deleted_queue_is_made_and_consumed_again(
    own_broker: BrokerNode, model: str
) -> None:
    async with both_ends(model, own_broker.url, own_broker.url) as (dispatcher, source):
        running = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        for job_class in topology.JOB_CLASSES:
            await asyncio.to_thread(
                own_broker.ctl, "delete_queue", topology.job_queue(model, job_class)
            )
        await eventually(source.connected, "consumes again")
        async with serving(source, answer):
            await eventually_answered(dispatcher, model)
        assert not delivery.cancelled.is_set()
        await answer(delivery)
        assert len(await read_to_end(running)) == 6


async def eventually_answered(dispatcher: RabbitDispatcher, model: str) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                return await answered(dispatcher, model)
            except ModelUnavailable:  # until the queue is back
                await asyncio.sleep(0.05)


async def test_closing_while_the_broker_is_away_does_not_hang(proxy: Proxy, model: str) -> None:
    async with both_ends(model, proxy.url, proxy.url) as (dispatcher, source):
        reply = await dispatcher.dispatch(a_job(model))
        await proxy.refuse()
        await eventually(lambda: not dispatcher.connected(), "notices")
        async with asyncio.timeout(15):
            await dispatcher.close()
            await source.close()
        with pytest.raises((WorkerFailed, ServerShuttingDown)):
            await reply.receive()
