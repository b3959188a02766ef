"""What is done to a service, and what must hold: one function per scenario."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.asks import Ask, long_asks, poison_asks
from tests.chaos.batch import batch
from tests.chaos.fleet import Fleet
from tests.chaos.load import Heard, Load
from tests.chaos.memory import Memory
from tests.chaos.plan import Victim, at_random, in_turn
from tests.chaos.report import Report
from tests.chaos.transcript import read
from tests.chaos.trial import Progress, Settings, Trial, trial

ABORT_LIMIT_S = 2.0
"""Within this the workers must have let go of what a lost pod had asked for."""

BROKER_BACK_LIMIT_S = 5.0
"""Within this after the broker's return a new request must be answered."""

_LEAVING = 10
"""One client in so many goes away, where clients do."""


async def kill_workers(settings: Settings, progress: Progress) -> Report:
    """Processes of workers are killed in turn, one always being left to go on with."""
    return await _kill_workers("kill-workers", settings, progress, sampling=False)


async def sampling(settings: Settings, progress: Progress) -> Report:
    """The same at temperature 1: with a seed identical, without one valid."""
    return await _kill_workers("sampling", settings, progress, sampling=True)


async def _kill_workers(
    name: str, settings: Settings, progress: Progress, *, sampling: bool
) -> Report:
    victims: tuple[Victim, ...] = ("worker", "scheduler", "detokenizer")
    if settings.engine == "scripted":
        # The supervisor as well, or it would wait ever longer before it starts its child again.
        victims = ("worker", "worker", "supervisor")
    plan = in_turn(victims, seed=settings.seed, kills=settings.kills, pace_s=settings.pace_s)
    async with trial(name, settings, progress, sampling=sampling) as made:
        load = Load(made.fleet, made.asks, concurrency=settings.concurrency, hear=made.hear)
        async with load.running():
            progress.stage("killing", len(plan))
            await made.carry_out(plan, load=load)
        made.require_answers()
        made.require_injuries(len(plan))
        made.require_gaps()
        await made.require_idle()
    return made.report


async def short(settings: Settings, progress: Progress) -> Report:
    """A little of everything that `make test` has the time for."""
    real = settings.engine == "sglang"
    victims: tuple[Victim, ...] = ("scheduler",) if real else ("worker", "worker", "supervisor")
    plan = in_turn(victims, seed=settings.seed, kills=settings.kills, pace_s=settings.pace_s)
    async with trial("short", settings, progress) as made:
        load = Load(made.fleet, made.asks, concurrency=settings.concurrency, hear=made.hear)
        async with load.running():
            progress.stage("killing", len(plan))
            await made.carry_out(plan, load=load)
        made.require_answers()
        made.require_injuries(len(plan))
        moved = made.moved_gaps()
        made.report.require("some streams lost their worker and went on", moved.streams > 0)
        if not real:  # which would take a minute to come back
            made.next_part()
            load = Load(made.fleet, made.asks, concurrency=settings.concurrency, hear=made.hear)
            async with load.running():
                progress.stage("restarting the broker")
                await asyncio.sleep(1)
                await made.fleet.restart_broker(len(plan))
                await _answers_again(made.fleet, made.asks[0])
            made.require_answers("failed", "refused")
            await made.require_idle()
    return made.report


async def kill_ingress(settings: Settings, progress: Progress) -> Report:
    """A pod with long answers is killed while the other serves; in turn."""
    async with trial("kill-ingress", settings, progress) as made:
        fleet = made.fleet
        doomed = 0
        pods = [unit.name for unit in fleet.pods]
        long = Load(
            fleet,
            long_asks(settings.engine, model=fleet.model),
            concurrency=settings.concurrency // 2,
            hear=lambda _: None,
            pods=lambda: [p.name for p in fleet.pods if p.ready and p.name == pods[doomed]],
        )
        others = Load(
            fleet,
            made.asks,
            concurrency=settings.concurrency // 2,
            hear=made.hear,
            pods=lambda: [p.name for p in fleet.pods if p.ready and p.name != pods[doomed]],
        )
        delays: list[float] = []
        missing: list[str] = []
        async with others.running(), long.running():
            progress.stage("killing pods", settings.kills)
            for number in range(settings.kills):
                doomed = number % len(pods)
                await _abort_in_time(made, long, pods[doomed], number, delays, missing)
                progress.advance()
            long.leave()  # what is left of them would take long
        made.require_answers("orphaned")
        made.report.figures["jobs of killed pods let go"] = len(delays)
        made.report.figures["time until let go, longest"] = f"{max(delays, default=0.0):.2f} s"
        made.report.require(
            f"the jobs of a killed pod are let go by the workers within {ABORT_LIMIT_S:g} s",
            bool(delays) and not missing,
            "; ".join(missing[:5]),
        )
        await made.require_idle()
    return made.report


async def _abort_in_time(
    made: Trial, long: Load, pod: str, number: int, delays: list[float], missing: list[str]
) -> None:
    fleet = made.fleet
    await fleet.until(lambda: all(p.ready for p in fleet.pods), 60, "both pods are ready")
    await fleet.until(lambda: long.streaming >= long.concurrency, 60, "long answers run")
    unit = next(unit for unit in fleet.pods if unit.name == pod)
    running, known = long.streaming, len(fleet.journal.settled)
    blow = unit.kill("ingress", number)
    assert blow is not None
    fleet.blows.append(blow)
    await asyncio.sleep(ABORT_LIMIT_S + 1.5)
    let_go = [at - blow.at for at, what in fleet.journal.settled[known:] if what == "job.cancelled"]
    in_time = [delay for delay in let_go if delay <= ABORT_LIMIT_S]
    delays += in_time
    if len(in_time) < running:
        missing.append(f"kill {number}: {len(in_time)} of {running} in time, {len(let_go)} at all")


async def kill_everything(settings: Settings, progress: Progress) -> Report:
    """Any process at random, the broker among them; clients leave as they like."""
    weights: Mapping[Victim, float] = {
        "worker": 5,
        "supervisor": 2,
        "ingress": 3,
        "broker": 0.15,
    }
    if settings.engine == "sglang":
        weights = {**weights, "scheduler": 2, "detokenizer": 2}
    plan = at_random(weights, seed=settings.seed, kills=settings.kills, pace_s=settings.pace_s)
    async with trial("kill-everything", settings, progress) as made:
        load = Load(
            made.fleet,
            made.asks,
            concurrency=settings.concurrency,
            hear=made.hear,
            leave_after=lambda number: number % 7 if number % _LEAVING == 0 else None,
        )
        async with load.running():
            progress.stage("killing", len(plan))
            await made.carry_out(plan)
        made.require_answers("failed", "refused", "orphaned", "left")
        made.require_injuries(len(plan))
        await made.require_idle()
    return made.report


async def restart_broker(settings: Settings, progress: Progress) -> Report:
    """The broker is restarted again and again under load."""
    async with trial("restart-broker", settings, progress) as made:
        fleet = made.fleet
        returns: list[float] = []
        load = Load(fleet, made.asks, concurrency=settings.concurrency, hear=made.hear)
        async with load.running():
            progress.stage("restarting the broker", settings.kills)
            for number in range(settings.kills):
                await asyncio.sleep(3 + settings.pace_s)
                back = asyncio.create_task(_accepts_again(fleet))
                await fleet.restart_broker(number)
                returned_at = await back
                returns.append(await _answers_again(fleet, made.asks[0]) - returned_at)
                progress.advance()
        made.require_answers("failed", "refused")
        made.require_injuries(settings.kills)
        longest = max(returns, default=0.0)
        made.report.figures["new requests answered after the return"] = ", ".join(
            f"{seconds:.1f} s" for seconds in returns
        )
        made.report.require(
            f"a new request is answered within {BROKER_BACK_LIMIT_S:g} s of the broker's return",
            bool(returns) and longest <= BROKER_BACK_LIMIT_S,
            f"longest {longest:.1f} s",
        )
        await made.require_idle()
    return made.report


async def _accepts_again(fleet: Fleet) -> float:
    """When the broker takes connections again, after it has been away."""
    parts = urlsplit(fleet.broker.url)
    address = (parts.hostname or "", parts.port or 0)
    gone = False
    while True:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            refused = probe.connect_ex(address) != 0
        if refused:
            gone = True
        elif gone:
            return time.monotonic()
        await asyncio.sleep(0.05)


async def _answers_again(fleet: Fleet, ask: Ask) -> float:
    """When every pod has answered a new request."""
    deadline = time.monotonic() + 60
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        for unit in fleet.pods:
            while True:
                sent_at = time.monotonic()
                try:
                    async with http.post(fleet.urls[unit.name] + ask.path, json=ask.body) as answer:
                        first = await answer.content.readany()
                        if answer.status == 200 and b'"error"' not in first:
                            break
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                if sent_at > deadline:
                    return float("inf")
                await asyncio.sleep(0.1)
    return time.monotonic()


async def poison(settings: Settings, progress: Progress) -> Report:
    """Requests that crash their worker whenever they run, among others that do not."""
    async with trial("poison", settings, progress) as made:
        fleet = made.fleet
        load = Load(fleet, made.asks, concurrency=settings.concurrency, hear=made.hear)
        asks = poison_asks(model=fleet.model)
        wrong: list[str] = []
        deaths = 0
        async with load.running():
            progress.stage("poisoning", settings.kills)
            for number in range(settings.kills):
                await fleet.until(
                    lambda: len(fleet.ready_workers()) == len(fleet.workers),
                    120,
                    "every worker is ready",
                )
                before = fleet.journal.restarts
                heard = await load.one(asks[number % len(asks)])
                await fleet.until(
                    lambda known=before: fleet.journal.restarts >= known + 2,  # type: ignore[misc]
                    30,
                    "two workers have died",
                )
                await asyncio.sleep(1.0)
                died = fleet.journal.restarts - before
                deaths += died
                wrong += _poison_faults(fleet, heard, died)
                progress.advance()
        made.report.figures["poisonous requests"] = settings.kills
        made.report.figures["workers that they killed"] = deaths
        made.report.require(
            "each poisonous request was tried exactly twice and failed as such",
            not wrong,
            "; ".join(wrong[:5]),
        )
        made.require_answers()
        await made.require_idle(dead_letters=True)
    return made.report


def _poison_faults(fleet: Fleet, heard: Heard, died: int) -> list[str]:
    ask = heard.ask
    if heard.cut or heard.hung or heard.status is None:
        return [f"{ask.name}: no answer"]
    told = read(ask.dialect, stream=ask.stream, status=heard.status, body=heard.body)
    logged = fleet.journal.requests.get(heard.request_id)
    faults = []
    if told.failed not in ("generation_failed", "server_error"):
        faults.append(f"{ask.name}: ended with {told.failed}")
    if died != 2:
        faults.append(f"{ask.name}: {died} workers died")
    if logged is None or logged.attempt != 2 or logged.code != "generation_failed":
        faults.append(f"{ask.name}: logged as {logged}")
    return faults


async def soak(settings: Settings, progress: Progress) -> Report:
    """Mixed load for a long time, a worker killed now and then: memory must not grow."""
    async with trial("soak", settings, progress) as made:
        fleet = made.fleet
        memory = Memory(fleet, spared=fleet.workers[1:])
        load = Load(
            fleet,
            made.asks,
            concurrency=settings.concurrency,
            hear=made.hear,
            leave_after=lambda number: number % 7 if number % _LEAVING == 0 else None,
        )
        victims: tuple[Victim, ...] = ("worker",)
        if settings.engine == "sglang":
            victims = ("worker", "scheduler", "detokenizer")
        ends = time.monotonic() + settings.minutes * 60
        every_s = max(20.0, min(180.0, settings.minutes * 60 / 8))
        async with load.running():
            progress.stage("soaking", int(settings.minutes * 60 / every_s))
            number = 0
            async with memory.sampling():
                while (left := ends - time.monotonic()) > 0:
                    await asyncio.sleep(min(every_s, left))
                    if left > every_s and fleet.workers[0].ready:
                        blow = fleet.workers[0].kill(victims[number % len(victims)], number)
                        fleet.blows += [blow] if blow is not None else []
                        number += 1
                    progress.advance()
        made.require_answers("left")
        trends = memory.trends()
        grown = [trend for trend in trends if not trend.flat]
        made.report.tables["Memory of what lived through it"] = [
            ["process", "after warm-up", "at the end", "slope"],
            *(trend.row() for trend in trends),
        ]
        made.report.require(
            "memory is flat in every process that lived through it",
            bool(trends) and not grown,
            "; ".join(" ".join(trend.row()) for trend in grown),
        )
        await made.require_idle()
    return made.report


Scenario = Callable[[Settings, Progress], Coroutine[Any, Any, Report]]

SCENARIOS: Mapping[str, Scenario] = {
    "kill-workers": kill_workers,
    "sampling": sampling,
    "kill-ingress": kill_ingress,
    "kill-everything": kill_everything,
    "restart-broker": restart_broker,
    "poison": poison,
    "soak": soak,
    "batch": batch,
    "short": short,
}
