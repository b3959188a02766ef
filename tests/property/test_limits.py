"""Laws of the state of an account: what limits promise, whatever happens in whatever order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.accounts.account import Budget, Limits
from ingress.limits.desk import take_turn
from ingress.limits.periods import period_number
from ingress.limits.state import AccountState, Ask, Hold, Settlement, Turn, Verdict, settle
from ingress.limits.window import MINUTE, added

NOW = 1_790_000_000.0


class Process:
    """One process with all it holds: the model that the laws are about."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: list[tuple[int, Ask]] = []
        self.settlement = Settlement(0)

    def hold(self) -> Hold:
        tokens: dict[int, int] = {}
        for part, ask in self.open:
            tokens = added(tokens, {part: ask.tokens})
        return Hold(len(self.open), tokens, sum(ask.microcents for _, ask in self.open))

    def end(self, index: int, used: int) -> None:
        part, ask = self.open.pop(index % len(self.open))
        before = self.settlement
        self.settlement = msgspec.structs.replace(
            before,
            tokens=added(before.tokens, {part: min(used, ask.tokens)}),
            microcents=before.microcents + min(used, ask.tokens),
        )

    def turn(
        self, state: AccountState, limits: Limits, asks: Sequence[Ask], now: float
    ) -> tuple[AccountState, Sequence[Verdict]]:
        turn = Turn(
            account_id="a",
            limits=limits,
            hold=self.hold(),
            settlement=self.settlement,
            asks=tuple(asks),
        )
        outcome = take_turn(state, turn, self.name, now=now, hold_s=10.0, window=MINUTE)
        self.settlement = Settlement(self.settlement.number + 1)
        for ask, verdict in zip(asks, outcome.verdicts, strict=True):
            if verdict.refusal is None:
                self.open.append((verdict.part, ask))
        return outcome.state, outcome.verdicts


limits_s = st.builds(
    Limits,
    concurrency=st.none() | st.integers(1, 6),
    requests_per_minute=st.none() | st.integers(1, 12),
    tokens_per_minute=st.none() | st.integers(1, 60),
    budget=st.none() | st.just(Budget(cents=1, period="day")),
)
asks_s = st.lists(
    st.builds(Ask, tokens=st.integers(0, 20), microcents=st.integers(0, 300_000)), max_size=5
)
# The gaps are those at which something may change: parts are half a second.
gaps_s = st.sampled_from([0.0, 0.1, 0.25, 0.5, 3.0, 9.0, 29.75, 59.75, 60.0, 60.5])
steps_s = st.lists(
    st.tuples(gaps_s, st.integers(0, 1), asks_s, st.lists(st.integers(0, 9), max_size=3)),
    max_size=12,
)


@given(limits_s, steps_s)
@settings(max_examples=60)
@pytest.mark.rule("limits.never-exceeded")
def test_no_limit_is_ever_exceeded(
    limits: Limits,
    steps: Sequence[tuple[float, int, Sequence[Ask], Sequence[int]]],
) -> None:
    state, now = AccountState(), NOW
    processes = Process("one"), Process("two")
    admitted: list[tuple[float, Ask]] = []
    seen = {process.name: NOW for process in processes}
    for gap_s, index, asks, ends in steps:
        now += gap_s
        process = processes[index]
        for end in ends:
            if process.open:
                process.end(end, used=end)
        for other in processes:  # one that says nothing for ten seconds counts as killed
            if now >= seen[other.name] + 10.0 and other is not process:
                other.open.clear()
        seen[process.name] = now
        state, verdicts = process.turn(state, limits, asks, now)
        admitted += [
            (now, ask)
            for ask, verdict in zip(asks, verdicts, strict=True)
            if verdict.refusal is None
        ]
        # In flight, and reserved of the budget, is what none of the processes has ended.
        if limits.concurrency is not None:
            assert sum(len(one.open) for one in processes) <= limits.concurrency
        if limits.budget is not None:
            reserved = sum(one.hold().microcents for one in processes)
            assert state.spent("day", now) + reserved <= 1_000_000
        # In any 60 seconds that end now there were so many requests. Of tokens, what was used may
        # have been less than what was reserved, so each counts by what is known now.
        recent = [ask for at, ask in admitted if now - at < 60]
        if limits.requests_per_minute is not None:
            assert len(recent) <= limits.requests_per_minute
        if limits.tokens_per_minute is not None:
            reserved_now = {id(ask): ask.tokens for one in processes for _, ask in one.open}
            held = sum(tokens for tokens in reserved_now.values())
            part = MINUTE.part(now)
            settled = sum(MINUTE.recent(state.tokens, part).values())
            old = sum(ask.tokens for one in processes for at, ask in one.open if at < part - 120)
            assert settled + held - old <= limits.tokens_per_minute


@given(st.floats(0, 1e9), st.floats(0, 120))
def test_what_is_less_than_a_minute_ago_counts_and_nothing_after_a_part_more(
    start: float, gap_s: float
) -> None:
    then, now = MINUTE.part(start), MINUTE.part(start + gap_s)
    counts = bool(MINUTE.recent({then: 1}, now))
    if start + gap_s - start < 60:
        assert counts
    if gap_s >= 60.501:
        assert not counts
    # When it says that it will be gone, it is.
    assert not MINUTE.recent({then: 1}, MINUTE.part(MINUTE.left_at(then)))


@pytest.mark.rule("limits.within-one-percent")
def test_a_limit_is_used_to_within_one_percent() -> None:
    """Whoever always asks gets at least 99 % of what three minutes could have."""
    limits, state, granted = Limits(requests_per_minute=600), AccountState(), 0
    process = Process("one")
    for tick in range(3 * 60 * 20):
        state, (verdict,) = process.turn(state, limits, [Ask()], NOW + tick / 20)
        process.open.clear()
        granted += verdict.refusal is None
    assert 0.99 * 1800 <= granted <= 1800


@given(
    st.lists(
        st.tuples(st.integers(-130, 2), st.integers(1, 99), st.integers(0, 99)),
        max_size=8,
    ).flatmap(lambda used: st.tuples(st.just(used), st.permutations(used))),
)
def test_the_order_of_settlements_makes_no_difference(
    orders: tuple[Sequence[tuple[int, int, int]], Sequence[tuple[int, int, int]]],
) -> None:
    states = []
    for order in orders:
        state = AccountState()
        for number, (back, tokens, microcents) in enumerate(order):
            part = MINUTE.part(NOW) + back
            settlement = Settlement(number, {part: -1}, {part: tokens}, microcents)
            state = settle(state, settlement, "one", NOW, MINUTE)
        states.append(state)
    assert states[0] == states[1]
    kept = [used for used in orders[0] if used[0] >= -120]
    assert sum(states[0].tokens.values()) == sum(tokens for _, tokens, _ in kept)
    assert states[0].spent("total", NOW) == sum(microcents for *_, microcents in orders[0])


@given(asks_s, asks_s)
@pytest.mark.rule("limits.killed-process")
def test_of_a_killed_process_exactly_its_hold_comes_back(
    ours: Sequence[Ask], theirs: Sequence[Ask]
) -> None:
    """What remains is as if it had never reserved anything; that it made requests stays true."""
    unlimited, alive, killed = Limits(), Process("alive"), Process("killed")
    without, _ = alive.turn(AccountState(), unlimited, ours, NOW)
    alive.open.clear()
    both, _ = alive.turn(AccountState(), unlimited, ours, NOW)
    both, _ = killed.turn(both, unlimited, theirs, NOW)
    full = Limits(concurrency=max(1, len(ours) + len(theirs)))
    _, (before,) = Process("looks").turn(both, full, [Ask(look=True)], NOW + 9.9)
    assert before.refusal == ("concurrency" if ours or theirs else None)
    without, _ = alive.turn(without, unlimited, (), NOW + 9.9)
    both, _ = alive.turn(both, unlimited, (), NOW + 9.9)
    alive_turns = [alive.turn(state, unlimited, (), NOW + 10.0)[0] for state in (without, both)]
    assert alive_turns[0].leases["alive"].hold == alive_turns[1].leases["alive"].hold
    assert set(alive_turns[1].leases) == {"alive"}
    assert alive_turns[0].tokens == alive_turns[1].tokens
    assert sum(alive_turns[1].requests.values()) == len(ours) + len(theirs)


def test_a_settlement_that_is_sent_again_counts_once() -> None:
    process, state = Process("one"), AccountState()
    used = Settlement(7, {}, {MINUTE.part(NOW): 5}, 11)
    for _ in range(2):
        process.settlement = used
        state, _ = process.turn(state, Limits(), (), NOW)
    assert sum(state.tokens.values()) == 5
    assert state.spent("day", NOW) == 11
    process.settlement = msgspec.structs.replace(used, number=8)
    state, _ = process.turn(state, Limits(), (), NOW)
    assert state.spent("day", NOW) == 22


def test_what_was_admitted_and_not_heard_of_was_never_made() -> None:
    process, limits = Process("one"), Limits(requests_per_minute=5)
    heard, _ = process.turn(AccountState(), limits, [Ask(), Ask()], NOW)
    settlement = process.settlement
    lost, _ = process.turn(heard, limits, [Ask(), Ask()], NOW + 1)
    del process.open[2:]
    for _ in range(2):  # also if it is not heard the second time either
        process.settlement = settlement
        lost, _ = process.turn(lost, limits, (), NOW + 2)
    assert sum(lost.requests.values()) == 2
    assert lost.leases["one"].hold.in_flight == 2


def test_a_state_is_small_however_much_is_used() -> None:
    state = AccountState()
    processes = [Process(f"{number:016x}") for number in range(3)]
    largest = 0
    for tick in range(2000):
        process = processes[tick % 3]
        while len(process.open) > 5:
            process.end(0, used=7)
        state, _ = process.turn(state, Limits(), [Ask(1000, 1000)], NOW + tick / 7)
        largest = max(largest, len(msgspec.msgpack.encode(state)))
    assert largest < 3000
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=AccountState)
    assert decoded == state


@given(st.integers(-60_000, 200_000), st.integers(0, 86_399), st.integers(0, 800))
def test_periods_are_days_and_months_by_utc(day: int, second: int, later: int) -> None:
    moments = [float(day * 86_400 + second), float((day + later) * 86_400 + second)]
    a, b = (datetime.fromtimestamp(moment, UTC) for moment in moments)
    days = [period_number("day", moment) for moment in moments]
    months = [period_number("month", moment) for moment in moments]
    assert days[1] - days[0] == (b.date() - a.date()).days
    assert months[1] - months[0] == (b.year - a.year) * 12 + b.month - a.month
    assert period_number("total", moments[0]) == period_number("total", moments[1])


def test_a_budget_begins_anew_with_its_period() -> None:
    end = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()
    state = settle(AccountState(), Settlement(0, microcents=1_000_000), "one", end, MINUTE)
    for period, after in (("day", None), ("month", None), ("total", "budget")):
        limits = Limits(budget=Budget(cents=1, period=period))  # type: ignore[arg-type]
        for now, refusal in ((end, "budget"), (end + 1, after)):
            _, (verdict,) = Process("one").turn(state, limits, [Ask()], now)
            assert verdict.refusal == refusal, (period, now)


def test_a_refusal_says_when_it_would_be_otherwise() -> None:
    limits = Limits(requests_per_minute=3, tokens_per_minute=100)
    process, state = Process("one"), AccountState()
    for second, tokens in ((0, 40), (10, 30), (20, 30)):
        state, (verdict,) = process.turn(state, limits, [Ask(tokens)], NOW + second)
        assert verdict.refusal is None
    now = NOW + 30
    for tokens, first in ((30, 0), (70, 10), (71, 20)):
        looked, (verdict,) = process.turn(state, limits, [Ask(tokens)], now)
        assert verdict.refusal == "requests"
        at = now + verdict.retry_after_s
        assert first + 60 < at - NOW <= first + 61
        _, (before,) = process.turn(looked, limits, [Ask(tokens)], at - 0.01)
        assert before.refusal in ("requests", "tokens")
        _, (after,) = Process("other").turn(looked, limits, [Ask(tokens)], at)
        assert after.refusal is None
        process.open = process.open[:3]


def test_a_request_that_never_fits_is_told_so_first() -> None:
    limits = Limits(concurrency=1, tokens_per_minute=100)
    process, state = Process("one"), AccountState()
    state, verdicts = process.turn(state, limits, [Ask(1), Ask(101), Ask(1)], NOW)
    assert [verdict.refusal for verdict in verdicts] == [None, "size", "concurrency"]


def test_a_look_is_judged_as_a_request_and_takes_nothing() -> None:
    limits = Limits(requests_per_minute=1)
    process, state = Process("one"), AccountState()
    asks = [Ask(look=True), Ask(), Ask(look=True), Ask()]
    _, verdicts = process.turn(state, limits, asks, NOW)
    assert [verdict.refusal for verdict in verdicts] == [None, None, "requests", "requests"]
    levels = [verdict.requests.remaining for verdict in verdicts if verdict.requests]
    assert levels == [1, 0, 0, 0]


def test_what_is_left_of_a_budget_may_be_reserved() -> None:
    limits = Limits(budget=Budget(cents=1))
    process, state = Process("one"), AccountState()
    asks = [Ask(0, 600_000), Ask(0, 600_000), Ask(0, 1_000_001), Ask(0, 400_000), Ask(0, 1)]
    _, verdicts = process.turn(state, limits, asks, NOW)
    assert [verdict.refusal for verdict in verdicts] == [
        None,
        "reserved",
        "budget",
        None,
        "reserved",
    ]


def test_the_standing_says_when_all_is_there_again() -> None:
    limits = Limits(requests_per_minute=5, tokens_per_minute=50)
    process, state = Process("one"), AccountState()
    _, (idle,) = process.turn(state, limits, [Ask(look=True)], NOW)
    assert idle.requests is not None
    assert (idle.requests.remaining, idle.requests.full_in_s) == (5, 0.0)
    state, (verdict,) = process.turn(state, limits, [Ask(8)], NOW)
    assert verdict.requests is not None
    assert verdict.tokens is not None
    assert (verdict.requests.remaining, verdict.tokens.remaining) == (4, 42)
    assert verdict.requests.full_in_s == verdict.tokens.full_in_s
    assert math.isclose(verdict.requests.full_in_s, 60.25, abs_tol=0.26)
