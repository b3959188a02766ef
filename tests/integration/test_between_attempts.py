"""A reply whose worker has left and whose next one is not there yet.

The client of a stream hears signs of life, every limit holds, and whoever leaves is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import orjson
import pytest

from ingress.dialects.profile import ProfileName
from tests.fixtures.faults import Crew, Cut, memory_crew
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, TimeLimits, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import Step

pytestmark = pytest.mark.timeout(30)

WORDS = ("one ", "two ", "three")


class Listener:
    """One request, and what has come of its answer so far."""

    def __init__(self, crew: Crew, dialect: str, *, stream: bool = True) -> None:
        self.status = 0
        self.headers: httpx.Headers = httpx.Headers()
        self.content = b""
        self._crew = crew
        self._dialect = dialect
        self._stream = stream
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        body = request_body(self._dialect, stream=self._stream)
        async with (
            httpx.AsyncClient(base_url=self._crew.pod.url, timeout=20) as http,
            http.stream("POST", path_of(self._dialect), json=body) as response,
        ):
            self.status, self.headers = response.status_code, response.headers
            async for piece in response.aiter_bytes():
                self.content += piece

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))


def overloaded_status(dialect: str) -> int:
    return 529 if dialect == "messages" else 503


async def moved(crew: Crew, dialect: str, *, at: int = 2, stream: bool = True) -> Listener:
    """A request whose worker has left before its token `at`; nobody else is there."""
    cut = Cut(WORDS, at)
    hand = await crew.hire(cut)
    listener = Listener(crew, dialect, stream=stream)
    await cut.reached.wait()
    await hand.drain()
    await until(lambda: len(crew.pod.services.admission.backlog(MODEL)) == 1)
    return listener


@pytest.mark.rule("moves.signs-of-life")
@pytest.mark.parametrize("profile", ["wafer", "official"])
@pytest.mark.parametrize("dialect", ALL)
async def test_the_silence_is_bridged(dialect: str, profile: ProfileName) -> None:
    async with memory_crew(limits=TimeLimits(keep_alive_s=0.02), profile=profile) as crew:
        listener = await moved(crew, dialect)
        heard = len(listener.content)
        pings = dialect == "messages" and profile == "official"
        sign = b"event: ping\n" if pings else b": keep-alive\n\n"
        await until(lambda: listener.content.count(sign, heard) > 6)
        if dialect == "responses":  # whose clients count events and no comments
            await until(lambda: b"event: response.in_progress\n" in listener.content[heard:])
        await crew.hire(Cut(WORDS))
        await listener.task
        assert (b"event: ping\n" in listener.content) == pings
        for word in WORDS:
            assert word.strip().encode() in listener.content
        ends = {"messages": b"event: message_stop\n", "responses": b"event: response.completed\n"}
        assert ends.get(dialect, b"data: [DONE]\n\n") in listener.content


@pytest.mark.rule("moves.client-leaves")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_not_served_by_the_next_worker(stream: bool) -> None:
    async with memory_crew() as crew:
        listener = await moved(crew, "chat", stream=stream)
        await listener.leave()
        admission = crew.pod.services.admission
        await until(lambda: admission.in_flight == len(admission.backlog(MODEL)) == 0)
        played = 0

        def script(request: EngineRequest) -> Iterator[Step]:
            nonlocal played
            played += 1
            return Cut(WORDS)(request)

        await crew.hire(script)
        await Listener(crew, "chat").task
        assert played == 1


@pytest.mark.rule("moves.limits")
@pytest.mark.parametrize("dialect", ALL)
async def test_the_wait_for_the_next_worker_has_a_limit(dialect: str) -> None:
    async with memory_crew(limits=TimeLimits(queue_wait_s=0.3)) as crew:
        listener = await moved(crew, dialect)
        await listener.task
        assert listener.status == 200
        assert b"model_overloaded" in listener.content or dialect == "responses"
        assert b"[DONE]" not in listener.content
        assert b"event: message_stop" not in listener.content
        assert b"event: response.completed" not in listener.content


@pytest.mark.rule("moves.limits")
@pytest.mark.parametrize("stream", [True, False])
async def test_so_has_the_whole_request(stream: bool) -> None:
    async with memory_crew(limits=TimeLimits(total_s=2)) as crew:
        listener = await moved(crew, "chat", stream=stream)
        await listener.task
        assert b'"code":"generation_timeout"' in listener.content
        assert listener.status == (200 if stream else 504)


@pytest.mark.rule("moves.status-line")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ALL)
async def test_what_fails_before_the_first_token_is_an_http_error(
    dialect: str, stream: bool
) -> None:
    async with memory_crew(limits=TimeLimits(queue_wait_s=0.3)) as crew:
        listener = await moved(crew, dialect, at=0, stream=stream)
        await listener.task
        assert listener.status == overloaded_status(dialect)
        assert int(listener.headers["retry-after"]) > 0
        assert orjson.loads(listener.content)["error"]["code"] == "model_overloaded"


@pytest.mark.rule("overload.accepted-stay")
async def test_what_was_accepted_is_not_refused_for_a_full_queue() -> None:
    async with memory_crew(max_queued=1, limits=TimeLimits(keep_alive_s=0.02)) as crew:
        first = await moved(crew, "chat")
        cut = Cut(WORDS, 2)
        busy = await crew.hire(cut, slots=1)
        await until(lambda: cut.reached.is_set())  # the first goes on there
        second = Listener(crew, "chat")
        await until(lambda: len(crew.pod.services.admission.backlog(MODEL)) == 1)
        await busy.drain()  # both wait now, one more than may
        await until(lambda: len(crew.pod.services.admission.backlog(MODEL)) == 2)
        await crew.hire(Cut(WORDS))
        await asyncio.gather(first.task, second.task)
        for listener in (first, second):
            assert listener.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.rule("moves.draining")
@pytest.mark.parametrize("dialect", ALL)
async def test_a_draining_worker_takes_nothing_and_ends_what_it_has(dialect: str) -> None:
    async with memory_crew() as crew:
        cut = Cut(WORDS, 1)
        hand = await crew.hire(cut)
        running = Listener(crew, "chat")
        await cut.reached.wait()
        draining = asyncio.create_task(hand.consumer.drain(20))
        await until(lambda: not crew.pod.services.catalog.ready())
        for stream in (True, False):
            refused = Listener(crew, dialect, stream=stream)
            await refused.task
            assert refused.status == overloaded_status(dialect)
            assert refused.headers["retry-after"] == "5"
            assert orjson.loads(refused.content)["error"]["code"] == "model_unavailable"
        cut.gate.set()
        await running.task
        await draining
        assert running.content.endswith(b"data: [DONE]\n\n")
