"""What an account uses now, as one value, and the pure functions that change it.

The state of an account is shared by all processes of a deployment. Each of them says in its turns
what it holds for requests in flight, what others have used since, and what new ones ask for; what a
turn makes of a state depends on nothing else but the time.

What a process holds is said anew, whole, in each of its turns. So a turn that was lost, or a hold
that had lapsed, is made good by the next one, and a process that says nothing any more holds
nothing: all that it had reserved was in its hold.

A window counts by parts of equal length. One that has begun to leave it counts until all of it has
left, so that no 60 seconds, wherever they begin, ever have more than the limit; what that costs is
one part in 120 of what would be possible.

Source: error catalogue, "Authentication, access, account"; design, "Catalogue and accounts".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from ingress.accounts.account import Budget, Limits, Period

Parts: TypeAlias = Mapping[int, int]
"""Amounts by the part of the window in which they count."""

Refusal: TypeAlias = Literal["budget", "size", "reserved", "concurrency", "requests", "tokens"]

_MICROCENTS: Final = 1_000_000
_DAY_S: Final = 86_400
_SHORTLY_S: Final = 1.0
"""When to ask again for what a request in flight may give back at any moment."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How the last minute is divided.

    Attributes:
        length_s: Of the window; but for tests, a minute.
        parts: So many of it.
    """

    length_s: float = 60.0
    parts: int = 120

    def part(self, now: float) -> int:
        """In which part a moment is."""
        return math.floor(now * self.parts / self.length_s)

    def left_at(self, part: int) -> float:
        """When nothing of a part counts any more."""
        return (part + 1 + self.parts) * self.length_s / self.parts

    def recent(self, amounts: Parts, part: int) -> dict[int, int]:
        """What of these counts in the window that ends in `part`."""
        # As far ahead as back: the clock may have been put back a little.
        first, last = part - self.parts, part + self.parts
        return {at: n for at, n in amounts.items() if n and first <= at <= last}


MINUTE: Final = Window()


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """What one process holds of an account for its requests in flight.

    Attributes:
        in_flight: How many.
        tokens: Reserved for them, by when.
        microcents: Reserved for them.
    """

    in_flight: int = 0
    tokens: dict[int, int] = {}
    microcents: int = 0


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A hold and until when it is believed.

    Attributes:
        settled: Number of the process's last settlement, which is not to count twice.
        admitted: Requests that were admitted in the same turn.
    """

    until: float
    settled: int
    hold: Hold
    admitted: dict[int, int] = {}


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """What was used by requests that a process does not hold any more.

    Attributes:
        number: Different from that of any other of this process; the same if it is sent again.
        requests: Corrections to how many there were, by when: fewer, since some were never made;
            more, since the process admitted some by itself.
        tokens: Used, by when they were reserved.
        microcents: Used.
    """

    number: int
    requests: dict[int, int] = {}
    tokens: dict[int, int] = {}
    microcents: int = 0


class Spending(msgspec.Struct, frozen=True, array_like=True):
    """Used in one day or month, or ever.

    Attributes:
        number: Which; see `period_number`.
    """

    number: int
    microcents: int


class AccountState(msgspec.Struct, frozen=True, array_like=True):
    """What an account uses, apart from its limits.

    Attributes:
        requests: In the window.
        tokens: In the window, of requests that have been settled.
        leases: By process.
        spending: In the present period of each kind; so the kind of a budget may be changed.
    """

    requests: dict[int, int] = {}
    tokens: dict[int, int] = {}
    leases: dict[str, Lease] = {}
    spending: dict[Period, Spending] = {}

    def spent(self, period: Period, now: float) -> int:
        """Microcents used in the present period."""
        spending = self.spending.get(period)
        if spending is None or spending.number != period_number(period, now):
            return 0
        return spending.microcents

    def out_of_credit(self, limits: Limits, now: float) -> bool:
        """Whether the budget is used up."""
        budget = limits.budget
        return budget is not None and self.spent(budget.period, now) >= budget.cents * _MICROCENTS


class Seen(NamedTuple):
    """An account with limits, as a process saw it last.

    Attributes:
        now: Unix seconds, by the clock that judges.
    """

    account_id: str
    limits: Limits
    state: AccountState
    now: float


class Ask(msgspec.Struct, frozen=True):
    """What one request may use at most.

    Attributes:
        look: It only wants to know, and reserves nothing.
    """

    tokens: int = 0
    microcents: int = 0
    look: bool = False


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """All that one process says of one account at a time.

    Attributes:
        limits: As the process knows them; they are not part of the state.
        asks: In the order in which they are to be decided.
    """

    account_id: str
    limits: Limits
    hold: Hold
    settlement: Settlement
    asks: tuple[Ask, ...] = ()


class Level(msgspec.Struct, frozen=True):
    """How far a limit of the window is used.

    Attributes:
        full_in_s: Seconds until all of it is there again, if nothing more is used.
    """

    limit: int
    remaining: int
    full_in_s: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a request.

    Attributes:
        refusal: By what it is refused; None if it may go on, and has what it asked for.
        part: Of the window in which it counts.
        retry_after_s: Of a refusal: after how many seconds it could be otherwise.
        crowded: Little is left of what requests in flight may give back; others wait for it.
        requests, tokens: How the account then stands; None without such a limit.
    """

    refusal: Refusal | None
    part: int
    retry_after_s: float = 0.0
    crowded: bool = False
    requests: Level | None = None
    tokens: Level | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What a turn brought.

    Attributes:
        state: As it is now.
        now: The time by which that was decided, in Unix seconds.
        verdicts: In the order of the asks.
    """

    state: AccountState
    now: float
    verdicts: tuple[Verdict, ...]


def take_turn(
    state: AccountState, turn: Turn, process: str, *, now: float, hold_s: float, window: Window
) -> Outcome:
    """The state after a turn of a process, whose hold is believed for `hold_s` from now."""
    state = forget(state, now, window)
    state = settle(state, turn.settlement, process, now, window)
    desk = _Desk(state, turn, process, now, window)
    verdicts = tuple(map(desk.decide, turn.asks))
    return Outcome(desk.state(now + hold_s), now, verdicts)


def forget(state: AccountState, now: float, window: Window) -> AccountState:
    """Without the holds that have lapsed, and what has left the window."""
    part = window.part(now)
    return AccountState(
        window.recent(state.requests, part),
        window.recent(state.tokens, part),
        {process: lease for process, lease in state.leases.items() if now < lease.until},
        state.spending,
    )


def settle(
    state: AccountState, settlement: Settlement, process: str, now: float, window: Window
) -> AccountState:
    """With what was used.

    If it comes a second time, the process has not heard what became of its last turn. Then it
    counts once, and what that turn admitted was in vain; unless the lease has lapsed meanwhile.
    """
    lease = state.leases.get(process)
    if lease is not None and lease.settled == settlement.number:
        in_vain = {part: -n for part, n in lease.admitted.items()}
        settlement = Settlement(settlement.number, in_vain)
    part = window.part(now)
    return AccountState(
        window.recent(added(state.requests, settlement.requests), part),
        window.recent(added(state.tokens, settlement.tokens), part),
        state.leases,
        _spend(state, settlement.microcents, now),
    )


def _spend(state: AccountState, microcents: int, now: float) -> dict[Period, Spending]:
    if not microcents:
        return state.spending
    return {
        period: Spending(number(now), state.spent(period, now) + microcents)
        for period, number in _PERIODS.items()
    }


def added(a: Parts, b: Parts) -> dict[int, int]:
    """Both together."""
    together = dict(a)
    for part, amount in b.items():
        together[part] = together.get(part, 0) + amount
    return together


class _Desk:
    """Decides the asks of one turn, one after the other."""

    def __init__(
        self, state: AccountState, turn: Turn, process: str, now: float, window: Window
    ) -> None:
        self._state = state
        self._turn = turn
        self._process = process
        self._now = now
        self._window = window
        self._part = part = window.part(now)
        held = turn.hold
        self._tokens_held = window.recent(held.tokens, part)
        others = [lease.hold for name, lease in state.leases.items() if name != process]
        self._others = [window.recent(hold.tokens, part) for hold in others]
        # What counts, and is counted on here.
        self._new = 0
        self._new_tokens = 0
        self._in_flight = held.in_flight + sum(hold.in_flight for hold in others)
        self._reserved = held.microcents + sum(hold.microcents for hold in others)
        self._requests = sum(state.requests.values())
        self._tokens = sum(
            sum(amounts.values()) for amounts in (state.tokens, self._tokens_held, *self._others)
        )
        self._microcents = held.microcents

    def decide(self, ask: Ask) -> Verdict:
        refusal, retry_after_s = self._judge(ask)
        if refusal is None and not ask.look:
            self._new += 1
            self._new_tokens += ask.tokens
            self._microcents += ask.microcents
            self._in_flight += 1
            self._reserved += ask.microcents
            self._requests += 1
            self._tokens += ask.tokens
        limits = self._turn.limits
        return Verdict(
            refusal=refusal,
            part=self._part,
            retry_after_s=retry_after_s,
            crowded=refusal is not None or self._is_crowded(),
            requests=self._level(
                limits.requests_per_minute, self._requests, self._new, self._last_request
            ),
            tokens=self._level(
                limits.tokens_per_minute, self._tokens, self._new_tokens, self._last_token
            ),
        )

    def _is_crowded(self) -> bool:
        """Whether three quarters are taken of one of the limits that settlements make room in."""
        limits = self._turn.limits
        pairs = [(self._in_flight, limits.concurrency), (self._tokens, limits.tokens_per_minute)]
        if limits.budget is not None:
            pairs.append((self._reserved, self._left(limits.budget)))
        return any(limit is not None and 4 * taken >= 3 * limit for taken, limit in pairs)

    def _left(self, budget: Budget) -> int:
        """Of a budget, in microcents; reserved or not."""
        return budget.cents * _MICROCENTS - self._state.spent(budget.period, self._now)

    def state(self, until: float) -> AccountState:
        """With what was granted."""
        turn, state = self._turn, self._state
        new = {self._part: self._new} if self._new else {}
        hold = Hold(
            turn.hold.in_flight + self._new,
            added(self._tokens_held, {self._part: self._new_tokens} if self._new_tokens else {}),
            self._microcents,
        )
        lease = Lease(until, turn.settlement.number, hold, new)
        return AccountState(
            added(state.requests, new),
            state.tokens,
            {**state.leases, self._process: lease},
            state.spending,
        )

    def _judge(self, ask: Ask) -> tuple[Refusal | None, float]:
        """By what it is refused, if so, and when to ask again. What is never possible comes first.

        Source: error catalogue, "Precedence": credit comes before concurrency and rate.
        """
        limits = self._turn.limits
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        if limits.budget is not None:
            left = self._left(limits.budget)
            if left <= 0 or ask.microcents > left:
                return "budget", 0.0
        if tokens is not None and ask.tokens > tokens:
            return "size", 0.0
        if limits.budget is not None and self._reserved + ask.microcents > left:
            return "reserved", _SHORTLY_S
        if limits.concurrency is not None and self._in_flight >= limits.concurrency:
            return "concurrency", _SHORTLY_S
        refusal: Refusal | None = None
        wait_s = 0.0
        if tokens is not None and self._tokens + ask.tokens > tokens:
            wait_s = self._room_in_s(self._by_part, self._tokens + ask.tokens - tokens)
            refusal = "tokens"
        if requests is not None and self._requests >= requests:
            needed = self._requests + 1 - requests
            wait_s = max(wait_s, self._room_in_s(self._state.requests, needed))
            refusal = "requests"
        return refusal, wait_s

    @cached_property
    def _by_part(self) -> Parts:
        """Tokens used and reserved before this turn's asks."""
        together: Parts = self._state.tokens
        for amounts in (self._tokens_held, *self._others):
            together = added(together, amounts)
        return together

    def _room_in_s(self, amounts: Parts, needed: int) -> float:
        """Seconds until so much has left the window."""
        for part in sorted(amounts):
            needed -= amounts[part]
            if needed <= 0:
                return self._window.left_at(part) - self._now
        # It needs what this turn has granted.
        return self._window.left_at(self._part) - self._now

    def _level(
        self, limit: int | None, used: int, new: int, last: Callable[[], int | None]
    ) -> Level | None:
        if limit is None:
            return None
        part = self._part if new else last()
        full_in_s = 0.0 if part is None else self._window.left_at(part) - self._now
        return Level(limit, max(0, limit - used), full_in_s)

    def _last_request(self) -> int | None:
        return _last((self._state.requests,))

    def _last_token(self) -> int | None:
        return _last((self._state.tokens, self._tokens_held, *self._others))


def _last(several: Iterable[Parts]) -> int | None:
    return max((part for amounts in several for part in amounts), default=None)


# --- Periods --------------------------------------------------------------------------------------


def period_number(period: Period, now: float) -> int:
    """Which day or month a moment is in, by UTC, as a number that differs from all others."""
    return _PERIODS[period](now)


def _day(now: float) -> int:
    return math.floor(now / _DAY_S)


def _month(now: float) -> int:
    """Months since March of the year 0, in the calendar as it is today."""
    # Years are counted from March, so that a leap day is the last of its year. 400 of them always
    # have 146,097 days; 719,468 days went before 1970.
    era, day = divmod(_day(now) + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    return (era * 400 + year) * 12 + (5 * day_of_year + 2) // 153


def _ever(now: float) -> int:
    del now
    return 0


_PERIODS: Final[Mapping[Period, Callable[[float], int]]] = {
    "day": _day,
    "month": _month,
    "total": _ever,
}
