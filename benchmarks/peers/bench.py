"""A run: everything started, measured in shuffled rounds, and ended."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import psutil
import uvloop
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.load import BadReply
from benchmarks.peers.base import Peer, Site, Unavailable
from benchmarks.peers.figures import Record
from benchmarks.peers.measures import Measure, Setting
from benchmarks.peers.plan import SETTLE_S, Length, Step, expected_s, fit, plan
from benchmarks.peers.registry import PEERS
from benchmarks.peers.report import Run
from benchmarks.processes import Target, console, cpu_of, members, wait_until_answering

_START_S = 180.0
_CALM_S, _BUSY = 5.0, 0.2
"""After a turn a target has so long to come to use no more than this share of a processor."""


class Bench:
    """All that is up, and what has been seen of it."""

    def __init__(self, site: Site) -> None:
        self.targets: dict[str, Target] = {}
        self.left_out: dict[str, str] = {}
        self.records: list[Record] = []
        self._ours = {peer.name for peer in PEERS if peer.ours}
        self._wrong: set[tuple[str, str]] = set()
        self._setting = Setting(seconds=1.0, engine=site.engine, engine_port=site.engine_port)

    def start(self, peers: Sequence[type[Peer]], site: Site) -> None:
        """Start them all, then wait until each answers; who does not is left out.

        Raises:
            BadReply: One of ours does not.
        """
        for peer in peers:
            try:
                self.targets[peer.name] = peer().start(site)
            except Unavailable as error:
                self._say(peer.name, str(error))
        for name, target in list(self.targets.items()):
            try:
                uvloop.run(wait_until_answering(target, timeout_s=_START_S))
            except BadReply as error:
                if name in self._ours:
                    raise
                del self.targets[name]
                self._say(name, f"does not start: {error}")

    def take_for(self, seconds: float) -> None:
        """From now on each phase of a measure takes so long."""
        self._setting = replace(self._setting, seconds=seconds)

    def take(self, step: Step) -> None:
        """One step of the plan.

        Raises:
            BadReply: A reply of ours was not exactly what it should be.
        """
        if (step.target, step.measure.name) in self._wrong:
            return
        begun = time.monotonic()
        try:
            seen = uvloop.run(step.measure.run(self.targets[step.target], self._setting))
        except (BadReply, OSError) as error:
            if step.target in self._ours:
                raise BadReply(f"{step.target}, {step.measure.name}: {error}") from None
            self._leave_out(step, str(error))
            return
        self.records.append(
            Record(
                measure=step.measure.name,
                target=step.target,
                round=step.round,
                took_s=round(time.monotonic() - begun, 2),
                figures={n: v if v is None else round(v, 4) for n, v in seen.figures.items()},
                durations={n: of.counts() for n, of in seen.durations.items()},
            )
        )

    def settle(self, name: str) -> None:
        """Wait until a target has cleared away what was hung up: that is no part of the next's."""
        target = self.targets[name]
        pids = [pid for _, process in target.parts for pid in members(process)]
        until = time.monotonic() + _CALM_S
        spent, before = 1.0, cpu_of(pids)
        while spent > _BUSY * SETTLE_S and time.monotonic() < until:
            time.sleep(SETTLE_S)
            now = cpu_of(pids)
            spent, before = now - before, now

    def _leave_out(self, step: Step, why: str) -> None:
        """It has no figures of this measure, those of former rounds included."""
        of = (step.target, step.measure.name)
        self._wrong.add(of)
        self.records = [r for r in self.records if (r.target, r.measure) != of]
        self._say(f"{step.target} in {step.measure.name}", f"a reply was wrong: {why}")

    def _say(self, what: str, why: str) -> None:
        self.left_out[what] = " ".join(why.split())[:300]
        console.print(f"[yellow]without {what}:[/] {self.left_out[what]}", highlight=False)


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:<42}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


def _machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.machine()
    return f"{datetime.now(UTC):%Y-%m-%d}, {psutil.cpu_count()} x {name}, " + (
        f"CPython {platform.python_version()}, load average {psutil.getloadavg()[0]:.1f}"
    )


def _take_all(bench: Bench, steps: Sequence[Step], length: Length) -> str | None:
    """Take the steps, as long as there is time; tells which reply of ours was wrong, if one was.

    Whoever interrupts it has had enough: what has been seen until then counts.
    """
    begun = time.monotonic()
    with _progress() as progress, suppress(KeyboardInterrupt):
        task = progress.add_task("", total=len(steps))
        again_s = 0.0
        for number, together in groupby(steps, key=lambda step: step.round):
            if number and length.is_over(time.monotonic() - begun, again_s):
                break
            again_s = 0.0
            for step in together:
                what = f"{number + 1}/{length.rounds} {step.measure.name}, {step.target}"
                progress.update(task, description=what)
                at = time.monotonic()
                try:
                    bench.take(step)
                except BadReply as error:
                    return str(error)
                bench.settle(step.target)
                progress.advance(task)
                if not step.measure.once:
                    again_s += time.monotonic() - at
    return None


def measured(
    peers: Sequence[type[Peer]],
    measures: Sequence[Measure],
    *,
    length: Length | float,
    seed: int,
    reference: str,
    environments: Path,
    amqp_url: str | None,
    logs: Path | None,
) -> Run:
    """Take a run.

    Args:
        peers: What is measured.
        measures: What is measured of it.
        length: How long, or the minutes that it may take.
        seed: Of the order of turns.
        reference: Whose values all others are divided by.
        environments: Where the peers are installed.
        amqp_url: Of a broker that is there.
        logs: Where what is started writes.

    Raises:
        BadReply: One of ours did not even start.
    """
    machine = _machine()
    with ExitStack() as stack:
        place = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        site = Site(stack, place, environments=environments, amqp_url=amqp_url)
        bench = Bench(site)
        with console.status("starting all that is measured"):
            bench.start(peers, site)
        targets = [*bench.targets]
        if not isinstance(length, Length):
            length = fit(measures, targets, length)
        bench.take_for(length.seconds)
        steps = plan(measures, targets, length.rounds, seed)
        console.print(
            f"{len(targets)} targets, {length.rounds} rounds of {length.seconds:.2g} s for each "
            f"phase: about {expected_s(steps, length.seconds) / 60:.0f} minutes",
            highlight=False,
        )
        void = _take_all(bench, steps, length)
    return Run(
        machine=machine,
        void=void,
        reference=reference,
        rounds=1 + max((record.round for record in bench.records), default=0),
        seconds=round(length.seconds, 2),
        targets=[*bench.targets],
        versions={
            peer.name: version
            for peer in peers
            if peer.name in bench.targets and (version := peer.version(environments))
        },
        left_out=bench.left_out,
        records=bench.records,
    )
