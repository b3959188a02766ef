"""A reply over several attempts: the owner's side, with the worker's side played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from ingress.generation import Generation
from ingress.settings import TimeLimits
from schemas.delta import (
    OUT_OF_BAND,
    Accepted,
    Completed,
    Delta,
    Finished,
    FinishReason,
    Interrupted,
    ReplyMessage,
    Started,
    TextDelta,
    Usage,
)
from schemas.errors import GenerationFailed, ProtocolViolation, WorkerFailed
from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.model_card import ModelCard, WorkerInfo
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.base import Delivery
from schemas.transport.memory import MemoryTransport

MODEL = "demo-model"
STARTED = (Accepted("w", 3), Started("w", 3, 0))
ENDING = (Finished(0, FinishReason.STOP), Completed(Usage(3, 0, 2, 0)))


def job() -> Job:
    return Job(
        job_id="job-1",
        model=MODEL,
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text="hi"),)),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=5)),
        created_at=0.0,
        deadline=1e12,
        queue_deadline=1e12,
    )


class Worker:
    """Takes Jobs and answers as the test says."""

    def __init__(self, deliveries: AsyncIterator[Delivery]) -> None:
        self._deliveries = deliveries
        self._seq = 0
        self.delivery: Delivery | None = None

    async def take(self) -> Job:
        if self.delivery is not None:
            await self.delivery.ack()
        async with asyncio.timeout(5):
            self.delivery = await anext(self._deliveries)
        self._seq = 0
        return self.delivery.job

    def say(self, *deltas: Delta, attempt: int | None = None, seq: int | None = None) -> None:
        assert self.delivery is not None
        job = self.delivery.job
        number = self._seq if seq is None else seq
        self.delivery.send(ReplyMessage(job.job_id, attempt or job.attempt, number, deltas))
        self._seq += 1


@pytest.fixture
async def worker_and_generation() -> AsyncIterator[tuple[Worker, Generation]]:
    memory = MemoryTransport()
    dispatcher = memory.dispatcher()
    source = memory.job_source(model=MODEL, slots=4)
    card = ModelCard(id=MODEL, context_length=100)
    await source.announce(WorkerInfo(worker_id="w", card=card, engine="scripted", slots=4))
    generation = Generation(dispatcher, job(), TimeLimits(last_words_s=0.3))
    await generation.start()
    async with aclosing(source.deliveries()) as deliveries:  # type: ignore[type-var]
        yield Worker(deliveries), generation
        await generation.close()
        await source.close()
        await dispatcher.close()


async def collect(generation: Generation) -> list[Delta]:
    deltas: list[Delta] = []
    async with asyncio.timeout(5):
        while not deltas or not isinstance(deltas[-1], Completed):
            deltas += await generation.receive()
    return deltas


Pair = tuple[Worker, Generation]


async def test_an_interruption_before_the_answer_is_invisible(
    worker_and_generation: Pair,
) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    assert (await worker.take()).attempt == 1
    worker.say(*STARTED)
    worker.say(Interrupted("redelivered"), seq=OUT_OF_BAND)
    assert (await worker.take()).attempt == 2
    worker.say(*STARTED)
    worker.say(TextDelta(0, "hi"), *ENDING)
    deltas = await collecting
    assert deltas == [*STARTED, TextDelta(0, "hi"), *ENDING]
    assert generation.usage == Usage(3, 0, 2, 0)
    assert generation.attempt == 2


async def test_a_stale_attempt_is_ignored(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    await worker.take()
    worker.say(Interrupted("draining"))
    await worker.take()
    worker.say(TextDelta(0, "ghost"), attempt=1, seq=1)
    worker.say(*STARTED, TextDelta(0, "hi"), *ENDING, seq=0)
    assert TextDelta(0, "ghost") not in await collecting


async def test_an_interruption_in_the_answer_is_a_failure(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    await worker.take()
    worker.say(*STARTED, TextDelta(0, "half"))
    worker.say(Interrupted("redelivered"), seq=OUT_OF_BAND)
    async with asyncio.timeout(5):
        assert TextDelta(0, "half") in await generation.receive()
        with pytest.raises(WorkerFailed):
            await generation.receive()


async def test_a_worker_that_still_speaks_is_not_lost(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    await worker.take()
    worker.say(*STARTED, TextDelta(0, "half"))
    worker.say(Interrupted("redelivered"), seq=OUT_OF_BAND)
    worker.say(TextDelta(0, " and half"), seq=1)
    await asyncio.sleep(0.5)  # longer than a worker that seems lost may be silent
    worker.say(*ENDING, seq=2)
    assert await collecting == [
        *STARTED,
        TextDelta(0, "half"),
        TextDelta(0, " and half"),
        *ENDING,
    ]


async def test_an_attempt_that_is_given_up_is_cancelled(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    await worker.take()
    first = worker.delivery
    worker.say(*STARTED)
    worker.say(Interrupted("redelivered"), seq=OUT_OF_BAND)
    worker.delivery = None  # the first one stays unsettled: it is still at work
    assert (await worker.take()).attempt == 2
    assert first is not None
    assert first.cancelled.is_set()
    assert worker.delivery is not None
    assert not worker.delivery.cancelled.is_set()
    worker.say(*STARTED, *ENDING)
    await collecting


async def test_two_lost_workers_are_enough(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    for attempt in (1, 2):
        assert (await worker.take()).attempt == attempt
        worker.say(Accepted("w", 3))
        worker.say(Interrupted("redelivered"), seq=OUT_OF_BAND)
    with pytest.raises(GenerationFailed):
        await collecting


async def test_giving_back_an_unstarted_job_costs_no_strike(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    collecting = asyncio.create_task(collect(generation))
    for attempt in range(1, 6):
        assert (await worker.take()).attempt == attempt
        worker.say(Interrupted("draining"))
    await worker.take()
    worker.say(*STARTED, *ENDING)
    assert (await collecting)[-1] == ENDING[-1]


async def test_a_gap_is_detected(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    await worker.take()
    worker.say(*STARTED)
    worker.say(TextDelta(0, "late"), seq=2)
    async with asyncio.timeout(5):
        await generation.receive()
        with pytest.raises(ProtocolViolation):
            await generation.receive()


async def test_a_delta_out_of_grammar_is_detected(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    await worker.take()
    worker.say(TextDelta(0, "too early"))
    async with asyncio.timeout(5):
        with pytest.raises(ProtocolViolation):
            await generation.receive()


async def test_closing_cancels_the_job(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    await worker.take()
    await generation.close()
    assert worker.delivery is not None
    async with asyncio.timeout(5):
        await worker.delivery.cancelled.wait()


async def test_every_phase_is_told_also_between_attempts(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    phases: list[str] = []
    generation.on_phase = lambda: phases.append(generation.phase)
    collecting = asyncio.create_task(collect(generation))
    await worker.take()
    worker.say(Accepted("w", 3))
    worker.say(Interrupted("draining"))
    await worker.take()
    assert phases == ["prefill", "queued"]
    at, _ = generation.limit()
    loop = asyncio.get_running_loop()
    assert at - loop.time() <= TimeLimits().queue_wait_s
    worker.say(*STARTED, *ENDING)
    await collecting
    assert phases == ["prefill", "queued", "prefill", "decode"]


async def test_a_finished_choice_is_part_of_the_answer(worker_and_generation: Pair) -> None:
    worker, generation = worker_and_generation
    await worker.take()
    worker.say(*STARTED, Finished(0, FinishReason.STOP))
    worker.say(Interrupted("draining"))
    async with asyncio.timeout(5):
        await generation.receive()
        with pytest.raises(WorkerFailed):
            await generation.receive()
