"""Failures as the official clients see them: one uninterrupted answer, or one honest failure.

Source: wire reference, "Failures during generation and streaming", sections 2, 4 and 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import orjson
import pytest
import pytest_asyncio

from ingress.answer import Answer
from tests.fixtures.answers import CONVERSATIONS, read_stream
from tests.fixtures.faults import Crew, Cut, Hand, UntoldIds, memory_crew
from tests.fixtures.official import BODY, HELPER, RAW, WAYS, Told, ask
from tests.fixtures.player import call, request_to_play
from tests.fixtures.requests import ALL, answer_schema, request_body
from tests.fixtures.stack import TimeLimits, sse_data, until
from workers.engines.scripted import End, Step, Trouble

pytestmark = pytest.mark.asyncio(loop_scope="module")

# --- Where an answer is cut ----------------------------------------------------------------------

THOUGHT = ("Hm", ", so", ".</think>", "one", " two", " three")
OPENING = call("stock", '{"symbol":"')[: -len("}\n</tool_call>")]
CALL = ("</think>", OPENING, "KO", '"}', "}", "\n</tool_call>")
PLAIN = ("one", " two", " three")
RECORD = ('{"a":', ' "o', "ne", '"', "}")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@dataclass(frozen=True)
class State:
    """A moment of an answer.

    Attributes:
        texts: The whole answer, in tokens.
        at: How many have been written.
        said: What a raw stream has told by then, but for reasoning.
        thought: What it has told of reasoning.
        early: Nothing has been sent, not even the status line.
    """

    texts: Sequence[str]
    at: int
    said: str = ""
    thought: str = ""
    early: bool = False
    schema: bool = False

    def told(self, dialect: str) -> str:
        """All that a raw stream has told; one dialect keeps reasoning to itself."""
        if dialect == "responses":
            return "" if self.schema else self.said
        return self.thought + self.said

    def body(self, dialect: str) -> dict[str, Any]:
        if dialect == "completions":
            changes = answer_schema(SCHEMA)["completions"] if self.schema else {}
            return request_body("completions", "Go.", **changes)
        if self.schema:
            return request_to_play(dialect, tools=False, **answer_schema(SCHEMA)[dialect])
        return request_to_play(dialect, think=self.texts is not PLAIN)


STATES: Mapping[str, State] = {
    "before anything": State(PLAIN, 0, early=True),
    "after the opening record": State(PLAIN, 0),
    "in the text": State(PLAIN, 2, "one two"),
    "in reasoning": State(THOUGHT, 2, thought="Hm, so"),
    "in the text after reasoning": State(THOUGHT, 5, "one two", thought="Hm, so."),
    "in a call's arguments": State(CALL, 3, '{"symbol":"KO'),
    "in an answer of a schema": State(RECORD, 3, '{"a": "one', schema=True),
    "before the final record": State(PLAIN, 3, "one two three"),
}
RAW_PROMPT = frozenset(STATES) - {
    "in reasoning",
    "in the text after reasoning",
    "in a call's arguments",
}
"""Those that an answer to a prompt of tokens can be in."""


def combinations(states: Iterable[str] = tuple(STATES)) -> list[Any]:
    return [
        pytest.param(dialect, way, state, id=f"{dialect}, {way}, {state}")
        for dialect in ALL
        for way in WAYS
        for state in states
        if dialect != "completions" or (way != HELPER and state in RAW_PROMPT)
    ]


EVERYWHERE = pytest.mark.parametrize(("dialect", "way", "state"), combinations())
SOMEWHERE = pytest.mark.parametrize(
    ("dialect", "way", "state"),
    combinations(("before anything", "after the opening record", "in the text")),
)
MID_ANSWER = pytest.mark.parametrize(
    ("dialect", "way"),
    [(d, way) for d in ALL for way in WAYS if (d, way) != ("completions", HELPER)],
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service() -> AsyncIterator[Crew]:
    async with memory_crew() as crew:
        yield crew


@asynccontextmanager
async def serving(service: Crew, state: State, **limits: float) -> AsyncIterator[Crew]:
    """The service without workers, that opens streams at once, or with the first token.

    Nothing may be left of a request when its test ends.
    """
    services = service.pod.services
    commit_s = 30 if state.early else 0
    given = TimeLimits(**{"commit_after_accept_s": commit_s, "last_words_s": 0.02, **limits})
    services.settings = services.settings.model_copy(update={"limits": given})
    try:
        yield service
        await until(lambda: not services.answers)
        assert services.admission.in_flight == 0
        await until(lambda: _is_idle(service), timeout_s=1)
    finally:
        await service.dismiss()


def _has_told(crew: Crew, way: str, moment: State) -> bool:
    """Whether all that the worker has said has come to the ingress, and the stream has begun."""
    (answer,) = crew.pod.services.answers
    assert isinstance(answer, Answer)
    begun = way == BODY or moment.early or answer._committed
    return begun and answer._generation.usage.output_tokens == moment.at


async def _is_idle(crew: Crew) -> bool:
    return await crew.running() == 0


# --- What a failure looks like -------------------------------------------------------------------

SUCCESS = (
    b"[DONE]",
    b'"finish_reason":"',
    b"message_delta",
    b"message_stop",
    b'"stop_reason":"',
    b"response.completed",
    b"response.incomplete",
)

KINDS = {500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error"}


def check_failed(told: Told, dialect: str, way: str, code: str, status: int, said: str) -> None:
    """It failed, visibly, and nothing of it looks like a success.

    Args:
        said: What had been told before.
    """
    if way == BODY or not told.sent.startswith((b"data: ", b"event: ", b":")):
        check_refused(told, dialect, code, status)
        return
    for sign in SUCCESS:
        assert sign not in told.sent
    records = sse_data(told.sent)
    error = orjson.loads(records[-1])
    assert told.sent.endswith(b"data: " + records[-1] + b"\n\n")
    assert sum(b'"error":{' in record for record in records) == 1
    whole_item = dialect == "responses" and said == "" and b"json_schema" in told.sent
    if dialect in CONVERSATIONS and not whole_item:
        answer = read_stream(dialect, told.sent)  # which is strict about what is open
        assert answer.failed
        if way == RAW:
            assert "".join(answer.fed) == said
    if way == RAW:
        assert "".join(text for _, text in told.events) == said
    match dialect:
        case "responses":
            response = error["response"]
            assert response["status"] == "failed"
            assert response["error"]["code"] == "server_error"
            assert response["error"]["message"]
            if way == RAW:
                assert told.error is None
                assert told.last == error
            else:
                assert type(told.error) is RuntimeError
        case "messages":
            assert type(told.error) is anthropic.APIStatusError
            assert told.error.status_code == 200
            assert told.error.body == error
            assert told.request_id == error["request_id"] == error["error"]["request_id"]
            assert (error["error"]["type"], error["error"]["code"]) == (KINDS[status], code)
        case _:
            assert type(told.error) is openai.APIError
            assert told.error.code == code
            assert told.error.body == error["error"]
            assert told.error.message == error["error"]["message"]
            assert told.error.type == KINDS[status]
            assert told.request_id == error["error"]["request_id"]


def check_refused(told: Told, dialect: str, code: str, status: int) -> None:
    """It failed before anything had been sent, as an HTTP error of this dialect."""
    assert isinstance(told.error, openai.APIStatusError | anthropic.APIStatusError)
    told_status = 529 if status == 503 and dialect == "messages" else status
    assert told.error.status_code == told_status
    body = orjson.loads(told.sent)
    error = body["error"]
    assert (error["type"], error["code"]) == (KINDS[status], code)
    assert error["request_id"] == told.request_id
    assert ("retry-after" in told.error.response.headers) == (status == 503)
    for text in (*THOUGHT, *PLAIN[1:], "scripted"):
        assert text.encode() not in told.sent


# --- Honest failures -----------------------------------------------------------------------------

ENGINE_FAILS = (Trouble("fail"),)
ENGINE_ABORTS = (End("abort"),)


async def check_trouble(
    service: Crew, dialect: str, way: str, state: str, trouble: Sequence[Step]
) -> None:
    moment = STATES[state]
    async with serving(service, moment) as crew:
        await crew.hire(Cut(moment.texts, moment.at, trouble))
        told = await ask(crew.pod.url, dialect, way, moment.body(dialect))
        check_failed(told, dialect, way, "generation_failed", 500, moment.told(dialect))


@EVERYWHERE
@pytest.mark.rule("chat.stream-failure", "messages.failed-stream", "responses.failed")
async def test_the_engine_fails(service: Crew, dialect: str, way: str, state: str) -> None:
    await check_trouble(service, dialect, way, state, ENGINE_FAILS)


@MID_ANSWER
@pytest.mark.rule("chat.stream-failure", "messages.failed-stream", "responses.failed")
async def test_the_engine_aborts_for_a_reason_of_its_own(
    service: Crew, dialect: str, way: str
) -> None:
    await check_trouble(service, dialect, way, "in the text", ENGINE_ABORTS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", CONVERSATIONS)
async def test_a_worker_that_tells_no_ids_is_lost_in_the_answer(
    service: Crew, dialect: str, way: str
) -> None:
    """There is nothing to go on from, so the failure is told and nothing is begun again."""
    moment = STATES["in the text"]
    async with serving(service, moment) as crew:
        cut = Cut(moment.texts, moment.at)
        hand = await crew.hire(cut, engine=UntoldIds)
        asking = asyncio.create_task(ask(crew.pod.url, dialect, way, moment.body(dialect)))
        await until(cut.reached.is_set)
        await crew.hire(Cut(moment.texts), engine=UntoldIds)
        await hand.kill()
        check_failed(await asking, dialect, way, "worker_failed", 502, moment.told(dialect))


@SOMEWHERE
async def test_a_request_that_loses_two_workers(
    service: Crew, dialect: str, way: str, state: str
) -> None:
    """It is not tried with a third; progress before the first loss is no excuse for the second."""
    moment = STATES[state]
    async with serving(service, moment) as crew:
        first, second = (Cut(moment.texts, moment.at) for _ in range(2))
        hand = await crew.hire(first)
        asking = asyncio.create_task(ask(crew.pod.url, dialect, way, moment.body(dialect)))
        await until(first.reached.is_set)
        other = await crew.hire(second)
        await hand.kill()
        await until(second.reached.is_set)
        third = Cut(moment.texts)
        await crew.hire(third)
        await other.kill()
        check_failed(await asking, dialect, way, "generation_failed", 500, moment.told(dialect))


@SOMEWHERE
async def test_all_workers_are_gone_for_good(
    service: Crew, dialect: str, way: str, state: str
) -> None:
    moment = STATES[state]
    async with serving(service, moment, silence_s=0.1, queue_wait_s=0.3) as crew:
        cut = Cut(moment.texts, moment.at)
        hand = await crew.hire(cut)
        asking = asyncio.create_task(ask(crew.pod.url, dialect, way, moment.body(dialect)))
        await until(cut.reached.is_set)
        await hand.kill()
        told = await asking
        check_failed(told, dialect, way, "model_overloaded", 503, moment.told(dialect))


@SOMEWHERE
async def test_the_server_shuts_down(service: Crew, dialect: str, way: str, state: str) -> None:
    moment = STATES[state]
    async with serving(service, moment) as crew:
        cut = Cut(moment.texts, moment.at)
        await crew.hire(cut)
        asking = asyncio.create_task(ask(crew.pod.url, dialect, way, moment.body(dialect)))
        await until(cut.reached.is_set)
        await until(lambda: _has_told(crew, way, moment))
        crew.pod.services.end_answers()
        told = await asking
        check_failed(told, dialect, way, "server_shutting_down", 503, moment.told(dialect))


# --- One uninterrupted answer --------------------------------------------------------------------


async def kill(hand: Hand) -> None:
    await hand.kill()


async def freeze(hand: Hand) -> None:
    hand.freeze()


async def drain(hand: Hand) -> None:
    await hand.drain()


async def unharmed(crew: Crew, dialect: str, way: str, moment: State) -> Told:
    """What is told when nothing goes wrong."""
    hand = await crew.hire(Cut(moment.texts))
    told = await ask(crew.pod.url, dialect, way, moment.body(dialect))
    await hand.leave()
    assert told.error is None
    return told


def check_same(told: Told, reference: Told, dialect: str, way: str) -> None:
    """The client cannot tell it from an answer that nothing happened to."""
    assert told.error is None, told.error
    assert told.answer == reference.answer
    assert told.answer
    if way == BODY or dialect not in CONVERSATIONS:
        return
    answer, other = (read_stream(dialect, each.sent) for each in (told, reference))
    assert answer._replace(ids=[], fed=[]) == other._replace(ids=[], fed=[])
    assert len(answer.ids) == len(other.ids)


async def check_goes_on(
    service: Crew,
    dialect: str,
    way: str,
    state: str,
    lose: Callable[[Hand], Awaitable[None]],
    **limits: float,
) -> None:
    moment = STATES[state]
    async with serving(service, moment, **limits) as crew:
        reference = await unharmed(crew, dialect, way, moment)
        cut = Cut(moment.texts, moment.at)
        hand = await crew.hire(cut)  # of two that are free the first gets the request
        await crew.hire(Cut(moment.texts))
        asking = asyncio.create_task(ask(crew.pod.url, dialect, way, moment.body(dialect)))
        await until(cut.reached.is_set)
        await lose(hand)
        check_same(await asking, reference, dialect, way)
        # What the lost one has to say now is of no interest to anybody.
        cut.gate.set()
        hand.thaw()


@EVERYWHERE
async def test_a_worker_is_killed(service: Crew, dialect: str, way: str, state: str) -> None:
    await check_goes_on(service, dialect, way, state, kill)


@SOMEWHERE
async def test_a_worker_hangs(service: Crew, dialect: str, way: str, state: str) -> None:
    await check_goes_on(service, dialect, way, state, freeze, silence_s=0.1)


@SOMEWHERE
async def test_a_worker_leaves(service: Crew, dialect: str, way: str, state: str) -> None:
    await check_goes_on(service, dialect, way, state, drain)
