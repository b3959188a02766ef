"""What a request has used that was given up: what its engine really generated until it stopped.

The engines here go on for a while after they were told to stop, as real ones do, and count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import structlog

from ingress.generation import Generation
from schemas.errors import ServerShuttingDown
from schemas.job import Job
from schemas.transport.base import Reply
from schemas.transport.memory import MemoryDispatcher
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, until
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.scripted import ScriptedEngine

SAID = 12
LATE = 3
UNTOLD = 4


class Late(ScriptedEngine):
    """Says twelve tokens a choice; told to stop, it says three more and has four that it keeps.

    Attributes:
        generated: Tokens, of all its requests.
        said: It has said what it says before it is told to stop, for as many choices.
    """

    def __init__(self, *, ends: bool = True) -> None:
        super().__init__(served_id=MODEL)
        self.generated = 0
        self.said = 0
        self._ends = ends
        self._aborts: dict[str, asyncio.Event] = {}

    async def abort(self, engine_request_id: str) -> None:
        self._aborts.setdefault(engine_request_id, asyncio.Event()).set()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        aborted = self._aborts.setdefault(request.engine_request_id, asyncio.Event())
        for number in range(SAID):
            yield self._token(request, number)
            await asyncio.sleep(0)
        self.said += 1
        await aborted.wait()
        for number in range(LATE):
            yield self._token(request, number)
            await asyncio.sleep(0)
        if not self._ends:
            await asyncio.Event().wait()
        self.generated += UNTOLD
        yield EngineChunk(output_tokens=UNTOLD, finish=EngineFinish(reason="abort"))

    def _token(self, request: EngineRequest, number: int) -> EngineChunk:
        self.generated += 1
        return EngineChunk(
            text=f"t{number} ",
            token_ids=(300 + number,),
            output_tokens=1,
            input_tokens=len(request.prompt_ids),
        )


def completed(lines: Sequence[Any]) -> Any:
    (line,) = [line for line in lines if line["event"] == "request.completed"]
    return line


@pytest.mark.rule("usage.aborted")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
async def test_what_was_generated_until_the_engine_stopped_is_counted(stream: bool) -> None:
    async with memory_stack(Late()) as stack, httpx.AsyncClient(base_url=stack.url) as http:
        for dialect in ALL:
            stack.engine.said = stack.engine.generated = 0
            body = request_body(dialect, "Go on.", stream=stream)
            with structlog.testing.capture_logs() as lines:
                await leave(stack, http, path_of(dialect), body)
            line = completed(lines)
            assert line["output_tokens"] == stack.engine.generated == SAID + LATE + UNTOLD
            assert (line["outcome"], line["status"]) == ("cancelled", 499)


@pytest.mark.rule("usage.aborted")
async def test_every_choice_is_counted_to_its_end() -> None:
    async with memory_stack(Late()) as stack, httpx.AsyncClient(base_url=stack.url) as http:
        body = request_body("chat", "Go on.", n=3, stream=True)
        with structlog.testing.capture_logs() as lines:
            await leave(stack, http, path_of("chat"), body, choices=3)
    assert completed(lines)["output_tokens"] == stack.engine.generated == 3 * (SAID + LATE + UNTOLD)


async def leave(
    stack: Stack, http: httpx.AsyncClient, path: str, body: Any, *, choices: int = 1
) -> None:
    """Ask, and leave when the engine has said what it says by itself."""
    asking = asyncio.create_task(http.post(path, json=body))
    await until(lambda: stack.engine.said == choices)
    asking.cancel()
    await until(lambda: not stack.services.answers)


@pytest.mark.rule("usage.aborted")
async def test_a_request_that_took_too_long_is_counted_so() -> None:
    async with (
        memory_stack(Late(), limits=TimeLimits(total_s=0.2)) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        with structlog.testing.capture_logs() as lines:
            response = await http.post(path_of("chat"), json=request_body("chat", "Go on."))
            await until(lambda: not stack.services.answers)
    assert response.status_code == 504
    line = completed(lines)
    assert (line["outcome"], line["code"]) == ("failed", "generation_timeout")
    assert line["output_tokens"] == stack.engine.generated == SAID + LATE + UNTOLD


@pytest.mark.rule("usage.aborted", "usage.shutdown")
async def test_a_process_that_ends_waits_for_it(tmp_path: Path) -> None:
    engine, log = Late(ends=False), tmp_path / "usage.jsonl"
    with structlog.testing.capture_logs() as lines:
        async with (
            httpx.AsyncClient() as http,
            memory_stack(engine, limits=TimeLimits(last_figure_s=0.2), usage_log=log) as stack,
        ):
            asking = asyncio.create_task(
                http.post(stack.url + path_of("chat"), json=request_body("chat", "Go on."))
            )
            await until(lambda: engine.said == 1)
            stack.services.end_answers()
            assert (await asking).status_code == ServerShuttingDown.status
            assert not [line for line in lines if line["event"] == "request.completed"]
    line = completed(lines)
    assert line["code"] == "server_shutting_down"
    assert line["output_tokens"] == engine.generated == SAID + LATE
    assert orjson.loads(log.read_bytes())["output_tokens"] == SAID + LATE


@pytest.mark.rule("usage.aborted")
async def test_an_engine_that_never_stops_is_not_waited_for() -> None:
    """What it has said is counted; the slot and the client were free before."""
    async with (
        memory_stack(Late(ends=False), limits=TimeLimits(last_figure_s=0.2)) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        with structlog.testing.capture_logs() as lines:
            asking = asyncio.create_task(
                http.post(path_of("chat"), json=request_body("chat", "Go on.", stream=True))
            )
            await until(lambda: stack.engine.said == 1)
            asking.cancel()
            await until(lambda: stack.services.admission.in_flight == 0)
            assert not [line for line in lines if line["event"] == "request.completed"]
            await until(lambda: not stack.services.answers)
    assert completed(lines)["output_tokens"] == stack.engine.generated == SAID + LATE


class Slow(MemoryDispatcher):
    """Confirms a dispatch only when it is told to; workers may have the Job before."""

    def __init__(self, inner: MemoryDispatcher) -> None:
        self.__dict__ = inner.__dict__
        self.confirmed = asyncio.Event()

    async def dispatch(self, job: Job) -> Any:
        reply: Reply = await super().dispatch(job)
        await self.confirmed.wait()
        return reply


async def test_who_leaves_before_the_job_is_confirmed_is_counted_too() -> None:
    async with memory_stack(Late()) as stack, httpx.AsyncClient(base_url=stack.url) as http:
        slow = Slow(stack.services.dispatcher)  # type: ignore[arg-type]
        stack.services.dispatcher = slow
        with structlog.testing.capture_logs() as lines:
            asking = asyncio.create_task(
                http.post(path_of("chat"), json=request_body("chat", "Go on.", stream=True))
            )
            await until(lambda: stack.engine.said == 1)
            asking.cancel()
            await until(lambda: stack.services.admission.in_flight == 0)
            slow.confirmed.set()
            await until(lambda: not stack.services.answers)
    assert completed(lines)["output_tokens"] == stack.engine.generated == SAID + LATE + UNTOLD


async def test_a_generation_that_is_closed_leaves_no_dispatch_behind() -> None:
    """As a line of a batch is that its batcher gives up."""
    async with memory_stack(Late()) as stack:
        slow = Slow(stack.services.dispatcher)  # type: ignore[arg-type]
        jobs: list[Job] = []
        dispatch = slow.dispatch

        async def noting(job: Job) -> Any:
            jobs.append(job)
            return await dispatch(job)

        slow.dispatch = noting  # type: ignore[method-assign]
        stack.services.dispatcher = slow
        async with httpx.AsyncClient(base_url=stack.url) as http:
            asking = asyncio.create_task(
                http.post(path_of("chat"), json=request_body("chat", "Go on."))
            )
            await until(lambda: bool(jobs))
            generation = Generation(slow, jobs[0], TimeLimits())
            starting = asyncio.create_task(generation.start())
            await until(lambda: len(jobs) == 2)
            starting.cancel()
            await asyncio.wait({starting})
            assert not generation.is_final
            await generation.close()
            assert generation.is_final
            asking.cancel()
            slow.confirmed.set()
            await until(lambda: not stack.services.answers)
