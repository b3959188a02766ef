"""What carrying a token stream costs: the service, a bare pass-through and the engine directly.

One run on one machine. All servers are up all the time, each in a process of its own, and take
turns in short rounds, so that whatever else the machine does falls on all of them alike. The engine
is the scripted one: its streams emit on a common tick, as the streams of a real engine do.

    direct     client ── scripted engine behind the least possible SSE server
    bare       client ── FastAPI + aiohttp ── direct
    headrace   client ── ingress ── RabbitMQ ── worker with the scripted engine

Two phases per turn. In the first only the streams run, and CPU time is read per process. In the
second a probe is added whose token is due at once; its TTFT less that of `direct` is the added
TTFT. "Late" is how long after the engine's tick a token is read.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import click
import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load import BadReply, ask, load, percentile, probe
from tests.fixtures.ports import free_port

MODEL = "scripted"
START_TIMEOUT_S = 120.0
PROBE_EVERY_S = 0.02

console = Console(width=None if sys.stdout.isatty() else 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How many streams run at once, and their pace.

    The pace of many streams is slower, so that the machine is not full: what a full machine shows
    is queueing. The streams of one tick travel together at any pace.
    """

    streams: int
    gap_ms: int


SCENARIOS = (
    Scenario(streams=1, gap_ms=10),
    Scenario(streams=32, gap_ms=10),
    Scenario(streams=256, gap_ms=50),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Something to load.

    Attributes:
        parts: Name and process of each part whose CPU time counts.
    """

    name: str
    port: int
    parts: tuple[tuple[str, psutil.Process], ...]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each part, its child processes included."""
        return {name: _cpu_s(process) for name, process in self.parts}


@dataclass(frozen=True, slots=True)
class Turn:
    """What one target showed in one round.

    Attributes:
        cpu_us: Microseconds of CPU per token, by part.
        ttft_s: Of each probe.
        late_s: Of each token after the first of its reply.
    """

    cpu_us: dict[str, float]
    tokens_per_s: float
    ttft_s: list[float]
    late_s: list[float]


def _cpu_s(process: psutil.Process) -> float:
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


async def turn(target: Target, scenario: Scenario, seconds: float) -> Turn:
    """Load one target.

    Raises:
        BadReply: A reply was not exactly what it should be.
    """
    stream = ask(MODEL, tokens=64, gap_ms=scenario.gap_ms, ttft_ms=0)
    single = ask(MODEL, tokens=1, gap_ms=0, ttft_ms=0)
    async with load(target.port, stream, streams=scenario.streams) as seen:
        before, begun, first = target.cpu_s(), time.monotonic(), seen.tokens
        await asyncio.sleep(seconds)
        after, elapsed, tokens = target.cpu_s(), time.monotonic() - begun, seen.tokens - first
        probed = await probe(target.port, single, every_s=PROBE_EVERY_S, seconds=seconds)
    return Turn(
        cpu_us={name: (after[name] - before[name]) / tokens * 1e6 for name in before},
        tokens_per_s=tokens / elapsed,
        ttft_s=probed.ttft_s,
        late_s=seen.late_s,
    )


# --- Processes -----------------------------------------------------------------------------------


@contextmanager
def running(name: str, *command: str) -> Iterator[psutil.Process]:
    """A Python process of ours, ended at exit; its output is shown if it ends by itself."""
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield psutil.Process(started.pid)
        except BadReply:
            if started.poll() is not None:
                output.seek(0)
                console.print(f"[red]{name} ended:[/]", output.read().decode(errors="replace"))
            raise
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


@contextmanager
def broker(amqp_url: str | None) -> Iterator[tuple[str, psutil.Process | None]]:
    """A throwaway RabbitMQ node, or the one at `amqp_url` (whose CPU time cannot be read)."""
    if amqp_url is not None:
        yield amqp_url, None
        return
    from tests.fixtures.broker import BrokerNode

    ours = psutil.Process()
    before = set(ours.children())
    node = BrokerNode()
    try:
        node.start()
        (server,) = set(ours.children()) - before
        yield node.url, server
    finally:
        node.remove()


@contextmanager
def targets(amqp_url: str | None) -> Iterator[list[Target]]:
    """All that is compared, up and answering."""
    with ExitStack() as stack:
        direct_port, bare_port, port = free_port(), free_port(), free_port()
        url, node = stack.enter_context(broker(amqp_url))
        direct = stack.enter_context(
            running("direct", "benchmarks.servers", "direct", "--port", str(direct_port))
        )
        bare = stack.enter_context(
            running(
                "bare",
                *("benchmarks.servers", "bare", "--port", str(bare_port)),
                *("--upstream", f"http://127.0.0.1:{direct_port}"),
            )
        )
        worker = stack.enter_context(
            running(
                "worker",
                *("ingress", "worker", "--engine", "scripted", "--model", MODEL),
                *("--amqp-url", url, "--concurrency", "512", "--no-supervise"),
            )
        )
        ingress = stack.enter_context(
            running(
                "ingress",
                *("ingress", "ingress", "--amqp-url", url, "--host", "127.0.0.1"),
                *("--port", str(port)),
            )
        )
        parts = (("ingress", ingress), ("broker", node), ("worker", worker))
        found = [
            Target("direct", direct_port, (("engine", direct),)),
            Target("bare", bare_port, (("proxy", bare),)),
            Target("headrace", port, tuple((n, p) for n, p in parts if p is not None)),
        ]
        for target in found:
            uvloop.run(wait_until_answering(target))
        yield found


async def wait_until_answering(target: Target, key: str | None = None) -> None:
    """Ask until a reply is right.

    Raises:
        BadReply: It was still not after a long time.
    """
    single = ask(MODEL, tokens=1, gap_ms=0, ttft_ms=0, key=key)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            await probe(target.port, single, every_s=0.01, seconds=0.01)
        except (OSError, BadReply) as error:
            if time.monotonic() > deadline or not target.parts[0][1].is_running():
                raise BadReply(f"{target.name} does not answer: {error}") from None
            await asyncio.sleep(0.25)
        else:
            return


# --- Results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One target in one scenario. Latencies: p50 and p99 over all rounds, in milliseconds."""

    cpu_us: dict[str, float]
    tokens_per_s: float
    ttft_ms: tuple[float, float]
    late_ms: tuple[float, float]

    @property
    def total_us(self) -> float:
        return sum(self.cpu_us.values())


def summarise(turns: list[Turn]) -> Line:
    """CPU and rate as medians of the rounds, latencies of all samples together."""
    ttft = [sample * 1000 for turn in turns for sample in turn.ttft_s]
    late = [sample * 1000 for turn in turns for sample in turn.late_s]
    return Line(
        cpu_us={name: median(turn.cpu_us[name] for turn in turns) for name in turns[0].cpu_us},
        tokens_per_s=median(turn.tokens_per_s for turn in turns),
        ttft_ms=(percentile(ttft, 0.5), percentile(ttft, 0.99)),
        late_ms=(percentile(late, 0.5), percentile(late, 0.99)),
    )


def table(scenario: Scenario, lines: dict[str, Line]) -> Table:
    out = Table(
        title=f"{scenario.streams} stream{'s' * (scenario.streams > 1)} in step, "
        f"a token every {scenario.gap_ms} ms"
    )
    out.add_column("", no_wrap=True, min_width=8)
    for column in ("TTFT", "p99", "late", "p99", "tokens/s", "CPU"):
        out.add_column(column, justify="right", no_wrap=True)
    out.add_column("of which", no_wrap=True)
    out.add_column("tokens/CPU-s", justify="right", no_wrap=True)
    out.add_column("to bare", justify="right", no_wrap=True)
    bare, direct = lines["bare"].total_us, lines["direct"]
    base = (*direct.ttft_ms, *direct.late_ms)
    for name, line in lines.items():
        latencies = (*line.ttft_ms, *line.late_ms)
        out.add_row(
            name,
            *(
                f"{value:.2f}" if line is direct else f"{value - less:+.2f}"
                for value, less in zip(latencies, base, strict=True)
            ),
            f"{line.tokens_per_s:.0f}",
            f"{line.total_us:.0f}",
            ", ".join(f"{part} {us:.0f}" for part, us in line.cpu_us.items()),
            f"{1e6 / line.total_us:.0f}" if line.total_us else "-",
            f"{line.total_us / bare:.2f}x" if bare else "-",
        )
    return out


def measure(found: list[Target], rounds: int, seconds: float, scenarios: list[Scenario]) -> None:
    """All rounds of all scenarios, then one table per scenario."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=rounds * len(scenarios) * len(found))
        seen: dict[tuple[Scenario, str], list[Turn]] = {}
        for number in range(rounds):
            for scenario in scenarios:
                for target in found:
                    what = f"{scenario.streams} streams, {target.name}"
                    progress.update(task, description=f"round {number + 1}, {what}")
                    result = uvloop.run(turn(target, scenario, seconds))
                    seen.setdefault((scenario, target.name), []).append(result)
                    progress.advance(task)
    for scenario in scenarios:
        lines = {target.name: summarise(seen[scenario, target.name]) for target in found}
        console.print(table(scenario, lines))
    console.print(
        "TTFT and late: p50 and p99 in ms, `direct` as it is, others less `direct`. CPU: us per "
        f"token, median of {rounds}; headrace's includes the engine, that of bare does not."
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1),
              help="Turns of every target in every scenario.")  # fmt: skip
@click.option("--seconds", default=3.0, show_default=True,
              help="Length of each of the two phases of a turn.")  # fmt: skip
@click.option("--streams", "wanted", multiple=True, type=int,
              help="Only the scenario with so many streams; may be repeated.")  # fmt: skip
@click.option(
    "--quick", is_flag=True, help="One short round: shows that it works, measures little."
)
@click.option("--amqp-url", help="Use this broker, not a throwaway one; its CPU is not counted.")
def main(
    rounds: int, seconds: float, wanted: tuple[int, ...], quick: bool, amqp_url: str | None
) -> None:
    """Measure added latency and CPU per token against a bare proxy and the engine itself.

    Needs `rabbitmq-server` on this machine (or --amqp-url) and the `test` extra. Let nothing else
    run meanwhile: CPU per token bears company, tail latencies do not.
    """
    if quick:
        rounds, seconds = 1, 1.0
    scenarios = [s for s in SCENARIOS if not wanted or s.streams in wanted]
    if not scenarios:
        known = ", ".join(str(s.streams) for s in SCENARIOS)
        raise click.BadParameter(
            f"there are scenarios with {known} streams", param_hint="--streams"
        )
    try:
        with ExitStack() as stack:
            with console.status("starting broker, worker, ingress and what they are compared with"):
                found = stack.enter_context(targets(amqp_url))
            measure(found, rounds, seconds, scenarios)
    except BadReply as error:
        raise click.ClickException(f"a reply was wrong, so nothing is reported: {error}") from None


if __name__ == "__main__":
    main()
