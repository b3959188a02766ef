"""What authentication and the limits of an account cost an ingress per request.

One run on one machine: two ingress processes over one broker, one worker and one PostgreSQL are up
all the time and take turns in short rounds, so that whatever else the machine does falls on both
alike. One has no accounts and asks for no key. The other has an account with every kind of limit,
none of which is ever reached. CPU is that of the ingress process alone, per request.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import psutil
import uvloop
from rich.progress import track
from rich.table import Table

from benchmarks.load import BadReply, ask, load, percentile
from benchmarks.processes import MODEL, Target, broker, console, running, wait_until_answering
from ingress.stores import schema
from ingress.stores.database import open_database
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import PostgresServer

KEY = "benchmark-key-of-an-account-with-limits"
CONFIG = f"""
accounts:
  - id: limited
    keys: [{{key: {KEY}}}]
    limits:
      concurrency: 100000
      requests_per_minute: 10000000
      tokens_per_minute: 1000000000
      budget: {{cents: 1000000000, period: month}}
"""
LOADS = ((1, 8), (32, 8), (32, 64), (128, 64))
"""Streams at once, and tokens of each reply; those come every 10 ms."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one ingress showed in one round."""

    cpu_us: float
    requests_per_s: float
    ttft_s: list[float]


async def turn(target: Target, key: str | None, streams: int, tokens: int, seconds: float) -> Turn:
    """Load one ingress.

    Raises:
        BadReply: A reply was not exactly what it should be.
    """
    asked = ask(MODEL, tokens=tokens, gap_ms=10, ttft_ms=0, key=key)
    async with load(target.port, asked, streams=streams) as seen:
        before, begun, first = target.cpu_s(), time.monotonic(), seen.replies
        await asyncio.sleep(seconds)
        after, elapsed = target.cpu_s(), time.monotonic() - begun
        requests = seen.replies - first
    return Turn(
        cpu_us=(after["ingress"] - before["ingress"]) / requests * 1e6,
        requests_per_s=requests / elapsed,
        ttft_s=seen.ttft_s,
    )


@contextmanager
def database() -> Iterator[str]:
    """A throwaway PostgreSQL with our tables."""
    server = PostgresServer()
    try:
        server.start()
        uvloop.run(_migrate(server.url))
        yield server.url
    finally:
        server.remove()


async def _migrate(url: str) -> None:
    migrated = open_database(url)
    await schema.upgrade(migrated)
    await migrated.close()


@contextmanager
def targets() -> Iterator[dict[str, tuple[Target, str | None]]]:
    """Both, up and answering, and the key for each."""
    with ExitStack() as stack:
        url, _ = stack.enter_context(broker(None))
        tables = stack.enter_context(database())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "headrace.yaml").write_text(CONFIG)
        stack.enter_context(
            running(
                "worker",
                *("ingress", "worker", "--engine", "scripted", "--model", MODEL),
                *("--amqp-url", url, "--concurrency", "512", "--no-supervise"),
            )
        )
        found: dict[str, tuple[Target, str | None]] = {}
        for name, key, options in (
            ("open", None, ()),
            ("limited", KEY, ("--config", str(place / "headrace.yaml"))),
        ):
            port = free_port()
            process: psutil.Process = stack.enter_context(
                running(
                    name,
                    *("ingress", "ingress", "--amqp-url", url, "--port", str(port)),
                    *("--database", tables, "--blobs", str(place / "blobs"), *options),
                )
            )
            found[name] = Target(name, port, (("ingress", process),)), key
        for target, key in found.values():
            uvloop.run(wait_until_answering(target, key))
        yield found


def measure(found: dict[str, tuple[Target, str | None]], rounds: int, seconds: float) -> Table:
    """All rounds of all loads."""
    out = Table(title="CPU of the ingress per request, without and with an account's limits")
    for column in (
        "streams",
        "tokens each",
        "requests/s",
        "open",
        "limited",
        "added",
        "TTFT added",
    ):
        out.add_column(column, justify="right", no_wrap=True)
    steps = [(streams, tokens, n) for streams, tokens in LOADS for n in range(rounds)]
    seen: dict[tuple[int, int, str], list[Turn]] = {}
    for streams, tokens, number in track(steps, console=console, transient=True):
        # Each goes first as often as the other.
        for name in sorted(found, reverse=bool(number % 2)):
            target, key = found[name]
            result = uvloop.run(turn(target, key, streams, tokens, seconds))
            seen.setdefault((streams, tokens, name), []).append(result)
    for streams, tokens in LOADS:
        free, limited = (seen[streams, tokens, name] for name in ("open", "limited"))
        # Of neighbours in time, so that what changes in the course of a run cancels out.
        added = median(b.cpu_us / a.cpu_us - 1 for a, b in zip(free, limited, strict=True))
        ttft_ms = [
            percentile([ttft for turn in turns for ttft in turn.ttft_s], 0.5) * 1000
            for turns in (free, limited)
        ]
        out.add_row(
            str(streams),
            str(tokens),
            f"{median(turn.requests_per_s for turn in limited):.0f}",
            f"{median(turn.cpu_us for turn in free):.0f} us",
            f"{median(turn.cpu_us for turn in limited):.0f} us",
            f"{added:+.1%}",
            f"{ttft_ms[1] - ttft_ms[0]:+.2f} ms",
        )
    return out


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=6, show_default=True, type=click.IntRange(min=1),
              help="Turns of each ingress under each load.")  # fmt: skip
@click.option("--seconds", default=4.0, show_default=True, help="Length of a turn.")
def main(rounds: int, seconds: float) -> None:
    """Measure what an account's key and limits cost.

    Needs `rabbitmq-server` and PostgreSQL on this machine, and the `test` extra.
    """
    try:
        with ExitStack() as stack:
            with console.status("starting broker, database, worker and two ingresses"):
                found = stack.enter_context(targets())
            console.print(measure(found, rounds, seconds))
    except BadReply as error:
        raise click.ClickException(f"a reply was wrong, so nothing is reported: {error}") from None


if __name__ == "__main__":
    main()
