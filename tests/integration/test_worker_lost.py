"""A worker process is killed or stopped: its answers go on elsewhere, and nobody sees it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from schemas.transport.rabbit import RabbitDispatcher
from tests.fixtures.answers import CONVERSATIONS, read_body, read_stream
from tests.fixtures.broker import Broker
from tests.fixtures.player import request_to_play
from tests.fixtures.processes import Process, headrace
from tests.fixtures.requests import path_of, request_body
from tests.fixtures.stack import Pod, TimeLimits, ready, serve_pod, sse_data, until

pytestmark = pytest.mark.broker


@dataclass
class Service:
    """One pod in this process, workers in theirs."""

    pod: Pod
    model: str
    start: Callable[[int], Awaitable[Process]]
    workers: list[Process] = field(default_factory=list)

    async def hire(self, count: int = 1) -> None:
        """Start workers and wait until they have told of themselves."""
        alive = [w for w in self.workers if w.process.returncode is None]
        first = len(self.workers)
        numbers = range(first, first + count)
        self.workers += await asyncio.gather(*(self.start(number) for number in numbers))
        async with asyncio.timeout(30):
            await ready(self.pod.services, workers=len(alive) + count)

    async def ask(self, dialect: str, body: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.pod.url, timeout=60) as http:
            return await http.post(path_of(dialect), json={**body, "model": self.model})

    @property
    def generations(self) -> list[Any]:
        return [answer._generation for answer in self.pod.services.answers]

    async def speaking(self, count: int, *, tokens: int = 4) -> None:
        """Wait until that many answers have begun, each with some tokens."""
        await until(
            lambda: [g.usage.output_tokens >= tokens for g in self.generations] == [True] * count,
            timeout_s=20,
        )

    async def holder(self, phase: str = "decode") -> Process:
        """The worker process that holds the one request, once it is in this phase."""
        await until(lambda: [g.phase for g in self.generations] == [phase], timeout_s=10)
        (generation,) = self.generations
        return next(w for w in self.workers if f'"{generation.worker}"' in w.output())

    def lost(self, reason: str) -> float:
        """How many attempts were lost for this reason, as the metric tells."""
        counter = self.pod.services.metrics.lost_attempts.labels(self.model, reason)
        return float(counter._value.get())


@pytest.fixture
def limits() -> TimeLimits:
    return TimeLimits()


@pytest.fixture
async def service(
    broker: Broker, model: str, tmp_path: Path, limits: TimeLimits
) -> AsyncIterator[Service]:
    async with AsyncExitStack() as exits:
        command = ("worker", "--engine", "scripted", "--model", model, "--no-supervise")

        async def start(number: int) -> Process:
            log = tmp_path / f"worker-{number}.log"
            return await exits.enter_async_context(
                headrace(*command, "--amqp-url", broker.url, log=log)
            )

        dispatcher = await RabbitDispatcher.connect(broker.url, name="ingress")
        exits.push_async_callback(dispatcher.close)
        pod = await exits.enter_async_context(serve_pod(dispatcher, model=model, limits=limits))
        yield Service(pod, model, start)


# --- What is asked, and what of the answer must be the same --------------------------------------

WORDS = " ".join(f"w{number}" for number in range(30))
TEXT = "[[k=32 gap=50]]"
THOUGHT = f"[[think:{WORDS}]][[say:so be it]][[slow]]"
CALL = f'[[tool:stock {{"symbol": "{WORDS}", "days": 3}}]][[slow]]'


def asked(stream: bool) -> list[tuple[str, dict[str, Any]]]:
    """In the middle of text, reasoning and arguments; every dialect; two choices."""
    found: list[tuple[str, dict[str, Any]]] = []
    for dialect in CONVERSATIONS:
        found += [
            (dialect, request_to_play(dialect, TEXT, tools=False)),
            (dialect, request_to_play(dialect, THOUGHT, think=True)),
            (dialect, request_to_play(dialect, CALL)),
        ]
    found.append(("chat", request_body("chat", TEXT, n=2, logprobs=True, top_logprobs=1)))
    found.append(("completions", request_body("completions", TEXT, n=2)))
    return [(dialect, {**body, "stream": stream}) for dialect, body in found]


def content(dialect: str, body: dict[str, Any], response: httpx.Response) -> Any:
    """All that an answer says; not its ids, and not what pieces it came in."""
    assert response.status_code == 200, response.text
    if "n" not in body:
        read = read_stream if body["stream"] else read_body
        return read(dialect, response.content)._replace(ids=[], fed=[])
    if not body["stream"]:
        answer = response.json()
        return answer["choices"], answer["usage"]
    *records, done = sse_data(response.content)
    assert done == b"[DONE]"
    chunks = [orjson.loads(record) for record in records]
    said: dict[int, list[Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            told = said.setdefault(choice["index"], ["", [], None])
            told[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            told[1] += (choice.get("logprobs") or {}).get("content") or []
            told[2] = told[2] or choice["finish_reason"]
    return said, [chunk["usage"] for chunk in chunks if chunk.get("usage")]


async def everything(service: Service, *, stream: bool) -> list[Any]:
    questions = asked(stream)
    responses = await asyncio.gather(*(service.ask(*question) for question in questions))
    return [content(*q, response) for q, response in zip(questions, responses, strict=True)]


# --- Going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_when_the_only_worker_is_killed_all_goes_on_with_the_next(
    service: Service, stream: bool
) -> None:
    await service.hire()
    unharmed = await everything(service, stream=stream)
    answering = asyncio.create_task(everything(service, stream=stream))
    await service.speaking(len(unharmed))
    service.workers[0].kill()
    await service.hire()
    for answer, expected in zip(await answering, unharmed, strict=True):
        assert answer == expected
    assert service.lost("redelivered") == len(unharmed)


async def test_where_there_is_another_worker_the_gap_is_short(service: Service) -> None:
    await service.hire(2)
    body = {**request_body("chat", TEXT), "stream": True}
    unharmed = content("chat", body, await service.ask("chat", body))
    gaps: list[float] = []
    loop = asyncio.get_running_loop()

    async def ask() -> bytes:
        longest, last_at, data = 0.0, loop.time(), b""
        async with (
            httpx.AsyncClient(base_url=service.pod.url, timeout=60) as http,
            http.stream("POST", path_of("chat"), json={**body, "model": service.model}) as response,
        ):
            async for piece in response.aiter_raw():
                if b'"content":"tok' in data:
                    longest = max(longest, loop.time() - last_at)
                last_at, data = loop.time(), data + piece
        gaps.append(longest)
        return data

    asking = [asyncio.create_task(ask()) for _ in range(8)]
    await service.speaking(8)
    service.workers[0].kill()
    for sent in await asyncio.gather(*asking):
        assert read_stream("chat", sent)._replace(ids=[], fed=[]) == unharmed
    assert 0 < service.lost("redelivered") < 8
    assert max(gaps) < 3


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_token_it_is_invisible(service: Service, stream: bool) -> None:
    await service.hire(2)
    body = {**request_body("chat", "[[k=4 gap=5 ttft=1500]]"), "stream": stream}
    asking = asyncio.create_task(service.ask("chat", body))
    (await service.holder("prefill")).kill()
    answer = content("chat", body, await asking)
    assert answer.text == "tok0 tok1 tok2 tok3 "
    assert answer.usage["completion_tokens"] == 4


@pytest.mark.parametrize("limits", [TimeLimits(silence_s=2.5)])
async def test_a_worker_that_is_stopped_is_left_and_never_heard_again(service: Service) -> None:
    await service.hire(2)
    body = {**request_body("chat", TEXT), "stream": True}
    unharmed = content("chat", body, await service.ask("chat", body))
    asking = asyncio.create_task(service.ask("chat", body))
    holder = await service.holder()
    holder.process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: service.generations[0].attempt == 2, timeout_s=10)
        (generation,) = service.generations
    finally:
        holder.process.send_signal(signal.SIGCONT)
    assert content("chat", body, await asking) == unharmed
    assert generation.retries.losses == ["silent"]
    # It goes on serving.
    following = await asyncio.gather(*(service.ask("chat", body) for _ in range(4)))
    assert [content("chat", body, response) for response in following] == [unharmed] * 4


# --- When it is the request's own fault ----------------------------------------------------------


async def test_a_request_that_kills_workers_is_tried_twice_and_harms_nobody_else(
    service: Service,
) -> None:
    await service.hire(3)
    body = {**request_body("chat", TEXT), "stream": True}
    unharmed = content("chat", body, await service.ask("chat", body))
    neighbours = [asyncio.create_task(service.ask("chat", body)) for _ in range(6)]
    await service.speaking(6, tokens=1)
    call = '[[tool:stock {"symbol": "KO", "days": 3}]][[slow]][[crash:5]]'
    question = {**request_to_play("messages", call), "stream": True}
    response = await service.ask("messages", question)
    answer = read_stream("messages", response.content)
    assert answer.failed
    assert answer.end == "generation_failed"
    assert answer.parts == ["call"]
    assert '{"symbol": "KO", "days": 3}'.startswith("".join(answer.fed))
    assert answer.fed
    for neighbour in neighbours:
        assert content("chat", body, await neighbour) == unharmed
    assert len([w for w in service.workers if w.process.returncode is not None]) == 2


async def test_one_that_kills_before_it_has_begun_is_refused(service: Service) -> None:
    await service.hire(3)
    answer = await service.ask("chat", {**request_body("chat", "[[crash:0]]"), "stream": True})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed"
    assert (await service.ask("chat", request_body("chat"))).status_code == 200
