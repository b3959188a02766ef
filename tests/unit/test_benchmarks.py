"""What measurements are made of: plans, histograms, figures, plots, and the client's own checks."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from benchmarks.histogram import Histogram
from benchmarks.load import BadReply, ask, check, dechunk
from benchmarks.peers import report
from benchmarks.peers.figures import FIGURES, Figure, Record, beside, parts, rows, written
from benchmarks.peers.goals import GOALS, verdicts
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.plan import Length, chosen, expected_s, fit, plan
from benchmarks.peers.plots import bars
from benchmarks.peers.registry import PEERS
from benchmarks.script import GRACE_S, Asked, ending, event, whole

BY_NAME = {(figure.measure, figure.name): figure for figure in FIGURES}
TARGETS = ["direct", "headrace", "nginx"]


def record(target: str, number: int = 0, measure: str = "streams-32", **figures: float) -> Record:
    return Record(measure=measure, target=target, round=number, figures={**figures})


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_histogram_keeps_percentiles_to_one_in_a_hundred(share: float) -> None:
    chance = random.Random(3)
    values = sorted(chance.lognormvariate(-6, 1.5) for _ in range(5000))
    exact = values[int(len(values) * share)]
    halves = Histogram.of(values[::2]) + Histogram.of(values[1::2])
    assert halves.percentile(share) == pytest.approx(exact, rel=0.011)
    again = Histogram(
        msgspec.json.decode(msgspec.json.encode(halves.counts()), type=dict[int, int])
    )
    assert again.percentile(share) == halves.percentile(share)


def test_what_is_no_time_at_all_is_a_microsecond() -> None:
    assert Histogram.of([-1.0, 0.0]).percentile(0.5) == pytest.approx(1e-6, rel=0.02)


def test_every_target_has_every_measure_in_every_round() -> None:
    steps = plan(MEASURES, TARGETS, rounds=3, seed=1)
    for measure in MEASURES:
        for number in range(1 if measure.once else 3):
            found = [s.target for s in steps if s.measure is measure and s.round == number]
            assert sorted(found) == sorted(TARGETS)
    assert sum(step.measure.once for step in steps) == 3 * sum(m.once for m in MEASURES)
    assert expected_s(steps, 2.0) > expected_s(steps, 1.0) > 0


def test_the_order_of_targets_changes_and_is_the_same_for_a_seed() -> None:
    targets = [peer.name for peer in PEERS]
    measures = [measure for measure in MEASURES if not measure.once]

    def orders(seed: int) -> list[list[str]]:
        names = [step.target for step in plan(measures, targets, rounds=2, seed=seed)]
        return [names[at : at + len(targets)] for at in range(0, len(names), len(targets))]

    assert orders(1) == orders(1) != orders(2)
    assert len({tuple(order) for order in orders(1)}) > len(measures)


@pytest.mark.parametrize("minutes", [8, 10, 30])
def test_a_run_takes_about_the_minutes_it_was_given(minutes: int) -> None:
    targets = [peer.name for peer in PEERS]
    length = fit(MEASURES, targets, minutes)
    steps = plan(MEASURES, targets, length.rounds, seed=1)
    assert minutes * 30 < expected_s(steps, length.seconds) <= minutes * 60.001
    more = plan(MEASURES, targets, length.rounds + 1, seed=1)
    assert expected_s(more, length.seconds) > minutes * 60


def test_without_time_every_measure_is_taken_once_and_short() -> None:
    length = fit(MEASURES, TARGETS, 0.1)
    assert (length.rounds, length.seconds) == (1, 0.3)


@pytest.mark.parametrize(("elapsed_s", "over"), [(70, False), (80, True)])
def test_a_round_that_would_end_too_late_is_not_begun(elapsed_s: float, over: bool) -> None:
    assert Length(rounds=9, seconds=1, limit_s=100).is_over(elapsed_s, 25) is over
    assert not Length(rounds=9, seconds=1).is_over(elapsed_s, 25)


def test_measures_are_chosen_by_name_or_by_what_they_tell() -> None:
    assert chosen(MEASURES, ()) == [*MEASURES]
    assert [m.name for m in chosen(MEASURES, ("short", "memory"))] == ["memory", "short"]
    ttft = {m.name for m in chosen(MEASURES, ("ttft",))}
    assert ttft == {f.measure for f in FIGURES if f.name == "ttft_p50"}


def test_latencies_are_over_the_engine_and_ratios_over_the_reference() -> None:
    def late(target: str, seconds: float) -> Record:
        durations = {"late": Histogram.of([seconds] * 9).counts()}
        return Record(measure="streams-32", target=target, round=0, durations=durations)

    records = [late("direct", 0.001), late("headrace", 0.003), late("nginx", 0.002)]
    direct, ours, nginx = rows(
        BY_NAME["streams-32", "late_p50"], records, TARGETS, reference="headrace"
    )
    assert direct.value == pytest.approx(1, rel=0.02)
    assert direct.ratio is None
    assert ours.value == pytest.approx(2, rel=0.04)
    assert nginx.ratio == pytest.approx(0.5, rel=0.06)


def test_rounds_become_their_median_and_unevenness_the_worst() -> None:
    records = [
        record("headrace", number, cpu_us=cpu_us, uneven=uneven)
        for number, (cpu_us, uneven) in enumerate([(30, 2), (90, 7), (40, 3)])
    ]
    for name, value in (("cpu", 40), ("uneven", 7)):
        (_, ours, nginx) = rows(BY_NAME["streams-32", name], records, TARGETS, "headrace")
        assert (ours.value, nginx.value) == (value, None)


def test_a_ratio_of_what_is_lost_in_the_noise_says_nothing() -> None:
    records = [record("headrace", cpu_us=40), record("nginx", cpu_us=-1)]
    assert rows(BY_NAME["streams-32", "cpu"], records, TARGETS, "headrace")[2].ratio is None


def verdict(value: float, name: str, others: dict[str, float], goal: str) -> list[tuple[str, bool]]:
    """Of the goals for `headrace` at saturation or at 256 streams: the bound, and if it is met."""
    records = [
        Record(measure=goal, target=target, round=0, figures={name: of})
        for target, of in {"headrace": value, **others}.items()
    ]
    found = verdicts(records, ["headrace", *others])
    return [(of.cells()[1], of.reached) for of in found]


def test_a_goal_is_a_value_or_so_much_of_the_best_of_others() -> None:
    others = {"vllm-router": 20.0, "smg": 22.0, "litellm": 600.0}
    assert verdict(31, "cpu_us", others, "streams-256") == [
        ("<= 33", True),
        ("<= 30 (1.5 of vllm-router / sglang-router / smg)", False),
        ("<= 40 (1/15 of litellm)", True),
    ]
    assert verdict(59_000, "tokens_per_cpu_s", {"litellm": 2300}, "saturation") == [
        (">= 60,000", False),
        (">= 57,500 (25 of litellm)", True),
    ]


def test_a_goal_that_is_missed_tells_by_how_much() -> None:
    (missed,) = verdicts([record("headrace", measure="streams-256", cpu_us=66)], ["headrace"])
    assert missed.cells()[2:] == ("66", "no, 2 x")


def test_goals_are_of_figures_and_targets_that_there_are() -> None:
    names = {peer.name for peer in PEERS}
    for goal in GOALS:
        assert goal.figure.measure == goal.measure
        assert {goal.target, *goal.others} <= names


def test_the_cpu_time_of_a_target_is_told_by_process() -> None:
    spent: dict[str, float | None] = {"cpu_us": 9.0, "cpu_us.ingress": 6.0, "cpu_us.broker": 3.0}
    records = [
        Record(measure="short", target="headrace", round=0, figures=spent),
        Record(measure="short", target="nginx", round=0, figures={"cpu_us.nginx": 1.0}),
    ]
    assert parts(records, "short", "headrace") == {"ingress": 6.0, "broker": 3.0}


def test_what_costs_less_than_measuring_it_is_named() -> None:
    records = [
        record("direct", client_us=5, engine_us=4, cpu_us=4),
        record("headrace", cpu_us=40),
        record("nginx", cpu_us=8),
    ]
    assert beside(records) == {"streams-32": (5, 4, ["nginx"])}


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.12345, "0.123"), (45.67, "45.7"), (132_409.6, "132,410")]
)
def test_values_have_three_digits_that_count(value: float | None, shown: str) -> None:
    assert written(value) == shown


def test_a_plot_has_a_bar_per_value_longer_for_more() -> None:
    figure = BY_NAME["streams-32", "cpu"]
    records = [record("headrace", cpu_us=40), record("nginx", cpu_us=12)]
    svg = bars([(figure, rows(figure, records, TARGETS, "headrace"))], title="a < b")
    widths = [float(bar.attrib["width"]) for bar in ET.fromstring(svg).iter() if "rect" in bar.tag]
    direct, ours, nginx = widths
    assert ours > nginx > direct == 0
    assert len(svg) < 3000


def test_figures_and_measures_know_each_other() -> None:
    assert {figure.measure for figure in FIGURES} == {measure.name for measure in MEASURES}


def run_of(records: Sequence[Record]) -> report.Run:
    return report.Run(
        machine="a machine",
        reference="headrace",
        rounds=1,
        seconds=1.0,
        targets=TARGETS,
        versions={"nginx": "1"},
        left_out={"smg": "not installed"},
        records=[*records],
    )


def test_a_run_survives_its_file_and_several_are_taken_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    whole = run_of([record("nginx", cpu_us=1), record("nginx", measure="short")])
    report.save(whole, first)
    report.save(run_of([record("nginx", cpu_us=2)]), second)
    assert report.read([first]) == whole
    together = report.read([first, second]).records
    assert together == [record("nginx", cpu_us=2), record("nginx", measure="short")]


def test_the_page_has_a_place_for_figures_and_keeps_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(report.PAGE.read_text())
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "PLOTS", tmp_path / "plots")
    report.write(run_of([record("headrace", cpu_us=40), record("nginx", cpu_us=12)]))
    once = page.read_text()
    report.write(run_of([record("headrace", cpu_us=40), record("nginx", cpu_us=12)]))
    assert page.read_text() == once
    assert "| nginx | 12 (0.3x) |" in once
    assert [plot.name for plot in (tmp_path / "plots").iterdir()] == ["streams-32.svg"]


SAID = b'{"choices":[{"delta":{"content":"tok%d "}}]}'


def reply(*numbers: int, end: bytes = b"data: [DONE]\n\n") -> bytes:
    events = [b"data: " + SAID % number + b"\n\n" for number in numbers] + [end]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events if event)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def test_a_whole_reply_in_order_is_right() -> None:
    check(reply(0, 1, 2), ask("m", tokens=3))
    assert dechunk(b"3;x\r\nabc\r\n0\r\n\r\n") == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        reply(0, 2, 1),
        reply(0, 1),
        reply(0, 1, 1, 2),
        reply(0, 1, 2, end=b""),
        reply(0, 1, 2).replace(b"200 OK", b"503 No"),
    ],
    ids=["order", "missing", "doubled", "no-end", "status"],
)
def test_any_other_is_wrong(raw: bytes) -> None:
    with pytest.raises(BadReply):
        check(raw, ask("m", tokens=3))


def test_a_figure_of_a_target_without_records_is_none() -> None:
    figure: Figure = BY_NAME["hang-up", "queued_ms"]
    assert [row.value for row in rows(figure, [], TARGETS, "headrace")] == [None] * 3


def test_the_engine_reads_what_the_client_asks_for() -> None:
    asked = ask("m", tokens=7, gap_ms=20, ttft_ms=5, phase_ms=3, marks="[[hang:2]]")
    body = asked.wire.partition(b"\r\n\r\n")[2]
    assert Asked.of(body) == Asked(tokens=7, gap_s=0.02, ttft_s=0.005, phase_s=0.003, hang=2)
    held = ask("m", tokens=7, marks="[[hold=head tag=a1]]", stream=False).wire
    assert Asked.of(held) == Asked(hold="head", tag="a1", stream=False)


@pytest.mark.parametrize("tokens", [1, 64])
def test_what_the_engine_says_is_what_the_client_expects(tokens: int) -> None:
    asked = Asked(tokens=tokens, usage=True)
    events = [*map(event, range(tokens)), *ending(asked)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(sent), sent) for sent in events)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    check(head + chunks + b"0\r\n\r\n", ask("m", tokens=tokens))
    check(b"HTTP/1.1 200 OK\r\n\r\n" + whole(asked), ask("m", tokens=tokens, stream=False))


@pytest.mark.parametrize("now", [100.0, 100.0049, 100.011, 100.0199])
def test_first_tokens_come_on_instants_that_all_share(now: float) -> None:
    due = Asked(gap_s=0.02, phase_s=0.003).first_due(now)
    assert (due - 0.003) / 0.02 == pytest.approx(round((due - 0.003) / 0.02))
    assert now < due <= now + 0.03
    late = Asked(gap_s=0.02, phase_s=0.003, ttft_s=0.05).first_due(now)
    assert now + 0.05 - GRACE_S <= late <= now + 0.07 + GRACE_S
