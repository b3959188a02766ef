"""A whole service as processes: one broker, ingress pods, workers under their supervisors.

The fleet is also the orchestrator: what ends is started again, as a cluster would. It kills nothing
that it did not start. What the processes say in their logs is read as it comes, since that is how
an operator would learn which worker is ready and what became of a request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import orjson
import psutil

from tests import tiny_model as tiny
from tests.chaos.plan import Injury, Victim
from tests.fixtures.broker import BrokerNode, started_node
from tests.fixtures.ports import free_port
from tests.secrets import search
from workers.supervisor import die_with_parent

EngineName = Literal["scripted", "sglang"]
Role = Literal["worker", "ingress", "batcher"]

_LOOK_S = 0.05
_LOWEST_PRIORITY = 19
_HIGH_PRIORITY = -10
_YIELD_S = 8.0
_SETTLED = ("job.completed", "job.cancelled", "job.interrupted", "job.failed")
_PARTS: dict[Victim, str] = {"scheduler": "sglang::scheduler", "detokenizer": "sglang::detoken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """An injury that was done.

    Attributes:
        at: In the monotonic clock.
    """

    number: int
    victim: Victim
    unit: str
    pid: int
    at: float


@dataclass(slots=True)
class Request:
    """What an ingress wrote about a request that ended.

    Attributes:
        reread_s: How long the longest reading of its prompt by a further worker took.
    """

    attempt: int
    outcome: str
    code: str | None
    reread_s: float


@dataclass(slots=True)
class Journal:
    """What the logs have told.

    Attributes:
        requests: By request id.
        restarts: How often a supervisor has seen its child die.
        settled: Per job event of the workers: when it was read and how the job ended.
        alarms: Lines of level `error`.
    """

    requests: dict[str, Request] = field(default_factory=dict)
    restarts: int = 0
    settled: list[tuple[float, str]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def read(self, unit: Unit, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            name = event["event"]
        except (ValueError, TypeError, KeyError):
            return  # engines write lines of their own
        now = time.monotonic()
        if name in ("worker.ready", "batcher.ready"):
            unit.ready_at = now
        elif name == "request.completed":
            self.requests[event["request_id"]] = Request(
                event["attempt"],
                event["outcome"],
                event["code"],
                max((read_ms for _, read_ms in event["moves"] or ()), default=0.0) / 1000,
            )
        elif name in ("supervisor.restarting", "supervisor.gave_up"):
            self.restarts += 1
        elif unit.role == "worker" and name in _SETTLED:
            self.settled.append((now, name))
        if event.get("level") == "error":
            self.alarms.append(f"{unit.name}: {line.decode(errors='replace')[:500]}")


class Unit:
    """One long-running command, started again whenever it ends.

    Attributes:
        ready_at: When it last said that it is ready, in the monotonic clock.
        injured_at: When it was last injured.
        starts: How often it has been started.
    """

    def __init__(self, name: str, role: Role, args: Sequence[str], log: Path) -> None:
        self.name = name
        self.role = role
        self.log = log
        self.ready_at = 0.0
        self.injured_at = 0.0
        self.starts = 0
        self._yields_until = 0.0  # in the monotonic clock; 0 where it does not start again
        self._nice: dict[int, int] = {}
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self._offset = 0
        self._rest = b""
        self._main: psutil.Process | None = None

    @property
    def pid(self) -> int:
        """Of the command itself; a worker's is its supervisor."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ingress", *self._args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # noqa: TID251 - the child's own
            )

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def ready(self) -> bool:
        """It has said so since it was last injured, and what said so is still there."""
        if self.ready_at <= self.injured_at or self.ended():
            return False
        if self.role != "worker":
            return True
        if self._main is None or not _alive(self._main):
            self._main = self._find_main()
        return self._main is not None and _started(self._main) <= self.ready_at

    def processes(self) -> dict[str, psutil.Process]:
        """Every process of it by name: `supervisor`, `worker`, `scheduler`, `detokenizer`."""
        found: dict[str, psutil.Process] = {}
        if self.ended():
            return found
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.pid)
            if self.role != "worker":
                return {self.role: own}
            found["supervisor"] = own
            for child in own.children(recursive=True):
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if child.ppid() == own.pid:
                        found["worker"] = child
                    for part, title in _PARTS.items():
                        if title in " ".join(child.cmdline()):
                            found[part] = child
        return found

    def yield_processors(self) -> None:
        """Have what it starts next wait for everybody else's work, for a while.

        In earnest a worker that starts again has processors of its own; here it would take those
        of the workers that have to go on with its streams. Once they do, it starts before all else,
        or an hour of kills would be a day.
        """
        self._yields_until = time.monotonic() + _YIELD_S

    def _prioritise(self) -> None:
        if not self._yields_until or self.ended() or os.geteuid() != 0:  # else it is for ever
            return
        nice = _HIGH_PRIORITY if time.monotonic() > self._yields_until else _LOWEST_PRIORITY
        if self.ready:
            nice, self._yields_until = 0, 0.0
        found = self.processes()
        for leader in {found[name].pid for name in ("supervisor", "worker") if name in found}:
            if self._nice.get(leader) != nice:
                self._nice[leader] = nice
                _set_priority(leader, nice)

    def look(self, journal: Journal) -> None:
        """Read what it has written since, and start it again if it has ended."""
        with self.log.open("rb") as log:
            log.seek(self._offset)
            written = log.read()
        self._offset += len(written)
        *lines, self._rest = (self._rest + written).split(b"\n")
        for line in lines:
            journal.read(self, line)
        self._prioritise()

    def kill(self, victim: Victim, number: int) -> Blow | None:
        """SIGKILL to one process of it; None if it has none of that kind now."""
        process = self.processes().get(victim if self.role == "worker" else self.role)
        if process is None:
            return None
        self.injured_at = time.monotonic()
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return None
        return Blow(
            number=number, victim=victim, unit=self.name, pid=process.pid, at=self.injured_at
        )

    def terminate(self) -> None:
        if not self.ended():
            assert self._process is not None
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it and everything that it has started."""
        if self._process is None:
            return
        left = list(self.processes().values())
        try:
            # What has not started has nothing to end well; an engine would load to its end first.
            self._process.wait(15 if self.ready else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(15)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _find_main(self) -> psutil.Process | None:
        return self.processes().get("worker")


class Fleet:
    """The processes, and what to ask of them.

    Attributes:
        model: Public id of the model that all workers serve.
        blows: What has been done to it so far.
        broker_up: Whether the broker is supposed to answer.
    """

    def __init__(
        self,
        *,
        engine: EngineName,
        workers: int,
        pods: int,
        concurrency: int,
        home: Path,
        broker: BrokerNode,
        batchers: int = 0,
    ) -> None:
        self.engine = engine
        self.home = home
        self.blobs = home / "blobs"
        self.blobs.mkdir(exist_ok=True)
        self.model = f"chaos-{engine}"
        self.broker = broker
        self.broker_up = True
        self.journal = Journal()
        self.blows: list[Blow] = []
        self.urls: dict[str, str] = {}
        self.metrics_urls: dict[str, str] = {}
        self.units: list[Unit] = []
        self._watching: asyncio.Task[None] | None = None
        amqp = ("--amqp-url", self.broker.url, "--log-level", "info", "--blobs", str(self.blobs))
        for number in range(workers):
            port = free_port()
            name = f"worker-{number}"
            self.metrics_urls[name] = f"http://127.0.0.1:{port}/metrics"
            args = ("worker", *_engine_arguments(engine), "--served-id", self.model, *amqp)
            more = ("--concurrency", str(concurrency), "--metrics-port", str(port), "--grace", "2")
            self.units.append(Unit(name, "worker", (*args, *more), home / f"{name}.log"))
        self.database = f"sqlite:///{home / 'headrace.db'}"
        stored = ("--database", self.database) if batchers else ()
        for number in range(batchers):
            name = f"batcher-{number}"
            command = ("batcher", *amqp, *stored, "--lease", "3", "--grace", "2")
            self.units.append(Unit(name, "batcher", command, home / f"{name}.log"))
        for number in range(pods):
            port = free_port()
            name = f"ingress-{number}"
            self.urls[name] = f"http://127.0.0.1:{port}"
            args = ("ingress", "--port", str(port), "--model", self.model, *amqp, "--grace", "2")
            args = (*args, *stored)
            self.units.append(Unit(name, "ingress", args, home / f"{name}.log"))

    def broker_process(self) -> psutil.Process:
        """The broker's own process: the one that listens on its port."""
        port = urlsplit(self.broker.url).port
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr[1:] == (port,) and connection.pid is not None:
                return psutil.Process(connection.pid)
        raise ProcessLookupError("the broker does not listen")

    @property
    def workers(self) -> list[Unit]:
        return [unit for unit in self.units if unit.role == "worker"]

    @property
    def pods(self) -> list[Unit]:
        return [unit for unit in self.units if unit.role == "ingress"]

    @property
    def batchers(self) -> list[Unit]:
        return [unit for unit in self.units if unit.role == "batcher"]

    def ready_workers(self) -> list[Unit]:
        return [unit for unit in self.workers if unit.ready]

    async def start(self) -> None:
        for unit in self.units:
            unit.start()
        self._watching = asyncio.create_task(self._watch())
        await self.settled(timeout_s=420)

    async def settled(self, *, timeout_s: float = 120) -> None:
        """Wait until everybody is ready."""
        await self.until(
            lambda: all(unit.ready for unit in self.units), timeout_s, "everybody is ready"
        )

    async def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: It did not come true; says who is not ready.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._watching is None or not self._watching.done(), "the watch has ended"
            if time.monotonic() > deadline:
                late = [unit.name for unit in self.units if not unit.ready]
                raise TimeoutError(f"not within {timeout_s} s: {what}; not ready: {late}")
            await asyncio.sleep(_LOOK_S)

    async def injure(self, injury: Injury) -> Blow | None:
        """Do what the plan says, to one of those who are up; None if nobody is."""
        if injury.victim == "broker":
            return await self._kill_broker(injury.number)
        units = {"ingress": self.pods, "batcher": self.batchers}.get(injury.victim, self.workers)
        by_name = {unit.name: unit for unit in units if unit.ready}
        if not by_name:
            return None
        unit = by_name[injury.pick(sorted(by_name))]
        if unit.role == "worker" and self.engine == "sglang":
            unit.yield_processors()
        blow = unit.kill(injury.victim, injury.number)
        if blow is not None:
            self.blows.append(blow)
        return blow

    async def _kill_broker(self, number: int) -> Blow:
        self.broker_up = False
        blow = Blow(number=number, victim="broker", unit="broker", pid=0, at=time.monotonic())
        self.blows.append(blow)
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)
        self.broker_up = True
        return blow

    async def restart_broker(self, number: int) -> tuple[Blow, float]:
        """Stop and start the broker as an operator would; also tells when it was back."""
        self.broker_up = False
        blow = Blow(number=number, victim="broker", unit="broker", pid=0, at=time.monotonic())
        self.blows.append(blow)
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start)
        self.broker_up = True
        return blow, time.monotonic()

    async def _watch(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while True:
                for unit in self.units:
                    unit.look(self.journal)
                    if unit.ended():
                        unit.ready_at = 0.0
                        unit.start()
                    if unit.role == "ingress" and not unit.ready:
                        await self._ask_pod(http, unit)
                await asyncio.sleep(_LOOK_S)

    async def _ask_pod(self, http: aiohttp.ClientSession, unit: Unit) -> None:
        asked_at = time.monotonic()
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with http.get(f"{self.urls[unit.name]}/health/ready") as answer:
                if answer.status == 200 and not unit.ended():
                    unit.ready_at = asked_at

    async def metrics(self, url: str) -> dict[str, float]:
        """The samples of one process, summed over labels."""
        samples: dict[str, float] = {}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(url) as answer,
        ):
            for line in (await answer.text()).splitlines():
                if line and not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    name = name.partition("{")[0]
                    samples[name] = samples.get(name, 0.0) + float(value)
        return samples

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        for unit in self.units:
            unit.terminate()
        await asyncio.gather(*(asyncio.to_thread(unit.stop) for unit in self.units))
        await asyncio.to_thread(self.broker.remove)


@asynccontextmanager
async def running_fleet(
    *,
    engine: EngineName,
    workers: int,
    pods: int,
    concurrency: int,
    batchers: int = 0,
    logs: Path | None = None,
) -> AsyncIterator[Fleet]:
    """A fleet that is ready; its logs go when it ends, unless they were given a place.

    Nothing in them may look like a secret then.
    """
    home = logs or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    home.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(
        engine=engine,
        workers=workers,
        pods=pods,
        concurrency=concurrency,
        home=home,
        broker=await asyncio.to_thread(started_node),
        batchers=batchers,
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()
        written = [unit.log for unit in fleet.units if unit.log.exists()]
        found = [str(finding) for finding in search(written)]
        if logs is None:
            shutil.rmtree(home, ignore_errors=True)
    assert not found, found


def _engine_arguments(engine: EngineName) -> tuple[str, ...]:
    if engine == "scripted":
        return ("--engine", "scripted", "--model", "scripted")
    # Without its prefix cache a worker always counts the same cached tokens: none.
    return ("--model", str(tiny.cached()), "--engine-arg", "disable_radix_cache=true")


def _set_priority(leader: int, nice: int) -> None:
    """Of all processes of a group that is also a session, among each other and as a whole."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, leader, nice)
        Path(f"/proc/{leader}/autogroup").write_text(str(nice))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _started(process: psutil.Process) -> float:
    """When a process began, in the monotonic clock.

    Not by psutil's `create_time`, which is by the wall clock, and in a run of an hour that is set.
    """
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return float("inf")
    ticks = int(stat.rpartition(")")[2].split()[19])  # since boot; field 22 of proc(5)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
