"""What a turn makes of the state of an account. Pure.

Source: error catalogue, "Authentication, access, account", "Precedence".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from ingress.accounts.account import Budget
from ingress.limits.state import (
    MICROCENTS,
    NO_ALLOWANCE,
    AccountState,
    Allowance,
    Ask,
    Hold,
    Lease,
    Level,
    Outcome,
    Refusal,
    Turn,
    Verdict,
    forget,
    settle,
)
from ingress.limits.window import Parts, Window, added

_SHORTLY_S: Final = 1.0
"""When to ask again for what a request in flight may give back at any moment."""
_WITHOUT_POCKETS_S: Final = 2.0
"""Who waits asks again before that."""


def take_turn(
    state: AccountState, turn: Turn, process: str, *, now: float, hold_s: float, window: Window
) -> Outcome:
    """The state after a turn of a process, whose hold is believed for `hold_s` from now."""
    state = forget(state, now, window)
    state = settle(state, turn.settlement, process, now, window)
    desk = _Desk(state, turn, process, now, window)
    verdicts = tuple(map(desk.decide, turn.asks))
    pocket = desk.pocket(turn.pocket)
    return Outcome(
        state=desk.state(now + hold_s, pocket),
        now=now,
        verdicts=verdicts,
        crowded=desk.crowded or any(verdict.refusal is not None for verdict in verdicts),
        pocket=pocket,
        requests=desk.requests_level(),
        tokens=desk.tokens_level(),
    )


class _Desk:
    """Decides the asks of one turn, one after the other.

    What the process itself had in its pocket is there for them.
    """

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
        leases = [lease for name, lease in state.leases.items() if name != process]
        others = [lease.hold for lease in leases]
        self._others = [window.recent(hold.tokens, part) for hold in others]
        self._pockets = sum((lease.pocket for lease in leases), NO_ALLOWANCE)
        self._no_pockets_until = state.no_pockets_until
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
        refusal, retry_after_s = self._judge(ask, NO_ALLOWANCE)
        in_pockets = False
        if refusal is None and self._pockets:
            refusal, _ = self._judge(ask, self._pockets)
            if refusal is not None:
                in_pockets, retry_after_s = True, _SHORTLY_S
                self._no_pockets_until = self._now + _WITHOUT_POCKETS_S
        if refusal is None and not ask.look:
            self._new += 1
            self._new_tokens += ask.tokens
            self._microcents += ask.microcents
            self._in_flight += 1
            self._reserved += ask.microcents
            self._requests += 1
            self._tokens += ask.tokens
        return Verdict(
            refusal=refusal,
            part=self._part,
            retry_after_s=retry_after_s,
            in_pockets=in_pockets,
            requests=self.requests_level(),
            tokens=self.tokens_level(),
        )

    @property
    def crowded(self) -> bool:
        """Whether three quarters are taken of one of the limits that settlements make room in."""
        limits, pockets = self._turn.limits, self._pockets
        pairs = [
            (self._in_flight + pockets.in_flight, limits.concurrency),
            (self._tokens + pockets.tokens, limits.tokens_per_minute),
        ]
        if limits.budget is not None:
            pairs.append((self._reserved + pockets.microcents, self._left(limits.budget)))
        return any(limit is not None and 4 * taken >= 3 * limit for taken, limit in pairs)

    def pocket(self, wish: Allowance) -> Allowance:
        """What of a wish is granted in advance: enough for one request at least, or nothing."""
        if not wish or self._now < self._no_pockets_until:
            return NO_ALLOWANCE
        limits, pockets = self._turn.limits, self._pockets
        left = None if limits.budget is None else self._left(limits.budget)
        granted = Allowance(
            _share(wish.requests, limits.requests_per_minute, self._requests, pockets.requests),
            _share(wish.in_flight, limits.concurrency, self._in_flight, pockets.in_flight),
            _share(wish.tokens, limits.tokens_per_minute, self._tokens, pockets.tokens),
            _share(wish.microcents, left, self._reserved, pockets.microcents),
        )
        enough = (
            granted.requests > 0
            and granted.in_flight > 0
            and granted.tokens * wish.requests >= wish.tokens
            and granted.microcents * wish.requests >= wish.microcents
        )
        return granted if enough else NO_ALLOWANCE

    def _left(self, budget: Budget) -> int:
        """Of a budget, in microcents; reserved or not."""
        return budget.cents * MICROCENTS - self._state.spent(budget.period, self._now)

    def state(self, until: float, pocket: Allowance) -> AccountState:
        """With what was granted."""
        turn, state = self._turn, self._state
        new = {self._part: self._new} if self._new else {}
        hold = Hold(
            turn.hold.in_flight + self._new,
            added(self._tokens_held, {self._part: self._new_tokens} if self._new_tokens else {}),
            self._microcents,
        )
        lease = Lease(until, turn.settlement.number, hold, new, pocket)
        return AccountState(
            added(state.requests, new),
            state.tokens,
            {**state.leases, self._process: lease},
            state.spending,
            self._no_pockets_until,
        )

    def _judge(self, ask: Ask, pockets: Allowance) -> tuple[Refusal | None, float]:
        """By what it is refused, if so, and when to ask again. What is never possible comes first.

        `pockets` are those of other processes that count.

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
        reserved = self._reserved + pockets.microcents
        if limits.budget is not None and reserved + ask.microcents > left:
            return "reserved", _SHORTLY_S
        in_flight = self._in_flight + pockets.in_flight
        if limits.concurrency is not None and in_flight >= limits.concurrency:
            return "concurrency", _SHORTLY_S
        refusal: Refusal | None = None
        wait_s = 0.0
        tokens_then = self._tokens + pockets.tokens + ask.tokens
        if tokens is not None and tokens_then > tokens:
            wait_s = self._room_in_s(self._by_part, tokens_then - tokens)
            refusal = "tokens"
        requests_then = self._requests + pockets.requests + 1
        if requests is not None and requests_then > requests:
            needed = requests_then - requests
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

    def requests_level(self) -> Level | None:
        """What is in pockets of others counts as used: they may just be using it."""
        used = self._requests + self._pockets.requests
        limit = self._turn.limits.requests_per_minute
        return self._level(limit, used, self._new, self._last_request)

    def tokens_level(self) -> Level | None:
        """As `requests_level`."""
        used = self._tokens + self._pockets.tokens
        limit = self._turn.limits.tokens_per_minute
        return self._level(limit, used, self._new_tokens, self._last_token)

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


def _share(wish: int, limit: int | None, taken: int, in_pockets: int) -> int:
    """Of a limit, for one pocket.

    All of them together have no more than an eighth of what is left, and nothing once three
    quarters are taken.
    """
    if limit is None:
        return wish
    left = limit - taken
    if 4 * (left - in_pockets) < limit:
        return 0
    return max(0, min(wish, left // 8 - in_pockets))


def _last(several: Iterable[Parts]) -> int | None:
    return max((part for amounts in several for part in amounts), default=None)
