"""Laws of pockets: what is admitted without asking exceeds no limit, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.accounts.account import Account, Budget, Limits
from ingress.limits.book import Book
from ingress.limits.desk import take_turn
from ingress.limits.pocket import Appetite
from ingress.limits.state import (
    NO_ALLOWANCE,
    AccountState,
    Allowance,
    Ask,
    Hold,
    Outcome,
    Settlement,
    Turn,
    Verdict,
)
from ingress.limits.window import MINUTE

NOW = 1_790_000_000.0
TURN_S = 1.0
HOLD_S = 10.0
WIRE_S = 0.05  # from a process to the ledger, and back


@dataclass
class Admitted:
    """One request: the model that the laws are about. It has used nothing until it ends."""

    at: float
    part: int
    ask: Ask
    tokens: int
    microcents: int


@dataclass
class World:
    """The ledger, and all that was ever admitted over it."""

    limits: Limits
    state: AccountState = field(default_factory=AccountState)
    now: float = NOW
    admitted: list[Admitted] = field(default_factory=list)
    pocketed: int = 0  # how many of them by a pocket


class Process:
    """A process as `LedgerLimiter` is one, but that everything happens one after the other."""

    def __init__(self, world: World, name: str, clock: float) -> None:
        self.world = world
        self.name = name
        self.book = Book(Account(account_id="a", limits=world.limits))
        self.open: list[Admitted] = []
        self.heard_at = world.now
        self.stalled = False
        self._admitted: list[Admitted] = []
        self._lost = False
        self._clock = clock

    @property
    def at(self) -> float:
        return self.world.now + self._clock

    def _admit(self, ask: Ask, part: int, at: float) -> None:
        self.open.append(Admitted(at, part, ask, ask.tokens, ask.microcents))
        self._admitted.append(self.open[-1])
        self.world.admitted.append(self.open[-1])

    def ask(self, ask: Ask) -> Verdict:
        if self._lost:
            self.turn()
        taken = self.book.admit(ask, self.at)
        if taken is None:
            (verdict,) = self.turn([ask])
            return verdict
        verdict, now = taken
        assert now >= self.world.now - 1e-6  # the ledger's time, or later
        self.world.pocketed += 1
        self._admit(ask, verdict.part, self.world.now)
        return verdict

    def turn(self, asks: Sequence[Ask] = (), *, lost: bool = False) -> Sequence[Verdict]:
        world, sent_at = self.world, self.at
        # Until it is known what became of the last one, nothing is asked for in advance.
        wish = NO_ALLOWANCE if self._lost else self.book.wish(sent_at, TURN_S)
        turn = msgspec.structs.replace(self.book.turn((), wish), asks=tuple(asks))
        assert self.book.admit(Ask(), sent_at) is None  # nobody knows what is there meanwhile
        world.now += WIRE_S
        outcome = take_turn(
            world.state, turn, self.name, now=world.now, hold_s=HOLD_S, window=MINUTE
        )
        world.state = outcome.state
        world.now += WIRE_S
        self._lost = lost
        if lost:
            return ()
        self.heard_at = world.now
        self.book.told(outcome)
        for ask, verdict in zip(asks, outcome.verdicts, strict=True):
            if verdict.refusal is None:
                self.book.hold(verdict.part, ask)
                self._admit(ask, verdict.part, outcome.now)
        self.book.open_pocket(outcome, MINUTE, asked_at=sent_at, lasts_s=2 * TURN_S)
        return outcome.verdicts

    def end(self, index: int, used: int, *, made: bool = True) -> None:
        one = self.open.pop(index % len(self.open))
        self.book.leave()
        if made:
            one.tokens = min(used, one.ask.tokens)
            one.microcents = min(used, one.ask.microcents)
            self.book.let_go(
                one.part, one.ask, self.at, tokens=one.tokens, microcents=one.microcents
            )
        else:
            self.world.admitted.remove(one)
            self.book.let_go(one.part, one.ask, self.at, requests=-1)

    def kill(self) -> None:
        """All that is known of its requests is that they were made."""
        for one in self._admitted:
            one.tokens = one.microcents = 0


def pass_time(world: World, processes: Sequence[Process], seconds: float) -> None:
    """Whoever is alive says what it holds from time to time, and sooner if it has a pocket."""
    until = world.now + seconds
    while world.now < until:
        world.now = min(until, world.now + TURN_S)
        for process in processes:
            silent_s = world.now - process.heard_at
            if not process.stalled and (
                process.book.has_pocket or (process.book.holds and silent_s > HOLD_S / 3)
            ):
                process.turn()


def check(world: World, processes: Sequence[Process], *, lapsed: bool) -> None:
    """That no limit is exceeded.

    What a process held that was killed, or not heard of for ten seconds, was given to others.
    """
    limits, now = world.limits, world.now
    recent = [one for one in world.admitted if now - one.at < 60]
    if limits.requests_per_minute is not None:
        assert len(recent) <= limits.requests_per_minute
    if lapsed:
        return
    if limits.concurrency is not None:
        assert sum(len(one.open) for one in processes) <= limits.concurrency
    if limits.tokens_per_minute is not None:
        assert sum(one.tokens for one in recent) <= limits.tokens_per_minute
    if limits.budget is not None:
        assert sum(one.microcents for one in world.admitted) <= 1_000_000


def busy(limits: Limits, *clocks: float) -> tuple[World, list[Process]]:
    """Processes that have all made a few requests, and have pockets if they may."""
    world = World(limits)
    processes = [Process(world, str(number), clock) for number, clock in enumerate(clocks)]
    for process in processes:
        for _ in range(4):
            assert process.ask(Ask(1)).refusal is None
            process.end(0, used=1)
        process.turn()
    return world, processes


limits_s = st.builds(
    Limits,
    concurrency=st.none() | st.integers(8, 40),
    requests_per_minute=st.none() | st.integers(8, 90),
    tokens_per_minute=st.none() | st.integers(80, 900),
    budget=st.none() | st.just(Budget(cents=1, period="day")),
).filter(lambda limits: limits.any)
sizes_s = st.builds(Ask, tokens=st.integers(0, 9), microcents=st.integers(0, 9_000))
# Parts are half a second, turns a second apart, holds last for ten.
gaps_s = st.just(0.0) | st.sampled_from([0.1, 0.5, 0.9, 1.5, 2.5, 11.0, 29.75, 59.0, 59.75, 60.5])
acts_s = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 30)),
    st.tuples(st.just("flood"), st.integers(1, 90)),
    st.tuples(st.sampled_from(["end", "refuse"]), st.integers(1, 30)),
    st.tuples(st.sampled_from(["turn", "lose", "kill", "stall"]), st.just(1)),
)
steps_s = st.lists(
    st.tuples(gaps_s, st.integers(0, 1), acts_s, sizes_s, st.integers(0, 9)), max_size=14
)


@given(limits_s, steps_s, st.floats(-1e6, 1e6))
@settings(max_examples=80)
@pytest.mark.rule("limits.never-exceeded")
def test_no_limit_is_ever_exceeded_by_pockets(
    limits: Limits,
    steps: Sequence[tuple[float, int, tuple[str, int], Ask, int]],
    clock: float,
) -> None:
    world, processes = busy(limits, clock, -clock)
    lapsed = False
    for number, (gap_s, index, (act, times), size, used) in enumerate(steps):
        pass_time(world, processes, gap_s)
        process = processes[index]
        lapsed = lapsed or any(
            one.stalled and world.now >= one.heard_at + HOLD_S for one in processes
        )
        process.stalled = act == "stall"
        match act:
            case "ask":
                for _ in range(times):
                    process.ask(size)
                    check(world, processes, lapsed=lapsed)
            case "flood":
                process.turn([size] * times)
            case "end" | "refuse":
                for _ in range(min(times, len(process.open))):
                    process.end(used, used, made=act == "end")
            case "turn" | "lose":
                process.turn(lost=act == "lose")
            case "kill":
                process.kill()
                processes[index] = Process(world, f"{index} {number}", clock)
        check(world, processes, lapsed=lapsed)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 9)), max_size=30))
def test_a_process_alone_tells_exactly_what_is_left(
    requests: Sequence[tuple[int, bool, int]],
) -> None:
    limits = Limits(requests_per_minute=1000, tokens_per_minute=10_000)
    world, (process,) = busy(limits, 0.0)
    for tokens, ends, used in requests:
        verdict = process.ask(Ask(tokens))
        assert verdict.requests is not None
        assert verdict.tokens is not None
        assert verdict.requests.remaining == 1000 - len(world.admitted)
        assert verdict.tokens.remaining == 10_000 - sum(one.tokens for one in world.admitted)
        assert 60 <= verdict.requests.full_in_s <= 60.5
        if ends:
            process.end(used, used)
    assert world.pocketed >= len(requests)


def test_what_has_left_the_window_does_not_come_back_into_a_pocket() -> None:
    world, (process,) = busy(Limits(tokens_per_minute=800), 0.0)
    process.ask(Ask(50))
    pass_time(world, [process], 61)
    for _ in range(8):
        process.ask(Ask(1))
    process.turn()
    assert process.book.has_pocket
    process.end(0, used=0)
    verdict = process.ask(Ask(1))
    assert verdict.tokens is not None
    assert verdict.tokens.remaining == 800 - 9


def test_nobody_is_told_of_more_than_is_left() -> None:
    """What others have in their pockets they may just be using."""
    limits = Limits(requests_per_minute=1000)
    world, (one, other) = busy(limits, 0.0, 0.0)
    one.turn()
    for _ in range(8):
        other.ask(Ask(1))
        verdict = one.ask(Ask(1))
        assert verdict.requests is not None
        assert verdict.requests.remaining <= 1000 - len(world.admitted)
    assert world.pocketed >= 16


@pytest.mark.rule("limits.within-one-percent")
@pytest.mark.parametrize("tokens", [1, 28])
@pytest.mark.parametrize("kind", ["concurrency", "requests_per_minute", "tokens_per_minute"])
def test_nobody_is_refused_for_what_another_has_in_its_pocket(kind: str, tokens: int) -> None:
    """Whoever is waits until the other has given it back, which it does in its next turn."""
    most = 64
    world, (one, other) = busy(msgspec.convert({kind: most}, Limits), 0.0, 0.0)
    verdicts = other.turn([Ask(tokens)] * most)
    assert next(verdict.in_pockets for verdict in verdicts if verdict.refusal is not None)
    waiting = [verdict for verdict in verdicts if verdict.in_pockets]
    assert {verdict.retry_after_s for verdict in waiting} == {1.0}
    one.turn()  # it does not get it again, whatever is left: somebody waits for it
    assert not one.book.has_pocket
    again = other.turn([Ask(tokens)] * most)
    assert again[0].refusal is None
    assert again[-1].refusal is not None
    assert not any(verdict.in_pockets for verdict in again)
    used = {
        "concurrency": len(other.open),
        "requests_per_minute": len(world.admitted),
        "tokens_per_minute": sum(one.tokens for one in world.admitted),
    }[kind]
    assert most - (tokens if kind == "tokens_per_minute" else 1) < used <= most


@pytest.mark.rule("limits.killed-process")
def test_what_a_killed_process_had_in_its_pocket_may_have_been_used_until_it_lapsed() -> None:
    world, (killed,) = busy(Limits(requests_per_minute=1000, concurrency=100), 0.0)
    pocket = world.state.leases["0"].pocket
    assert pocket.requests > 0
    assert pocket.in_flight > 0
    made, lapses_at = len(world.admitted), world.state.leases["0"].until

    def seen(at: float) -> tuple[int, bool]:
        world.now = at - WIRE_S
        (verdict,) = Process(world, "looks", 0.0).turn([Ask(look=True)])
        assert verdict.requests is not None
        return 1000 - verdict.requests.remaining, "0" in world.state.leases

    assert seen(lapses_at - 0.1) == (made + pocket.requests, True)
    assert seen(lapses_at) == (made + pocket.requests, False)
    assert seen(lapses_at + 59.9)[0] == pocket.requests
    assert seen(lapses_at + 60.5)[0] == 0
    # It would not have used it then any more.
    assert killed.book.admit(Ask(), lapses_at - HOLD_S + 1.9) is not None
    assert killed.book.admit(Ask(), lapses_at - HOLD_S + 2.0) is None


def test_a_pocket_has_no_more_than_an_eighth_of_what_is_left() -> None:
    wish = Allowance(100, 100, 1000, 1000)

    def granted(limits: Limits, taken: int, name: str = "one") -> Allowance:
        hold = Hold(taken, {MINUTE.part(NOW): taken}, taken)
        turn = Turn(account_id="a", limits=limits, hold=hold, settlement=Settlement(1), pocket=wish)
        outcome: Outcome = take_turn(
            AccountState(), turn, name, now=NOW, hold_s=HOLD_S, window=MINUTE
        )
        return outcome.pocket

    assert granted(Limits(concurrency=80), 0) == Allowance(100, 10, 1000, 1000)
    assert granted(Limits(concurrency=80), 60) == Allowance(100, 2, 1000, 1000)
    assert granted(Limits(concurrency=80), 61) == NO_ALLOWANCE
    assert granted(Limits(concurrency=7), 0) == NO_ALLOWANCE
    assert granted(Limits(tokens_per_minute=800), 0) == Allowance(100, 100, 100, 1000)
    assert granted(Limits(tokens_per_minute=79), 0) == NO_ALLOWANCE  # not for one request
    assert granted(Limits(budget=Budget(cents=1)), 999_000) == NO_ALLOWANCE


def test_all_pockets_together_have_no_more_than_an_eighth() -> None:
    world, processes = busy(Limits(requests_per_minute=400), *[0.0] * 9)
    for process in processes:
        process.turn()
    pockets = [lease.pocket.requests for lease in world.state.leases.values()]
    assert max(pockets) > 0
    assert sum(pockets) <= (400 - len(world.admitted)) // 8


def test_what_is_wished_for_follows_what_is_used() -> None:
    appetite, at = Appetite(), 100.0
    assert appetite.wish(at, 1.0) == NO_ALLOWANCE
    for _ in range(12):
        appetite.add(Ask(10, 5))
    appetite.add(Ask(140, 5))
    assert appetite.wish(at + 1.0, 1.0) == Allowance(26, 26, 520, 130)  # of two seconds
    # Less for a moment is not less for good.
    appetite.add(Ask(20, 5))
    assert appetite.wish(at + 1.1, 1.0).requests == 26
    # Unused, it is soon given back.
    wishes = [appetite.wish(at + 2.1 + turn, 1.0).requests for turn in range(3)]
    assert wishes == [6, 0, 0]
    # One request a second is not worth it.
    appetite.add(Ask(10, 5))
    assert appetite.wish(at + 5.2, 1.0) == NO_ALLOWANCE
