"""From what a run of `benchmarks.peers` saw to the costs that `scaling_model` counts with.

Each measure is so many tokens, messages, wake-ups and requests, known from how it is made; what one
of each costs is what explains all measures best, none of it less than nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import msgspec

from benchmarks.scaling_model import Constants, Cost, queues_of, touched

Part: TypeAlias = Literal["ingress", "worker", "broker"]

SHARED: Final = "headrace"
DEDICATED: Final = "headrace-dedicated"

_STREAMS: Final = {
    "streams-1": (1, 1),
    "streams-32": (32, 1),
    "streams-256": (256, 1),
    "staggered-32": (32, 20),
    "staggered-256": (256, 50),
}
"""Streams of a measure, and at how many instants their tokens come."""

_ANSWER: Final = 64
"""Tokens of an answer there."""

_SHORT: Final = 8
"""And of a short one, which comes in two messages: that it has begun, and all of it."""

_ROUNDS: Final = 4000


class Seen(Protocol):
    """A record of a run."""

    @property
    def measure(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def figures(self) -> Mapping[str, float | None]: ...


class Row(NamedTuple):
    """One figure, and what it is made of.

    Attributes:
        us: Measured, in microseconds per token, or per request.
        units: Tokens, messages, wake-ups and requests that it is for.
    """

    measure: str
    target: str
    us: float
    units: tuple[float, float, float, float]


def rows(records: Sequence[Seen], part: Part) -> Iterator[Row]:
    """What the measures say of one part: of each the median of its rounds."""
    for target in (SHARED, DEDICATED):
        for measure, (streams, instants) in _STREAMS.items():
            found = [r.figures for r in records if (r.measure, r.target) == (measure, target)]
            spent = [us for one in found if (us := one.get(f"cpu_us.{part}"))]
            if not spent:
                continue
            us = median(spent)
            rate = median(one.get("tokens_per_s") or 0.0 for one in found)
            idle = 1.0 if part == "broker" else max(0.0, 1 - us * rate / 1e6)
            together = max(1.0, streams / instants)
            queues = streams if target == DEDICATED else queues_of(streams)
            messages = touched(queues, together) / together
            yield Row(measure, target, us, (1.0, messages, idle / together, 1 / _ANSWER))
        short = [r.figures for r in records if (r.measure, r.target) == ("short", target)]
        spent = [us for one in short if (us := one.get(f"request_us.{part}"))]
        if spent:
            yield Row("short", target, median(spent), (_SHORT, 2.0, 0.0, 1.0))


def fitted(found: Sequence[Row]) -> Cost:
    """The costs that explain the figures best, by their relative errors.

    Raises:
        ValueError: There are fewer figures than costs.
    """
    if len(found) < len(Cost.__struct_fields__):
        raise ValueError("too few measures to learn from: run all of streams, staggered and short")
    columns = list(zip(*([unit / row.us for unit in row.units] for row in found), strict=True))
    products = [[_product(one, other) for other in columns] for one in columns]
    costs = [0.0] * len(columns)
    # One cost after the other is made to fit what the others leave.
    for _ in range(_ROUNDS):
        for number, column in enumerate(columns):
            step = (sum(column) - _product(products[number], costs)) / products[number][number]
            costs[number] = max(0.0, costs[number] + step)
    return Cost(**dict(zip(Cost.__struct_fields__, costs, strict=True)))


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def told(cost: Cost, row: Row) -> float:
    """What the costs say of a figure."""
    return _product(row.units, msgspec.structs.astuple(cost))


def learned(records: Sequence[Seen], source: str, before: Constants) -> Constants:
    """The constants of a run; what it has not measured is as before.

    Raises:
        ValueError: It has too few measures.
    """
    costs = {part: fitted(list(rows(records, part))) for part in get_args(Part)}
    kib = [
        us
        for record in records
        if (record.measure, record.target) == ("memory", SHARED)
        and (us := record.figures.get("kib_5000"))
    ]
    return msgspec.structs.replace(
        before, source=source, stream_kib=median(kib) if kib else before.stream_kib, **costs
    )
