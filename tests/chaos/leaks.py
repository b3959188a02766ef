"""What a service holds while nobody asks it anything, to be compared before and after injuries.

Broker: queues, consumers and messages by purpose, connections and channels. Workers: jobs held and
requests inside the engine. Pods: requests in flight. Every process: file descriptors and threads;
memory is told and not judged here, since `soak` does that. Files of large Jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import aiohttp
import psutil

from schemas.blobs.directory import DirectoryStore
from schemas.blobs.jobs import sweep
from tests.chaos.fleet import Fleet

_FD_SLACK = 12
"""Open files more than before that are no leak: logs, idle connections of clients and pollers."""

_THREAD_SLACK = 8

_BLOBS_GONE_S = 2 * 3600.0
"""By then every request of now is over, and what was kept for it is of no use."""

_OF_WORKERS = ("headrace_worker_engine_running", "headrace_worker_jobs_running")
_OF_PODS = "headrace_requests_in_flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One look at an idle service. Keys are purposes of queues, or names of processes.

    Attributes:
        blobs: Files of large requests.
    """

    queues: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    channels: int = 0
    engine_requests: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    rss_mb: dict[str, int] = field(default_factory=dict)
    blobs: int = 0

    def differences(self, before: Held) -> list[str]:
        """What is held now and was not before, or the other way round; empty if all is well."""
        found = []
        for what in ("queues", "consumers", "messages", "engine_requests", "jobs", "in_flight"):
            now, then = getattr(self, what), getattr(before, what)
            found += [
                f"{what} of {name}: {then.get(name, 0)} before, {now.get(name, 0)} now"
                for name in sorted({*now, *then})
                if now.get(name, 0) != then.get(name, 0)
            ]
        for what in ("connections", "channels"):
            now, then = getattr(self, what), getattr(before, what)
            if now != then:
                found.append(f"{what}: {then} before, {now} now")
        for what, slack in (("files", _FD_SLACK), ("threads", _THREAD_SLACK)):
            now, then = getattr(self, what), getattr(before, what)
            found += [
                f"{what} of {name}: {then[name]} before, {now[name]} now"
                for name in sorted(now.keys() & then.keys())
                if now[name] > then[name] + slack
            ]
        return found

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


async def look(fleet: Fleet) -> Held:
    """What is held now."""
    listed = await fleet.broker.rows(
        "queues", "name", "messages_ready", "messages_unacknowledged", "consumers"
    )
    connections = await fleet.broker.rows("connections", "name")
    channels = await fleet.broker.rows("channels", "name")
    queues: Counter[str] = Counter()
    consumers: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for name, ready, unacknowledged, taking in listed:
        purpose = _purpose(name)
        queues[purpose] += 1
        consumers[purpose] += int(taking)
        messages[purpose] += int(ready) + int(unacknowledged)
    held = Held(
        queues=dict(queues),
        consumers=dict(consumers),
        messages=dict(messages),
        connections=len(connections),
        channels=len(channels),
        blobs=sum(1 for path in fleet.blobs.rglob("*") if path.is_file()),
    )
    for unit in fleet.workers:
        samples = await _samples(fleet, fleet.metrics_urls[unit.name])
        held.engine_requests[unit.name], held.jobs[unit.name] = (
            int(samples.get(name, -1)) for name in _OF_WORKERS
        )
    for unit in fleet.pods:
        samples = await _samples(fleet, f"{fleet.urls[unit.name]}/metrics")
        held.in_flight[unit.name] = int(samples.get(_OF_PODS, -1))
    for name, process in processes(fleet).items():
        with suppress(psutil.Error):
            held.files[name] = process.num_fds()
            held.threads[name] = process.num_threads()
            held.rss_mb[name] = process.memory_info().rss >> 20
    return held


async def lasting_blobs(fleet: Fleet) -> int:
    """How many files of large requests no process would ever delete.

    What a killed ingress leaves is deleted some time after the request's deadline; so a store is
    swept here as any process will sweep it then.
    """
    store = DirectoryStore.open(fleet.blobs)
    await sweep(store, time.time() + _BLOBS_GONE_S)
    return sum(1 for path in fleet.blobs.rglob("*") if path.is_file())


async def quiet(fleet: Fleet) -> bool:
    """Whether nobody says that they work on anything, as of the last announcements."""
    for unit in fleet.workers:
        samples = await _samples(fleet, fleet.metrics_urls[unit.name])
        if any(samples.get(name, -1) for name in _OF_WORKERS):
            return False
    for unit in fleet.pods:
        samples = await _samples(fleet, f"{fleet.urls[unit.name]}/metrics")
        if samples.get(_OF_PODS, -1):
            return False
    return True


async def until_as_before(
    fleet: Fleet, before: Held, *, besides: Collection[str] = (), timeout_s: float = 45.0
) -> tuple[Held, list[str]]:
    """Look until nothing differs, or until the time is over; what is held, and what differs.

    Args:
        besides: Queues that may hold more than before.
    """
    async with asyncio.timeout(timeout_s + 60):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            while not await quiet(fleet) and loop.time() < deadline:
                await asyncio.sleep(0.5)
            now = await look(fleet)
            differences = [
                line
                for line in now.differences(before)
                if not any(f" of {queue}:" in line for queue in besides)
            ]
            if not differences or loop.time() > deadline:
                return now, differences
            await asyncio.sleep(1)


def processes(fleet: Fleet) -> dict[str, psutil.Process]:
    """Every process of the service, by unit and part."""
    return {
        f"{unit.name}/{part}": process
        for unit in fleet.units
        for part, process in unit.processes().items()
    }


async def _samples(fleet: Fleet, url: str) -> dict[str, float]:
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        return await fleet.metrics(url)
    return {}


def _purpose(queue: str) -> str:
    """The name without what makes it unique: job queues have theirs, private ones a kind."""
    parts = queue.split(".")
    return ".".join(parts[:2]) if parts[1:2] in (["reply"], ["workers"], ["control"]) else queue
