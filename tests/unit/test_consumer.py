"""A worker's Consumer: signs of life, suspects, a lost engine, draining."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from schemas.delta import ALIVE, Accepted, Completed, Delta, Failed, Interrupted, ReplyMessage
from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams, StopConditions
from schemas.transport.base import Reply
from schemas.transport.memory import MemoryTransport
from tests.fixtures.continued import KeptDelivery, next_attempt, runner
from tests.fixtures.stack import until
from workers.__main__ import Signals, run_until_told
from workers.consumer import Consumer, EngineLost
from workers.count import TokenCounter
from workers.engines.base import EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text
from workers.metrics import WorkerMetrics
from workers.suspects import Suspects


def job(job_id: str = "j", *, waits_s: float = 600, suspect: bool = False, **more: Any) -> Job:
    now = time.time()
    return Job(
        job_id=job_id,
        model="m",
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text=job_id),)),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=100)),
        created_at=now,
        deadline=now + 600,
        queue_deadline=now + waits_s,
        suspect=suspect,
        **more,
    )


class Script:
    """Says `a`, waits at a gate of the Job's own, says `b`.

    Attributes:
        begun: Jobs that have reached the engine, in order.
        waits: Of Jobs that wait before `a` already.
    """

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.begun: list[str] = []
        self.waits: set[str] = set()

    def __call__(self, request: EngineRequest) -> Iterable[Step]:
        job_id = request.job.job_id
        gate = self.gates[job_id]
        self.begun.append(job_id)
        if job_id in self.waits:
            yield Gate(gate)
        yield Text("a")
        yield Gate(gate)
        yield Text("b")


class Heard:
    """What arrives of one reply."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.messages: list[ReplyMessage] = []

    @property
    def deltas(self) -> list[Delta]:
        return [delta for message in self.messages for delta in message.deltas]

    async def until(self, heard: Callable[[Heard], bool]) -> None:
        """Take what arrives until something is heard."""
        async with asyncio.timeout(10):
            while not heard(self):
                self.messages += await self.reply.receive()

    async def until_delta(self, kind: type) -> Any:
        await self.until(lambda heard: any(isinstance(delta, kind) for delta in heard.deltas))
        return next(delta for delta in self.deltas if isinstance(delta, kind))

    def alive(self) -> int:
        return sum(message.seq == ALIVE for message in self.messages)


class Worker:
    def __init__(self, script: Script, *, patience_s: float = 600, **settings: Any) -> None:
        self.transport = MemoryTransport()
        self.dispatcher = self.transport.dispatcher()
        self.engine = ScriptedEngine(served_id="m", script=script, slots=8)
        self.source = self.transport.job_source(model="m", slots=8)
        self.runner = runner(self.engine)
        self.runner.suspects = Suspects(patience_s)
        counter = TokenCounter(self.engine, worker_id="w", metrics=WorkerMetrics())
        self.consumer = Consumer(self.source, self.runner, counter, **settings)

    def waiting_suspects(self) -> int:
        return self.runner.suspects.waiting

    async def ask(self, what: Job) -> Heard:
        return Heard(await self.dispatcher.dispatch(what))


@asynccontextmanager
async def working(script: Script, **settings: Any) -> AsyncIterator[Worker]:
    worker = Worker(script, **settings)
    serving = asyncio.create_task(worker.consumer.run())
    try:
        yield worker
    finally:
        await worker.consumer.drain(0)
        await asyncio.wait({serving})
        await worker.source.close()
        await worker.dispatcher.close()


async def test_a_silent_job_shows_that_it_is_well() -> None:
    script = Script()
    async with working(script, heartbeat_s=0.01) as worker:
        heard = await worker.ask(job())
        await heard.until(lambda heard: heard.alive() >= 3)
        assert all(not m.deltas and not m.token_ids for m in heard.messages if m.seq == ALIVE)
        assert isinstance(heard.messages[0].deltas[0], Accepted)
        script.gates["j"].set()
        await heard.until_delta(Completed)
        in_order = [message.seq for message in heard.messages if message.seq != ALIVE]
        assert in_order == list(range(len(in_order)))
        assert not worker.runner.accepted


async def test_nothing_is_heard_of_a_job_that_is_not_accepted_yet() -> None:
    script = Script()
    script.waits.add("first")
    async with working(script, heartbeat_s=0.01) as worker:
        first = await worker.ask(job("first", suspect=True))
        await first.until_delta(Accepted)
        second = await worker.ask(job("second", suspect=True))
        await first.until(lambda heard: heard.alive() >= 5)
        script.gates["first"].set()
        await second.until_delta(Accepted)
        assert isinstance(second.messages[0].deltas[0], Accepted)


async def test_a_talking_job_needs_no_other_sign() -> None:
    script = Script()
    async with working(script, heartbeat_s=600) as worker:
        heard = await worker.ask(job())
        await heard.until(lambda heard: len(heard.messages) == 2)
        worker.runner.show_alive()  # it has spoken since the last time: there was none
        worker.runner.show_alive()
        await heard.until(lambda heard: heard.alive() == 1)
        script.gates["j"].set()
        await heard.until_delta(Completed)
        assert heard.alive() == 1


async def test_tokens_that_cannot_be_told_yet_are_progress() -> None:
    def held_back(request: EngineRequest) -> Iterable[Step]:
        yield Text("S")
        yield Gate(gates[0])
        yield Text("T")
        yield Gate(gates[1])

    gates = [asyncio.Event(), asyncio.Event()]
    stops = SamplingParams(
        limit=OutputLimit(max_tokens=100), logprobs=True, stop=StopConditions(strings=("STOP",))
    )
    worker = runner(ScriptedEngine(script=held_back))
    delivery = KeptDelivery(msgspec.structs.replace(job(), sampling=stops))
    running = asyncio.create_task(worker.run(delivery))
    await until(lambda: len(delivery.messages) == 2)  # accepted, started
    worker.show_alive()
    worker.show_alive()
    assert [message.seq for message in delivery.messages[2:]] == [ALIVE]
    gates[0].set()
    (run,) = worker.accepted
    await until(lambda: run.generated() == 2)
    worker.show_alive()
    assert delivery.messages[-1] == ReplyMessage("j", 1, 2, ())
    worker.show_alive()
    worker.show_alive()
    assert delivery.messages[-1].seq == ALIVE
    gates[1].set()
    await running
    assert [message.seq for message in delivery.messages if message.seq >= 0] == [0, 1, 2, 3, 4]


async def test_suspects_start_one_at_a_time() -> None:
    script = Script()
    script.waits |= {"one", "two"}
    async with working(script) as worker:
        one = await worker.ask(job("one", suspect=True))
        await one.until_delta(Accepted)
        two = await worker.ask(job("two", suspect=True))
        innocent = await worker.ask(job("innocent"))
        await innocent.until(lambda heard: len(heard.messages) == 2)
        assert script.begun == ["one", "innocent"]
        script.gates["one"].set()  # its first token acquits it; it goes on to its end
        await one.until_delta(Completed)
        await two.until_delta(Accepted)
        script.gates["two"].set()
        await two.until_delta(Completed)
        assert not worker.waiting_suspects()


async def test_a_suspect_that_takes_its_time_gets_company_and_says_so() -> None:
    script = Script()
    script.waits |= {"one", "two", "three"}
    async with working(script, patience_s=0, heartbeat_s=600) as worker:
        one = await worker.ask(job("one", suspect=True))
        assert (await one.until_delta(Accepted)).alone
        two = await worker.ask(job("two", suspect=True))
        assert not (await two.until_delta(Accepted)).alone
        await one.until(lambda heard: heard.alive() == 1)
        (told,) = one.messages[-1].deltas
        assert isinstance(told, Accepted)
        assert not told.alone
        three = await worker.ask(job("three", suspect=True, exclusive=True))
        await until(lambda: worker.waiting_suspects() == 1)
        for name in ("one", "two"):
            script.gates[name].set()
        assert (await three.until_delta(Accepted)).alone
        assert one.alive() == 1, "it was told once"
        script.gates["three"].set()
        await three.until_delta(Completed)


async def test_a_suspect_is_acquitted_by_its_first_new_token() -> None:
    script = Script()
    async with working(script) as worker:
        one = await worker.ask(job("one", suspect=True))
        await one.until(lambda heard: len(heard.messages) == 2)
        two = await worker.ask(job("two", suspect=True))
        await two.until_delta(Accepted)
        # One that goes on has its old tokens at once, and they prove nothing.
        again = next_attempt(job("again", suspect=True), one.messages)
        assert again.continuation is not None
        three = await worker.ask(again)
        await three.until_delta(Accepted)
        four = await worker.ask(job("four", suspect=True))
        script.gates["again"].set()
        await three.until_delta(Completed)
        await four.until_delta(Accepted)


async def test_a_suspect_that_waits_can_be_cancelled() -> None:
    script = Script()
    script.waits.add("one")
    async with working(script) as worker:
        one = await worker.ask(job("one", suspect=True))
        await one.until_delta(Accepted)
        two = await worker.ask(job("two", suspect=True))
        three = await worker.ask(job("three", suspect=True))
        await until(lambda: worker.waiting_suspects() == 2)
        await two.reply.cancel()
        await until(lambda: worker.waiting_suspects() == 1)
        script.gates["one"].set()
        script.gates["three"].set()
        await three.until_delta(Completed)
        assert script.begun == ["one", "three"]
        await one.until_delta(Completed)


async def test_a_suspect_waits_no_longer_than_any_job() -> None:
    script = Script()
    script.waits.add("one")
    async with working(script) as worker:
        one = await worker.ask(job("one", suspect=True))
        await one.until_delta(Accepted)
        two = await worker.ask(job("two", suspect=True, waits_s=0.05))
        failed = await two.until_delta(Failed)
        assert failed.error.code == "model_overloaded"
        script.gates["one"].set()
        await one.until_delta(Completed)


async def test_a_lost_engine_hands_everything_back() -> None:
    script = Script()
    script.waits.add("silent")
    worker = Worker(script, announce_interval_s=600)
    serving = asyncio.create_task(worker.consumer.run())
    speaking = await worker.ask(job("speaking"))
    await speaking.until(lambda heard: len(heard.messages) == 2)
    silent = await worker.ask(job("silent", suspect=True))
    await silent.until_delta(Accepted)
    unaccepted = await worker.ask(job("unaccepted", suspect=True))
    await until(lambda: worker.waiting_suspects() == 1)
    worker.engine.lose()
    with pytest.raises(EngineLost):
        await asyncio.wait_for(serving, 10)
    assert (await speaking.until_delta(Interrupted)).reason == "engine_lost"
    assert [m.seq for m in speaking.messages] == [0, 1, 2], "in its order, after all it had said"
    assert (await silent.until_delta(Interrupted)).reason == "engine_lost"
    # It had no part in it.
    assert (await unaccepted.until_delta(Interrupted)).reason == "draining"
    (announced,) = worker.dispatcher.workers()
    assert announced.draining
    # It takes no more: a Job that comes now waits for another worker.
    await worker.ask(job("late"))
    assert script.begun == ["speaking", "silent"]
    await worker.source.close()
    await worker.dispatcher.close()


async def test_what_a_lost_engine_hands_back_does_not_come_back() -> None:
    script = Script()
    worker = Worker(script)
    serving = asyncio.create_task(worker.consumer.run())
    heard = await worker.ask(job())
    await heard.until(lambda heard: len(heard.messages) == 2)
    worker.engine.lose()
    await heard.until_delta(Interrupted)
    await heard.reply.redispatch(next_attempt(job(), heard.messages))
    with pytest.raises(EngineLost):
        await asyncio.wait_for(serving, 10)
    other = worker.transport.job_source(model="m", slots=8)
    delivery = await anext(other.deliveries())
    assert not delivery.redelivered
    await delivery.ack()
    for source in (worker.source, other):
        await source.close()
    await worker.dispatcher.close()


async def test_a_failure_that_the_loss_caused_is_no_failure_of_the_job() -> None:
    class Dying(ScriptedEngine):
        async def generate(self, request: EngineRequest) -> Any:
            async for chunk in super().generate(request):
                yield chunk
                await self._lost.wait()
                raise ZeroDivisionError

    worker = Worker(Script())
    worker.runner.engine = worker.engine = Dying(served_id="m", script=Script())
    serving = asyncio.create_task(worker.consumer.run())
    heard = await worker.ask(job())
    await heard.until(lambda heard: len(heard.messages) == 2)
    worker.runner.engine_lost = True
    worker.engine.lose()
    with pytest.raises(EngineLost):
        await asyncio.wait_for(serving, 10)
    assert (await heard.until_delta(Interrupted)).reason == "engine_lost"
    assert not any(isinstance(delta, Failed) for delta in heard.deltas)
    assert worker.transport.dead_letters == []
    await worker.source.close()
    await worker.dispatcher.close()


async def test_draining_hands_back_what_does_not_end_in_time() -> None:
    script = Script()
    worker = Worker(script)
    signals = Signals()
    leaving = asyncio.create_task(run_until_told(worker.consumer, signals, 0.3))
    quick, slow = await worker.ask(job("quick")), await worker.ask(job("slow"))
    for heard in (quick, slow):
        await heard.until(lambda heard: len(heard.messages) == 2)
    signals.leave.set()
    await until(lambda: worker.consumer.info().draining)
    script.gates["quick"].set()
    await quick.until_delta(Completed)
    await asyncio.wait_for(leaving, 10)
    assert (await slow.until_delta(Interrupted)).reason == "draining"
    assert [delta for delta in slow.deltas if isinstance(delta, Failed)] == []
    await worker.source.close()
    await worker.dispatcher.close()


async def test_the_second_signal_ends_the_grace_time() -> None:
    script = Script()
    worker = Worker(script)
    signals = Signals()
    leaving = asyncio.create_task(run_until_told(worker.consumer, signals, 600))
    quick, slow = await worker.ask(job("quick")), await worker.ask(job("slow"))
    for heard in (quick, slow):
        await heard.until(lambda heard: len(heard.messages) == 2)
    signals.leave.set()
    script.gates["quick"].set()
    await quick.until_delta(Completed)
    assert not leaving.done()
    signals.hurry.set()
    await asyncio.wait_for(leaving, 10)
    assert (await slow.until_delta(Interrupted)).reason == "draining"
    rest = next_attempt(job("slow"), slow.messages)
    assert rest.continuation is not None
    assert len(rest.continuation.choices[0].token_ids) == 1
    await worker.source.close()
    await worker.dispatcher.close()


async def test_a_lost_engine_ends_a_worker_that_nobody_told_to_leave() -> None:
    worker = Worker(Script())
    leaving = asyncio.create_task(run_until_told(worker.consumer, Signals(), 600))
    heard = await worker.ask(job())
    await heard.until(lambda heard: len(heard.messages) == 2)
    worker.engine.lose()
    with pytest.raises(EngineLost):
        await asyncio.wait_for(leaving, 10)
    assert (await heard.until_delta(Interrupted)).reason == "engine_lost"
    await worker.source.close()
    await worker.dispatcher.close()
