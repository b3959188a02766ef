"""From records to figures: which there are, how rounds become one, and what is over what. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from benchmarks.histogram import Histogram

BASE = "direct"
"""What latencies are counted over: the engine itself."""

STREAMS = ("streams-1", "streams-32", "streams-256", "staggered-32", "staggered-256")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one measure saw of one target in one round, as it is written to a file.

    Attributes:
        took_s: All of it, with what comes before and after.
        durations: Counts of `Histogram` buckets, by name.
    """

    measure: str
    target: str
    round: int
    took_s: float = 0.0
    figures: dict[str, float | None] = {}
    durations: dict[str, dict[int, int]] = {}


Of = Callable[[Sequence[Record], Sequence[Record]], float | None]
"""A figure from a target's records of one measure, and those of the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One column of a table, and one panel of a plot.

    Attributes:
        more: More of it is better; else less.
    """

    measure: str
    name: str
    title: str
    unit: str
    of: Of
    more: bool = False


def _given(records: Iterable[Record], name: str) -> list[float]:
    values = (record.figures.get(name) for record in records)
    return [value for value in values if value is not None]


def middle(name: str) -> Of:
    """The median of the rounds."""
    return lambda own, _: median(values) if (values := _given(own, name)) else None


def largest(name: str) -> Of:
    """The largest of all rounds."""
    return lambda own, _: max(_given(own, name), default=None)


def share(name: str, of: str) -> Of:
    """One over another, in percent: the median of the rounds."""

    def made(own: Sequence[Record], _: Sequence[Record]) -> float | None:
        pairs = zip(_given(own, name), _given(own, of), strict=False)
        values = [100 * a / b for a, b in pairs if b]
        return median(values) if values else None

    return made


def over_base(name: str, part: float) -> Of:
    """A percentile of the durations of all rounds, in milliseconds, less that of the base."""

    def made(own: Sequence[Record], base: Sequence[Record]) -> float | None:
        value, less = _percentile(own, name, part), _percentile(base, name, part)
        if value is None:
            return None
        return value if less is None or own == base else value - less

    return made


def _percentile(records: Iterable[Record], name: str, part: float) -> float | None:
    together = sum((Histogram(r.durations.get(name, {})) for r in records), Histogram())
    value = together.percentile(part) * 1000
    return None if math.isnan(value) else value


def _of_streams(measure: str) -> tuple[Figure, ...]:
    def figure(name: str, title: str, unit: str, of: Of, *, more: bool = False) -> Figure:
        return Figure(measure=measure, name=name, title=title, unit=unit, of=of, more=more)

    return (
        figure("ttft_p50", "added TTFT p50", "ms", over_base("ttft", 0.5)),
        figure("ttft_p99", "added TTFT p99", "ms", over_base("ttft", 0.99)),
        figure("late_p50", "added transit p50", "ms", over_base("late", 0.5)),
        figure("late_p99", "added transit p99", "ms", over_base("late", 0.99)),
        figure("cpu", "CPU per token", "us", middle("cpu_us")),
        figure("uneven", "largest gap to median", "x", largest("uneven")),
        figure("carried", "of the tokens offered", "%", share("tokens_per_s", "offered_per_s"),
               more=True),
    )  # fmt: skip


FIGURES: tuple[Figure, ...] = (
    *(figure for measure in STREAMS for figure in _of_streams(measure)),
    Figure(measure="saturation", name="rate", title="tokens per CPU-second", unit="",
           of=middle("tokens_per_cpu_s"), more=True),
    Figure(measure="saturation", name="cpu", title="CPU per token", unit="us",
           of=middle("cpu_us")),
    Figure(measure="short", name="rate", title="requests per CPU-second", unit="",
           of=middle("requests_per_cpu_s"), more=True),
    Figure(measure="short", name="cpu", title="CPU per request", unit="us",
           of=middle("request_us")),
    Figure(measure="memory", name="base", title="memory when idle", unit="MiB",
           of=middle("base_mib")),
    Figure(measure="memory", name="kib_1000", title="per stream, 1,000 open", unit="KiB",
           of=middle("kib_1000")),
    Figure(measure="memory", name="kib_5000", title="per stream, 5,000 open", unit="KiB",
           of=middle("kib_5000")),
    Figure(measure="memory", name="held", title="streams held", unit="",
           of=lambda own, _: max((*_given(own, "held_1000"), *_given(own, "held_5000")),
                                 default=None), more=True),
    *(
        figure
        for phase, title in (("queued", "queued"), ("prefill", "before the first token"),
                             ("stream", "in the stream"))
        for figure in (
            Figure(measure="hang-up", name=f"{phase}_ms", title=f"{title}, p50", unit="ms",
                   of=middle(f"{phase}_ms")),
            Figure(measure="hang-up", name=f"{phase}_noticed", title=f"{title}, noticed",
                   unit="of 20", of=middle(f"{phase}_noticed"), more=True),
        )
    ),
    *(
        Figure(measure="dialects", name=f"{name}_us", title=f"{name}, CPU per token", unit="us",
               of=middle(f"{name}_us"))
        for name in ("chat", "messages", "responses")
    ),
    *(
        Figure(measure="dialects", name=f"{name}_to_chat", title=f"{name} to chat", unit="x",
               of=middle(f"{name}_to_chat"))
        for name in ("messages", "responses")
    ),
)  # fmt: skip


def parts(records: Iterable[Record], measure: str, target: str) -> dict[str, float]:
    """CPU per token, or per request, of each of a target's processes: the median of the rounds."""
    own = [r for r in records if (r.measure, r.target) == (measure, target)]
    names = dict.fromkeys(name for record in own for name in record.figures if "_us." in name)
    return {name.partition(".")[2]: median(_given(own, name)) for name in names}


@dataclass(frozen=True, slots=True)
class Row:
    """A target's value of one figure.

    Attributes:
        ratio: Its value over that of the reference; None where that says nothing.
    """

    target: str
    value: float | None
    ratio: float | None


def rows(
    figure: Figure, records: Iterable[Record], targets: Sequence[str], reference: str
) -> list[Row]:
    """What every target has of a figure, in this order."""
    own: dict[str, list[Record]] = {target: [] for target in targets}
    for record in records:
        if record.measure == figure.measure and record.target in own:
            own[record.target].append(record)
    base = own.get(BASE, [])
    values = {target: figure.of(found, base) if found else None for target, found in own.items()}
    against = values.get(reference)
    return [
        Row(target, value, _ratio(value, against) if target != BASE else None)
        for target, value in values.items()
    ]


def _ratio(value: float | None, against: float | None) -> float | None:
    """None where there is nothing, or where what is added is lost in the noise."""
    if value is None or against is None or min(value, against) <= 0:
        return None
    return value / against


def written(value: float | None, unit: str = "") -> str:
    """A value with three digits that count."""
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{shown}{unit}"


def beside(records: Iterable[Record]) -> dict[str, tuple[float, float, list[str]]]:
    """What measuring itself costs, by measure: client and engine per token, and who costs less."""
    records = list(records)
    found: dict[str, tuple[float, float, list[str]]] = {}
    for measure in dict.fromkeys(record.measure for record in records):
        own = [record for record in records if record.measure == measure]
        base = [record for record in own if record.target == BASE]
        client, engine = _given(base, "client_us"), _given(base, "engine_us")
        if not client or not engine:
            continue
        spent = median(client), median(engine)
        costs = {
            target: _given([r for r in own if r.target == target], "cpu_us")
            for target in dict.fromkeys(record.target for record in own)
        }
        less = [
            name for name, us in costs.items() if name != BASE and us and median(us) < sum(spent)
        ]
        found[measure] = (*spent, less)
    return found
