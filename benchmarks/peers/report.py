"""What is told of a run: tables on the terminal and in the docs, plots, and the raw file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.peers.base import ROOT
from benchmarks.peers.figures import (
    BASE,
    FIGURES,
    Figure,
    Record,
    Row,
    beside,
    parts,
    rows,
    written,
)
from benchmarks.peers.goals import verdicts
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.plots import bars
from benchmarks.peers.registry import PEERS
from benchmarks.processes import console

PAGE = ROOT / "docs/performance.md"
PLOTS = ROOT / "docs/plots"
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as it is written to a file.

    Attributes:
        machine: What it ran on.
        void: Which reply was wrong, if one of ours was: then none of this is a result.
        reference: Whose values all others are divided by.
        versions: Of the peers, as far as they tell.
        left_out: Who could not be measured, and why.
    """

    machine: str
    void: str | None = None
    reference: str
    rounds: int
    seconds: float
    targets: list[str]
    versions: dict[str, str]
    left_out: dict[str, str]
    records: list[Record]


def read(paths: Sequence[Path]) -> Run:
    """One run, or several taken together: of each measure the last one that has it."""
    runs = [msgspec.json.decode(path.read_bytes(), type=Run) for path in paths]
    last = runs[-1]
    measured: dict[str, list[Record]] = {}
    for run in runs:
        for measure in dict.fromkeys(record.measure for record in run.records):
            measured[measure] = [r for r in run.records if r.measure == measure]
    return msgspec.structs.replace(
        last,
        targets=in_order({target for run in runs for target in run.targets}),
        versions={name: of for run in runs for name, of in run.versions.items()},
        left_out={name: why for run in runs for name, why in run.left_out.items()},
        void=next((run.void for run in runs if run.void is not None), None),
        records=[record for records in measured.values() for record in records],
    )


def save(run: Run, path: Path) -> None:
    """Write all that was seen, a record a line."""
    head = msgspec.to_builtins(msgspec.structs.replace(run, records=[]))
    del head["records"]
    lines = ",\n".join(msgspec.json.encode(record).decode() for record in run.records)
    fields = msgspec.json.encode(head).decode()[:-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{fields},"records":[\n{lines}\n]}}\n')


def in_order(targets: set[str]) -> list[str]:
    """As the tables have them."""
    return [peer.name for peer in PEERS if peer.name in targets]


def _tables(run: Run) -> list[tuple[str, str, list[tuple[Figure, list[Row]]]]]:
    """Of each measure that was taken: its name, what it does, and its figures with any value."""
    found = []
    for measure in MEASURES:
        of = [
            (figure, rows(figure, run.records, run.targets, run.reference))
            for figure in FIGURES
            if figure.measure == measure.name
        ]
        of = [(figure, line) for figure, line in of if any(row.value is not None for row in line)]
        if of:
            found.append((measure.name, measure.about, of))
    return found


def _cell(row: Row, reference: str) -> str:
    ratio = "" if row.ratio is None or row.target == reference else f" ({written(row.ratio, 'x')})"
    return written(row.value) + ratio


def _title(figure: Figure) -> str:
    return figure.title + (f", {figure.unit}" if figure.unit else "")


def _of_which(run: Run, measure: str) -> list[str]:
    """Where the CPU time of a measure goes, by target, where that is more than one process."""
    return [
        f"{target}: " + ", ".join(f"{part} {written(us)}" for part, us in of.items()) + " us"
        for target in run.targets
        if len(of := parts(run.records, measure, target)) > 1
    ]


def show(run: Run) -> None:
    """Tables on the terminal."""
    for name, about, of in _tables(run):
        table = Table(title=f"{name}: {about}", title_justify="left")
        table.add_column("", no_wrap=True)
        for figure, _ in of:
            table.add_column(_title(figure), justify="right")
        for number, target in enumerate(run.targets):
            if any(line[number].value is not None for _, line in of):
                cells = (_cell(line[number], run.reference) for _, line in of)
                table.add_row(target, *cells)
        console.print(table)
        for line in _of_which(run, name):
            console.print(f"  {line}", highlight=False)
    reached = Table(title="Goals", title_justify="left")
    for column in ("", "should be", "is", "reached"):
        reached.add_column(column)
    for verdict in verdicts(run.records, run.targets):
        reached.add_row(*verdict.cells())
    if reached.row_count:
        console.print(reached)
    console.print(f"In brackets: over {run.reference}. Latencies: {BASE} as it is, others over it.")
    for measure, (client, engine, less) in beside(run.records).items():
        cheaper = f"; more than {', '.join(less)}" if less else ""
        text = f"{measure}: client {client:.1f} us per token, engine {engine:.1f} us{cheaper}"
        console.print(text, highlight=False)


def write(run: Run) -> None:
    """Put tables and plots into the docs."""
    PLOTS.mkdir(exist_ok=True)
    written_parts = [_heading(run)]
    if found := verdicts(run.records, run.targets):
        rows_of = [" | ".join(verdict.cells()) for verdict in found]
        written_parts.append(_markdown("Goals", "", ["", "should be", "is", "reached"], rows_of))
    for name, about, of in _tables(run):
        plot = PLOTS / f"{name}.svg"
        shown = [(figure, [row for row in line if row.target != BASE]) for figure, line in of]
        plot.write_text(bars(shown, title=f"{name}: {about}"))
        rows_of = [
            f"{target} | " + " | ".join(_cell(line[number], run.reference) for _, line in of)
            for number, target in enumerate(run.targets)
            if any(line[number].value is not None for _, line in of)
        ]
        said = f"{about[0].upper()}{about[1:]}.\n\n![{name}](plots/{name}.svg)"
        written_parts.append(_markdown(name, said, ["", *(_title(f) for f, _ in of)], rows_of))
        if which := _of_which(run, name):
            written_parts.append("\n".join(f"* {line}" for line in which))
    page = PAGE.read_text()
    filled = f"{_BEGIN}\n\n" + "\n\n".join(written_parts) + f"\n\n{_END}"
    PAGE.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: filled, page, flags=re.DOTALL))


def _markdown(title: str, said: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    head = f"| {' | '.join(columns)} |\n| - |" + " -: |" * (len(columns) - 1)
    table = "\n".join([head, *(f"| {line} |" for line in lines)])
    return "\n\n".join(filter(None, (f"### {title}", said, table)))


def _heading(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    out = "".join(f"\n\nNot measured: {name}: {why}." for name, why in run.left_out.items())
    return (
        f"{run.machine}; {run.rounds} rounds, {run.seconds:g} s for each phase; {versions}. "
        f"In brackets: over {run.reference}. Latencies: `{BASE}` as it is, others over it.{out}"
    )
