"""What so many streams need: brokers, processes, memory, money; and what is full first.

    python -m benchmarks.scaling                                  # 10, 1,000 and 100,000 streams
    python -m benchmarks.scaling --streams 20000 --tokens-per-s 60
    python -m benchmarks.scaling --learn run.json                 # a run of benchmarks.peers

A model, not a measurement; the costs it counts with are measured (`scaling.json`), and `--learn`
takes them from a run anew and tells how well they explain it. `--page` writes the figures of
docs/scaling.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import click
import msgspec

from benchmarks.scaling_fit import Part, Seen, learned, rows, told
from benchmarks.scaling_model import Constants, Ground, Load, Plan, TooMuch, limits, plan

CONSTANTS: Final = Path(__file__).with_suffix(".json")
PAGE: Final = Path(__file__).parent.parent / "docs/scaling.md"
STREAMS: Final = (10, 1_000, 100_000)
_MARKS: Final = ("<!-- figures: begin -->", "<!-- figures: end -->")


def constants() -> Constants:
    """Those that were measured last."""
    return msgspec.json.decode(CONSTANTS.read_bytes(), type=Constants)


def save(measured: Constants) -> None:
    """Write them in place of the last ones."""
    CONSTANTS.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n")


# --- Tables --------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """As Markdown has it."""
    rule = ["-"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def plans_table(plans: Sequence[Plan]) -> str:
    """What each load needs."""
    lines: list[tuple[str, list[str]]] = [
        ("tokens per second", [_many(p.load.streams * p.load.tokens_per_s) for p in plans]),
        ("requests per second", [_few(p.cells * p.cell.flow.requests) for p in plans]),
        ("workers", [_many(p.workers) for p in plans]),
        ("cells", [_many(p.cells) for p in plans]),
        ("streams of a cell", [_many(p.cell.flow.streams) for p in plans]),
        ("ingress processes of a cell", [_many(p.cell.processes) for p in plans]),
        ("their cores, in use", [f"{100 * p.cell.ingress:.0f} %" for p in plans]),
        ("broker nodes of a cell, and their cores", [f"{p.nodes} x {p.node_cores}" for p in plans]),
        ("cores that a broker uses", [_few(p.cell.broker) for p in plans]),
        ("messages per second and broker", [_many(p.cell.flow.messages) for p in plans]),
        ("tokens per message", [_few(p.cell.flow.tokens / p.cell.flow.messages) for p in plans]),
        ("ingress processes", [_many(p.processes) for p in plans]),
        ("broker cores", [_many(p.broker_cores) for p in plans]),
        ("memory of both", [f"{_few(p.memory_gib)} GiB" for p in plans]),
        ("a worker's core, beside its engine", [f"{100 * p.cell.worker:.0f} %" for p in plans]),
        ("cost per hour", [f"${p.hourly:,.2f}" for p in plans]),
        ("per million tokens", [f"${p.per_million_tokens:.4f}" for p in plans]),
        ("to what the GPUs cost", [f"{100 * p.hourly / p.gpus_hourly:.2f} %" for p in plans]),
    ]
    return table(
        ["streams", *(_many(one.load.streams) for one in plans)],
        [[name, *cells] for name, cells in lines],
    )


def limits_table(measured: Constants, load: Load, ground: Ground) -> str:
    """What is full first."""
    found = limits(measured, load, ground)
    return table(
        ["streams", "full is", "then"],
        [[_many(_rounded(one.streams)), one.what, one.remedy] for one in found],
    )


def constants_table(measured: Constants) -> str:
    """The costs."""
    kinds = ("token_us", "message_us", "wake_us", "request_us")
    return table(
        ["µs of CPU", "per token", "per message", "per wake-up", "per request"],
        [
            [part, *(_few(getattr(getattr(measured, part), kind)) for kind in kinds)]
            for part in get_args(Part)
        ],
    )


def section(measured: Constants) -> str:
    """The figures of the page."""
    plans = [plan(measured, Load(streams=streams), Ground()) for streams in STREAMS]
    return "\n\n".join(
        (
            plans_table(plans),
            "What is full first, with everything else given room:",
            limits_table(measured, Load(streams=0), Ground()),
            f"The costs ({measured.source}), and {_few(measured.stream_kib)} KiB for each open "
            f"stream, {_few(measured.ingress_mib)} MiB for an ingress process, "
            f"{_few(measured.broker_mib)} MiB for a broker:",
            constants_table(measured),
        )
    )


def page(text: str, measured: Constants) -> str:
    """The page with the figures of these constants."""
    begin, end = map(re.escape, _MARKS)
    figures = f"{_MARKS[0]}\n\n{section(measured)}\n\n{_MARKS[1]}"
    return re.sub(f"{begin}.*{end}", lambda _: figures, text, count=1, flags=re.DOTALL)


def compared(measured: Constants, records: Sequence[Seen]) -> str:
    """What the model says of the measures it was learned from, over what they were."""
    return table(
        ["part", "measure", "target", "measured µs", "told µs", "ratio"],
        [
            [
                part,
                row.measure,
                row.target,
                f"{row.us:.1f}",
                f"{(said := told(getattr(measured, part), row)):.1f}",
                f"{said / row.us:.2f}",
            ]
            for part in get_args(Part)
            for row in rows(records, part)
        ],
    )


def _many(number: float) -> str:
    return f"{number:,.0f}"


def _few(number: float) -> str:
    return (
        f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"
    )


def _rounded(number: int) -> int:
    """To two digits: it is no better than that."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return round(number / unit) * unit


# --- Command line --------------------------------------------------------------------------------


@click.command(help=__doc__)
@click.option("--streams", type=click.IntRange(min=1), multiple=True, default=STREAMS)
@click.option("--tokens-per-s", type=click.FloatRange(min=0, min_open=True), default=30.0)
@click.option("--answer-tokens", type=click.IntRange(min=1), default=300)
@click.option("--slots", type=click.IntRange(min=1), default=64, help="Streams of one worker.")
@click.option("--learn", type=click.Path(exists=True, path_type=Path), multiple=True)
@click.option("--page", "writes", is_flag=True, help="Write the figures of docs/scaling.md.")
def main(
    streams: tuple[int, ...],
    tokens_per_s: float,
    answer_tokens: int,
    slots: int,
    learn: tuple[Path, ...],
    writes: bool,
) -> None:
    """See above."""
    measured = constants()
    if learn:
        from benchmarks.peers.report import read

        run = read(learn)
        try:
            measured = learned(run.records, run.machine, measured)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        save(measured)
        click.echo(compared(measured, run.records))
    if writes or learn:
        PAGE.write_text(page(PAGE.read_text(), measured))
        return
    load = Load(streams=0, tokens_per_s=tokens_per_s, answer_tokens=answer_tokens, slots=slots)
    try:
        plans = [
            plan(measured, msgspec.structs.replace(load, streams=one), Ground()) for one in streams
        ]
    except TooMuch as error:
        raise click.ClickException(str(error)) from None
    for told_of in (plans_table(plans), limits_table(measured, load, Ground())):
        click.echo(f"{told_of}\n")


if __name__ == "__main__":
    main()
