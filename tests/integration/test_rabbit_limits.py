"""Refusals: a blocked broker, a Job too large, messages that are no Jobs, a broker not there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aio_pika
import httpx
import msgspec
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue, HeadersType

from ingress.settings import TimeLimits
from schemas.codec import encode_job, encode_worker
from schemas.delta import Failed, TextDelta
from schemas.errors import ModelOverloaded, RequestTooLarge
from schemas.job import Job, TokenPrompt
from schemas.transport import topology
from schemas.transport.base import Delivery
from schemas.transport.rabbit import (
    BrokerUnreachable,
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from schemas.transport.rabbit_delivery import RabbitDelivery
from tests.contract.transport_suite import (
    a_job,
    a_message,
    a_worker,
    answer,
    eventually,
    is_set,
    read,
    read_to_end,
    serving,
    take,
    take_one,
    the_end,
)
from tests.fixtures.broker import Broker, BrokerNode, Proxy
from tests.fixtures.stack import serve_pod

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

SOURCE = SourceSettings(poll_s=0.02)


@contextlib.asynccontextmanager
async def both_ends(
    url: str, model: str, settings: DispatcherSettings, slots: int = 4
) -> AsyncIterator[tuple[RabbitDispatcher, RabbitJobSource]]:
    source = await RabbitJobSource.connect(url, model=model, slots=slots, settings=SOURCE)
    dispatcher = await RabbitDispatcher.connect(url, settings)
    try:
        yield dispatcher, source
    finally:
        await dispatcher.close()
        await source.close()


@pytest.fixture
async def raw(broker: Broker) -> AsyncIterator[AbstractChannel]:
    """A channel of somebody who does not know our rules."""
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel()


async def dead_letter(raw: AbstractChannel, correlation_id: str) -> AbstractIncomingMessage:
    queue = await raw.get_queue(topology.DEAD_QUEUE, ensure=False)
    async with asyncio.timeout(15):
        while True:
            message = await queue.get(fail=False)
            if message is None:
                await asyncio.sleep(0.05)
                continue
            await message.ack()
            if message.correlation_id == correlation_id:
                return message


async def test_a_blocked_broker_refuses_at_once_and_recovers(
    own_broker: BrokerNode, model: str
) -> None:
    settings = DispatcherSettings(reply_queues=4, publish_timeout_s=60)
    async with both_ends(own_broker.url, model, settings) as (dispatcher, source):
        await own_broker.block_publishers()
        try:
            # The first Job makes the broker block the connection, and may still get through.
            with contextlib.suppress(ModelOverloaded):
                async with asyncio.timeout(10):
                    await dispatcher.dispatch(a_job(model))
            for _ in range(3):
                with pytest.raises(ModelOverloaded) as caught:
                    async with asyncio.timeout(2):
                        await dispatcher.dispatch(a_job(model))
                assert caught.value.diagnostic == "broker blocked"
        finally:
            await own_broker.unblock_publishers()
        async with serving(source, answer), asyncio.timeout(30):
            while True:
                try:
                    reply = await dispatcher.dispatch(a_job(model))
                    break
                except ModelOverloaded:
                    await asyncio.sleep(0.05)
            assert len(await read_to_end(reply)) == 6
        assert dispatcher.reconnects == 0


async def test_a_job_above_our_limit_is_refused_before_it_is_sent(
    broker: Broker, model: str
) -> None:
    settings = DispatcherSettings(reply_queues=4, max_job_bytes=10_000)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        with pytest.raises(RequestTooLarge):
            await dispatcher.dispatch(huge_job(model, 20_000))
        job = huge_job(model, 9_000)
        await dispatcher.dispatch(job)
        assert (await take_one(source)).job == job


async def test_a_job_above_the_brokers_limit_harms_only_itself(
    own_broker: BrokerNode, model: str
) -> None:
    await set_max_message_size(own_broker, 2_000_000)
    try:
        settings = DispatcherSettings(reply_queues=4)
        async with both_ends(own_broker.url, model, settings, slots=64) as (dispatcher, source):
            small = [a_job(model) for _ in range(20)]
            sizes = (1_500_000, 4_000_000, 1_600_000, 5_000_000) * 5
            large = [huge_job(model, size) for size in sizes]
            outcomes = await asyncio.gather(
                *(
                    dispatcher.dispatch(job)
                    for pair in zip(small, large, strict=True)
                    for job in pair
                ),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert [type(error) for error in refused] == [RequestTooLarge] * 10
            taken = await take(source, 30)
            assert {job.job_id for job in small} <= {delivery.job.job_id for delivery in taken}
            assert dispatcher.reconnects == 0
    finally:
        await set_max_message_size(own_broker, 134_217_728)


async def set_max_message_size(node: BrokerNode, size: int) -> None:
    # Where 4.0 looks, and where 3.10 does.
    await node.evaluate(f"persistent_term:put(max_message_size, {size})")
    await node.set_env(max_message_size=size)


def huge_job(model: str, size: int) -> Job:
    job = a_job(model)
    return msgspec.structs.replace(job, prompt=TokenPrompt(prompts=((7,) * (size // 2),)))


async def test_bad_messages_are_set_aside_and_fifty_good_jobs_served(
    broker: Broker, model: str, raw: AbstractChannel
) -> None:
    async def run(delivery: Delivery) -> None:
        if delivery.job.prompt == TokenPrompt(prompts=((666,),)):
            delivery.send(the_end(delivery.job, 0))
            await delivery.dead_letter("the handler always raises")
        else:
            await answer(delivery)

    settings = DispatcherSettings(reply_queues=8)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        waiting, blocker = await dispatcher.dispatch(a_job(model)), await take_one(source)
        jobs = await raw.get_exchange(topology.JOBS_EXCHANGE, ensure=False)
        key = topology.job_queue(model, "interactive")
        future = encode_job(a_job(model)).replace(b'"version":1', b'"version":99')
        unreadable = {f"cut-{model}": b'{"', f"future-{model}": future}
        for correlation_id, body in unreadable.items():
            await jobs.publish(aio_pika.Message(body, correlation_id=correlation_id), key)
        raising = msgspec.structs.replace(a_job(model), prompt=TokenPrompt(prompts=((666,),)))
        bad_reply = await dispatcher.dispatch(raising)
        good = [await dispatcher.dispatch(a_job(model)) for _ in range(50)]
        async with serving(source, run):
            for reply in good:
                assert len(await read_to_end(reply)) == 6
            assert await read_to_end(bad_reply) == [the_end(raising, 0)]
            reasons = {
                name: str((await dead_letter(raw, name)).headers[topology.REASON_HEADER])
                for name in (*unreadable, raising.job_id)
            }
        assert reasons[f"cut-{model}"].startswith("undecodable")
        assert "unknown schema version 99" in reasons[f"future-{model}"]
        assert reasons[raising.job_id] == "the handler always raises"
        assert source.undecodable_jobs == 2
        assert source.reconnects == 0
        await answer(blocker)
        assert len(await read_to_end(waiting)) == 6


async def test_the_waiting_client_of_an_unreadable_job_gets_an_error(
    broker: Broker, model: str, raw: AbstractChannel
) -> None:
    settings = DispatcherSettings(reply_queues=4)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        jobs = await raw.get_exchange(topology.JOBS_EXCHANGE, ensure=False)
        await jobs.publish(
            aio_pika.Message(
                b"\xff\x00",
                correlation_id=job.job_id,
                reply_to=reply_queue_of(delivery),
                headers={topology.ATTEMPT_HEADER: 3},
            ),
            topology.job_queue(model, "interactive"),
        )
        (message,) = await read(reply, 1)
        assert (message.job_id, message.attempt, message.seq) == (job.job_id, 3, 0)
        (failed,) = message.deltas
        assert isinstance(failed, Failed)
        assert failed.error.code == "internal_error"


async def test_a_job_that_nobody_settles_is_set_aside_and_its_client_told(
    broker: Broker, model: str, raw: AbstractChannel
) -> None:
    """Every worker dies at once that gets it; the broker counts, and the owner's patience ends."""
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, settings=SOURCE)
    await source.close()
    dispatcher = await RabbitDispatcher.connect(broker.url, DispatcherSettings(reply_queues=2))
    try:
        workers = await raw.get_exchange(topology.WORKERS_EXCHANGE, ensure=False)
        await workers.publish(aio_pika.Message(encode_worker(a_worker(model))), "")
        await eventually(lambda: len(dispatcher.workers()) == 1, "there seems to be a worker")
        limits = TimeLimits(queue_wait_s=3)
        async with serve_pod(dispatcher, model=model, limits=limits) as pod:
            message = {"role": "user", "content": "hello"}
            async with httpx.AsyncClient(base_url=pod.v1, timeout=20) as http:
                asking = asyncio.create_task(
                    http.post("/chat/completions", json={"model": model, "messages": [message]})
                )
                queue = await raw.get_queue(topology.job_queue(model, "interactive"), ensure=False)
                job_id, tries = await refuse_for_ever(queue)
                answer = await asking
        assert tries == topology.DELIVERY_LIMIT + 1
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_overloaded"
        dead = await dead_letter(raw, job_id)
        assert dead.headers["x-first-death-reason"] == "delivery_limit"
        assert dispatcher._replies == {}
    finally:
        await dispatcher.close()


async def refuse_for_ever(queue: AbstractQueue) -> tuple[str, int]:
    """Take a message again and again; which it was, and how often until it came no more."""
    job_id, tries = "", 0
    async with asyncio.timeout(15):
        while True:
            message = await queue.get(fail=False)
            if message is not None:
                job_id, tries = message.correlation_id or "", tries + 1
                await message.reject(requeue=True)
            elif tries > topology.DELIVERY_LIMIT:
                return job_id, tries
            else:
                await asyncio.sleep(0.02)


def reply_queue_of(delivery: Delivery) -> str:
    assert isinstance(delivery, RabbitDelivery)
    return delivery.address.name


async def test_a_reader_that_stops_costs_its_neighbours_on_the_same_queue_nothing(
    broker: Broker, model: str
) -> None:
    settings = DispatcherSettings(reply_queues=1, reply_buffer_bytes=50_000)
    async with both_ends(broker.url, model, settings, slots=8) as (dispatcher, source):
        slow, *quick = [await dispatcher.dispatch(a_job(model)) for _ in range(6)]
        deliveries = await take(source, 6)
        for seq in range(2000):
            for delivery in deliveries:
                delivery.send(a_message(delivery.job, seq))
            for reply in quick:
                (message,) = await read(reply, 1)
                assert message.seq == seq
        assert await is_set(deliveries[0].cancelled)
        assert not any(delivery.cancelled.is_set() for delivery in deliveries[1:])
        assert dispatcher.overruns == 1
        with pytest.raises(Exception, match="not read fast enough"):
            await read(slow, 2000)


async def test_a_message_that_cannot_be_encoded_harms_only_its_own_reply(
    broker: Broker, model: str
) -> None:
    settings = DispatcherSettings(reply_queues=1)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        bad, good = [await dispatcher.dispatch(a_job(model)) for _ in range(2)]
        first, second = await take(source, 2)
        first.send(a_message(first.job, 0, TextDelta(0, "\ud83d")))
        first.send(a_message(first.job, 1))
        second.send(a_message(second.job, 0))
        assert await read(good, 1) == [a_message(second.job, 0)]
        assert await read(bad, 1) == [a_message(first.job, 1)]


@pytest.mark.parametrize("reply_queues", [0, 1, 3])
async def test_more_requests_than_reply_queues(
    broker: Broker, model: str, reply_queues: int
) -> None:
    settings = DispatcherSettings(reply_queues=reply_queues)
    async with both_ends(broker.url, model, settings, slots=200) as (dispatcher, source):
        async with serving(source, answer):
            for _ in range(2):  # the second round uses queues again
                replies = [await dispatcher.dispatch(a_job(model)) for _ in range(100)]
                for reply in replies:
                    messages = await read_to_end(reply)
                    assert {message.job_id for message in messages} == {reply.job.job_id}
                    await reply.close()
        assert dispatcher.orphan_messages == 0


async def test_a_reused_reply_queue_keeps_an_old_jobs_messages_out(
    broker: Broker, model: str
) -> None:
    settings = DispatcherSettings(reply_queues=1)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        old = await dispatcher.dispatch(a_job(model))
        first = await take_one(source)
        await old.close()
        new = await dispatcher.dispatch(a_job(model))
        second = await take_one(source)
        assert reply_queue_of(first) == reply_queue_of(second)
        for seq in range(10):
            first.send(a_message(first.job, seq))
            second.send(a_message(second.job, seq))
        second.send(the_end(second.job, 10))
        assert {m.job_id for m in await read_to_end(new)} == {second.job.job_id}
        assert dispatcher.orphan_messages == 10


async def test_queues_declared_with_other_arguments_are_served(
    broker: Broker, model: str, raw: AbstractChannel
) -> None:
    """Another limit; and as earlier versions declared them."""
    older: dict[str, str | int] = {"x-max-length": 10, "x-overflow": "reject-publish"}
    await raw.declare_queue(
        topology.job_queue(model, "interactive"),
        durable=True,
        arguments={**older, "x-queue-type": "quorum", "x-delivery-limit": 5},
    )
    await raw.declare_queue(
        topology.job_queue(model, "count"),
        durable=True,
        arguments={**older, "x-queue-type": "classic", "x-expires": 30_000},
    )
    settings = DispatcherSettings(reply_queues=2)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        for job_class in topology.JOB_CLASSES:
            reply = await dispatcher.dispatch(a_job(model, job_class))
            await answer(await take_one(source))
            assert len(await read_to_end(reply)) == 6


@pytest.mark.rule("broker.duplicates")
async def test_a_job_that_is_there_twice_is_held_once(
    broker: Broker, model: str, raw: AbstractChannel
) -> None:
    async with both_ends(broker.url, model, DispatcherSettings(reply_queues=2)) as ends:
        dispatcher, source = ends
        reply = await dispatcher.dispatch(job := a_job(model))
        delivery = await take_one(source)
        jobs = await raw.get_exchange(topology.JOBS_EXCHANGE, ensure=False)
        copy = aio_pika.Message(
            encode_job(job), correlation_id=job.job_id, reply_to=reply_queue_of(delivery)
        )
        for _ in range(3):
            await jobs.publish(copy, topology.job_queue(model, "interactive"))
        witness = await dispatcher.dispatch(a_job(model))
        last = await take_one(source)
        assert last.job.job_id == witness.job.job_id
        await answer(delivery)
        assert len(await read_to_end(reply)) == 6
        await answer(last)
        assert len(await read_to_end(witness)) == 6


@pytest.mark.rule("broker.odd-messages")
async def test_odd_messages_harm_nobody(broker: Broker, model: str, raw: AbstractChannel) -> None:
    """Without an address, of another type, with large headers; and noise on every other way in."""
    settings = DispatcherSettings(reply_queues=2)
    async with both_ends(broker.url, model, settings, slots=16) as (dispatcher, source):
        waiting = await dispatcher.dispatch(a_job(model))
        held = await take_one(source)
        jobs = await raw.get_exchange(topology.JOBS_EXCHANGE, ensure=False)
        key = topology.job_queue(model, "interactive")
        headers: HeadersType = {
            "x-large": "x" * 50_000,
            topology.ATTEMPT_HEADER: "third",
            "x-list": [1, None, {"a": True}],
        }
        odd = [
            aio_pika.Message(encode_job(a_job(model))),
            aio_pika.Message(
                encode_job(a_job(model)),
                headers=headers,
                content_type="image/png",
                content_encoding="gzip",
                priority=9,
                reply_to="nowhere",
            ),
            aio_pika.Message(b""),
            aio_pika.Message(b"\xff" * 100_000, reply_to="nowhere", correlation_id="x"),
        ]
        for message in odd:
            await jobs.publish(message, key)
        for exchange, route in (
            (topology.CONTROL_EXCHANGE, topology.CONTROL_ALL),
            (topology.WORKERS_EXCHANGE, ""),
        ):
            target = await raw.get_exchange(exchange, ensure=False)
            for body in (b"", b"{}", b"\xff", b'{"version":99}'):
                await target.publish(aio_pika.Message(body), route)
        async with serving(source, answer):
            for job_class in topology.JOB_CLASSES:
                reply = await dispatcher.dispatch(a_job(model, job_class))
                assert len(await read_to_end(reply)) == 6
            await answer(held)
            assert len(await read_to_end(waiting)) == 6
        assert source.undecodable_jobs == 2
        assert source.reconnects == dispatcher.reconnects == 0


async def test_a_cancelled_dispatch_leaves_no_job_behind_unannounced(
    broker: Broker, proxy: Proxy, model: str
) -> None:
    """The client leaves while the Job is under way: it may arrive, but then as cancelled."""
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, settings=SOURCE)
    dispatcher = await RabbitDispatcher.connect(proxy.url, DispatcherSettings(reply_queues=2))
    try:
        proxy.hold()
        dispatching = asyncio.create_task(dispatcher.dispatch(a_job(model)))
        await asyncio.sleep(0.1)  # far enough to have been written; also right if it was not
        dispatching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dispatching
        proxy.release()
        witness = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        if delivery.job.job_id != witness.job.job_id:
            assert await is_set(delivery.cancelled)
            await delivery.ack()
            delivery = await take_one(source)
        assert delivery.job.job_id == witness.job.job_id
        assert not delivery.cancelled.is_set()
    finally:
        await dispatcher.close()
        await source.close()


async def test_no_broker_is_a_clear_error_without_credentials() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = DispatcherSettings(connect_timeout_s=0.5)
        with pytest.raises(BrokerUnreachable) as caught:
            await RabbitDispatcher.connect(f"amqp://me:s3cret@127.0.0.1:{port}/v", settings)
    assert f"amqp://127.0.0.1:{port}/v" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_refused_credentials_are_told_at_once(broker: Broker) -> None:
    address = broker.url.rpartition("@")[2]
    with pytest.raises(BrokerUnreachable, match="refused the credentials") as caught:
        async with asyncio.timeout(10):
            await RabbitDispatcher.connect(f"amqp://nobody:s3cret@{address}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost", "http://u:s3cret@h/", "amqp://u:s3cret@h:port/"])
async def test_a_url_that_is_none_is_told_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="must look like") as caught:
        await RabbitDispatcher.connect(url)
    assert "s3cret" not in str(caught.value)


async def test_a_worker_far_ahead_of_the_wire_waits(
    broker: Broker, proxy: Proxy, model: str
) -> None:
    source = await RabbitJobSource.connect(proxy.url, model=model, slots=1, settings=SOURCE)
    dispatcher = await RabbitDispatcher.connect(
        broker.url, DispatcherSettings(reply_queues=1, reply_buffer_bytes=1 << 30)
    )
    try:
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        await delivery.writable()
        proxy.hold()
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                while sent < 1000:  # 64 MiB: more than sockets hold
                    delivery.send(a_message(delivery.job, sent, TextDelta(0, "x" * (1 << 16))))
                    sent += 1
                    await asyncio.sleep(0)
                    await delivery.writable()
        proxy.release()
        async with asyncio.timeout(15):
            await delivery.writable()
        assert [message.seq for message in await read(reply, sent)] == list(range(sent))
    finally:
        await dispatcher.close()
        await source.close()


async def test_workers_not_heard_of_are_forgotten(broker: Broker, model: str) -> None:
    settings = DispatcherSettings(reply_queues=2, worker_ttl_s=0.3)
    async with both_ends(broker.url, model, settings) as (dispatcher, source):
        await source.announce(a_worker(model))
        await eventually(lambda: len(dispatcher.workers()) == 1, "announced")
        await eventually(lambda: len(dispatcher.workers()) == 0, "forgotten")
