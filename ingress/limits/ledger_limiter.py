"""The `Limiter` of a process over a ledger that it shares with others.

What concurrent requests ask for and have used is gathered while an exchange with the ledger is
under way, and goes with the next one; so the more there are, the less each of them costs. Accounts
without limits never come here.

While an account is far from its limits, what the next requests will ask for is asked for in
advance, and those that have it wait for no exchange; see `ingress.limits.pocket`. Whoever is
refused only because other processes have something in their pockets waits until they have seen that
little is left and given it back.

If the ledger is away nobody waits for it: the process decides by what it knew last, as if it were
alone, and what it then admits and uses is told to the ledger when that is back. Limits then hold in
each process, not over all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal

import structlog

from ingress.accounts.account import Account
from ingress.limits.book import Asking, Book
from ingress.limits.ledger import Ledger, MemoryLedger
from ingress.limits.limiter import NOTHING, Demand, Reservation
from ingress.limits.refusals import refusal, used_up
from ingress.limits.standing import Standing
from ingress.limits.state import NO_ALLOWANCE, Allowance, Ask, Level, Outcome, Seen, Turn, Verdict
from ingress.limits.window import Window
from ingress.metrics import IngressMetrics
from ingress.settings import LimitSettings
from ingress.stores.base import StoreUnavailable
from schemas.delta import Usage
from schemas.errors import ServerShuttingDown

log = structlog.get_logger()

_TURNS: Final = 32
"""Of the event loop, at least, before the ledger counts as away."""

_AGAIN_S: Final = 0.1
"""From one look for what others have in their pockets to the next."""

_LOOK: Final = Ask(tokens=1, look=True)
_LOOK_AT_BUDGET: Final = Ask(look=True)


class _Reserved:
    """What one request holds. See `Reservation`."""

    __slots__ = ("_ask", "_book", "_in_flight", "_limiter", "_now", "_open", "_verdict")

    def __init__(
        self, limiter: LedgerLimiter, book: Book, ask: Ask, verdict: Verdict, now: float
    ) -> None:
        self._limiter = limiter
        self._book = book
        self._ask = ask
        self._verdict = verdict
        self._now = now
        self._in_flight = True
        self._open = True

    @property
    def standings(self) -> Sequence[Standing]:
        return standings_of(self._verdict, self._now)

    def leave(self) -> None:
        if self._in_flight:
            self._in_flight = False
            self._book.leave()
            self._limiter.wake(self._book, soon=self._book.crowded)

    def settle(self, usage: Usage, microcents: int) -> None:
        self._end(tokens=usage.input_tokens + usage.output_tokens, microcents=microcents)

    def give_back(self) -> None:
        self._end(requests=-1)

    def _end(self, *, requests: int = 0, tokens: int = 0, microcents: int = 0) -> None:
        if not self._open:
            return
        self.leave()
        self._open = False
        self._limiter.let_go(
            self._book,
            self._verdict.part,
            self._ask,
            requests=requests,
            tokens=tokens,
            microcents=microcents,
        )


class LedgerLimiter:
    """Holds the limits of accounts together with other processes.

    Must be made where a loop runs.

    Args:
        gather_s: The least time between two exchanges.
        tell_within_s: How long what was used may wait to be told, if nobody waits for it.
        pocket_s: From one exchange to the next of an account with a pocket, if nothing else makes
            one; 0 for no pockets.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: LimitSettings,
        metrics: IngressMetrics,
        *,
        gather_s: float = 0.0,
        tell_within_s: float = 0.0,
        pocket_s: float = 0.0,
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._metrics = metrics
        self._gather_s = gather_s
        self._tell_within_s = tell_within_s
        self._pocket_s = min(pocket_s, settings.hold_s / 4)  # it must not outlive the hold
        self._window = Window(length_s=settings.window_s)
        self._process = secrets.token_hex(8)
        self._loop = asyncio.get_running_loop()
        self._books: dict[str, Book] = {}
        self._due: dict[str, Book] = {}  # there is something to tell or to ask
        self._some = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None
        self._renew_at = 0.0
        self._ahead_s = 0.0  # of the ledger's clock
        self._diagnostic: str | None = None  # why the last exchange failed
        self._alone: MemoryLedger | None = None  # decides while the ledger is away
        self._returning: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    # --- Of requests ------------------------------------------------------------------------------

    async def require_credit(self, account: Account) -> None:
        if account.limits.budget is None:
            return
        book = self._book(account)
        if book.state is None:
            verdict, _ = await self._ask(book, _LOOK_AT_BUDGET)
            if verdict.refusal == "budget":
                raise used_up()
        elif book.state.out_of_credit(account.limits, self._now()):
            raise used_up()

    async def require_room(self, account: Account) -> None:
        if account.limits.any:
            await self._judged(self._book(account), _LOOK)

    async def reserve(self, account: Account, demand: Demand) -> Reservation:
        if not account.limits.any:
            return NOTHING
        book = self._book(account)
        ask = Ask(demand.input_tokens + demand.output_tokens, demand.microcents)
        verdict, now = await self._judged(book, ask)
        return _Reserved(self, book, ask, verdict, now)

    def charge(self, account: Account, usage: Usage, microcents: int) -> None:
        del usage
        if account.limits.budget is not None and microcents:
            book = self._book(account)
            book.charge(microcents)
            self.wake(book, soon=False)

    def seen(self) -> Sequence[Seen]:
        now = self._now()
        return [
            Seen(book.account_id, book.limits, book.state, now)
            for book in self._books.values()
            if book.state is not None
        ]

    async def _judged(self, book: Book, ask: Ask) -> tuple[Verdict, float]:
        admitted = book.admit(ask, self._loop.time())
        if admitted is not None:
            return admitted
        limits = book.limits
        verdict, now = await self._ask(book, ask)
        if verdict.refusal is not None:
            raise refusal(verdict, ask, limits, standings_of(verdict, now))
        return verdict, now

    async def _ask(self, book: Book, ask: Ask) -> tuple[Verdict, float]:
        """What becomes of a request, and when that was decided."""
        gives_up_at = self._loop.time() + 2 * self._pocket_s
        asking = Asking(ask, self._loop.create_future(), gives_up_at=gives_up_at)
        book.asking.append(asking)
        self.wake(book)
        return await asking.verdict

    def _book(self, account: Account) -> Book:
        book = self._books.get(account.account_id)
        if book is None:
            book = self._books[account.account_id] = Book(account)
        elif book.limits is not account.limits:
            changed = book.limits != account.limits
            book.limits = account.limits
            if changed and book.has_pocket:
                book.drop_pocket()
                self.wake(book)
        return book

    def wake(self, book: Book, *, soon: bool = True) -> None:
        """There is something to ask; or to tell, which may wait for a moment unless `soon`."""
        if book.has_pocket and not soon:
            return  # its next turn is near
        self._due[book.account_id] = book
        if soon or not self._tell_within_s:
            self._some.set()
        elif self._telling is None:
            self._telling = self._loop.call_later(self._tell_within_s, self._tell_now)
        if self._running is None and not self._closed:
            self._running = asyncio.create_task(self._run())

    def _tell_now(self) -> None:
        self._telling = None
        self._some.set()

    def let_go(
        self, book: Book, part: int, ask: Ask, *, requests: int, tokens: int, microcents: int
    ) -> None:
        """A request of this part of the window has ended; see `Book.let_go`."""
        book.let_go(
            part,
            ask,
            self._loop.time(),
            requests=requests,
            tokens=tokens,
            microcents=microcents,
        )
        self.wake(book, soon=book.crowded)

    def _now(self) -> float:
        """The ledger's time, as far as known."""
        return time.time() + self._ahead_s

    # --- Of exchanges -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._until_due()
            due, self._due = list(self._due.values()), {}
            self._some.clear()
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None
            asks = [book.asking for book in due]
            for book in due:
                book.asking = []
            if self._alone is None:
                await self._exchange(due, asks)
            else:
                turns = [book.lonely_turn(asking) for book, asking in zip(due, asks, strict=True)]
                self._decide_alone(due, asks, turns)
            if self._gather_s:
                await asyncio.sleep(self._gather_s)

    async def _until_due(self) -> None:
        """Wait until there is something to say: what is held is said again from time to time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._renew_at):
                    await self._some.wait()
            # However busy other accounts are.
            if self._loop.time() >= self._renew_at:
                self._renew()
            if self._due:
                return
            self._some.clear()

    def _renew(self) -> None:
        self._renew_at = self._loop.time() + self._settings.hold_s / 3
        if self._alone is None:
            for book in self._books.values():
                if book.holds:
                    self._due[book.account_id] = book

    async def _exchange(self, due: Sequence[Book], asks: Sequence[Sequence[Asking]]) -> None:
        at = self._loop.time()
        turns = [
            book.turn(asking, self._wish(book, at)) for book, asking in zip(due, asks, strict=True)
        ]
        attempt = asyncio.create_task(self._attempt(turns))
        try:
            await self._patiently(attempt)
        except asyncio.CancelledError:
            attempt.cancel()
            for asking in asks:
                _give_up(asking)
            raise
        outcomes = attempt.result() if attempt.done() else None
        if outcomes is not None:
            for book, asking, turn, outcome in zip(due, asks, turns, outcomes, strict=True):
                book.told(outcome)
                self._tell(book, asking, outcome)
                if outcome.pocket:
                    self._open_pocket(book, turn, outcome, at)
            return
        log.warning(
            "limits.ledger_lost",
            hint="each process holds accounts' limits by itself until it is back",
            diagnostic=self._diagnostic,
        )
        for book in self._books.values():
            book.drop_pocket()
        states = {book.account_id: book.state for book in self._books.values() if book.state}
        self._alone = MemoryLedger(
            hold_s=self._settings.hold_s,
            window=self._window,
            clock=self._now,
            states=states,
        )
        self._metrics.limits_alone.set(1)
        self._returning = asyncio.create_task(self._return(attempt, due, asks))
        turns = [book.missed_turn(asking) for book, asking in zip(due, asks, strict=True)]
        self._decide_alone(due, asks, turns)

    async def _patiently(self, attempt: asyncio.Task[Sequence[Outcome] | None]) -> None:
        """Wait for an exchange as long as requests may.

        In several turns of the loop: what was late in a process that is busy is not the ledger.
        """
        for _ in range(_TURNS):
            await asyncio.wait((attempt,), timeout=self._settings.wait_s / _TURNS)
            if attempt.done():
                return

    async def _attempt(self, turns: Sequence[Turn]) -> Sequence[Outcome] | None:
        """What the ledger made of these turns; None if it cannot be reached."""
        asked_at = self._loop.time()
        self._diagnostic = "no answer in time"
        try:
            outcomes = await self._ledger.exchange(self._process, turns)
        except StoreUnavailable as error:
            self._diagnostic = error.diagnostic
            return None
        except Exception as error:  # whatever it is, requests must not wait for it
            log.error("limits.exchange_crashed", error=type(error).__name__, exc_info=error)
            return None
        self._metrics.limits_exchange.observe(self._loop.time() - asked_at)
        if outcomes:
            self._ahead_s = outcomes[-1].now - time.time()
        return outcomes

    def _tell(self, book: Book, asking: Sequence[Asking], outcome: Outcome) -> None:
        """Hand out the verdicts."""
        book.crowded = outcome.crowded
        again = []
        for one, verdict in zip(asking, outcome.verdicts, strict=True):
            if verdict.in_pockets and self._waits(one):
                again.append(one)
                continue
            granted = verdict.refusal is None and not one.ask.look
            if granted:
                book.hold(verdict.part, one.ask)
            if not one.verdict.cancelled():
                one.verdict.set_result((verdict, outcome.now))
            elif granted:
                book.leave()
                self.let_go(book, verdict.part, one.ask, requests=-1, tokens=0, microcents=0)
        if again:
            book.asking[:0] = again
            self._loop.call_later(_AGAIN_S, self.wake, book)

    def _waits(self, one: Asking) -> bool:
        """Whether a request waits for what is in the pockets of others."""
        return (
            self._alone is None
            and not one.verdict.cancelled()
            and self._loop.time() < one.gives_up_at
        )

    def _wish(self, book: Book, at: float) -> Allowance:
        return book.wish(at, self._pocket_s) if self._pocket_s else NO_ALLOWANCE

    def _open_pocket(self, book: Book, turn: Turn, outcome: Outcome, asked_at: float) -> None:
        """Admit from now on without asking, beginning with those who are waiting."""
        if turn.limits != book.limits:
            self.wake(book)  # they are others now
            return
        book.open_pocket(outcome, self._window, asked_at=asked_at, lasts_s=2 * self._pocket_s)
        book.next_turn = self._loop.call_later(self._pocket_s, self.wake, book)
        waiting, book.asking = book.asking, []
        for one in waiting:
            admitted = None
            if not one.verdict.cancelled():
                admitted = book.admit(one.ask, self._loop.time())
            if admitted is None:
                book.asking.append(one)
            else:
                one.verdict.set_result(admitted)
        if not book.asking:
            self._due.pop(book.account_id, None)

    # --- While the ledger is away -----------------------------------------------------------------

    def _decide_alone(
        self,
        due: Sequence[Book],
        asks: Sequence[Sequence[Asking]],
        turns: Sequence[Turn],
    ) -> None:
        assert self._alone is not None
        outcomes = self._alone.take(self._process, turns)
        for book, asking, outcome in zip(due, asks, outcomes, strict=True):
            book.state = outcome.state
            for one, verdict in zip(asking, outcome.verdicts, strict=True):
                if verdict.refusal is None and not one.ask.look:
                    book.owe(verdict.part, 1)
                self._metrics.limits_decided_alone.inc()
            self._tell(book, asking, outcome)

    async def _return(
        self,
        attempt: asyncio.Task[Sequence[Outcome] | None],
        sent: Sequence[Book],
        asks: Sequence[Sequence[Asking]],
    ) -> None:
        """Come back to the ledger, whether it was slow or away."""
        outcomes = await attempt
        while outcomes is None:
            await asyncio.sleep(self._settings.retry_s)
            sent = [book for book in self._books.values() if book.owes or book.holds]
            asks = [[] for _ in sent]
            outcomes = await self._attempt([book.turn(()) for book in sent])
        for book, asking, outcome in zip(sent, asks, outcomes, strict=True):
            book.told(outcome)
            for one, verdict in zip(asking, outcome.verdicts, strict=True):
                if verdict.refusal is None and not one.ask.look:
                    book.owe(verdict.part, -1)  # it came too late, and was decided here
        self._alone = None
        self._metrics.limits_alone.set(0)
        log.info("limits.ledger_found")
        for book in self._books.values():
            if book.owes or book.holds:
                self.wake(book)

    # --- The end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        if self._telling is not None:
            self._telling.cancel()
        tasks = [task for task in (self._running, self._returning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for book in self._books.values():
            _give_up(book.asking)
        left = [book for book in self._books.values() if book.owes or book.holds]
        for book in left:
            book.let_all_go()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.wait_s):
                while left:
                    outcomes = await self._attempt([book.turn(()) for book in left])
                    if outcomes is None:
                        break
                    for book, outcome in zip(left, outcomes, strict=True):
                        book.told(outcome)
                    left = [book for book in left if book.owes]
        if left:
            log.warning("limits.untold", accounts=len(left))
        await self._ledger.close()


def _give_up(asks: Sequence[Asking]) -> None:
    for asking in asks:
        if not asking.verdict.done():
            asking.verdict.set_exception(ServerShuttingDown("The server is shutting down."))


def standings_of(verdict: Verdict, now: float) -> Sequence[Standing]:
    """How an account stands, as clients are told."""
    levels: Sequence[tuple[Literal["requests", "tokens"], Level | None]] = (
        ("requests", verdict.requests),
        ("tokens", verdict.tokens),
    )
    return tuple(
        Standing(
            kind=kind,
            limit=level.limit,
            remaining=level.remaining,
            reset_s=level.full_in_s,
            reset_at=_moment(math.ceil(now + level.full_in_s)),
        )
        for kind, level in levels
        if level is not None
    )


@lru_cache(maxsize=8)  # all requests of a second have the same
def _moment(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
