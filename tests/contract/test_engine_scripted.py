"""The scripted engine keeps the rules that it stands in for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from schemas.errors import GenerationFailed
from tests.contract.engine_suite import (
    ContinuationSuite,
    EngineSuite,
    ids_of,
    request,
    run,
    text_of,
)
from workers.engines.base import EngineRequest
from workers.engines.scripted import Pause, ScriptedEngine, Step, Text, Trouble, divide


class TestScriptedEngine(EngineSuite, ContinuationSuite):
    @pytest.fixture
    def engine(self) -> ScriptedEngine:
        return ScriptedEngine()

    def long(self, engine_request_id: str = "long") -> EngineRequest:
        prompt = tuple(b"[[k=2000 gap=5]]")
        return request(engine_request_id, prompt_ids=prompt, max_tokens=4000)


def script(_: EngineRequest) -> Iterator[Step]:
    yield Pause(600)
    yield Text("ab", ids=(300, 301), pieces=("a", "b"))
    yield Trouble("hang")
    yield Text("", ids=())
    yield Text("c", ids=(302,))
    yield Trouble("fail")


async def test_what_came_before_the_cut_does_not_happen_again() -> None:
    engine = ScriptedEngine(script=script)
    rest = msgspec.structs.replace(request(), prefix_ids=(300, 301, 302))
    async with asyncio.timeout(10):
        with pytest.raises(GenerationFailed):  # right after the cut: that does
            await run(engine, rest)


async def test_a_cut_may_be_within_a_chunk() -> None:
    engine = ScriptedEngine(script=lambda _: [Text("abc", ids=(1, 2, 3), pieces=("a", "b", "c"))])
    rest = msgspec.structs.replace(request(), prefix_ids=(1,))
    chunks = await run(engine, rest)
    assert (text_of(chunks), ids_of(chunks)) == ("bc", (2, 3))


@pytest.mark.parametrize("prefix", [(300, 999), (300, 301, 302, 303)])
def test_ids_of_another_script_are_refused(prefix: tuple[int, ...]) -> None:
    with pytest.raises(GenerationFailed):
        divide(script(request()), prefix)


async def test_it_can_be_lost() -> None:
    engine = ScriptedEngine()
    running = asyncio.create_task(
        run(engine, request(prompt_ids=tuple(b"[[lose:2]]"), max_tokens=20))
    )
    async with asyncio.timeout(10):
        assert await engine.failed()
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
