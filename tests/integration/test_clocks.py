"""Machines whose clocks differ: a Job has as much time as its ingress means, wherever it is run."""

from __future__ import annotations

import asyncio
import time

import aio_pika
import httpx
import pytest

from schemas.codec import encode_worker
from schemas.model_card import ModelCard, WorkerInfo
from schemas.transport import topology
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource
from tests.fixtures.broker import Broker
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import serve_pod, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(60)]


@pytest.mark.rule("overload.clocks")
async def test_a_worker_whose_clock_is_ahead_does_not_think_jobs_late(
    broker: Broker, model: str
) -> None:
    dispatcher = await RabbitDispatcher.connect(broker.url, name="ingress")
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name="worker")
    try:
        info = WorkerInfo(
            worker_id="ahead",
            card=ModelCard(id=model, context_length=1000),
            engine="none",
            slots=1,
            sent_at=time.time() + 600,
        )
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            exchange = await channel.get_exchange(topology.WORKERS_EXCHANGE, ensure=False)
            await exchange.publish(aio_pika.Message(encode_worker(info)), "", mandatory=False)
        await until(lambda: any(w.card.id == model for w in dispatcher.workers()))
        (worker,) = (w for w in dispatcher.workers() if w.card.id == model)
        assert worker.clock_ahead_s == pytest.approx(600, abs=10)
        async with (
            serve_pod(dispatcher) as pod,
            httpx.AsyncClient(base_url=pod.url, timeout=30) as http,
        ):
            body = request_body("chat") | {"model": model}
            asking = asyncio.create_task(http.post(path_of("chat"), json=body))
            async with asyncio.timeout(10):
                delivery = await anext(source.deliveries())
            assert delivery.job.queue_deadline == pytest.approx(time.time() + 660, abs=15)
            assert delivery.job.deadline > delivery.job.queue_deadline
            asking.cancel()
            await asyncio.wait((asking,))
            await delivery.ack()
    finally:
        await source.close()
        await dispatcher.close()


@pytest.mark.rule("overload.clocks")
async def test_an_announcement_that_is_told_again_has_the_time_of_its_telling(
    broker: Broker, model: str
) -> None:
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name="worker")
    card = ModelCard(id=model, context_length=1000)
    await source.announce(
        WorkerInfo(worker_id="w", card=card, engine="none", slots=1, sent_at=time.time() - 500)
    )
    dispatcher = await RabbitDispatcher.connect(broker.url, name="ingress")  # it asks who is there
    try:
        await until(lambda: any(w.card.id == model for w in dispatcher.workers()))
        (worker,) = (w for w in dispatcher.workers() if w.card.id == model)
        assert abs(worker.clock_ahead_s) < 10
    finally:
        await source.close()
        await dispatcher.close()
