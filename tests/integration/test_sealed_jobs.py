"""What requires zero data retention crosses a real broker unreadably, and is not lost there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import httpx
import msgspec
import pytest

from ingress.config import Config
from schemas.errors import ModelUnavailable, RequestTooLarge
from schemas.job import JobClass, TokenPrompt
from schemas.transport import topology
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.contract.transport_suite import a_job, a_worker, eventually, take_one
from tests.fixtures.broker import Broker, Proxy
from tests.fixtures.canary import Search, canary
from tests.fixtures.stack import Stack, rabbit_stack, ready, run_worker, serve_pod, until
from workers.engines.scripted import ScriptedEngine
from workers.settings import WorkerSettings

pytestmark = pytest.mark.broker

CHAT = "/v1/chat/completions"
ZDR = {"wafer-zdr": "required"}


class Tap(Proxy):
    """Keeps what passes."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.passed = bytearray()

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        read = source.read

        async def kept(size: int) -> bytes:
            data = await read(size)
            self.passed += data
            return data

        source.read = kept  # type: ignore[method-assign]
        await super()._relay(source, sink)


def configured(model: str) -> Config:
    return Config.model_validate({"models": [{"id": model, "zdr_supported": True}]})


def body(model: str, text: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.rule("zdr.sealed")
async def test_nobody_between_ingress_and_worker_can_read_it(broker: Broker, model: str) -> None:
    tap = Tap(broker.url)
    await tap.open()
    texts = {name: canary(name) for name in ("prompt", "answer", "open", "count")}
    stack = rabbit_stack(tap.url, [ScriptedEngine(served_id=model)], config=configured(model))
    try:
        async with stack as running, httpx.AsyncClient(base_url=running.url, timeout=20) as http:
            text = f"{texts['prompt']} [[say:{texts['answer']}]]"
            for stream in (False, True):
                asked = body(model, text, stream=stream)
                response = await http.post(CHAT, json=asked, headers=ZDR)
                assert texts["answer"] in response.text
            count = {"model": model, "messages": [{"role": "user", "content": texts["count"]}]}
            response = await http.post("/v1/messages/count_tokens", json=count, headers=ZDR)
            assert "x-wafer-input-tokens-estimated" not in response.headers
            await http.post(CHAT, json=body(model, texts["open"]))
            found = {leak.secret for leak in Search(texts).text("wire", bytes(tap.passed))}
            assert found == {"open"}
    finally:
        await tap.close()


@pytest.mark.rule("zdr.transient")
async def test_its_message_is_transient_in_a_short_queue_that_ends_with_its_workers(
    broker: Broker, model: str
) -> None:
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name="test")
    dispatcher = await RabbitDispatcher.connect(broker.url)
    connection = await aio_pika.connect(broker.url)
    try:
        await source.announce(a_worker(model))
        await eventually(lambda: bool(dispatcher.workers()), "heard of")
        channel = await connection.channel()
        copies = await channel.declare_queue(exclusive=True)
        for kind in topology.QUEUE_KINDS:
            await copies.bind(topology.JOBS_EXCHANGE, topology.job_queue(model, kind))
        await dispatcher.dispatch(a_job(model, zdr=True))
        message = await copies.get()
        assert message.routing_key == f"headrace.jobs.{model}.transient"
        assert message.delivery_mode is aio_pika.DeliveryMode.NOT_PERSISTENT
        arguments = topology.job_queue_arguments("transient", 1000)
        assert arguments["x-queue-type"] == "classic"
        assert arguments["x-overflow"] == "reject-publish"
        assert arguments["x-expires"] <= 60_000
        assert not any("dead-letter" in name for name in arguments)
        # A declaration with other arguments would be refused.
        await channel.declare_queue(message.routing_key, durable=True, arguments=arguments)
    finally:
        await connection.close()
        await dispatcher.close()
        await source.close()


@pytest.mark.rule("zdr.dead-letters")
async def test_of_a_job_that_is_set_aside_the_reason_is_kept(broker: Broker, model: str) -> None:
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name="test")
    dispatcher = await RabbitDispatcher.connect(broker.url)
    connection = await aio_pika.connect(broker.url)
    try:
        await source.announce(a_worker(model))
        await eventually(lambda: bool(dispatcher.workers()), "heard of")
        channel = await connection.channel()
        copies = await channel.declare_queue(exclusive=True)
        await copies.bind(topology.DEAD_EXCHANGE)
        for zdr in (True, False):
            job = a_job(model, zdr=zdr)
            await dispatcher.dispatch(job)
            await (await take_one(source)).dead_letter("killed two workers")
            message = await copies.get()
            while message.correlation_id != job.job_id:  # other tests have theirs
                message = await copies.get()
            assert message.headers == {topology.REASON_HEADER: "killed two workers"}
            assert (message.body == b"") is zdr
    finally:
        await connection.close()
        await dispatcher.close()
        await source.close()


@asynccontextmanager
async def pod_alone(url: str, model: str) -> AsyncIterator[Stack]:
    dispatcher = await RabbitDispatcher.connect(url, name="ingress")
    try:
        async with serve_pod(dispatcher, model=model, config=configured(model)) as pod:
            yield Stack(pods=[pod])
    finally:
        await dispatcher.close()


async def waiting(broker: Broker, queue: str, count: int) -> None:
    """Wait until so many Jobs lie in a queue."""
    connection = await aio_pika.connect(broker.url)
    async with connection, connection.channel() as channel:

        async def there() -> bool:
            found = await channel.declare_queue(queue, passive=True)
            return found.declaration_result.message_count == count

        await until(there)


@pytest.mark.rule("zdr.new-worker")
async def test_a_worker_that_comes_later_has_it_sent_again_to_itself(
    broker: Broker, model: str
) -> None:
    """It was sealed while the other worker was all there was, and waited there."""
    async with (
        pod_alone(broker.url, model) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):

        @asynccontextmanager
        async def worker(name: str) -> AsyncIterator[RabbitJobSource]:
            engine = ScriptedEngine(served_id=model, slots=1)
            source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name=name)
            try:
                async with run_worker(engine, source, name=name):
                    yield source
            finally:
                await source.close()

        async with worker("first") as first:
            await ready(stack.services)
            running = asyncio.create_task(
                http.post(CHAT, json=body(model, "[[hang:1]]"), headers=ZDR)
            )
            await until(lambda: len(first._held) == 1)
            more = [
                asyncio.create_task(http.post(CHAT, json=body(model, f"[[say:{n}]]"), headers=ZDR))
                for n in "ab"
            ]
            await waiting(broker, topology.job_queue(model, "transient"), 2)
            async with worker("second"):
                first_done, _ = await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
                assert all(task.result().status_code == 200 for task in first_done)
                sent_again = stack.services.metrics.lost_attempts.labels(model, "unreadable")
                await until(lambda: sent_again._value.get() >= 1)
                for task in (running, *more):
                    task.cancel()
                await asyncio.gather(running, *more, return_exceptions=True)


@pytest.mark.rule("zdr.keeping-engine", "zdr.nobody")
async def test_a_worker_whose_engine_keeps_requests_gets_none(broker: Broker, model: str) -> None:
    settings = WorkerSettings(
        model=model, served_id=model, engine_args={"crash_dump_folder": "/x", "log_level": "DEBUG"}
    )
    assert settings.keeping == ("crash_dump_folder", "log_level")
    assert WorkerSettings(model=model, served_id=model, engine_args={"tp_size": 2}).keeping == ()
    keeps = SourceSettings(zero_retention=False)
    source = await RabbitJobSource.connect(
        broker.url, model=model, slots=1, settings=keeps, name="test"
    )
    dispatcher = await RabbitDispatcher.connect(broker.url)
    try:
        await source.announce(a_worker(model))
        await eventually(lambda: bool(dispatcher.workers()), "heard of")
        classes: tuple[JobClass, ...] = ("interactive", "count")
        for job_class in classes:
            with pytest.raises(ModelUnavailable):
                await dispatcher.dispatch(a_job(model, job_class, zdr=True))
        await dispatcher.dispatch(a_job(model))
        await (await take_one(source)).ack()
    finally:
        await dispatcher.close()
        await source.close()


@pytest.mark.rule("zdr.inline")
async def test_what_the_broker_does_not_take_is_refused(broker: Broker, model: str) -> None:
    settings = DispatcherSettings(max_job_bytes=10_000)
    source = await RabbitJobSource.connect(broker.url, model=model, slots=1, name="test")
    dispatcher = await RabbitDispatcher.connect(broker.url, settings)
    try:
        await source.announce(a_worker(model))
        await eventually(lambda: bool(dispatcher.workers()), "heard of")
        job = a_job(model, zdr=True)
        long = TokenPrompt(prompts=(tuple(random.Random(1).choices(range(60_000), k=8000)),))
        large = msgspec.structs.replace(job, prompt=long)
        with pytest.raises(RequestTooLarge, match="zero data retention"):
            await dispatcher.dispatch(large)
    finally:
        await dispatcher.close()
        await source.close()
