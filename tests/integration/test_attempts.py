"""A reply over several attempts: the owner's side, with the workers' side played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingress.generation import Generation
from ingress.settings import TimeLimits
from schemas.delta import (
    ALIVE,
    OUT_OF_BAND,
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    Interrupted,
    PromptDelta,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import (
    GenerationFailed,
    GenerationTimeout,
    ModelOverloaded,
    ProtocolViolation,
    ReportedError,
    WorkerFailed,
)
from schemas.job import ChatPrompt, ChoicePrefix, Job
from schemas.message import Message, TextPart
from schemas.model_card import ModelCard, WorkerInfo
from schemas.sampling import EngineOptions, OutputLimit, SamplingParams
from schemas.transport.base import Delivery, Dispatcher
from schemas.transport.memory import MemoryTransport
from tests.fixtures.stack import until

MODEL = "demo-model"
STARTED = (Accepted("w", 3), Started("w", 3, 2))
ENDING = (Finished(0, FinishReason.STOP), Completed(Usage(3, 2, 2, 0)))
LIMITS = TimeLimits(last_words_s=0.05)


def job(name: str = "job-1", *, n: int = 1, **engine: Any) -> Job:
    return Job(
        job_id=name,
        model=MODEL,
        prompt=ChatPrompt(messages=(Message(role="user", parts=(TextPart(text="hi"),)),)),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=5), n=n, engine=EngineOptions(**engine)
        ),
        created_at=0.0,
        deadline=1e12,
        queue_deadline=1e9,
    )


class Held:
    """One Job in a worker's hands, answered as the test says."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.job = delivery.job
        self._seq = 0

    def say(self, *deltas: Delta, ids: Sequence[int] = (), choice: int = 0) -> None:
        """The next message."""
        self.repeat(self._seq, *deltas, ids=ids, choice=choice)
        self._seq += 1

    def skip(self) -> None:
        """A message that never arrives."""
        self._seq += 1

    def repeat(self, seq: int, *deltas: Delta, ids: Sequence[int] = (), choice: int = 0) -> None:
        """A message of any number, also one that is no number."""
        token_ids = ((choice, tuple(ids)),) if ids else ()
        job = self.job
        self.delivery.send(ReplyMessage(job.job_id, job.attempt, seq, deltas, token_ids))

    @property
    def prefix(self) -> ChoicePrefix:
        """What it is to go on after."""
        assert self.job.continuation is not None
        (prefix,) = self.job.continuation.choices
        return prefix


class Worker:
    """Takes Jobs, and may die with all it has."""

    def __init__(self, memory: MemoryTransport, slots: int) -> None:
        self._source = memory.job_source(model=MODEL, slots=slots, max_queued_jobs=4)
        self._deliveries = self._source.deliveries()

    async def take(self, *, redelivered: bool = False) -> Held:
        async with asyncio.timeout(5):
            delivery = await anext(self._deliveries)
        assert delivery.redelivered == redelivered
        return Held(delivery)

    async def report(self) -> None:
        """Hand a Job that another worker has, or had, back to its owner."""
        held = await self.take(redelivered=True)
        held.repeat(OUT_OF_BAND, Interrupted("redelivered"))
        await held.delivery.ack()

    async def announce(self, *, slots: int, running: int) -> None:
        card = ModelCard(id=MODEL, context_length=100)
        info = WorkerInfo(worker_id="w", card=card, engine="scripted", slots=slots, running=running)
        await self._source.announce(info)

    async def die(self) -> None:
        await self._source.close()


class Service:
    """Workers by hand, and what drives the owner's side."""

    def __init__(self, memory: MemoryTransport, exits: AsyncExitStack) -> None:
        self.memory = memory
        self._exits = exits

    def hire(self, slots: int = 4) -> Worker:
        worker = Worker(self.memory, slots)
        self._exits.push_async_callback(worker.die)
        return worker

    async def ask(
        self,
        asked: Job | None = None,
        limits: TimeLimits = LIMITS,
        dispatcher: Dispatcher | None = None,
    ) -> Owner:
        """Dispatch a Job and keep its time."""
        if dispatcher is None:
            dispatcher = self.memory.dispatcher()
            self._exits.push_async_callback(dispatcher.close)
        generation = Generation(dispatcher, asked or job(), limits)
        await generation.start()
        return await self._exits.enter_async_context(owned(generation))


class Owner:
    """A generation and what it has told."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.deltas: list[Delta] = []
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nearer = asyncio.Event()
        self.phases: list[str] = []
        generation.on_phase = self._phase
        generation.on_limit = self._nearer.set

    def _phase(self) -> None:
        self.phases.append(self.generation.phase)
        self._nearer.set()

    async def read(self) -> Sequence[Delta]:
        """One batch; fails as the reply does, or as its limits do."""
        receiving = asyncio.ensure_future(self.generation.receive())
        async with asyncio.timeout(10):
            await asyncio.wait((receiving, self.passed), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                await self.passed
            batch = await receiving
        self.deltas += batch
        return batch

    async def read_all(self) -> list[Delta]:
        while not self.deltas or not isinstance(self.deltas[-1], Completed):
            await self.read()
        return self.deltas

    async def keep_time(self) -> None:
        """As an answer does: wait for the nearest limit, and act on it."""
        generation, nearer = self.generation, self._nearer
        loop = asyncio.get_running_loop()
        try:
            while True:
                nearer.clear()
                waiting = asyncio.ensure_future(nearer.wait())
                await asyncio.wait((waiting,), timeout=generation.due_at() - loop.time())
                waiting.cancel()
                generation.on_due()
        except Exception as error:
            self.passed.set_exception(error)


@asynccontextmanager
async def owned(generation: Generation) -> AsyncIterator[Owner]:
    owner = Owner(generation)
    keeping = asyncio.create_task(owner.keep_time())
    try:
        yield owner
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if owner.passed.done():
            owner.passed.exception()
        await generation.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with AsyncExitStack() as exits:
        yield Service(MemoryTransport(), exits)


@asynccontextmanager
async def reading(owner: Owner) -> AsyncIterator[asyncio.Task[list[Delta]]]:
    task = asyncio.create_task(owner.read_all())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- Going on ------------------------------------------------------------------------------------


async def test_a_lost_worker_is_followed_by_one_that_goes_on(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(11,))
        held.say(ReasoningDelta(0, "bc"), ids=(12, 13))
        held.say(ids=(14,))  # its text is still to come
        await worker.die()
        worker = service.hire()
        await worker.report()
        again = await worker.take()
        assert again.job.attempt == 2
        assert again.prefix == ChoicePrefix((11, 12, 13, 14), 3, 0, False)
        again.say(Accepted("x", 3))
        again.say(Started("x", 3, 3), TextDelta(0, "d"), ids=(15,))
        again.say(Finished(0, FinishReason.STOP), Completed(Usage(3, 3, 5, 2)))
        assert await answer == [
            *STARTED,
            TextDelta(0, "a"),
            ReasoningDelta(0, "bc"),
            TextDelta(0, "d"),
            ENDING[0],
            Completed(Usage(3, 2, 5, 2)),
        ]
    assert owner.generation.usage == Usage(3, 2, 5, 2)
    assert owner.generation.worker == "x"
    assert owner.generation.retries.losses == ["redelivered"]


async def test_arguments_go_on_in_the_middle(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, ToolCallStarted(0, 0, "f"), ids=(1,))
        held.say(ArgumentsDelta(0, 0, '{"a'), ids=(2,))
        held.say(Interrupted("draining"))
        again = await worker.take()
        assert again.prefix == ChoicePrefix((1, 2), 4, 0, False)
        again.say(*STARTED, ArgumentsDelta(0, 0, '":1}'), ids=(3,))
        again.say(ToolCallStarted(0, 1, "g"), *ENDING, ids=(4,))
        assert [d for d in await answer if isinstance(d, ArgumentsDelta | ToolCallStarted)] == [
            ToolCallStarted(0, 0, "f"),
            ArgumentsDelta(0, 0, '{"a'),
            ArgumentsDelta(0, 0, '":1}'),
            ToolCallStarted(0, 1, "g"),
        ]


async def test_every_choice_goes_on_where_it_was(service: Service) -> None:
    worker, owner = service.hire(), await service.ask(job(n=2))
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
        held.say(TextDelta(1, "b"), ids=(2,), choice=1)
        held.say(Finished(0, FinishReason.LENGTH), ids=(3,))
        held.say(Interrupted("engine_lost"))
        again = await worker.take()
        assert again.job.continuation is not None
        assert again.job.continuation.choices == (
            ChoicePrefix((1, 3), 1, 0, True),
            ChoicePrefix((2,), 1, 0, False),
        )
        again.say(*STARTED, TextDelta(1, "c"), ids=(4,), choice=1)
        again.say(Finished(1, FinishReason.STOP), Completed(Usage(3, 2, 4, 0)))
        deltas = await answer
    assert [d for d in deltas if isinstance(d, TextDelta)] == [
        TextDelta(0, "a"),
        TextDelta(1, "b"),
        TextDelta(1, "c"),
    ]
    assert owner.generation.finish_reason == "length"


async def test_a_choice_that_has_finished_stays_so(service: Service) -> None:
    worker, owner = service.hire(), await service.ask(job(n=2))
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, Finished(0, FinishReason.STOP), ids=(1,))
        held.say(Interrupted("draining"))
        again = await worker.take()
        again.say(*STARTED, TextDelta(0, "more"), ids=(2,))
        with pytest.raises(ProtocolViolation):
            await answer


async def test_an_answer_without_its_last_word_gets_it(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ENDING[0], ids=(1,))
        held.say(Interrupted("draining"))
        again = await worker.take()
        assert again.prefix.finished
        again.say(*STARTED, ENDING[1])
        assert await answer == [*STARTED, TextDelta(0, "a"), *ENDING]


async def test_a_prompt_that_has_arrived_is_told_of(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, PromptDelta(0, "p"))
        held.say(Interrupted("draining"))
        again = await worker.take()
        assert again.prefix == ChoicePrefix((), 0, 1, False)
        again.say(*STARTED, PromptDelta(0, "q"), TextDelta(0, "a"), *ENDING, ids=(1,))
        assert PromptDelta(0, "q") in await answer


async def test_before_the_answer_a_fresh_attempt_is_invisible(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED)
        await worker.die()
        worker = service.hire()
        await worker.report()
        again = await worker.take()
        assert (again.job.attempt, again.job.continuation) == (2, None)
        again.say(Accepted("x", 4), Started("x", 4, 4))
        again.say(TextDelta(0, "hi"), *ENDING, ids=(1, 2))
        assert await answer == [*STARTED, TextDelta(0, "hi"), *ENDING]
    assert owner.generation.usage == Usage(3, 2, 2, 0)


async def test_a_loss_before_the_first_token_keeps_the_figures_of_the_one_that_started(
    service: Service,
) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(Accepted("w", 3))
        held.say(Interrupted("engine_lost"))
        again = await worker.take()
        again.say(*STARTED, TextDelta(0, "hi"), *ENDING, ids=(1, 2))
        assert await answer == [*STARTED, TextDelta(0, "hi"), *ENDING]


async def test_a_running_count_is_that_of_the_answer(service: Service) -> None:
    worker, owner = service.hire(), await service.ask(job(hidden_states="last"))
    async with reading(owner):
        held = await worker.take()
        held.say(*STARTED, ids=(1, 2, 3))  # nothing to see yet
        held.say(Interrupted("draining"))
        again = await worker.take()
        assert again.job.continuation is None
        again.say(*STARTED, TextDelta(0, "a"), ids=(1, 2))
        await until(lambda: owner.generation.usage.output_tokens == 2)


async def test_a_failure_of_a_later_attempt_counts_once(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
        held.say(Interrupted("draining"))
        again = await worker.take()
        again.say(Accepted("w", 3))
        again.say(Failed(GenerationFailed("no").info(), Usage(7, 7, 4, 1)))
        with pytest.raises(ReportedError):
            await answer
    assert owner.generation.usage == Usage(3, 2, 4, 1)


NOT_CONTINUABLE = [
    pytest.param({}, (), id="ids that nobody tells"),
    pytest.param({"hidden_states": "last"}, (1,), id="hidden states"),
    pytest.param({"routed_experts": True}, (1,), id="routed experts"),
    pytest.param({"logit_processor": "x"}, (1,), id="code of the caller's"),
]


@pytest.mark.parametrize(("engine", "ids"), NOT_CONTINUABLE)
async def test_what_cannot_be_continued_fails_honestly(
    service: Service, engine: dict[str, Any], ids: tuple[int, ...]
) -> None:
    worker, owner = service.hire(), await service.ask(job(**engine))
    held = await worker.take()
    held.say(*STARTED, TextDelta(0, "half"), ids=ids)
    held.say(Interrupted("draining"))
    assert TextDelta(0, "half") in await owner.read()
    with pytest.raises(WorkerFailed):
        await owner.read()
    assert owner.generation.usage.output_tokens == 1


# --- Who is lost ---------------------------------------------------------------------------------


async def test_a_worker_that_shows_that_it_is_alive_is_not_lost(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "half"), ids=(1,))
        await until(lambda: owner.generation.phase == "decode")
        held.repeat(OUT_OF_BAND, Interrupted("redelivered"))  # and the probe finds it
        loop = asyncio.get_running_loop()
        over = loop.time() + 4 * LIMITS.last_words_s
        await until(lambda: loop.time() > over)
        held.say(TextDelta(0, " and half"), *ENDING, ids=(2,))
        deltas = await answer
    assert deltas == [*STARTED, TextDelta(0, "half"), TextDelta(0, " and half"), *ENDING]
    assert owner.generation.attempt == 1


async def test_one_that_has_not_begun_is_not_waited_for(service: Service) -> None:
    """And it costs nothing: it was nobody's fault."""
    limits = TimeLimits(last_words_s=60)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        for _ in range(3):
            await worker.take()
            await worker.die()
            worker = service.hire()
            await worker.report()
        held = await worker.take()
        assert (held.job.attempt, held.job.suspect) == (4, False)
        held.say(*STARTED, *ENDING)
        await answer


async def test_an_attempt_that_is_given_up_is_cancelled_and_fenced_off(service: Service) -> None:
    limits = TimeLimits(silence_s=0.1)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
        again = await worker.take()
        assert held.delivery.cancelled.is_set()
        assert not again.delivery.cancelled.is_set()
        held.say(TextDelta(0, "ghost"), ids=(2,))
        held.repeat(OUT_OF_BAND, Interrupted("redelivered"))
        held.repeat(ALIVE)
        assert again.prefix == ChoicePrefix((1,), 1, 0, False)
        again.say(*STARTED, TextDelta(0, "b"), *ENDING, ids=(2,))
        held.say(*ENDING)
        assert await answer == [*STARTED, TextDelta(0, "a"), TextDelta(0, "b"), *ENDING]
    assert owner.generation.retries.losses == ["silent"]


async def test_silence_of_a_blocked_transport_is_nobodys_fault(service: Service) -> None:
    worker, owner = service.hire(), await service.ask(limits=TimeLimits(silence_s=0.5))
    async with reading(owner) as answer:
        for alarm in (1, 2):  # as often as a Job may not be lost
            held = await worker.take()
            held.say(STARTED[0])
            await until(lambda: owner.generation.phase == "prefill")
            service.memory.blocked = True
            await until(lambda alarm=alarm: owner.generation.retries.losses == ["blocked"] * alarm)
            service.memory.blocked = False
        held = await worker.take()
        assert not held.job.suspect
        held.say(*STARTED, *ENDING)
        await answer
    assert owner.generation.retries.strikes == 0


async def test_what_nobody_accepts_is_sent_again_while_there_is_room(service: Service) -> None:
    """The first copy may lie with a worker that hangs."""
    limits = TimeLimits(silence_s=0.1, last_words_s=0.05)
    worker, other = service.hire(slots=1), await service.ask(job("job-0"))
    await worker.announce(slots=4, running=1)
    async with reading(other):
        busy = await worker.take()
        busy.say(Accepted("w", 3))
        owner = await service.ask(limits=limits)
        async with reading(owner) as answer:
            await until(lambda: owner.generation.attempt == 2)
            await worker.announce(slots=4, running=4)
            busy.say(STARTED[1], *ENDING)
            await busy.delivery.ack()
            first = await worker.take()
            assert (first.job.attempt, first.delivery.cancelled.is_set()) == (1, True)
            await first.delivery.ack()
            held = await worker.take()
            assert (held.job.attempt, held.job.suspect) == (2, False)
            held.say(*STARTED, *ENDING)
            await answer
    assert owner.generation.retries.losses == ["unclaimed"]


async def test_what_a_worker_has_not_accepted_yet_stays_with_it(service: Service) -> None:
    limits = TimeLimits(silence_s=0.1, last_words_s=0.05)
    worker, owner = service.hire(), await service.ask(limits=limits)
    await worker.announce(slots=4, running=1)
    async with reading(owner) as answer:
        held = await worker.take()  # and the probes find it
        loop = asyncio.get_running_loop()
        over = loop.time() + 4 * limits.silence_s
        await until(lambda: loop.time() > over)
        held.say(*STARTED, *ENDING)
        await answer
    assert owner.generation.attempt == 1


async def test_signs_of_life_are_no_silence(service: Service) -> None:
    limits = TimeLimits(silence_s=0.2)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(Accepted("w", 3))
        loop = asyncio.get_running_loop()
        over = loop.time() + 3 * limits.silence_s

        def still_there() -> bool:
            held.repeat(ALIVE)
            return loop.time() > over

        await until(still_there)
        held.say(STARTED[1], *ENDING)
        await answer
    assert owner.generation.attempt == 1


async def test_a_worker_that_is_there_and_generates_nothing_is_lost(service: Service) -> None:
    limits = TimeLimits(stall_s=0.2, silence_s=0.15)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner):
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))

        def moved() -> bool:
            held.repeat(ALIVE)
            return owner.generation.attempt == 2

        await until(moved)
    assert owner.generation.retries.losses == ["stalled"]


async def test_tokens_without_text_are_no_stall(service: Service) -> None:
    limits = TimeLimits(stall_s=0.2)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner):
        held = await worker.take()
        held.say(*STARTED)
        loop = asyncio.get_running_loop()
        over = loop.time() + 3 * limits.stall_s

        def at_work() -> bool:
            held.say(ids=(1,))
            return loop.time() > over

        await until(at_work)
    assert owner.generation.attempt == 1


async def test_a_message_that_was_lost_loses_the_attempt(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
        held.skip()
        held.say(TextDelta(0, "c"), ids=(3,))
        again = await worker.take()
        assert held.delivery.cancelled.is_set()
        assert again.prefix == ChoicePrefix((1,), 1, 0, False)
        again.say(*STARTED, TextDelta(0, "bc"), *ENDING, ids=(2, 3))
        await answer
    assert owner.generation.retries.losses == ["gap"]


async def test_a_message_that_comes_twice_counts_once(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        for _ in range(2):
            held.repeat(0, *STARTED, TextDelta(0, "a"), ids=(1,))
        held.repeat(1, *ENDING, ids=(2,))
        held.repeat(OUT_OF_BAND, Interrupted("redelivered"))  # of what has ended
        assert await answer == [*STARTED, TextDelta(0, "a"), *ENDING]


@pytest.mark.rule("broker.duplicates")
async def test_two_workers_with_the_same_attempt_are_never_mixed(service: Service) -> None:
    """Neither of them is trusted with the rest: a next attempt goes on from what had come."""
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
        twin = Held(held.delivery)
        twin.say(Accepted("another", 3))
        twin.say(Started("another", 3, 3), TextDelta(0, "A"), ids=(7,))
        twin.say(TextDelta(0, "B"), ids=(8,))
        again = await worker.take()
        assert held.delivery.cancelled.is_set()
        assert (again.job.attempt, again.prefix.token_ids) == (2, (1,))
        held.say(TextDelta(0, "c"), ids=(3,))
        twin.say(TextDelta(0, "C"), ids=(9,))
        again.say(Accepted("w", 3))
        again.say(Started("w", 3, 3), TextDelta(0, "b"), ids=(2,))
        again.say(*ENDING)
        assert await answer == [*STARTED, TextDelta(0, "a"), TextDelta(0, "b"), *ENDING]
    assert owner.generation.retries.losses == ["duplicated"]
    assert owner.generation.retries.strikes == 0


async def test_a_delta_out_of_grammar_is_no_loss(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    (await worker.take()).say(TextDelta(0, "too early"))
    with pytest.raises(ProtocolViolation):
        await owner.read()


async def test_a_reader_too_slow_gets_all_of_it(service: Service) -> None:
    """The worker is free while it reads, and a next one goes on when it has read."""
    dispatcher = service.memory.dispatcher(reply_buffer_bytes=2000)
    worker, owner = service.hire(), await service.ask(dispatcher=dispatcher)
    text = "x" * 300
    held = await worker.take()
    held.say(*STARTED)
    sent = 0
    while not held.delivery.cancelled.is_set():
        sent += 1
        held.say(TextDelta(0, text), ids=(sent,))
    await held.delivery.ack()
    held.say(TextDelta(0, "ghost"), ids=(99,))
    assert owner.generation.attempt == 1
    async with reading(owner) as answer:
        again = await worker.take()
        arrived = again.prefix
        assert arrived.token_ids == tuple(range(1, sent))
        assert arrived.units == 300 * (sent - 1)
        assert not again.job.suspect
        again.say(*STARTED, TextDelta(0, "end"), *ENDING, ids=(sent,))
        deltas = await answer
    read = "".join(d.text for d in deltas if isinstance(d, TextDelta))
    assert read == text * (sent - 1) + "end"
    await dispatcher.close()


async def test_a_reader_too_slow_is_not_taken_for_a_silent_worker(service: Service) -> None:
    limits = TimeLimits(silence_s=0.1, stall_s=0.1)
    worker, owner = service.hire(), await service.ask(limits=limits)
    held = await worker.take()
    held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
    await owner.read()
    loop = asyncio.get_running_loop()
    over = loop.time() + 3 * limits.silence_s

    def still_there() -> bool:
        held.say(TextDelta(0, "a"), ids=(1,))
        return loop.time() > over

    await until(still_there)
    held.say(*ENDING)
    await owner.read_all()
    assert owner.generation.attempt == 1


# --- When it is enough ---------------------------------------------------------------------------


async def lose(service: Service, worker: Worker, held: Held, *, ids: Sequence[int] = ()) -> Worker:
    """The worker dies at work, after it has generated these."""
    held.say(*STARTED, ids=ids)
    await worker.die()
    worker = service.hire()
    await worker.report()
    return worker


async def test_two_workers_lost_in_a_row_convict_the_job(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        assert not held.job.suspect
        worker = await lose(service, worker, held, ids=(1,))
        held = await worker.take()
        assert held.job.suspect
        await lose(service, worker, held)
        with pytest.raises(GenerationFailed):
            await answer
    assert owner.generation.attempt == 2


async def test_a_loss_in_company_proves_nothing_but_the_next_alone_does(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        worker = await lose(service, worker, held)
        for at_first in (False, True):
            held = await worker.take()
            assert held.job.suspect
            held.say(Accepted("w", 1, alone=at_first), Started("w", 1, 0))
            held.repeat(ALIVE, Accepted("w", 1, alone=False))
            await worker.die()
            worker = service.hire()
            await worker.report()
        held = await worker.take()
        assert held.job.exclusive
        await lose(service, worker, held)
        with pytest.raises(GenerationFailed):
            await answer
    assert owner.generation.attempt == 4


async def test_progress_in_between_clears_it(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        for number in range(4):
            held = await worker.take()
            assert held.job.suspect == (number > 0)
            worker = await lose(service, worker, held, ids=(number,))
        held = await worker.take()
        held.say(*STARTED, ids=(9,))
        held.say(Interrupted("draining"))  # after progress
        held = await worker.take()
        assert not held.job.suspect
        held.say(*STARTED, *ENDING)
        await answer


async def test_ten_lost_workers_are_enough_whatever_they_achieved(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        for number in range(10):
            worker = await lose(service, worker, await worker.take(), ids=(number,))
        with pytest.raises(WorkerFailed):
            await answer
    assert owner.generation.attempt == 10


async def test_neighbours_of_the_guilty_are_unharmed(service: Service) -> None:
    worker = service.hire()
    owners = [await service.ask(job(f"job-{i}")) for i in range(3)]
    for _ in owners:
        (await worker.take()).say(*STARTED, TextDelta(0, "a"), ids=(1,))
    async with AsyncExitStack() as exits:
        answers = [await exits.enter_async_context(reading(owner)) for owner in owners]
        for owner in owners:
            await until(lambda owner=owner: owner.generation.phase == "decode")
        await worker.die()
        worker = service.hire()
        for _ in owners:
            await worker.report()
        guilty, *innocent = [await worker.take() for _ in owners]
        assert all(held.job.suspect for held in (guilty, *innocent))
        guilty.say(*STARTED)  # the others have not been begun
        await until(
            lambda: [owner.generation.phase for owner in owners].count("decode") == 1,
        )
        await worker.die()
        worker = service.hire()
        for _ in owners:
            await worker.report()
        for _ in innocent:
            held = await worker.take()
            held.say(*STARTED, *ENDING, ids=(2,))
        ends = await asyncio.gather(*answers, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["GenerationFailed", "list", "list"]


async def test_attempts_that_get_nowhere_have_an_end(service: Service) -> None:
    limits = TimeLimits(retry_s=0.4)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        while not answer.done():
            async with asyncio.timeout(5):
                taking = asyncio.ensure_future(worker.take())
                await asyncio.wait((taking, answer), return_when=asyncio.FIRST_COMPLETED)
            if taking.cancel():
                break
            held = taking.result()
            held.say(*STARTED)
            held.say(Interrupted("draining"))
            await held.delivery.ack()
        with pytest.raises(WorkerFailed):
            await answer
    assert owner.generation.retries.strikes == 0
    assert 2 < owner.generation.attempt < 10


async def test_so_has_the_wait_for_another_worker(service: Service) -> None:
    limits = TimeLimits(retry_s=0.2)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED)
        held.say(Interrupted("draining"))
        await worker.take()  # and does not say that it has
        with pytest.raises(WorkerFailed):
            await answer


async def test_a_job_that_nobody_keeps_is_not_passed_on_in_haste(service: Service) -> None:
    limits = TimeLimits(queue_wait_s=0.5)
    worker, owner = service.hire(), await service.ask(limits=limits)
    async with reading(owner) as answer:
        while not answer.done():
            async with asyncio.timeout(5):
                taking = asyncio.ensure_future(worker.take())
                await asyncio.wait((taking, answer), return_when=asyncio.FIRST_COMPLETED)
            if taking.cancel():
                break
            held = taking.result()
            wait_ends_at = owner.generation._began_at + limits.queue_wait_s
            assert owner.generation.due_at() == pytest.approx(wait_ends_at, abs=0.05)
            held.say(Interrupted("draining"))
            await held.delivery.ack()
        with pytest.raises(ModelOverloaded):
            await answer
    assert 2 < owner.generation.attempt < 12


async def test_a_refused_attempt_is_tried_again_under_another_number(service: Service) -> None:
    worker, owner = service.hire(slots=1), await service.ask()
    held = await worker.take()
    held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
    await owner.read()
    waiting = [await service.ask(job(f"waiting-{i}")) for i in range(4)]  # the queue is full
    async with reading(owner) as answer:
        held.say(Interrupted("draining"))
        await until(lambda: owner.generation.attempt == 4)
        await held.delivery.ack()
        for _ in waiting:
            other = await worker.take()
            other.say(*STARTED, *ENDING)
            await other.delivery.ack()
        again = await worker.take()
        assert again.job.attempt > 3
        assert again.prefix == ChoicePrefix((1,), 1, 0, False)
        again.say(*STARTED, *ENDING, ids=(2,))
        await answer
    assert owner.generation.retries.losses == ["draining"]


async def test_a_refusal_that_does_not_pass_is_the_error(service: Service) -> None:
    limits = TimeLimits(queue_wait_s=0.4)
    worker, owner = service.hire(slots=1), await service.ask(limits=limits)
    held = await worker.take()
    held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
    await owner.read()
    for i in range(4):
        await service.ask(job(f"waiting-{i}"))
    held.say(Interrupted("draining"))
    with pytest.raises(ModelOverloaded, match="The model is overloaded"):
        await owner.read()


async def test_a_next_attempt_may_wait_as_long_as_the_first(service: Service) -> None:
    limits = TimeLimits(queue_wait_s=0.4)
    worker, owner = service.hire(), await service.ask(limits=limits)
    loop = asyncio.get_running_loop()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(*STARTED)
        over = loop.time() + limits.queue_wait_s
        await until(lambda: loop.time() > over)
        await worker.die()
        worker = service.hire()
        await worker.report()
        began = owner.generation._began_at
        assert owner.generation.due_at() > began + 2 * limits.queue_wait_s
        again = await worker.take()
        assert again.job.queue_deadline >= held.job.queue_deadline + limits.queue_wait_s
        assert again.job.deadline == held.job.deadline
        with pytest.raises(ModelOverloaded):
            await answer


LIMITED = [
    pytest.param({"first_token_s": 0.1}, (Accepted("w", 3),), GenerationTimeout, id="prefill"),
    pytest.param({"total_s": 0.1}, STARTED, GenerationTimeout, id="total"),
    pytest.param({"queue_wait_s": 0.1}, (), ModelOverloaded, id="queue"),
]


@pytest.mark.parametrize(("limit", "said", "error"), LIMITED)
@pytest.mark.parametrize("moved", [False, True])
async def test_all_other_limits_end_the_request(
    service: Service,
    limit: dict[str, float],
    said: tuple[Delta, ...],
    error: type[Exception],
    moved: bool,
) -> None:
    worker, owner = service.hire(), await service.ask(limits=TimeLimits(**limit))
    async with reading(owner) as answer:
        held = await worker.take()
        if moved:
            held.say(*STARTED, TextDelta(0, "a"), ids=(1,))
            held.say(Interrupted("draining"))
            held = await worker.take()
        if said:
            held.say(*said)
        with pytest.raises(error):
            await answer
    await owner.generation.close()
    assert held.delivery.cancelled.is_set()


# --- Around it -----------------------------------------------------------------------------------


async def test_closing_cancels_the_job(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    held = await worker.take()
    await owner.generation.close()
    async with asyncio.timeout(5):
        await held.delivery.cancelled.wait()


async def test_every_phase_is_told_also_between_attempts(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    async with reading(owner) as answer:
        held = await worker.take()
        held.say(Accepted("w", 3))
        held.say(Interrupted("draining"))
        held = await worker.take()
        assert owner.phases == ["prefill", "queued"]
        held.say(*STARTED, *ENDING)
        await answer
    assert owner.phases == ["prefill", "queued", "prefill", "decode"]


async def test_the_log_tells_of_every_loss_and_of_no_content(service: Service) -> None:
    worker, owner = service.hire(), await service.ask()
    with capture_logs() as lines:
        async with reading(owner) as answer:
            held = await worker.take()
            held.say(*STARTED, TextDelta(0, "secret"), ids=(4711, 4712))
            held.say(Interrupted("engine_lost"))
            held = await worker.take()
            held.say(Interrupted("draining"))
            held = await worker.take()
            held.say(*STARTED, *ENDING)
            await answer
    told = [line for line in lines if line["event"] == "job.interrupted"]
    common = {"event": "job.interrupted", "log_level": "warning", "job_id": "job-1"}
    assert told == [
        {
            **common,
            "attempt": 1,
            "reason": "engine_lost",
            "worker": "w",
            "strikes": 1,
            "tokens": 2,
        },
        {**common, "attempt": 2, "reason": "draining", "worker": None, "strikes": 1, "tokens": 2},
    ]
