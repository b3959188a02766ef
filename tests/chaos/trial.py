"""One run: a fleet, what its answers are unharmed, what it holds when idle; then the injuries.

The parts that every scenario shares, from the baseline to the report.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tests.chaos import leaks
from tests.chaos.asks import Ask, catalogue, sampled
from tests.chaos.fleet import EngineName, Fleet, running_fleet
from tests.chaos.gaps import Gaps, gaps
from tests.chaos.load import Heard, Load
from tests.chaos.plan import Injury, volleys
from tests.chaos.report import Report
from tests.chaos.verdict import OUTCOMES, WRONG, Baseline, Judged, Outcome, Tally, judge

READY_LIMIT_S = 240.0
"""How long a killed worker may take until it serves again, on a busy machine."""

GAP_LIMIT_S = 2.0
"""What a lost worker may cost a stream, beside the silences that it has anyway."""

_LAST_WORDS_S = 0.4
"""What a lost worker had sent before may still arrive for so long."""

_SHOWN = 20


Ending = Literal["complete", "cancel", "expire"]


class Progress(Protocol):
    """Where to tell how far a run is."""

    def stage(self, text: str, total: int | None = None) -> None: ...
    def advance(self) -> None: ...


class Silent:
    """Tells nobody."""

    def stage(self, text: str, total: int | None = None) -> None: ...
    def advance(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made of.

    Attributes:
        requests: Different ones, repeated as long as the run lasts.
        kinds: Only requests whose names begin with one of these; all if there are none.
        rounds: How often each is answered unharmed.
        volley: So many injuries at once, to different processes.
        left: So many workers are ready, at least, besides those to be injured.
        pace_s: Between volleys, at least and on average.
        lines: Of a batch.
        ending: What happens to a batch when an eighth of it is done.
        logs: Where to keep what the processes write; None for nowhere.
    """

    engine: EngineName = "scripted"
    seed: int = 1
    kills: int = 100
    concurrency: int = 32
    requests: int = 92
    kinds: tuple[str, ...] = ()
    workers: int = 3
    pods: int = 2
    rounds: int = 2
    volley: int = 1
    left: int = 1
    pace_s: float = 1.0
    minutes: float = 60.0
    lines: int = 10_000
    ending: Ending = "complete"
    logs: Path | None = None


@dataclass(slots=True)
class Trial:
    """A fleet with its unharmed answers, and what is heard under injury."""

    settings: Settings
    fleet: Fleet
    report: Report
    progress: Progress
    asks: list[Ask]
    baseline: Baseline = field(default_factory=Baseline)
    idle: leaks.Held = field(default_factory=leaks.Held)
    tally: Tally = field(default_factory=Tally)
    silences_s: list[tuple[str, float]] = field(default_factory=list)

    def hear(self, heard: Heard) -> None:
        """Judge one answer."""
        judged = judge(heard, self.baseline)
        if judged.outcome == "cut" and self._pod_was_killed(heard):
            judged = Judged(ask=judged.ask, outcome="orphaned", detail=judged.detail)
        self.tally.add(judged)
        if heard.ask.flows and judged.outcome in ("same", "valid"):
            silence_s = heard.silence_at([blow.at for blow in self.fleet.blows])
            self.silences_s.append((heard.request_id, silence_s))

    def _pod_was_killed(self, heard: Heard) -> bool:
        return any(
            blow.unit == heard.pod and heard.began - 1 <= blow.at <= heard.ended
            for blow in self.fleet.blows
        )

    async def carry_out(self, plan: Sequence[Injury], *, load: Load | None = None) -> None:
        """Do what is planned, in volleys, one worker always being left besides the victims.

        Where a load is given, not before its streams have gone on since the last volley: a request
        that loses two workers without a token in between is taken for what kills them, and rightly
        ends.
        """
        for volley in volleys(plan, self.settings.volley):
            await asyncio.sleep(volley[0].pause_s)
            if load is not None and self.fleet.blows:
                await self._gone_on(load, since=self.fleet.blows[-1].at)
            await self._workers_ready(min(self.settings.workers, len(volley) + self.settings.left))
            for injury in volley:
                give_up_at = time.monotonic() + READY_LIMIT_S
                while await self.fleet.injure(injury) is None and time.monotonic() < give_up_at:
                    await asyncio.sleep(0.05)
                self.progress.advance()

    async def _workers_ready(self, count: int) -> None:
        await self.fleet.until(
            lambda: len(self.fleet.ready_workers()) >= count,
            READY_LIMIT_S,
            f"{count} workers are ready",
        )

    async def _gone_on(self, load: Load, *, since: float) -> None:
        await self.fleet.until(
            lambda: load.all_went_on(since=since + _LAST_WORDS_S),
            READY_LIMIT_S,
            "every stream has gone on",
        )

    def moved_gaps(self) -> Gaps:
        """Of the streams whose worker was lost, all that they waited."""
        return gaps([silence_s for silence_s, _ in self._moved()])

    def moving_gaps(self) -> Gaps:
        """The same without the time in which another worker read prompt and answer again."""
        return gaps([max(0.0, silence_s - reread_s) for silence_s, reread_s in self._moved()])

    def _moved(self) -> Iterator[tuple[float, float]]:
        requests = self.fleet.journal.requests
        for request_id, silence_s in self.silences_s:
            told = requests.get(request_id)
            if told is not None and told.attempt > 1:
                yield silence_s, told.reread_s

    # --- What must hold ---------------------------------------------------------------------------

    def require_answers(self, *excused: Outcome) -> None:
        """Every answer is as unharmed, or one of the excused outcomes."""
        allowed: set[Outcome] = {"same", "valid", *excused}
        bad = {o: self.tally.outcomes[o] for o in OUTCOMES if o not in allowed}
        text = "every answer byte-identical to the unharmed one, usage identical"
        if not all(ask.exact for ask in self.asks):
            text = "every answer with a seed as unharmed, every other one valid"
        if excused:
            text = f"every answer as unharmed, or {' or '.join(excused)}"
        total = sum(self.tally.outcomes.values())
        self.report.require(
            text, total > 0 and not any(bad.values()), _counts(bad) or f"{total} answers"
        )
        wrong = self.tally.total(*sorted(WRONG))
        self.report.require(
            "nothing hung, and nothing that looks whole is wrong", wrong == 0, f"{wrong} did"
        )

    def next_part(self) -> None:
        """Begin to count anew: what follows is held to something else."""
        self.report.examples += self.tally.told()
        self.report.figures["outcomes of the first part"] = _counts(self.tally.outcomes)
        self.tally = Tally()

    def require_injuries(self, planned: int) -> None:
        done = len(self.fleet.blows)
        self.report.require("all planned injuries were done", done >= planned, f"{done}")

    def require_gaps(self) -> None:
        """Streams whose worker was lost go on soon."""
        moved, unharmed = self.moving_gaps(), gaps(self.baseline.silences_s)
        limit = GAP_LIMIT_S + unharmed.p95
        self.report.require("some streams lost their worker and went on", moved.streams > 0)
        self.report.require(
            f"their longest silence then, p95, at most {GAP_LIMIT_S:g} s and reading the prompt "
            "again more than unharmed",
            moved.p95 <= limit,
            f"{moved.p95} s; unharmed {unharmed.p95} s",
        )

    async def require_idle(self, *, dead_letters: bool = False) -> None:
        """Nothing is held that was not held before; but for dead letters, where they may be."""
        self.progress.stage("back to idle")
        try:
            await self.fleet.settled(timeout_s=READY_LIMIT_S)
        except TimeoutError as error:  # all else that was found is worth telling
            self.report.require("everybody is ready again", False, str(error))
            return
        now, differences = await leaks.until_as_before(
            self.fleet, self.idle, besides=("headrace.dead",) if dead_letters else ()
        )
        self.report.require(
            "afterwards the service holds what it held when idle before",
            not differences,
            "; ".join(differences),
        )
        orphans = sum(n["orphaned"] for kind, n in self.tally.kinds.items() if "large" in kind)
        left, lasting = now.blobs - self.idle.blobs, await leaks.lasting_blobs(self.fleet)
        self.report.require(
            "files of large requests are gone, but for those of killed pods, which will go",
            left <= orphans and lasting == 0,
            f"{left} left, {orphans} orphaned, {lasting} for ever",
        )
        self.report.tables["Held when idle, before and after"] = _held_table(self.idle, now)

    # --- The report -------------------------------------------------------------------------------

    def summarise(self) -> None:
        """Put what was counted into the report."""
        report, tally, fleet = self.report, self.tally, self.fleet
        moved, unharmed = self.moved_gaps(), gaps(self.baseline.silences_s)
        killed = Counter(blow.victim for blow in fleet.blows)
        attempts = [request.attempt for request in fleet.journal.requests.values()]
        report.figures |= {
            "injuries": _counts(killed) or "none",
            "answers": sum(tally.outcomes.values()),
            "outcomes": _counts(tally.outcomes),
            "answers that took more than one attempt": sum(n > 1 for n in attempts),
            "most attempts of one answer": max(attempts, default=0),
            "unharmed runs that disagreed, left out": f"{len(self.baseline.dropped)} requests",
            "longest silence of a stream as its worker was lost": _gap_text(moved),
            "the same without reading the prompt again": _gap_text(self.moving_gaps()),
            "longest silence of a stream, unharmed": _gap_text(unharmed),
            "starts of workers": sum(unit.starts for unit in fleet.workers),
        }
        if tally.reasons:
            report.figures["failures"] = _counts(tally.reasons)
        used = [o for o in OUTCOMES if tally.outcomes[o]]
        if used:
            report.tables["Outcomes by kind of request"] = [
                ["kind", *used],
                *([kind, *(str(n[o]) for o in used)] for kind, n in sorted(tally.kinds.items())),
            ]
        report.examples += tally.told()
        report.alarms += fleet.journal.alarms[:_SHOWN]
        began = fleet.blows[0].at if fleet.blows else 0.0
        report.injuries += [
            f"{b.at - began:9.2f} s  {b.number:5}  {b.victim:11} {b.unit} pid {b.pid}"
            for b in fleet.blows
        ]


@asynccontextmanager
async def trial(
    scenario: str,
    settings: Settings,
    progress: Progress,
    *,
    sampling: bool = False,
    choose: Callable[[Fleet], Sequence[Ask]] | None = None,
) -> AsyncIterator[Trial]:
    """A fleet that is ready, whose unharmed answers and idle state are known."""
    began = time.monotonic()
    report = Report(
        scenario=scenario,
        engine=settings.engine,
        seed=settings.seed,
        settings={
            name: getattr(settings, name) for name in ("workers", "pods", "concurrency", "requests")
        },
        began=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    progress.stage(f"starting {settings.workers} workers and {settings.pods} pods")
    async with running_fleet(
        engine=settings.engine,
        workers=settings.workers,
        pods=settings.pods,
        concurrency=max(settings.concurrency, 32),
        logs=settings.logs,
    ) as fleet:
        asks = catalogue(
            settings.engine, model=fleet.model, count=settings.requests, seed=settings.seed
        )
        if sampling:
            asks = sampled(asks)
        if settings.kinds:
            asks = [ask for ask in asks if ask.name.startswith(settings.kinds)]
        if choose is not None:
            asks = list(choose(fleet))
        made = Trial(settings, fleet, report, progress, asks)
        await _unharmed(made)
        made.idle = await _idle(made)
        try:
            yield made
        finally:
            made.summarise()
            report.duration_s = round(time.monotonic() - began, 1)


async def _unharmed(made: Trial) -> None:
    for number in range(made.settings.rounds):
        made.progress.stage(f"unharmed run {number + 1}")
        load = Load(
            made.fleet,
            made.asks,
            concurrency=made.settings.concurrency,
            hear=made.baseline.add,
        )
        await load.once()
    made.asks = [ask for ask in made.asks if ask.name in made.baseline.transcripts]


async def _idle(made: Trial) -> leaks.Held:
    """What is held once nobody works any more, and the broker's counts have followed."""
    made.progress.stage("idle")
    async with asyncio.timeout(60):
        while True:
            while not await leaks.quiet(made.fleet):
                await asyncio.sleep(0.5)
            held = await leaks.look(made.fleet)
            if not any(held.messages.values()):
                return held
            await asyncio.sleep(0.1)


def _counts(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n)


def _gap_text(gap: Gaps) -> str:
    if not gap.streams:
        return "no such stream"
    return f"p50 {gap.p50} s, p95 {gap.p95} s, longest {gap.longest} s ({gap.streams} streams)"


def _held_table(before: leaks.Held, now: leaks.Held) -> list[list[str]]:
    rows = [["what", "before", "after"]]
    for what, then in before.as_dict().items():
        after = now.as_dict()[what]
        if isinstance(then, dict) and isinstance(after, dict):
            if what in ("files", "threads", "rss_mb", "engine_requests", "jobs", "in_flight"):
                rows.append([what, str(sum(then.values())), str(sum(after.values()))])
                continue
            rows += [
                [f"{what} {name}", str(then.get(name, 0)), str(after.get(name, 0))]
                for name in sorted({*then, *after})
            ]
        else:
            rows.append([what, str(then), str(after)])
    return rows
