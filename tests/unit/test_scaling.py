"""The model of how a service grows: what must hold whatever its costs are, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest

from benchmarks import scaling, scaling_model
from benchmarks.scaling_fit import Row, fitted, learned, rows, told
from benchmarks.scaling_model import (
    Constants,
    Cost,
    Ground,
    Load,
    TooMuch,
    cell,
    cpu_s,
    flow,
    limits,
    plan,
    touched,
)
from ingress.settings import IngressSettings
from schemas.transport.rabbit import DispatcherSettings
from workers.settings import WorkerSettings

COST = Cost(token_us=5, message_us=25, wake_us=100, request_us=900)
MEASURED = Constants(
    source="a test",
    ingress=COST,
    worker=COST,
    broker=msgspec.structs.replace(COST, token_us=1),
    stream_kib=20,
    ingress_mib=100,
    broker_mib=100,
)
GROUND = Ground()


def test_the_rules_are_those_of_the_program() -> None:
    assert DispatcherSettings().reply_queues == scaling_model.REPLY_QUEUES
    assert IngressSettings().max_concurrent == scaling_model.MAX_CONCURRENT
    assert WorkerSettings.model_fields["announce_interval_s"].default == scaling_model.ANNOUNCE_S


@pytest.mark.parametrize(
    ("places", "streams", "expected"),
    [(1, 64, 1), (64, 1, 1), (2, 2, 1.5), (1_000_000, 64, 63.998), (0.5, 0.5, 0.5)],
)
def test_how_many_messages_a_step_is(places: float, streams: float, expected: float) -> None:
    assert touched(places, streams) == pytest.approx(expected, abs=1e-3)


def test_a_busy_part_is_woken_less() -> None:
    amounts = {"messages": 0.0, "requests": 0.0, "wakes": 1000.0}
    alone = cpu_s(COST, tokens=0, **amounts)
    beside = cpu_s(COST, tokens=100_000, **amounts)
    busy = cpu_s(COST, tokens=100_000, **{**amounts, "wakes": 0.0})
    assert alone == pytest.approx(0.1 / 1.1)  # 100 us for each of a thousand, while it is idle
    assert busy == pytest.approx(0.5)
    assert beside - busy == pytest.approx(0.1 * (1 - beside))
    assert 0 < beside - busy < alone


def test_more_processes_behind_one_broker_make_more_messages() -> None:
    load = Load(streams=6400)
    few, many = flow(load, 6400, 4), flow(load, 6400, 400)
    assert few.tokens == many.tokens == 192_000
    assert few.messages < many.messages <= many.tokens
    assert few.notices < many.notices


def test_a_plan_keeps_what_it_stands_on_from_being_full() -> None:
    for streams in (1, 10, 1_000, 20_000, 100_000):
        made = plan(MEASURED, Load(streams=streams), GROUND)
        assert made.cell.ingress <= GROUND.full
        assert made.cell.broker <= GROUND.full * made.nodes * made.node_cores
        assert made.cells * made.cell.flow.streams == pytest.approx(streams)
        assert made.nodes == (1 if streams <= 64 else 3)
        assert made.hourly > 0


def test_more_streams_cost_more_and_one_of_many_costs_less() -> None:
    plans = [plan(MEASURED, Load(streams=n), GROUND) for n in (10, 100, 1_000, 10_000, 100_000)]
    for less, more in pairwise(plans):
        assert less.hourly < more.hourly
        assert less.per_million_tokens > more.per_million_tokens * 0.95
    assert plans[0].cells == 1
    assert plans[-1].cells > 1


def test_fewer_cells_are_taken_where_they_cost_little_more() -> None:
    load = Load(streams=100_000)
    chosen = plan(MEASURED, load, GROUND)
    one_less = scaling_model._planned(MEASURED, load, GROUND, max(1, chosen.cells * 8 // 9))
    every = [scaling_model._planned(MEASURED, load, GROUND, n) for n in range(1, 400)]
    cheapest = min(made.hourly for made in every if made)
    assert chosen.hourly <= cheapest * scaling_model.WORTH_IT * 1.02
    assert one_less is None or one_less.hourly > chosen.hourly


def test_what_no_broker_carries_is_said() -> None:
    dear = msgspec.structs.replace(
        MEASURED, broker=Cost(token_us=1e5, message_us=0, wake_us=0, request_us=0)
    )
    with pytest.raises(TooMuch):
        plan(dear, Load(streams=1000), GROUND)


def test_limits_are_where_something_is_full() -> None:
    load = Load(streams=0)
    found = limits(MEASURED, load, GROUND)
    assert [limit.streams for limit in found] == sorted(limit.streams for limit in found)
    assert len(found) >= 4
    process = next(limit for limit in found if "core of one ingress" in limit.what)
    at = cell(MEASURED, load, GROUND, process.streams, 1).ingress
    before = cell(MEASURED, load, GROUND, process.streams - 1, 1).ingress
    assert before < GROUND.full <= at


@dataclass
class Record:
    measure: str
    target: str
    figures: dict[str, float | None]


def run_of(cost: Cost) -> list[Record]:
    """What a run would have seen if each part cost that."""
    shapes = [
        Record(
            measure, target, {f"{name}.{part}": 50.0 for part in ("ingress", "worker", "broker")}
        )
        for measure in (
            "streams-1",
            "streams-32",
            "streams-256",
            "staggered-32",
            "staggered-256",
            "short",
        )
        for target in ("headrace", "headrace-dedicated")
        for name in (("request_us",) if measure == "short" else ("cpu_us",))
    ]
    for part in ("ingress", "worker", "broker"):
        for row in list(rows(shapes, part)):
            (record,) = (r for r in shapes if (r.measure, r.target) == (row.measure, row.target))
            name = "request_us" if row.measure == "short" else "cpu_us"
            record.figures[f"{name}.{part}"] = told(cost, row)
    return [*shapes, Record("memory", "headrace", {"kib_5000": 33.0})]


def test_costs_are_found_again_in_what_they_make() -> None:
    made = learned(run_of(COST), "a run", MEASURED)
    for part in (made.ingress, made.worker, made.broker):
        assert msgspec.structs.astuple(part) == pytest.approx(
            msgspec.structs.astuple(COST), rel=0.05
        )
    assert (made.source, made.stream_kib, made.ingress_mib) == ("a run", 33.0, 100)


def test_no_cost_is_less_than_nothing() -> None:
    found = fitted([Row("a", "b", us, (1, x, y, z)) for us, x, y, z in (
        (100.0, 1, 1, 1), (50.0, 2, 1, 1), (25.0, 3, 1, 0.5), (12.0, 4, 0.5, 1), (6.0, 5, 1, 1),
    )])  # fmt: skip
    assert min(msgspec.structs.astuple(found)) == 0


def test_too_little_is_not_learned_from() -> None:
    with pytest.raises(ValueError, match="too few"):
        learned(run_of(COST)[:2], "a run", MEASURED)


def test_the_page_has_the_figures_of_the_constants() -> None:
    text = scaling.PAGE.read_text()
    assert scaling.page(text, scaling.constants()) == text, (
        "run python -m benchmarks.scaling --page"
    )
    assert text.count("<!-- figures:") == 2
