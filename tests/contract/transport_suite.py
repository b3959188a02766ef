"""What every transport promises; run against each by a subclass that says how to make one."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import pytest

from schemas.delta import (
    ALIVE,
    OUT_OF_BAND,
    Completed,
    Counted,
    Delta,
    Interrupted,
    ReplyMessage,
    TextDelta,
    Usage,
)
from schemas.errors import ModelOverloaded, ModelUnavailable, ServiceError
from schemas.job import Job, JobClass, TokenPrompt
from schemas.model_card import ModelCard, WorkerInfo
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.base import (
    COUNT_SLOTS,
    Delivery,
    Dispatcher,
    JobSource,
    Reply,
    ReplyLost,
    ReplySuspended,
)

PATIENCE_S = 15.0


class Harness(Protocol):
    """How the suite gets hold of a transport."""

    async def dispatcher(self, *, reply_buffer_bytes: int = 1 << 20) -> Dispatcher: ...

    async def source(
        self, model: str, slots: int = 4, max_queued_jobs: int = 1000, batch_floor: int = 0
    ) -> JobSource: ...

    async def kill(self, source: JobSource) -> None:
        """Make a source disappear without a word."""
        ...


def a_job(
    model: str,
    job_class: JobClass = "interactive",
    *,
    attempt: int = 1,
    job_id: str | None = None,
    zdr: bool = False,
) -> Job:
    now = time.time()
    return Job(
        job_id=job_id or uuid.uuid4().hex,
        attempt=attempt,
        request_id="req_test",
        model=model,
        job_class=job_class,
        prompt=TokenPrompt(prompts=((1, 2, 3),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=8)),
        created_at=now,
        deadline=now + 600,
        queue_deadline=now + 60,
        zdr=zdr,
    )


def a_message(job: Job, seq: int, *deltas: Delta) -> ReplyMessage:
    return ReplyMessage(job.job_id, job.attempt, seq, deltas or (TextDelta(0, f"t{seq} "),))


def the_end(job: Job, seq: int) -> ReplyMessage:
    return a_message(job, seq, Completed(Usage(3, 0, seq, 0)))


def a_worker(model: str, **changes: Any) -> WorkerInfo:
    card = ModelCard(id=model, context_length=4096)
    fields = {"worker_id": uuid.uuid4().hex, "card": card, "engine": "scripted", "slots": 4}
    return WorkerInfo(**(fields | changes))


async def take(source: JobSource, count: int) -> list[Delivery]:
    """The next deliveries of a source that nothing else reads."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken.append(await anext(source.deliveries()))
    return taken


async def take_one(source: JobSource) -> Delivery:
    (delivery,) = await take(source, 1)
    return delivery


async def read(reply: Reply, count: int) -> list[ReplyMessage]:
    messages: list[ReplyMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await reply.receive()
    return messages


async def read_to_end(reply: Reply) -> list[ReplyMessage]:
    messages: list[ReplyMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while not messages or not isinstance(messages[-1].deltas[-1], Completed | Interrupted):
            messages += await reply.receive()
    return messages


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that comes from elsewhere and rings no bell."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.02)
    assert holds(), what


async def known(dispatcher: Dispatcher, source: JobSource, model: str, workers: int = 1) -> None:
    """Wait until a dispatcher has heard of a source, one of so many."""
    await source.announce(a_worker(model))
    await eventually(
        lambda: sum(worker.card.id == model for worker in dispatcher.workers()) == workers,
        "heard of",
    )


async def is_set(event: asyncio.Event) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        return await event.wait()


@contextlib.asynccontextmanager
async def serving(
    source: JobSource, run: Callable[[Delivery], Awaitable[None]]
) -> AsyncIterator[None]:
    """Run every delivery of a source, each in a task of its own."""

    async def serve() -> None:
        async with asyncio.TaskGroup() as runs:
            async for delivery in source.deliveries():
                runs.create_task(run(delivery))

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answer(delivery: Delivery, texts: int = 5) -> None:
    for seq in range(texts):
        delivery.send(a_message(delivery.job, seq))
        await delivery.writable()
        await asyncio.sleep(0)
    delivery.send(the_end(delivery.job, texts))
    await delivery.ack()


class TransportSuite:
    """Subclasses give a `harness` fixture, and a `model` no other test uses."""

    async def test_a_job_arrives_as_it_was_sent_and_its_reply_in_order(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        assert delivery.job == job
        assert not delivery.redelivered
        assert not delivery.cancelled.is_set()
        await answer(delivery, 20)
        assert await read_to_end(reply) == [a_message(job, n) for n in range(20)] + [
            the_end(job, 20)
        ]

    async def test_what_is_sent_in_one_turn_arrives_together(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        for seq in range(50):
            delivery.send(a_message(delivery.job, seq))
        async with asyncio.timeout(PATIENCE_S):
            assert [message.seq for message in await reply.receive()] == list(range(50))

    async def test_a_long_unread_reply_is_whole(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply = await dispatcher.dispatch(a_job(model))
        await answer(await take_one(source), 2000)
        assert [message.seq for message in await read_to_end(reply)] == list(range(2001))

    async def test_many_jobs_at_once_keep_their_replies_apart(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher()
        sources = [await harness.source(model, slots=16) for _ in range(2)]
        async with contextlib.AsyncExitStack() as stack:
            for source in sources:
                await stack.enter_async_context(serving(source, answer))

            async def one() -> None:
                job = a_job(model)
                reply = await dispatcher.dispatch(job)
                messages = await read_to_end(reply)
                await reply.close()
                assert messages == [a_message(job, n) for n in range(5)] + [the_end(job, 5)]

            async with asyncio.timeout(60), asyncio.TaskGroup() as requests:
                for _ in range(200):
                    requests.create_task(one())

    async def test_a_source_holds_no_more_jobs_of_a_class_than_it_has_slots(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=2)
        for _ in range(3):
            await dispatcher.dispatch(a_job(model))
        first, second = await take(source, 2)
        third = asyncio.ensure_future(anext(source.deliveries()))
        # Another job on another model goes there and back while the third one stays away.
        other = f"{model}-other"
        other_source = await harness.source(other)
        reply = await dispatcher.dispatch(a_job(other))
        await answer(await take_one(other_source))
        await read_to_end(reply)
        assert not third.done()
        await second.ack()
        async with asyncio.timeout(PATIENCE_S):
            delivery = await third
        assert delivery.job.job_id not in {first.job.job_id, second.job.job_id}

    async def test_batch_jobs_take_only_what_interactive_ones_leave(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=2)
        for _ in range(2):
            await dispatcher.dispatch(a_job(model))
        held = await take(source, 2)
        batch = a_job(model, "batch")
        await dispatcher.dispatch(batch)
        # Batch Jobs of another model come and go, so this one's would have come as well.
        other_source = await harness.source(f"{model}-other")
        for _ in range(10):
            reply = await dispatcher.dispatch(a_job(f"{model}-other", "batch"))
            await answer(await take_one(other_source))
            await read_to_end(reply)
        urgent = a_job(model)
        await dispatcher.dispatch(urgent)
        for delivery in held:
            await delivery.ack()
        # In either order: both have room now.
        assert {d.job.job_id for d in await take(source, 2)} == {urgent.job_id, batch.job_id}

    async def test_batch_jobs_fill_the_slots_as_they_become_free(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=3)
        jobs = [a_job(model, "batch") for _ in range(8)]
        for job in jobs:
            await dispatcher.dispatch(job)
        held = await take(source, 3)
        seen = [delivery.job.job_id for delivery in held]
        for _ in jobs[3:]:
            await held.pop(0).ack()
            held += await take(source, 1)
            seen.append(held[-1].job.job_id)
        # About in order: several are on their way at once.
        assert sorted(seen) == sorted(job.job_id for job in jobs)

    async def test_a_batch_job_comes_to_a_source_that_has_been_idle(
        self, harness: Harness, model: str
    ) -> None:
        """Again and again: each time the queue was empty before."""
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=2)
        for _ in range(5):
            job = a_job(model, "batch")
            reply = await dispatcher.dispatch(job)
            delivery = await take_one(source)
            assert (delivery.job, delivery.redelivered) == (job, False)
            await answer(delivery)
            await read_to_end(reply)

    async def test_a_batch_job_goes_where_there_is_room(self, harness: Harness, model: str) -> None:
        dispatcher = await harness.dispatcher()
        full, free = [await harness.source(model, slots=1) for _ in range(2)]
        takes = [asyncio.ensure_future(take_one(source)) for source in (full, free)]
        for _ in takes:  # each has one
            await dispatcher.dispatch(a_job(model, "batch"))
        async with asyncio.timeout(PATIENCE_S):
            first, second = [await taken for taken in takes]
        waiting = a_job(model, "batch")
        await dispatcher.dispatch(waiting)
        await second.ack()
        assert (await take_one(free)).job == waiting
        await first.ack()

    async def test_a_source_takes_no_batch_job_above_its_limit(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=3)
        source.limit_batch(1)
        jobs = [a_job(model, "batch") for _ in range(3)]
        for job in jobs:
            await dispatcher.dispatch(job)
        first = await take_one(source)
        urgent = [a_job(model) for _ in range(2)]
        for job in urgent:  # there are slots, and so they come before any further batch Job
            await dispatcher.dispatch(job)
        live = await take(source, 2)
        assert [delivery.job for delivery in live] == urgent
        source.limit_batch(2)
        await live[0].ack()
        second = await take_one(source)
        assert {first.job.job_id, second.job.job_id} == {jobs[0].job_id, jobs[1].job_id}
        source.limit_batch(0)
        await first.ack()
        await second.ack()
        await live[1].ack()
        urgent.append(a_job(model))
        await dispatcher.dispatch(urgent[-1])
        assert (await take_one(source)).job == urgent[-1]
        source.limit_batch(1)
        assert (await take_one(source)).job == jobs[2]

    async def test_interactive_jobs_leave_the_batch_floor_alone(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher()
        source = await harness.source(model, slots=2, batch_floor=1)
        urgent = [a_job(model) for _ in range(2)]
        for job in urgent:
            await dispatcher.dispatch(job)
        first = await take_one(source)
        assert first.job == urgent[0]
        batch = a_job(model, "batch")
        await dispatcher.dispatch(batch)
        held = await take_one(source)
        assert held.job == batch
        await first.ack()
        assert (await take_one(source)).job == urgent[1]

    async def test_a_batch_job_whose_reader_is_gone_is_cancelled(
        self, harness: Harness, model: str
    ) -> None:
        """One that is held hears it at once, one that waits when it says its first word."""
        gone, other = await harness.dispatcher(), await harness.dispatcher()
        source = await harness.source(model, slots=1)
        for _ in range(2):
            await gone.dispatch(a_job(model, "batch"))
        held = await take_one(source)
        await gone.close()
        held.send(a_message(held.job, 0))
        assert await is_set(held.cancelled)
        await held.ack()
        waited = await take_one(source)
        waited.send(a_message(waited.job, 0))
        assert await is_set(waited.cancelled)
        await waited.ack()
        reply = await other.dispatch(a_job(model, "batch"))
        await answer(await take_one(source))
        assert len(await read_to_end(reply)) == 6

    async def test_counting_jobs_arrive_while_every_slot_is_taken(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=1)
        await dispatcher.dispatch(a_job(model))
        generating = await take_one(source)
        waiting = await dispatcher.dispatch(a_job(model))
        counts = [a_job(model, "count") for _ in range(COUNT_SLOTS)]
        replies = [await dispatcher.dispatch(job) for job in counts]
        held = await take(source, COUNT_SLOTS)
        assert [delivery.job for delivery in held] == counts
        one_more = a_job(model, "count")
        await dispatcher.dispatch(one_more)
        await generating.ack()
        # The slot goes to the Job that waits for it: the counts held do not fill it, and the one
        # above their own number does not take it.
        last = await take_one(source)
        assert last.job.job_class == "interactive"
        await held[0].ack()
        assert (await take_one(source)).job == one_more
        for delivery, reply in zip(held[1:], replies[1:], strict=True):
            counted = a_message(delivery.job, 0, Counted("worker", 3))
            delivery.send(counted)
            await delivery.ack()
            assert await read(reply, 1) == [counted]
        await answer(last)
        assert len(await read_to_end(waiting)) == 6

    async def test_counting_jobs_leave_batch_jobs_their_slots(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=1)
        for _ in range(3):
            await dispatcher.dispatch(a_job(model, "count"))
        await take(source, 3)
        batch = a_job(model, "batch")
        await dispatcher.dispatch(batch)
        assert (await take_one(source)).job == batch

    async def test_a_model_nobody_serves_is_unavailable(self, harness: Harness, model: str) -> None:
        dispatcher = await harness.dispatcher()
        with pytest.raises(ModelUnavailable) as caught:
            await dispatcher.dispatch(a_job(model))
        assert caught.value.retry_after_s

    async def test_a_full_queue_refuses_and_accepts_again(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher()
        source = await harness.source(model, slots=1, max_queued_jobs=10)
        accepted = 0
        with pytest.raises(ModelOverloaded) as caught:
            # The limit of a replicated queue is not exact; it has to come soon after.
            for _ in range(100):
                await dispatcher.dispatch(a_job(model))
                accepted += 1
        assert caught.value.retry_after_s
        assert accepted >= 10
        async with serving(source, answer):
            await eventually_accepted(dispatcher, model)

    async def test_a_settled_job_never_comes_back(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        await delivery.ack()
        await delivery.requeue()
        await delivery.dead_letter("settled already")
        await delivery.ack()
        await source.close()
        heir = await harness.source(model)
        witness = a_job(model)
        await dispatcher.dispatch(witness)
        assert (await take_one(heir)).job == witness

    async def test_a_requeued_job_goes_to_somebody(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        await (await take_one(source)).requeue()
        await answer(await take_one(source))
        assert len(await read_to_end(reply)) == 6

    async def test_a_dead_lettered_job_is_gone_and_its_reply_delivered(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        delivery.send(the_end(delivery.job, 0))
        await delivery.dead_letter("killed two workers")
        assert await read_to_end(reply) == [the_end(delivery.job, 0)]
        await source.close()
        heir = await harness.source(model)
        witness = a_job(model)
        await dispatcher.dispatch(witness)
        assert (await take_one(heir)).job == witness

    async def test_a_dead_sources_jobs_are_redelivered(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        replies = {}
        for _ in range(3):
            job = a_job(model)
            replies[job.job_id] = await dispatcher.dispatch(job)
        held = await take(source, 3)
        await harness.kill(source)
        for delivery in held:
            assert await is_set(delivery.cancelled)
            await delivery.ack()  # too late, and harmless
            delivery.send(a_message(delivery.job, 0, TextDelta(0, "a ghost")))
        heir = await harness.source(model)
        for delivery in await take(heir, 3):
            assert delivery.redelivered
            assert not delivery.cancelled.is_set()
            delivery.send(a_message(delivery.job, 0, Interrupted("redelivered")))
            await delivery.ack()
        for job_id, reply in replies.items():
            (message,) = await read_to_end(reply)
            assert (message.job_id, message.deltas) == (job_id, (Interrupted("redelivered"),))

    async def test_a_further_attempt_answers_into_the_same_reply(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        first.send(a_message(job, 0, Interrupted("draining")))
        await first.ack()
        await read_to_end(reply)
        again = a_job(model, attempt=2, job_id=job.job_id)
        await reply.redispatch(again)
        second = await take_one(source)
        assert second.job == again
        await answer(second, 1)
        assert await read_to_end(reply) == [a_message(again, 0), the_end(again, 1)]

    async def test_cancelling_reaches_the_holder(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply, other = [await dispatcher.dispatch(a_job(model)) for _ in range(2)]
        first, second = await take(source, 2)
        await reply.cancel()
        await reply.cancel()
        assert await is_set(first.cancelled)
        assert not second.cancelled.is_set()
        await first.ack()
        await answer(second)
        assert len(await read_to_end(other)) == 6

    async def test_what_is_said_after_a_cancel_arrives_until_the_reply_is_closed(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply = await dispatcher.dispatch(a_job(model))
        held = await take_one(source)
        held.send(a_message(held.job, 0))
        await reply.cancel()
        assert await is_set(held.cancelled)
        held.send(the_end(held.job, 1))
        await held.ack()
        assert await read(reply, 2) == [a_message(held.job, 0), the_end(held.job, 1)]

    async def test_cancelling_reaches_who_gets_the_job_later(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=1)
        await dispatcher.dispatch(a_job(model))
        running = await take_one(source)
        waiting = await dispatcher.dispatch(a_job(model))
        last = await dispatcher.dispatch(a_job(model))
        await waiting.cancel()
        await waiting.close()
        # A cancel that does reach a holder comes after the one before it.
        marker_source = await harness.source(f"{model}-marker")
        marker = await dispatcher.dispatch(a_job(f"{model}-marker"))
        held = await take_one(marker_source)
        await marker.cancel()
        await is_set(held.cancelled)
        await running.ack()
        cancelled = await take_one(source)
        assert await is_set(cancelled.cancelled)
        await cancelled.ack()
        alive = await take_one(source)
        assert not alive.cancelled.is_set()
        await answer(alive)
        assert len(await read_to_end(last)) == 6

    async def test_an_attempt_after_the_cancelled_one_is_alive(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        hung = await take_one(source)
        await reply.cancel()
        await is_set(hung.cancelled)
        await reply.redispatch(a_job(model, attempt=2, job_id=job.job_id))
        second = await take_one(source)
        assert not second.cancelled.is_set()
        await reply.cancel()
        assert await is_set(second.cancelled)

    async def test_a_closed_reply_hears_nothing_and_harms_nobody(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        gone, other = [await dispatcher.dispatch(a_job(model)) for _ in range(2)]
        await gone.close()
        await gone.close()
        first, second = await take(source, 2)
        assert not first.cancelled.is_set()
        await answer(first)
        await answer(second)
        assert {m.job_id for m in await read_to_end(other)} == {second.job.job_id}

    async def test_a_reader_that_stops_costs_only_its_own_reply(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher(reply_buffer_bytes=20_000)
        source = await harness.source(model)
        slow, quick = [await dispatcher.dispatch(a_job(model)) for _ in range(2)]
        first, second = await take(source, 2)
        read_by_quick: list[ReplyMessage] = []
        for seq in range(40):
            first.send(a_message(first.job, seq, TextDelta(0, "x" * 1000)))
            second.send(a_message(second.job, seq, TextDelta(0, "x" * 1000)))
            read_by_quick += await read(quick, 1)
        assert [message.seq for message in read_by_quick] == list(range(40))
        assert await is_set(first.cancelled)
        assert not second.cancelled.is_set()
        kept: list[ReplyMessage] = []
        with pytest.raises(ReplySuspended) as caught:
            while True:
                async with asyncio.timeout(PATIENCE_S):
                    kept += await slow.receive()
        assert "overrun" in (caught.value.diagnostic or "")
        assert [message.seq for message in kept] == list(range(len(kept)))
        assert len(kept) < 40

    async def test_a_suspended_reply_goes_on_with_its_next_attempt(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher(reply_buffer_bytes=20_000)
        source = await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        for seq in range(40):
            first.send(a_message(job, seq, TextDelta(0, "x" * 1000)))
            await asyncio.sleep(0)
        assert await is_set(first.cancelled)
        kept: list[ReplyMessage] = []
        with pytest.raises(ReplySuspended):
            while True:
                async with asyncio.timeout(PATIENCE_S):
                    kept += await reply.receive()
        again = a_job(model, attempt=2, job_id=job.job_id)
        await reply.redispatch(again)
        second = await take_one(source)
        assert not second.cancelled.is_set()
        await answer(second, 3)
        assert await read_to_end(reply) == [a_message(again, n) for n in range(3)] + [
            the_end(again, 3)
        ]

    async def test_an_attempt_that_was_left_is_heard_no_more(
        self, harness: Harness, model: str
    ) -> None:
        """Not even by how much it says: that must not count against the next one."""
        dispatcher = await harness.dispatcher(reply_buffer_bytes=20_000)
        source = await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        reply.interrupt("doubted")
        with pytest.raises(ReplyLost):
            await reply.receive()
        again = a_job(model, attempt=2, job_id=job.job_id)
        await reply.redispatch(again)
        second = await take_one(source)
        for seq in range(40):
            first.send(a_message(job, seq, TextDelta(0, "x" * 1000)))
        await answer(second, 3)
        assert await read_to_end(reply) == [a_message(again, n) for n in range(3)] + [
            the_end(again, 3)
        ]
        assert not second.cancelled.is_set()

    async def test_a_probe_is_answered_without_the_runner(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply, other = await dispatcher.dispatch(job), await dispatcher.dispatch(a_job(model))
        held, neighbour = await take(source, 2)
        held.send(a_message(job, 0))
        reply.probe()
        assert set(await read(reply, 2)) == {
            a_message(job, 0),
            ReplyMessage(job.job_id, 1, ALIVE, ()),
        }
        await held.ack()
        reply.probe()  # too late: nobody holds it any more
        other.probe()
        assert await read(other, 1) == [ReplyMessage(neighbour.job.job_id, 1, ALIVE, ())]
        await reply.redispatch(a_job(model, attempt=2, job_id=job.job_id))
        again = await take_one(source)
        reply.probe()
        assert await read(reply, 1) == [ReplyMessage(job.job_id, 2, ALIVE, ())]
        await again.ack()

    async def test_a_probe_of_a_lost_worker_is_not_answered_by_who_gets_the_job_again(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        await take_one(source)
        await harness.kill(source)
        heir = await harness.source(model)
        again = await take_one(heir)
        reply.probe()
        # A control message that does reach the heir comes after the one before it.
        witness = await dispatcher.dispatch(a_job(model))
        await take_one(heir)
        witness.probe()
        await read(witness, 1)
        report = ReplyMessage(job.job_id, 1, OUT_OF_BAND, (Interrupted("redelivered"),))
        again.send(report)
        await again.ack()
        assert await read(reply, 1) == [report]

    async def test_an_interrupted_reply_is_lost_once_it_has_been_read(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        first.send(a_message(job, 0))
        assert await read(reply, 1) == [a_message(job, 0)]
        waiting = asyncio.ensure_future(reply.receive())
        await asyncio.sleep(0)
        reply.interrupt("silent")
        with pytest.raises(ReplyLost) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await waiting
        assert caught.value.diagnostic == "silent"
        await reply.cancel()
        assert await is_set(first.cancelled)
        again = a_job(model, attempt=2, job_id=job.job_id)
        await reply.redispatch(again)
        second = await take_one(source)
        assert not second.cancelled.is_set()
        await answer(second, 1)
        assert await read_to_end(reply) == [a_message(again, 0), the_end(again, 1)]

    async def test_a_reply_stays_lost_when_its_next_attempt_is_refused(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        await (await take_one(source)).ack()
        reply.interrupt("silent")
        nowhere = a_job(f"{model}-unserved", attempt=2, job_id=job.job_id)
        with pytest.raises(ModelUnavailable):
            await reply.redispatch(nowhere)
        with pytest.raises(ReplyLost):
            await read(reply, 1)
        again = a_job(model, attempt=3, job_id=job.job_id)
        await reply.redispatch(again)
        await answer(await take_one(source), 1)
        assert await read_to_end(reply) == [a_message(again, 0), the_end(again, 1)]

    async def test_a_cancel_covers_earlier_attempts_wherever_they_turn_up(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        job = a_job(model)
        reply = await dispatcher.dispatch(job)
        first = await take_one(source)
        await reply.redispatch(a_job(model, attempt=2, job_id=job.job_id))
        second = await take_one(source)
        await reply.cancel()
        assert await is_set(first.cancelled)
        assert await is_set(second.cancelled)
        await first.requeue()
        assert await is_set((await take_one(source)).cancelled)

    async def test_workers_appear_change_and_disappear(self, harness: Harness, model: str) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)

        def seen(by: Dispatcher) -> Sequence[WorkerInfo]:
            """As they told of themselves, but for the times and what the transport adds."""
            return [
                msgspec.structs.replace(worker, sent_at=0.0, clock_ahead_s=0.0, sealing_key=None)
                for worker in by.workers()
                if worker.card.id == model
            ]

        assert seen(dispatcher) == []
        worker = a_worker(model, running=1)
        await source.announce(worker)
        await eventually(lambda: seen(dispatcher) == [worker], "announced")
        late = await harness.dispatcher()
        await eventually(lambda: seen(late) == [worker], "asked for")
        await source.drain()
        await eventually(lambda: [w.draining for w in seen(dispatcher)] == [True], "draining")
        await source.close()
        await eventually(lambda: seen(dispatcher) == [], "gone")

    @pytest.mark.rule("zdr.transport")
    @pytest.mark.parametrize("job_class", ["interactive", "count"])
    async def test_zero_retention_is_carried_like_all_else(
        self, harness: Harness, model: str, job_class: JobClass
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        await known(dispatcher, source, model)
        job = a_job(model, job_class, zdr=True)
        reply = await dispatcher.dispatch(job)
        delivery = await take_one(source)
        assert delivery.job == job
        assert not delivery.redelivered
        sent = [a_message(job, 0), a_message(job, 1), the_end(job, 2)]
        for message in sent[:2]:
            delivery.send(message)
        assert await read(reply, 2) == sent[:2]
        delivery.send(sent[2])
        await delivery.ack()
        assert await read(reply, 1) == sent[2:]
        await reply.redispatch(a_job(model, job_class, attempt=2, job_id=job.job_id, zdr=True))
        again = await take_one(source)
        again.send(a_message(again.job, 0))
        assert await read(reply, 1) == [a_message(again.job, 0)]
        await reply.cancel()
        assert await is_set(again.cancelled)
        await again.ack()
        await reply.close()

    @pytest.mark.rule("zdr.slots")
    async def test_zero_retention_shares_the_slots_of_other_live_work(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=2)
        await known(dispatcher, source, model)
        jobs = [a_job(model, zdr=number % 2 == 0) for number in range(6)]
        for job in jobs:
            await dispatcher.dispatch(job)
        handed_out: list[Delivery] = []

        async def collect() -> None:
            async for delivery in source.deliveries():
                handed_out.append(delivery)  # noqa: PERF401 - seen while it goes on

        collecting = asyncio.create_task(collect())
        try:
            for settled in range(6):
                held = min(settled + 2, 6)
                await eventually(lambda held=held: len(handed_out) == held, "the slots are used")
                await source.announce(a_worker(model))  # passes through everything on its way
                assert len(handed_out) == held
                await handed_out[settled].ack()
        finally:
            collecting.cancel()
        assert {d.job.job_id for d in handed_out} == {job.job_id for job in jobs}
        kinds = [delivery.job.zdr for delivery in handed_out]
        assert len(set(kinds[:4])) == 2, "neither waits for the other to end"

    @pytest.mark.rule("zdr.lost-worker")
    async def test_zero_retention_comes_again_where_a_worker_is_lost(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, first = await harness.dispatcher(), await harness.source(model)
        await known(dispatcher, first, model)
        second = await harness.source(model)
        await known(dispatcher, second, model, workers=2)
        job = a_job(model, zdr=True)
        reply = await dispatcher.dispatch(job)
        takers = {asyncio.create_task(take_one(source)): source for source in (first, second)}
        done, waiting = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
        (holding,) = done
        (other,) = waiting
        holding.result().send(a_message(job, 0))
        assert await read(reply, 1) == [a_message(job, 0)]
        await harness.kill(takers[holding])
        async with asyncio.timeout(PATIENCE_S):
            again = await other
        assert again.job == job
        assert again.redelivered
        again.send(a_message(job, OUT_OF_BAND, Interrupted("redelivered")))
        assert await read(reply, 1) == [a_message(job, OUT_OF_BAND, Interrupted("redelivered"))]
        await again.ack()

    @pytest.mark.rule("zdr.nobody")
    async def test_zero_retention_is_refused_where_nobody_takes_it(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher = await harness.dispatcher()
        with pytest.raises(ModelUnavailable):
            await dispatcher.dispatch(a_job(model, zdr=True))

    async def test_draining_ends_the_deliveries_and_spares_those_held(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model, slots=2)
        held_reply = await dispatcher.dispatch(a_job(model))
        held = await take_one(source)
        waiting = await dispatcher.dispatch(a_job(model))
        await source.drain()
        async with asyncio.timeout(PATIENCE_S):
            assert [delivery async for delivery in source.deliveries()] == []
        assert not source.connected()
        heir = await harness.source(model)
        await answer(await take_one(heir))
        assert len(await read_to_end(waiting)) == 6
        assert not held.cancelled.is_set()
        await answer(held)
        assert len(await read_to_end(held_reply)) == 6
        await source.close()
        await source.close()

    async def test_what_was_sent_before_the_source_closes_arrives(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        for seq in range(100):
            delivery.send(a_message(delivery.job, seq))
        delivery.send(the_end(delivery.job, 100))
        await delivery.ack()
        await source.close()
        assert len(await read_to_end(reply)) == 101

    async def test_closing_the_dispatcher_ends_its_replies_and_jobs(
        self, harness: Harness, model: str
    ) -> None:
        dispatcher, source = await harness.dispatcher(), await harness.source(model)
        assert dispatcher.connected()
        reply = await dispatcher.dispatch(a_job(model))
        delivery = await take_one(source)
        waiting = asyncio.ensure_future(reply.receive())
        await asyncio.sleep(0)
        await dispatcher.close()
        await dispatcher.close()
        with pytest.raises(ServiceError):
            async with asyncio.timeout(PATIENCE_S):
                await waiting
        assert not dispatcher.connected()
        delivery.send(a_message(delivery.job, 0))
        assert await is_set(delivery.cancelled)
        with pytest.raises(ModelUnavailable):
            await dispatcher.dispatch(a_job(model))


async def eventually_accepted(dispatcher: Dispatcher, model: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                reply = await dispatcher.dispatch(a_job(model))
            except ModelOverloaded:
                await asyncio.sleep(0.05)
            else:
                assert len(await read_to_end(reply)) == 6
                return
