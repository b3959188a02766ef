"""SGLang dies or hangs, and the engine says so in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from schemas.sampling import StopConditions
from tests.contract.engine_suite import Consumer, ending, request, until_running
from tests.fixtures.engine import SESSION_LOOP
from workers.engines.sglang import SglangEngine
from workers.engines.sglang_health import Failure, Health

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

GREEDY: dict[str, Any] = {"temperature": 0.0}
HANG_S = 1.0
BUSY_S = 2.0
"""Longer than a step of a busy engine takes, on any machine that runs these tests."""


class Victim:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def event(self, name: str) -> dict[str, Any]:
        """The next line, which must tell of this."""
        assert self.process.stdout is not None
        async with asyncio.timeout(200):
            line = await self.process.stdout.readline()
        told: dict[str, Any] = msgspec.json.decode(line)
        assert told["event"] == name
        return told

    async def ends(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def victim(model: Path) -> AsyncIterator[Victim]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fixtures.victim", str(model)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # noqa: TID251 - a child needs the whole of it
    )
    try:
        yield Victim(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_a_dead_process_is_told_of_at_once_and_ends_the_worker(tiny_model: Path) -> None:
    """Here of a worker that cannot end by itself; nothing that it has started is left either.

    Workers that can, and lose any of the engine's processes, are in the tests of a fleet.
    """
    async with victim(tiny_model) as engine:
        pids = (await engine.event("running"))["pids"]
        family = psutil.Process(engine.process.pid).children(recursive=True)
        assert {process.pid for process in family} >= set(pids)
        killed_at = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        told = await engine.event("failed")
        assert told["at"] - killed_at < 1.0
        assert told["reason"] == "a process of it has ended"
        assert await engine.ends() == -signal.SIGKILL
    _, left = await asyncio.to_thread(psutil.wait_procs, family, timeout=5)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


async def test_the_end_comes_by_force_only_if_nothing_else_ended_it() -> None:
    ended, spared = threading.Event(), threading.Event()
    failure = Failure(ended.set, last_words_s=0.01)
    failure.tell("first")
    failure.tell("second")
    assert await failure.wait() == "first"
    assert await asyncio.to_thread(ended.wait, 5)
    closed = Failure(spared.set, last_words_s=0.01)
    closed.tell("first")
    closed.close()
    assert closed.told
    assert not await asyncio.to_thread(spared.wait, 0.1)


@pytest.mark.parametrize("descriptors", [True, False])
async def test_the_end_of_any_process_is_seen(
    descriptors: bool, sglang_engine: SglangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel has no descriptors for processes."""
    if not descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    sleeper = await asyncio.create_subprocess_exec("sleep", "60")
    failure = Failure(threading.Event().set)
    health = Health(failure, sglang_engine._manager, [os.getpid(), sleeper.pid], hang_s=60)
    health.start()
    await asyncio.sleep(0)
    assert not failure.told
    sleeper.kill()
    async with asyncio.timeout(2):
        assert await failure.wait() == "a process of it has ended"
    await health.stop()
    failure.close()
    await sleeper.wait()


def endless(name: str) -> Any:
    return request(name, max_tokens=3900, stop=StopConditions(ignore_eos=True), **GREEDY)


@pytest.mark.parametrize("which", [0, -1])
@SESSION_LOOP
async def test_a_process_that_stands_still_is_a_hang(
    sglang_engine: SglangEngine, which: int
) -> None:
    """The scheduler, or the detokenizer while the scheduler goes on."""
    pids = sglang_engine._sglang.get_all_child_pids()
    consumer = Consumer(sglang_engine, endless("hang"))
    await consumer.until_tokens(3)
    failure = Failure(threading.Event().set)
    health = Health(failure, sglang_engine._manager, pids, hang_s=HANG_S)
    os.kill(pids[which], signal.SIGSTOP)
    try:
        health.start()
        begun = time.monotonic()
        async with asyncio.timeout(20):
            assert await failure.wait() == "it hangs"
        assert time.monotonic() - begun >= HANG_S
    finally:
        os.kill(pids[which], signal.SIGCONT)
        await health.stop()
        failure.close()
    await sglang_engine.abort("hang")
    assert ending(await consumer.end()) == ("abort", None)
    await until_running(sglang_engine, 0)


@SESSION_LOOP
async def test_an_idle_or_busy_engine_does_not_hang(sglang_engine: SglangEngine) -> None:
    failure = Failure(threading.Event().set)
    pids = sglang_engine._sglang.get_all_child_pids()
    health = Health(failure, sglang_engine._manager, pids, hang_s=BUSY_S)
    health.start()
    consumers: list[Consumer] = []
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * BUSY_S):
                await failure.wait()
        begun = time.monotonic()
        consumers += [Consumer(sglang_engine, endless(f"busy{number}")) for number in range(6)]
        tokens = 0
        while time.monotonic() - begun < 2 * BUSY_S:
            tokens += 50
            await consumers[0].until_tokens(tokens)
        assert not failure.told
    finally:
        for number in range(len(consumers)):
            await sglang_engine.abort(f"busy{number}")
        for consumer in consumers:
            await consumer.end()
        await health.stop()
        failure.close()
        await until_running(sglang_engine, 0)
