"""The suite must be able to fail: what its parts find in answers that are not as they were."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.chaos import report as reports
from tests.chaos.asks import Ask, catalogue, sampled
from tests.chaos.gaps import gaps, slope
from tests.chaos.leaks import Held
from tests.chaos.load import Heard
from tests.chaos.memory import trend
from tests.chaos.plan import Victim, at_random, each_then_at_random, in_turn
from tests.chaos.report import Report
from tests.chaos.verdict import Baseline, Tally, judge
from tests.fixtures.requests import ALL

ASK = Ask(name="chat/plain#0", dialect="chat", body={}, stream=True)
WORDS = ("It", " was", " so", ".")
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def chunk(delta: dict[str, object], finish: str | None = None) -> dict[str, Any]:
    return {"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def stream(*records: object, done: bool = True) -> bytes:
    parts = [orjson.dumps(record) for record in records] + [b"[DONE]"] * done
    return b"".join(b"data: " + part + b"\n\n" for part in parts)


def whole(*words: str, usage: object = USAGE) -> bytes:
    return stream(
        *(chunk({"content": word}) for word in words),
        chunk({}, "stop"),
        {"id": "a", "choices": [], "usage": usage},
    )


def heard(body: bytes, status: int | None = 200, ask: Ask = ASK, **fields: Any) -> Heard:
    return Heard(
        ask=ask,
        pod="ingress-0",
        began=0.0,
        ended=3.0,
        status=status,
        body=body,
        arrivals=array("d", [0.5, 2.5]),
        **fields,
    )


@pytest.fixture
def baseline() -> Baseline:
    known = Baseline()
    known.add(heard(whole(*WORDS)))
    return known


ERROR = {"error": {"message": "lost", "code": "worker_failed"}}

OUTCOMES = [
    pytest.param(heard(whole(*WORDS)), "same", id="as it was"),
    pytest.param(heard(whole("It was", " so.")), "same", id="in other chunks"),
    pytest.param(heard(whole(*WORDS[:2], *WORDS[3:])), "different", id="a token lost"),
    pytest.param(heard(whole(*WORDS[:2], *WORDS[1:])), "different", id="a token doubled"),
    pytest.param(
        heard(whole(*WORDS, usage={**USAGE, "completion_tokens": 5})), "different", id="usage"
    ),
    pytest.param(heard(stream(chunk({"content": "It"}), ERROR, done=False)), "failed", id="failed"),
    pytest.param(
        heard(stream(chunk({"content": "Not"}), ERROR, done=False)), "different", id="false start"
    ),
    pytest.param(heard(orjson.dumps(ERROR), 503), "refused", id="refused"),
    pytest.param(heard(orjson.dumps(ERROR), 502), "failed", id="failed before it began"),
    pytest.param(heard(stream(chunk({"content": "It"}), done=False)), "broken", id="no end"),
    pytest.param(heard(whole(*WORDS)[:-9]), "broken", id="cut within a record"),
    pytest.param(heard(whole(*WORDS) + stream(ERROR)), "broken", id="something after the end"),
    pytest.param(heard(b"", None, cut=True), "cut", id="cut"),
    pytest.param(heard(b"", None, hung=True), "hung", id="hung"),
]


@pytest.mark.parametrize(("answer", "outcome"), OUTCOMES)
def test_what_becomes_of_an_answer(answer: Heard, outcome: str, baseline: Baseline) -> None:
    judged = judge(answer, baseline)
    assert judged.outcome == outcome, judged.detail


def test_sampled_answers_may_differ_but_must_hold() -> None:
    ask = Ask(
        name="chat/regex#0",
        dialect="chat",
        body={},
        stream=True,
        exact=False,
        limit=4,
        holds=lambda answer: answer.text.endswith("."),
    )
    known = Baseline()
    known.add(heard(whole(*WORDS), ask=ask))
    assert judge(heard(whole("So", " it", " was", "."), ask=ask), known).outcome == "valid"
    assert judge(heard(whole("So", " it", " was", "!"), ask=ask), known).outcome == "invalid"
    longer = {**USAGE, "completion_tokens": 5}
    assert judge(heard(whole(*WORDS, usage=longer), ask=ask), known).outcome == "invalid"
    prompt = {**USAGE, "prompt_tokens": 10}
    assert judge(heard(whole("So", ".", usage=prompt), ask=ask), known).outcome == "invalid"


def with_logprobs(told: int, end: str) -> bytes:
    content = [{"token": word, "logprob": -1.0, "bytes": [], "top_logprobs": []} for word in WORDS]
    record = chunk({"content": "".join(WORDS)}, end)
    record["choices"][0]["logprobs"] = {"content": content[:told]}
    return stream(record, {"id": "a", "choices": [], "usage": USAGE})


@pytest.mark.parametrize(
    ("told", "end", "outcome"),
    [
        (4, "length", "same"),
        (3, "length", "invalid"),
        (4, "stop", "valid"),
        (3, "stop", "valid"),  # the last token only ended it
        (2, "stop", "invalid"),
    ],
)
def test_every_token_that_says_something_has_its_log_probability(
    told: int, end: str, outcome: str
) -> None:
    ask = Ask(name="chat/logprobs#0", dialect="chat", body={}, stream=True, exact=False, limit=4)
    known = Baseline()
    known.add(heard(with_logprobs(4, "length"), ask=ask))
    judged = judge(heard(with_logprobs(told, end), ask=ask), known)
    assert judged.outcome == outcome, judged.detail


def test_one_kind_of_wrong_answers_does_not_hide_another(baseline: Baseline) -> None:
    tally = Tally()
    for answer in (*[heard(b"", None, hung=True)] * 50, heard(whole(*WORDS[:2]))):
        tally.add(judge(answer, baseline))
    assert tally.outcomes == {"hung": 50, "different": 1}
    assert len(tally.told()) < 20
    assert any("different" in line for line in tally.told())


def test_requests_whose_unharmed_answers_differ_prove_nothing(baseline: Baseline) -> None:
    baseline.add(heard(whole("It", " is", ".")))
    assert list(baseline.dropped) == [ASK.name]
    assert not baseline.transcripts


def test_a_seed_makes_the_same_plan_again() -> None:
    one = in_turn(("worker", "scheduler"), seed=5, kills=40, pace_s=2)
    assert one == in_turn(("worker", "scheduler"), seed=5, kills=40, pace_s=2)
    assert one != in_turn(("worker", "scheduler"), seed=6, kills=40, pace_s=2)
    assert [injury.victim for injury in one[:3]] == ["worker", "scheduler", "worker"]
    assert all(1 <= injury.pause_s <= 3 for injury in one)
    assert {injury.pick(["a", "b"]) for injury in one} == {"a", "b"}
    weighted = at_random({"worker": 9, "broker": 1}, seed=1, kills=200, pace_s=1)
    assert 5 < sum(injury.victim == "broker" for injury in weighted) < 50


@pytest.mark.parametrize("engine", ["scripted", "sglang"])
def test_the_load_has_every_dialect_and_the_same_requests_for_a_seed(engine: str) -> None:
    asks = catalogue(engine, model="m", count=60, seed=1)
    assert [ask.body for ask in asks] == [
        ask.body for ask in catalogue(engine, model="m", count=60, seed=1)
    ]
    assert {ask.dialect for ask in asks} == set(ALL)
    assert {ask.stream for ask in asks} == {True, False}
    chance = sampled(asks)
    assert {ask.exact for ask in chance} == {True, False}
    assert all(("seed" in ask.body) == ask.exact for ask in chance)


def test_a_silence_counts_from_its_injury() -> None:
    answer = heard(b"")  # something came at 0.5 s and 2.5 s, the end at 3 s
    assert answer.silence_s == 2.0
    assert answer.silence_at([]) == 2.0
    assert answer.silence_at([0.25]) == 2.0  # that which began afterwards
    assert answer.silence_at([1.5]) == 1.0
    late = heard(b"")
    late.arrivals, late.ended = array("d", [1.0, 2.0]), 12.0
    assert late.silence_at([0.5]) == 10.0
    late.arrivals = array("d", [1.0, 6.0])
    assert late.silence_at([0.5]) == 5.0  # the one from 6 s on has another reason


def test_silences_are_ranked() -> None:
    found = gaps([float(n) for n in range(1, 101)])
    assert (found.streams, found.p50, found.p95, found.longest) == (100, 50.0, 95.0, 100.0)
    assert gaps([]).streams == 0


def test_growing_memory_is_seen() -> None:
    flat = [(float(t), 100 + t % 3) for t in range(0, 3600, 2)]
    growing = [(float(t), 100 + t / 60) for t in range(0, 3600, 2)]
    assert abs(slope(flat)) < 0.001
    assert trend("a", flat).flat
    assert not trend("a", growing).flat
    assert trend("a", growing).mb_per_hour == pytest.approx(60)


def test_what_is_held_longer_is_named() -> None:
    before = Held(queues={"headrace.reply": 64}, files={"ingress-0/ingress": 30}, connections=5)
    same = Held(queues={"headrace.reply": 64}, files={"ingress-0/ingress": 33}, connections=5)
    after = Held(queues={"headrace.reply": 66}, files={"ingress-0/ingress": 90}, connections=4)
    assert not same.differences(before)
    assert after.differences(before) == [
        "queues of headrace.reply: 64 before, 66 now",
        "connections: 5 before, 4 now",
        "files of ingress-0/ingress: 30 before, 90 now",
    ]


def test_a_report_says_what_failed_and_fills_the_page(tmp_path: Path) -> None:
    report = Report(scenario="poison", engine="scripted", seed=3, settings={}, began="2026-01-01")
    assert not report.holds, "nothing was required"
    report.require("all is well", True)
    assert report.holds
    report.require("nothing hung", False, "2 did")
    report.figures["answers"] = 7
    assert not report.holds
    report.write(tmp_path / "r")
    assert reports.load(tmp_path / "r.json") == report
    assert "| nothing hung | FAILS | 2 did |" in (tmp_path / "r.md").read_text()
    page = tmp_path / "page.md"
    page.write_text(reports.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for _ in range(2):
        reports.write_page([report], page)
    text = page.read_text(encoding="utf-8")
    assert text.count("### `poison`") == 1
    assert text.startswith("# Reliability\n")
    assert "| answers | 7 |" in text


def test_every_kind_is_among_the_first_at_any_seed() -> None:
    weights: dict[Victim, float] = {"batcher": 9, "worker": 3, "ingress": 1, "broker": 0.01}
    for seed in range(200):
        plan = each_then_at_random(weights, seed=seed, kills=20, pace_s=1)
        assert {injury.victim for injury in plan[:4]} == set(weights)
        assert plan[4:] == at_random(weights, seed=seed, kills=20, pace_s=1)[4:]
