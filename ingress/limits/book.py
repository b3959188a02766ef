"""What one process holds of one account, and what it has to tell of it to the ledger.

It knows no ledger and waits for nothing: it keeps the books, and makes turns of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ingress.accounts.account import Account
from ingress.limits.pocket import Appetite, Pocket
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
from ingress.limits.window import MINUTE, Window, added

_MOST_PARTS: Final = 2 * MINUTE.parts


class _Used:
    """What was used and corrected since it was last told. Grows with the window, not with use."""

    __slots__ = ("microcents", "requests", "tokens")

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.microcents = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.tokens or self.microcents)

    def add(self, part: int, *, requests: int = 0, tokens: int = 0, microcents: int = 0) -> None:
        if requests:
            self.requests[part] = self.requests.get(part, 0) + requests
        if tokens:
            self.tokens[part] = self.tokens.get(part, 0) + tokens
        self.microcents += microcents

    def include(self, other: _Used) -> None:
        self.requests = _newest(added(self.requests, other.requests))
        self.tokens = _newest(added(self.tokens, other.tokens))
        self.microcents += other.microcents

    def settlement(self, number: int) -> Settlement:
        return Settlement(number, self.requests, self.tokens, self.microcents)


def _newest(amounts: dict[int, int]) -> dict[int, int]:
    """Without what has left the window long ago."""
    if len(amounts) <= _MOST_PARTS:
        return amounts
    return {part: amounts[part] for part in sorted(amounts)[-_MOST_PARTS:]}


class Asking:
    """A request that waits for its verdict.

    Attributes:
        gives_up_at: When it does not wait any more for what is in the pockets of other processes.
    """

    __slots__ = ("ask", "gives_up_at", "verdict")

    def __init__(
        self, ask: Ask, verdict: asyncio.Future[tuple[Verdict, float]], *, gives_up_at: float
    ) -> None:
        self.ask = ask
        self.verdict = verdict
        self.gives_up_at = gives_up_at


class Book:
    """What this process holds of one account, and what it has to tell of it.

    Attributes:
        limits: As last heard.
        asking: Who has not been sent with a turn.
        state: As last seen.
        crowded: Others may be waiting for what is given back here.
        next_turn: Of a book with a pocket.
    """

    def __init__(self, account: Account) -> None:
        self.account_id = account.account_id
        self.limits = account.limits
        self.asking: list[Asking] = []
        self.state: AccountState | None = None
        self.crowded = False
        self.next_turn: asyncio.TimerHandle | None = None
        self._pocket: Pocket | None = None
        self._pocketed = False  # as far as the ledger may believe
        self._appetite = Appetite()
        self._open = 0
        self._in_flight = 0
        self._tokens: dict[int, int] = {}
        self._microcents = 0
        self._fresh = _Used()  # in no turn yet
        self._owed = _Used()  # counted here, while the ledger is away, and not told to it
        self._telling: _Used | None = None  # told to it, and not known to have arrived
        self._told_as = 0
        self._number = 0

    @property
    def holds(self) -> bool:
        """Whether there are reservations that are not settled."""
        return self._open > 0 or self._pocketed

    @property
    def has_pocket(self) -> bool:
        return self._pocket is not None

    @property
    def owes(self) -> bool:
        """Whether there is something that the ledger is not known to have heard."""
        return bool(self._fresh or self._owed or self._telling is not None)

    # --- Of requests

    def admit(self, ask: Ask, at: float) -> tuple[Verdict, float] | None:
        """Admit a request from the pocket; None if it must ask.

        `at` is by the clock of this process, as everywhere here; what comes with the verdict is
        by the ledger's.
        """
        taken = None if self._pocket is None else self._pocket.take(ask, at)
        if taken is not None and not ask.look:
            part = taken[0].part
            self.hold(part, ask)
            self._fresh.add(part, requests=1)
        return taken

    def hold(self, part: int, ask: Ask) -> None:
        """A request has been admitted."""
        self._appetite.add(ask)
        self._open += 1
        self._in_flight += 1
        self._tokens[part] = self._tokens.get(part, 0) + ask.tokens
        self._microcents += ask.microcents

    def leave(self) -> None:
        """It is not in flight any more."""
        if self._open:
            self._in_flight -= 1
            if self._pocket is not None:
                self._pocket.leave()

    def let_go(
        self,
        part: int,
        ask: Ask,
        at: float,
        *,
        requests: int = 0,
        tokens: int = 0,
        microcents: int = 0,
    ) -> None:
        """What is left of it are what it used, and whether it is to count as a request."""
        if not self._open:
            return  # all was let go
        self._open -= 1
        self._microcents -= ask.microcents
        self._tokens = added(self._tokens, {part: -ask.tokens})
        if not self._tokens[part]:
            del self._tokens[part]
        self._fresh.add(part, requests=requests, tokens=tokens, microcents=microcents)
        if self._pocket is not None:
            self._pocket.give_back(
                part,
                at,
                requests=-requests,
                tokens=ask.tokens - tokens,
                microcents=ask.microcents - microcents,
            )

    def let_all_go(self) -> None:
        """The process ends."""
        self._open = self._in_flight = self._microcents = 0
        self._tokens = {}
        self._pocket = None

    def drop_pocket(self) -> None:
        """Admit nothing more without asking; the next turn gives back what is left."""
        self._pocket = None

    def charge(self, microcents: int) -> None:
        self._fresh.add(0, microcents=microcents)

    # --- Of turns

    def wish(self, at: float, turn_s: float) -> Allowance:
        """What this process would like to have in advance."""
        return self._appetite.wish(at, turn_s)

    def _turn(
        self, settlement: Settlement, asks: Sequence[Asking], pocket: Allowance = NO_ALLOWANCE
    ) -> Turn:
        self._pocket = None  # it is given back, and nobody knows yet what comes instead
        if self.next_turn is not None:
            self.next_turn.cancel()
            self.next_turn = None
        return Turn(
            account_id=self.account_id,
            limits=self.limits,
            hold=Hold(self._in_flight, dict(self._tokens), self._microcents),
            settlement=settlement,
            asks=tuple(asking.ask for asking in asks),
            pocket=pocket,
        )

    def turn(self, asks: Sequence[Asking], pocket: Allowance = NO_ALLOWANCE) -> Turn:
        """For the ledger. What may have arrived already goes again as it was, and nothing else."""
        if self._telling is None:
            self._telling, self._owed = self._owed, _Used()
            self._telling.include(self._fresh)
            self._fresh = _Used()
            self._told_as = self._next_number()
        self._pocketed = self._pocketed or bool(pocket)
        return self._turn(self._telling.settlement(self._told_as), asks, pocket)

    def told(self, outcome: Outcome) -> None:
        """The ledger has taken the latest turn for it."""
        self._telling = None
        self.state = outcome.state
        self._pocketed = bool(outcome.pocket)

    def open_pocket(
        self, outcome: Outcome, window: Window, *, asked_at: float, lasts_s: float
    ) -> None:
        """Admit without asking what was granted in advance, if anything was."""
        if outcome.pocket:
            self._pocket = Pocket(outcome, self.limits, window, asked_at=asked_at, lasts_s=lasts_s)

    def missed_turn(self, asks: Sequence[Asking]) -> Turn:
        """For this process alone, in place of the first one that the ledger did not take."""
        assert self._telling is not None
        return self._turn(self._telling.settlement(self._next_number()), asks)

    def lonely_turn(self, asks: Sequence[Asking]) -> Turn:
        """For this process alone; the ledger is owed it."""
        fresh, self._fresh = self._fresh, _Used()
        self._owed.include(fresh)
        return self._turn(fresh.settlement(self._next_number()), asks)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def owe(self, part: int, requests: int) -> None:
        """Requests that were admitted without the ledger, or by it in vain."""
        self._owed.add(part, requests=requests)
