"""What an account uses now, as one value, and the pure functions that change it.

The state of an account is shared by all processes of a deployment. Each of them says in its turns
what it holds for requests in flight, what others have used since, and what new ones ask for; what a
turn makes of a state depends on nothing else but the time.

What a process holds is said anew, whole, in each of its turns. So a turn that was lost, or a hold
that had lapsed, is made good by the next one, and a process that says nothing any more holds
nothing: all that it had reserved was in its hold.

While plenty is left of every limit, a process may reserve in advance what its next requests will
ask for: its pocket. Until it has been told what became of it, all of it counts as used now.

Source: error catalogue, "Authentication, access, account"; design, "Catalogue and accounts".
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from ingress.accounts.account import Limits, Period
from ingress.limits.periods import NUMBERS, period_number
from ingress.limits.window import Window, added

Refusal: TypeAlias = Literal["budget", "size", "reserved", "concurrency", "requests", "tokens"]

MICROCENTS: Final = 1_000_000
"""Of a cent."""


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


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """What a process may admit by itself.

    Attributes:
        requests: How many.
        in_flight: How many more at once.
        tokens: Reserved by all of them together.
        microcents: Reserved by all of them together.
    """

    requests: int = 0
    in_flight: int = 0
    tokens: int = 0
    microcents: int = 0

    def __bool__(self) -> bool:
        return self.requests > 0

    def __add__(self, other: Allowance) -> Allowance:
        return Allowance(
            self.requests + other.requests,
            self.in_flight + other.in_flight,
            self.tokens + other.tokens,
            self.microcents + other.microcents,
        )


NO_ALLOWANCE: Final = Allowance()


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A hold and until when it is believed.

    Attributes:
        settled: Number of the process's last settlement, which is not to count twice.
        admitted: Requests that were admitted in the same turn.
        pocket: What it may admit meanwhile.
    """

    until: float
    settled: int
    hold: Hold
    admitted: dict[int, int] = {}
    pocket: Allowance = NO_ALLOWANCE


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
        no_pockets_until: Since somebody waits for what is in them. In Unix seconds.
    """

    requests: dict[int, int] = {}
    tokens: dict[int, int] = {}
    leases: dict[str, Lease] = {}
    spending: dict[Period, Spending] = {}
    no_pockets_until: float = 0.0

    def spent(self, period: Period, now: float) -> int:
        """Microcents used in the present period."""
        spending = self.spending.get(period)
        if spending is None or spending.number != period_number(period, now):
            return 0
        return spending.microcents

    def out_of_credit(self, limits: Limits, now: float) -> bool:
        """Whether the budget is used up."""
        budget = limits.budget
        return budget is not None and self.spent(budget.period, now) >= budget.cents * MICROCENTS


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
        pocket: What it would like to have in advance, in place of what it had: of that it admits
            nothing any more.
    """

    account_id: str
    limits: Limits
    hold: Hold
    settlement: Settlement
    asks: tuple[Ask, ...] = ()
    pocket: Allowance = NO_ALLOWANCE


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
        in_pockets: What it lacks is in pockets of other processes, and comes back in a moment.
        requests, tokens: How the account then stands; None without such a limit.
    """

    refusal: Refusal | None
    part: int
    retry_after_s: float = 0.0
    in_pockets: bool = False
    requests: Level | None = None
    tokens: Level | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What a turn brought.

    Attributes:
        state: As it is now.
        now: The time by which that was decided, in Unix seconds.
        verdicts: In the order of the asks.
        crowded: Little is left of what requests in flight may give back; others wait for it.
        pocket: What was granted in advance.
        requests, tokens: How the account stands, with all of the pocket still there.
    """

    state: AccountState
    now: float
    verdicts: tuple[Verdict, ...]
    crowded: bool
    pocket: Allowance
    requests: Level | None
    tokens: Level | None


def forget(state: AccountState, now: float, window: Window) -> AccountState:
    """Without the holds that have lapsed, and what has left the window.

    What a process had in its pocket it may have admitted, as long as that was believed.
    """
    part = window.part(now)
    requests = state.requests
    for lease in state.leases.values():
        if lease.until <= now and lease.pocket:
            requests = added(requests, {window.part(lease.until): lease.pocket.requests})
    return AccountState(
        window.recent(requests, part),
        window.recent(state.tokens, part),
        {process: lease for process, lease in state.leases.items() if now < lease.until},
        state.spending,
        state.no_pockets_until,
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
        state.no_pockets_until,
    )


def _spend(state: AccountState, microcents: int, now: float) -> dict[Period, Spending]:
    if not microcents:
        return state.spending
    return {
        period: Spending(number(now), state.spent(period, now) + microcents)
        for period, number in NUMBERS.items()
    }
