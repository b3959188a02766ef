"""`python -m tests.chaos`: run a scenario, repeat it by its seed, report what held."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tests.chaos import report as reports
from tests.chaos.plan import WORKER_PARTS, in_turn
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.trial import Settings

# What each scenario is run with unless told otherwise: the counts that the service is held to.
_LONG: dict[str, dict[str, Any]] = {
    "kill-workers": {"engine": "scripted", "kills": 2000, "workers": 6, "volley": 3, "pace_s": 0.2},
    "sampling": {"engine": "scripted", "kills": 500, "workers": 6, "volley": 3, "pace_s": 0.2},
    "kill-ingress": {"engine": "scripted", "kills": 20},
    "kill-everything": {"engine": "scripted", "kills": 1000, "workers": 5, "pace_s": 0.3},
    "restart-broker": {"engine": "scripted", "kills": 10},
    "poison": {"engine": "scripted", "kills": 12, "workers": 4},
    "batch": {"engine": "scripted", "kills": 200, "workers": 3, "concurrency": 8, "pace_s": 1.5},
    "soak": {"engine": "sglang", "kills": 0, "workers": 2, "concurrency": 16},
    "short": {
        "engine": "scripted",
        "kills": 12,
        "workers": 4,
        "volley": 2,
        "pace_s": 0.1,
        "requests": 48,
    },
}
_LONG_SGLANG: dict[str, dict[str, Any]] = {
    "kill-workers": {"kills": 200, "workers": 3, "volley": 1, "left": 2, "pace_s": 2.0},
    "sampling": {"kills": 100, "workers": 3, "volley": 1, "pace_s": 2.0},
    "kill-everything": {"kills": 100, "workers": 3, "pace_s": 2.0},
    "short": {"kills": 1, "workers": 2, "volley": 1, "pace_s": 1.0, "requests": 27},
}
_ALL = (
    ("kill-workers", "sglang"),
    ("kill-workers", "scripted"),
    ("sampling", "sglang"),
    ("sampling", "scripted"),
    ("kill-ingress", "scripted"),
    ("kill-ingress", "sglang"),
    ("kill-everything", "scripted"),
    ("restart-broker", "scripted"),
    ("poison", "scripted"),
)


class _Bar:
    """Progress on the terminal; where there is none, a line per stage."""

    def __init__(self, bar: Bar, name: str) -> None:
        self._bar = bar
        self._name = name
        self._task: TaskID | None = None

    def stage(self, text: str, total: int | None = None) -> None:
        if not self._bar.console.is_terminal:
            self._bar.console.print(f"{self._name}: {text}")
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(f"{self._name}: {text}", total=total)

    def advance(self) -> None:
        if self._task is not None:
            self._bar.advance(self._task)


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def main() -> None:
    """Injure a service made of real processes, and check what must hold all the same.

    Each scenario starts a broker of its own, ingress pods and workers; learns what every request of
    its load is answered unharmed; then kills by a seeded plan. It ends with a report, and with
    status 1 if anything that must hold did not. `all` runs every one of them, for hours.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in reversed(
        (
            click.option(
                "--engine",
                type=click.Choice(["scripted", "sglang"]),
                help="What generates: scripts, or SGLang on the CPU with a tiny model.",
            ),
            click.option("--seed", type=int, default=1, help="Of the load and of the injuries."),
            click.option("--kills", type=click.IntRange(min=0), help="How many injuries."),
            click.option("--concurrency", type=click.IntRange(min=1), help="Requests at a time."),
            click.option("--requests", type=click.IntRange(min=1), help="Different requests."),
            click.option(
                "--kind",
                "kinds",
                multiple=True,
                metavar="NAME",
                help="Only such requests, as chat/logprobs; may be given more than once.",
            ),
            click.option("--workers", type=click.IntRange(min=1), help="How many workers."),
            click.option("--pods", type=click.IntRange(min=1), help="How many ingress pods."),
            click.option("--volley", type=click.IntRange(min=1), help="Injuries at a time."),
            click.option("--left", type=click.IntRange(min=1), help="Workers left at a volley."),
            click.option("--pace", "pace_s", type=float, help="Seconds between volleys."),
            click.option("--minutes", type=float, help="How long to soak."),
            click.option("--lines", type=click.IntRange(min=1), help="Of the batch."),
            click.option("--cancel", "ending", flag_value="cancel", help="It, in the middle."),
            click.option("--expire", "ending", flag_value="expire", help="It, in the middle."),
            click.option(
                "--report",
                "base",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Write PATH.json and PATH.md.",
            ),
            click.option(
                "--logs",
                type=click.Path(file_okay=False, path_type=Path),
                help="Keep there what the processes write.",
            ),
        )
    ):
        command = decorate(command)
    return command


def _command(name: str) -> click.Command:
    @main.command(name, help=SCENARIOS[name].__doc__)
    @_options
    def run(base: Path | None, **given: Any) -> None:
        sys.exit(0 if _run(name, given, base) else 1)

    return run


def _settings(name: str, given: dict[str, Any]) -> Settings:
    chosen = {option: value for option, value in given.items() if value is not None}
    defaults = dict(_LONG[name])
    if chosen.get("engine") == "sglang":
        defaults |= _LONG_SGLANG.get(name, {})
    return replace(Settings(), **{**defaults, **chosen})


def _run(name: str, given: dict[str, Any], base: Path | None) -> bool:
    settings = _settings(name, given)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        report = asyncio.run(_until_told(SCENARIOS[name](settings, _Bar(bar, name))))
    if base is not None:
        report.write(base)
    click.echo(report.markdown())
    return report.holds


async def _until_told(scenario: Coroutine[Any, Any, reports.Report]) -> reports.Report:
    """Run it; SIGTERM ends it as Ctrl-C does, so that nothing of its fleet is left behind."""
    task = asyncio.ensure_future(scenario)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


for _name in SCENARIOS:
    _command(_name)


@main.command("all")
@click.option("--seed", type=int, default=1, help="Of the loads and of the injuries.")
@click.option(
    "--scale", type=click.FloatRange(min=0.001), default=1.0, help="Of the numbers of injuries."
)
@click.option(
    "--report",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a report per scenario into this directory.",
)
def every(seed: int, scale: float, directory: Path | None) -> None:
    """All but the soak, with the counts that the service is held to."""
    failed = []
    for name, engine in _ALL:
        given: dict[str, Any] = {"engine": engine, "seed": seed}
        given["kills"] = max(3, round(_settings(name, given).kills * scale))
        base = directory / f"{name}-{engine}" if directory is not None else None
        if not _run(name, given, base):
            failed.append(f"{name} ({engine})")
    click.echo(f"Did not hold: {', '.join(failed)}" if failed else "Everything held.")
    sys.exit(1 if failed else 0)


@main.command("plan")
@click.option("--seed", type=int, default=1)
@click.option("--kills", type=int, default=20)
@click.option("--pace", type=float, default=1.0)
def show_plan(seed: int, kills: int, pace: float) -> None:
    """Print what a seed comes to, for a kill of each part of a worker in turn."""
    for injury in in_turn(WORKER_PARTS[:3], seed=seed, kills=kills, pace_s=pace):
        click.echo(str(injury))


@main.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=reports.PAGE,
    help="Whose figures to replace.",
)
def write_page(files: tuple[Path, ...], page: Path) -> None:
    """Put the figures of JSON reports into docs/reliability.md."""
    reports.write_page([reports.load(path) for path in files], page)


if __name__ == "__main__":
    main()
