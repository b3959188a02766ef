"""Batch work and live requests on one worker: who runs, who gives way, and what comes of it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from ingress.generation import Generation
from ingress.settings import TimeLimits
from schemas.delta import Accepted, Completed, Delta, TextDelta, TokenLogprob
from schemas.job import ChatPrompt, Job, JobClass
from schemas.message import Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.base import Dispatcher, JobSource
from schemas.transport.memory import MemoryTransport
from schemas.transport.rabbit import (
    DispatcherSettings,
    RabbitDispatcher,
    RabbitJobSource,
    SourceSettings,
)
from tests.fixtures.broker import Broker
from tests.fixtures.continued import runner
from tests.fixtures.stack import until
from workers.consumer import Consumer
from workers.count import TokenCounter
from workers.engines.base import Engine, EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text
from workers.metrics import WorkerMetrics
from workers.sharing import Shares

BEAT_S = 1.0
WORDS = tuple(f"{word} " for word in "abcdef")


class Pace:
    """Says the first words of a Job at once and each further one when it may.

    Attributes:
        may_end: By Job: let it say the rest.
        begun: Engine requests so far, by Job.
    """

    def __init__(self) -> None:
        self.may_end: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.begun: dict[str, int] = defaultdict(int)

    def __call__(self, request: EngineRequest) -> Iterable[Step]:
        job_id = request.job.job_id
        self.begun[job_id] += 1
        for at, word in enumerate(WORDS):
            if at == 3:
                yield Gate(self.may_end[job_id])
            yield Text(f"{word}{request.choice}")


class Fleet:
    """One worker and its owners.

    Attributes:
        pace: Of a scripted engine.
    """

    def __init__(self, engine: Engine, consumer: Consumer, dispatcher: Dispatcher) -> None:
        self.pace = Pace()
        self.engine = engine
        self.consumer = consumer
        self.dispatcher = dispatcher
        self.asked: list[asyncio.Task[None]] = []

    def ask(self, name: str, job_class: JobClass, **sampling: Any) -> Asked:
        job = a_job(name, job_class, **sampling)
        asked = Asked(self.dispatcher, msgspec.structs.replace(job, model=self.engine.card.id))
        self.asked.append(asyncio.create_task(asked.read()))
        return asked


class Asked:
    """A Job, its owner, and what it has been told."""

    def __init__(self, dispatcher: Dispatcher, job: Job) -> None:
        limits = TimeLimits(silence_s=0.3, retry_s=0.3, last_words_s=0.05)
        self.generation = Generation(dispatcher, job, limits)
        self.deltas: list[Delta] = []
        self.error: Exception | None = None

    async def read(self) -> None:
        """As an owner does, with its limits."""
        generation, loop = self.generation, asyncio.get_running_loop()
        await generation.start()
        receiving = asyncio.ensure_future(generation.receive())
        try:
            while not self.ended:
                left_s = max(generation.due_at() - loop.time(), 0)
                done, _ = await asyncio.wait((receiving,), timeout=min(left_s, 0.05))
                if done:
                    self.deltas += receiving.result()
                    receiving = asyncio.ensure_future(generation.receive())
                generation.on_due()
        except Exception as error:
            self.error = error
        finally:
            receiving.cancel()
            await generation.close()

    @property
    def ended(self) -> bool:
        return bool(self.deltas) and isinstance(self.deltas[-1], Completed)

    def answers(self) -> bool:
        """Whether the engine has begun."""
        return any(isinstance(delta, TextDelta) for delta in self.deltas)

    def text(self, choice: int = 0) -> str:
        return "".join(
            delta.text
            for delta in self.deltas
            if isinstance(delta, TextDelta) and delta.choice == choice
        )

    def logprobs(self) -> list[TokenLogprob]:
        return [
            one for delta in self.deltas if isinstance(delta, TextDelta) for one in delta.logprobs
        ]

    @property
    def losses(self) -> list[str]:
        return list(self.generation.retries.losses)


def a_job(name: str, job_class: JobClass, **sampling: Any) -> Job:
    now = time.time()
    return Job(
        job_id=name,
        model="m",
        job_class=job_class,
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text=name),)),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1000), **sampling),
        created_at=now,
        deadline=now + 600,
        queue_deadline=now + 600,
    )


@asynccontextmanager
async def a_worker(
    source: JobSource,
    dispatcher: Dispatcher,
    engine: Engine,
    *,
    share: float = 1.0,
    floor: int = 0,
) -> AsyncIterator[Fleet]:
    consumer = Consumer(
        source,
        runner(engine),
        TokenCounter(engine, worker_id="w", metrics=WorkerMetrics()),
        shares=Shares.of(engine.slots, share=share, floor=floor),
        announce_interval_s=0.05,
        heartbeat_s=0.1,
    )
    serving = asyncio.create_task(consumer.run())
    fleet = Fleet(engine, consumer, dispatcher)
    if isinstance(engine, ScriptedEngine):
        fleet.pace = cast(Pace, engine._script)
    try:
        yield fleet
    finally:
        for asked in fleet.asked:
            asked.cancel()
        await asyncio.gather(*fleet.asked, return_exceptions=True)
        await consumer.drain(0)
        await asyncio.wait({serving})
        await source.close()
        await dispatcher.close()


def scripted(slots: int) -> ScriptedEngine:
    return ScriptedEngine(served_id="m", script=Pace(), slots=slots)


@asynccontextmanager
async def in_memory(slots: int, *, share: float = 1.0, floor: int = 0) -> AsyncIterator[Fleet]:
    memory = MemoryTransport()
    source = memory.job_source(model="m", slots=slots, batch_floor=floor)
    worker = a_worker(source, memory.dispatcher(), scripted(slots), share=share, floor=floor)
    async with worker as fleet:
        yield fleet


async def fill(fleet: Fleet, count: int, **sampling: Any) -> list[Asked]:
    """So many batch Jobs, all of them running."""
    batch = [fleet.ask(f"batch-{at}", "batch", **sampling) for at in range(count)]
    await until(lambda: all(asked.answers() for asked in batch))
    return batch


def losses(batch: Iterable[Asked]) -> list[str]:
    return [loss for asked in batch for loss in asked.losses]


@pytest.mark.rule("sharing.live-first")
@pytest.mark.rule("sharing.same-result")
@pytest.mark.parametrize("sampling", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}])
async def test_live_requests_start_at_once_and_batch_work_goes_on_as_if_nothing_had_been(
    sampling: dict[str, Any],
) -> None:
    async with in_memory(2) as fleet:
        undisturbed = fleet.ask("alone", "batch", **sampling)
        fleet.pace.may_end["alone"].set()
        await until(lambda: undisturbed.ended)
        batch = await fill(fleet, 2, **sampling)
        live = [fleet.ask(f"live-{at}", "interactive") for at in range(2)]
        async with asyncio.timeout(BEAT_S):
            await until(lambda: all(asked.answers() for asked in live))
        await until(lambda: losses(batch) == ["yielded", "yielded"])
        assert await fleet.engine.running() == 2
        for asked in (*live, *batch):
            fleet.pace.may_end[asked.generation.job.job_id].set()
        await until(lambda: all(asked.ended for asked in (*live, *batch)))
        for asked in batch:
            assert [asked.text(at) for at in range(2)] == [undisturbed.text(at) for at in range(2)]
            assert asked.logprobs() == undisturbed.logprobs()
            assert (
                asked.generation.usage.output_tokens == undisturbed.generation.usage.output_tokens
            )
            assert asked.generation.retries.strikes == 0
            assert sum(isinstance(delta, Accepted) for delta in asked.deltas) == 1
        assert losses(live) == []


@pytest.mark.rule("sharing.waits")
async def test_batch_work_waits_as_long_as_it_takes() -> None:
    """Longer than a live request would be let wait for anything, and nobody is suspected."""
    async with in_memory(1) as fleet:
        live = fleet.ask("live", "interactive")
        await until(live.answers)
        waiting = fleet.ask("batch", "batch")
        limits = waiting.generation._limits
        await asyncio.sleep(3 * max(limits.silence_s, limits.retry_s))
        assert (waiting.losses, waiting.error, waiting.generation.phase) == ([], None, "queued")
        fleet.pace.may_end["live"].set()
        fleet.pace.may_end["batch"].set()
        await until(lambda: waiting.ended)


@pytest.mark.rule("sharing.waits")
async def test_one_that_gave_way_waits_as_long_as_it_takes() -> None:
    async with in_memory(1) as fleet:
        (batch,) = await fill(fleet, 1)
        live = fleet.ask("live", "interactive")
        await until(live.answers)
        await until(lambda: batch.losses == ["yielded"])
        await asyncio.sleep(3 * batch.generation._limits.retry_s)
        assert (batch.losses, batch.error) == (["yielded"], None)
        for name in ("live", "batch-0"):
            fleet.pace.may_end[name].set()
        await until(lambda: batch.ended)
        assert batch.text() == "".join(f"{word}0" for word in WORDS)


@pytest.mark.rule("sharing.calm")
async def test_live_requests_one_after_the_other_disturb_batch_work_once() -> None:
    async with in_memory(2) as fleet:
        batch = await fill(fleet, 2)
        for at in range(20):
            fleet.pace.may_end[f"live-{at}"].set()
            live = fleet.ask(f"live-{at}", "interactive")
            await until(lambda live=live: live.ended)
        assert losses(batch) == ["yielded"]
        await until(lambda: fleet.consumer.info().running_batch == 2)  # and then it goes on


@pytest.mark.rule("sharing.floor")
async def test_the_floor_goes_on_beside_more_live_requests_than_there_are_slots() -> None:
    async with in_memory(2, floor=1) as fleet:
        batch = await fill(fleet, 2)
        live = [fleet.ask(f"live-{at}", "interactive") for at in range(4)]
        await until(live[0].answers)
        await until(lambda: len(losses(batch)) == 1)
        staying = next(asked for asked in batch if not asked.losses)
        fleet.pace.may_end[staying.generation.job.job_id].set()
        await until(lambda: staying.ended)
        # Its slot goes to the other one, and not to those live ones that wait.
        other = next(asked for asked in batch if asked.losses)
        fleet.pace.may_end[other.generation.job.job_id].set()
        await until(lambda: other.ended)
        assert [asked.answers() for asked in live] == [True, False, False, False]


async def test_what_a_worker_tells_of_itself_counts_batch_slots_as_free_for_live_requests() -> None:
    async with in_memory(3, floor=1) as fleet:
        await fill(fleet, 3)
        await until(lambda: fleet.dispatcher.workers()[0].running == 3)
        (worker,) = fleet.dispatcher.workers()
        assert (worker.running_batch, worker.live_room) == (3, 2)
        live = fleet.ask("live", "interactive")
        await until(live.answers)
        await until(lambda: fleet.dispatcher.workers()[0].running_batch == 2)
        assert fleet.dispatcher.workers()[0].live_room == 1


@pytest.mark.broker
@pytest.mark.rule("sharing.live-first")
async def test_over_a_broker(broker: Broker) -> None:
    source = await RabbitJobSource.connect(
        broker.url, model="m", slots=2, settings=SourceSettings(poll_s=0.02), name="share"
    )
    dispatcher = await RabbitDispatcher.connect(
        broker.url, DispatcherSettings(reply_queues=8), name="share"
    )
    async with a_worker(source, dispatcher, scripted(2)) as fleet:
        batch = await fill(fleet, 2)
        live = [fleet.ask(f"live-{at}", "interactive") for at in range(2)]
        await until(lambda: all(asked.answers() for asked in live))
        await until(lambda: losses(batch) == ["yielded", "yielded"])
        for asked in (*live, *batch):
            fleet.pace.may_end[asked.generation.job.job_id].set()
        await until(lambda: all(asked.ended for asked in (*live, *batch)), timeout_s=10)
        assert {asked.text() for asked in batch} == {"".join(f"{word}0" for word in WORDS)}
        assert losses(live) == []
