from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from ingress.accounts.account import Account, Budget, Limits
from ingress.limits.ledger import MemoryLedger
from ingress.limits.ledger_limiter import LedgerLimiter
from ingress.limits.limiter import Demand
from ingress.limits.refusals import ConcurrencyRefusal, RateRefusal, TooLargeForLimit
from ingress.limits.state import Hold, Outcome, Settlement, Turn
from ingress.metrics import IngressMetrics
from ingress.settings import LimitSettings
from ingress.stores.base import StoreUnavailable
from schemas.delta import Usage
from schemas.errors import InsufficientCredits, RequestError, ServerShuttingDown
from tests.fixtures.stack import until

SMALL = Demand(input_tokens=3, output_tokens=7, microcents=100)
USED = Usage(4, 2, 1, 0)
LIMITED = Account(account_id="limited", limits=Limits(concurrency=2))
MANY = Account(account_id="many", limits=Limits(requests_per_minute=1000, tokens_per_minute=10_000))
PAID = Account(account_id="paid", limits=Limits(budget=Budget(cents=1)))


class Ledger:
    """A ledger that can be away, slow, or lose its answers.

    Attributes:
        exchanges: The turns of each exchange that arrived.
        away: Nothing arrives.
        mute: What arrives is done, and the answer is lost.
        broken: It crashes.
        open: Set while it answers at once.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self.exchanges: list[Sequence[Turn]] = []
        self.away = False
        self.mute = False
        self.broken = False
        self.open = asyncio.Event()
        self.open.set()

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        if self.away:
            raise StoreUnavailable("It is away.")
        if self.broken:
            raise ZeroDivisionError
        self.exchanges.append(turns)
        await self.open.wait()
        outcomes = self._ledger.take(process, turns)
        if self.mute:
            raise StoreUnavailable("Nobody knows.")
        return outcomes

    async def close(self) -> None:
        pass

    def state_of(self, account: Account) -> Outcome:
        """As it is, for somebody who only looks."""
        (outcome,) = self._ledger.take("looks", [turn_of(account)])
        return outcome


def turn_of(account: Account) -> Turn:
    return Turn(
        account_id=account.account_id, limits=account.limits, hold=Hold(), settlement=Settlement(0)
    )


class World:
    """A ledger and the processes that share it."""

    def __init__(self, hold_s: float) -> None:
        self.shared = MemoryLedger(hold_s=hold_s)
        self.ledger = Ledger(self.shared)
        self.settings = LimitSettings(hold_s=hold_s, wait_s=0.1, retry_s=0.01)
        self.metrics = IngressMetrics()
        self.limiter = self.process()

    def process(self, *, pocket_s: float = 0.0) -> LedgerLimiter:
        return LedgerLimiter(
            Ledger(self.shared), self.settings, IngressMetrics(), pocket_s=pocket_s
        )


@asynccontextmanager
async def world(hold_s: float = 10.0, pocket_s: float = 0.0) -> AsyncIterator[World]:
    made = World(hold_s)
    made.limiter = LedgerLimiter(made.ledger, made.settings, made.metrics, pocket_s=pocket_s)
    yield made
    made.ledger.away = False
    made.ledger.open.set()
    await made.limiter.close()


async def outcomes_of(*awaitables: Any) -> tuple[int, list[Exception]]:
    """How many were admitted, and the errors of the others."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    errors = [result for result in results if isinstance(result, Exception)]
    return len(results) - len(errors), errors


async def test_accounts_without_limits_never_come_to_the_ledger() -> None:
    async with world() as w:
        free = Account(account_id="free")
        (await w.limiter.reserve(free, SMALL)).settle(USED, 5)
        await w.limiter.require_credit(free)
        await w.limiter.require_room(free)
        w.limiter.charge(free, USED, 5)
        await asyncio.sleep(0)
    assert w.ledger.exchanges == []


async def test_what_comes_during_an_exchange_goes_with_the_next_one() -> None:
    async with world() as w:
        w.ledger.open.clear()
        first = asyncio.create_task(w.limiter.reserve(MANY, SMALL))
        await until(lambda: w.ledger.exchanges)
        others = [asyncio.create_task(w.limiter.reserve(MANY, SMALL)) for _ in range(50)]
        look = asyncio.create_task(w.limiter.require_room(LIMITED))
        await asyncio.sleep(0)
        w.ledger.open.set()
        reservations = await asyncio.gather(first, *others)
        await look
        assert [[len(turn.asks) for turn in turns] for turns in w.ledger.exchanges] == [
            [1],
            [50, 1],
        ]
        for reservation in reservations:
            reservation.settle(USED, 3)
        await until(lambda: len(w.ledger.exchanges) == 3)
        state = w.ledger.state_of(MANY).state
        assert sum(state.requests.values()) == 51
        assert sum(state.tokens.values()) == 51 * 5
        assert state.spent("day", w.ledger.state_of(MANY).now) == 51 * 3


async def test_concurrency_is_shared_and_comes_back_however_a_request_ends() -> None:
    async with world() as w:
        other = w.process()
        held = [await w.limiter.reserve(LIMITED, SMALL), await other.reserve(LIMITED, SMALL)]
        for end in ("settle", "give_back", "leave"):
            for limiter in (w.limiter, other):
                with pytest.raises(ConcurrencyRefusal) as raised:
                    await limiter.reserve(LIMITED, SMALL)
                assert raised.value.info().retry_after_s == 1
            for _ in range(2):  # whatever is told twice counts once
                if end == "settle":
                    held[1].settle(USED, 0)
                elif end == "give_back":
                    held[1].give_back()
                else:
                    held[1].leave()
            async with asyncio.timeout(2):
                while True:
                    try:
                        held[1] = await other.reserve(LIMITED, SMALL)
                        break
                    except ConcurrencyRefusal:
                        await asyncio.sleep(0.001)
        await other.close()


async def test_who_has_left_still_holds_its_tokens_until_it_is_known_what_it_used() -> None:
    account = Account(account_id="a", limits=Limits(concurrency=1, tokens_per_minute=15))
    async with world() as w:
        reservation = await w.limiter.reserve(account, SMALL)
        reservation.leave()
        with pytest.raises(RateRefusal):
            await w.limiter.reserve(account, SMALL)
        reservation.settle(USED, 0)
        (await w.limiter.reserve(account, SMALL)).give_back()


async def test_a_request_that_was_given_back_was_never_made() -> None:
    account = Account(account_id="a", limits=Limits(requests_per_minute=1, tokens_per_minute=10))
    async with world() as w:
        for _ in range(3):
            (await w.limiter.reserve(account, SMALL)).give_back()
        (await w.limiter.reserve(account, SMALL)).settle(USED, 0)
        with pytest.raises(RateRefusal):
            await w.limiter.reserve(account, SMALL)


async def test_whoever_leaves_before_the_verdict_holds_nothing() -> None:
    async with world() as w:
        w.ledger.open.clear()
        asking = [asyncio.create_task(w.limiter.reserve(LIMITED, SMALL)) for _ in range(2)]
        await until(lambda: w.ledger.exchanges)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        w.ledger.open.set()
        got, errors = await outcomes_of(*(w.limiter.reserve(LIMITED, SMALL) for _ in range(3)))
        assert (got, [type(error) for error in errors]) == (2, [ConcurrencyRefusal])
        assert sum(w.ledger.state_of(LIMITED).state.requests.values()) == 2


@pytest.mark.rule("limits.killed-process")
async def test_a_hold_lasts_as_long_as_its_process_and_not_much_longer() -> None:
    async with world(hold_s=0.2) as w:
        loop = asyncio.get_running_loop()
        began = loop.time()
        killed = w.process()
        await killed.reserve(LIMITED, SMALL)
        await w.limiter.reserve(LIMITED, SMALL)
        while loop.time() < began + 0.5:
            got, _ = await outcomes_of(w.process().reserve(LIMITED, SMALL))
            assert got == 0
            await asyncio.sleep(0.05)
        assert killed._running is not None
        killed._running.cancel()  # as a process that was killed says nothing any more
        at = loop.time()
        await until(
            lambda: (
                "looks" in (state := w.ledger.state_of(LIMITED).state).leases
                and sum(lease.hold.in_flight for lease in state.leases.values()) == 1
            )
        )
        assert loop.time() - at < 1.0


@pytest.mark.rule("limits.never-exceeded")
async def test_a_hold_lasts_however_busy_other_accounts_are() -> None:
    async with world(hold_s=0.3) as w:
        loop = asyncio.get_running_loop()
        other = w.process()
        held = [await w.limiter.reserve(LIMITED, SMALL) for _ in range(2)]
        began = loop.time()
        while loop.time() < began + 0.6:
            (await w.limiter.reserve(MANY, SMALL)).settle(USED, 0)
            with pytest.raises(ConcurrencyRefusal):
                await other.reserve(LIMITED, SMALL)
            await asyncio.sleep(0.01)
        assert held
        await other.close()


@pytest.mark.rule("limits.close")
async def test_a_process_that_ends_gives_everything_back_and_tells_what_was_used() -> None:
    async with world() as w:
        settled, left = [await w.limiter.reserve(LIMITED, SMALL) for _ in range(2)]
        settled.settle(USED, 77)
        await w.limiter.close()
        left.settle(USED, 1)  # too late, and harmless
        found = w.ledger.state_of(LIMITED)
        assert [lease.hold.in_flight for lease in found.state.leases.values()] == [0, 0]
        assert found.state.spent("total", found.now) == 77


async def test_whoever_waits_at_the_end_is_told() -> None:
    async with world() as w:
        w.ledger.open.clear()
        first = asyncio.create_task(w.limiter.reserve(LIMITED, SMALL))
        await until(lambda: w.ledger.exchanges)
        second = asyncio.create_task(w.limiter.reserve(LIMITED, SMALL))
        await asyncio.sleep(0)
        closing = asyncio.create_task(w.limiter.close())
        async with asyncio.timeout(5):
            for waiting in (first, second):
                with pytest.raises(ServerShuttingDown):
                    await waiting
            await closing


# --- Budgets --------------------------------------------------------------------------------------


@pytest.mark.rule("limits.budget")
async def test_credit_is_asked_for_once_and_then_known() -> None:
    async with world() as w:
        await w.limiter.require_credit(PAID)
        assert len(w.ledger.exchanges) == 1
        await w.limiter.require_credit(PAID)
        assert len(w.ledger.exchanges) == 1
        w.limiter.charge(PAID, USED, 1_000_000)
        await until(lambda: len(w.ledger.exchanges) == 2)
        with pytest.raises(InsufficientCredits) as raised:
            await w.limiter.require_credit(PAID)
        assert raised.value.info().retryable is False
        with pytest.raises(InsufficientCredits):
            await w.limiter.reserve(PAID, SMALL)
        other = w.process()
        with pytest.raises(InsufficientCredits):  # one that knows nothing yet
            await other.require_credit(PAID)
        await other.close()


async def test_a_request_that_costs_more_than_is_left_is_refused_for_good() -> None:
    async with world() as w:
        dear = Demand(input_tokens=1, output_tokens=1, microcents=900_000)
        reservation = await w.limiter.reserve(PAID, dear)
        with pytest.raises(RateRefusal) as later:
            await w.limiter.reserve(PAID, dear)
        assert later.value.info().retryable is None
        reservation.settle(USED, 200_000)
        with pytest.raises(InsufficientCredits, match="does not cover"):
            await w.limiter.reserve(PAID, dear)


# --- Refusals -------------------------------------------------------------------------------------


async def refused(limiter: LedgerLimiter, account: Account, demand: Demand = SMALL) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await limiter.reserve(account, demand)
    return raised.value


@pytest.mark.rule("limits.retry-after")
async def test_a_refusal_tells_the_limit_and_when_to_come_back() -> None:
    account = Account(account_id="a", limits=Limits(requests_per_minute=1, tokens_per_minute=99))
    async with world() as w:
        reservation = await w.limiter.reserve(account, SMALL)
        first = {standing.kind: standing for standing in reservation.standings}
        assert (first["requests"].limit, first["requests"].remaining) == (1, 0)
        assert (first["tokens"].limit, first["tokens"].remaining) == (99, 89)
        error = await refused(w.limiter, account)
        assert isinstance(error, RateRefusal)
        assert [standing.kind for standing in error.standings] == ["requests", "tokens"]
        assert error.retry_after_s in (60, 61)
        assert error.info().retryable is None
        assert "1 requests per minute" in error.message
        with pytest.raises(RateRefusal):
            await w.limiter.require_room(account)


@pytest.mark.rule("limits.too-large")
async def test_a_request_that_never_fits_invites_no_retry() -> None:
    account = Account(account_id="a", limits=Limits(concurrency=1, tokens_per_minute=9))
    async with world() as w:
        error = await refused(w.limiter, account)
        assert isinstance(error, TooLargeForLimit)
        info = error.info()
        assert (info.code, info.status, info.retryable) == ("rate_limit_exceeded", 429, False)
        assert "10 tokens" in info.message
        assert "9 per minute" in info.message


# --- While the ledger is away ---------------------------------------------------------------------


@pytest.mark.rule("limits.ledger-away")
@pytest.mark.parametrize("how", ["away", "mute", "slow"])
async def test_without_the_ledger_a_process_holds_limits_by_itself(how: str) -> None:
    account = Account(account_id="a", limits=Limits(concurrency=3, requests_per_minute=9))
    async with world() as w:
        before = await w.limiter.reserve(account, SMALL)
        with structlog.testing.capture_logs() as logs:
            loop = asyncio.get_running_loop()
            began = loop.time()
            if how == "slow":
                w.ledger.open.clear()
            else:
                setattr(w.ledger, how, True)
            got, errors = await outcomes_of(*(w.limiter.reserve(account, SMALL) for _ in range(4)))
            assert loop.time() - began < 1
            assert (got, [type(error) for error in errors]) == (2, [ConcurrencyRefusal] * 2)
            assert w.metrics.limits_alone._value.get() == 1
            before.settle(USED, 11)
            last = await w.limiter.reserve(account, SMALL)
            last.settle(USED, 22)
            (await w.limiter.reserve(account, SMALL)).give_back()
            w.ledger.away = w.ledger.mute = False
            w.ledger.open.set()
            await until(lambda: w.metrics.limits_alone._value.get() == 0)
            await until(lambda: w.limiter._books["a"].owes is False)
        assert [entry["event"] for entry in logs] == ["limits.ledger_lost", "limits.ledger_found"]
        found = w.ledger.state_of(account)
        # One before, two and one while it was away; what was used counts once.
        assert sum(found.state.requests.values()) == 4
        assert sum(found.state.tokens.values()) == 2 * 5
        assert found.state.spent("day", found.now) == 33
        assert sum(lease.hold.in_flight for lease in found.state.leases.values()) == 2
        with pytest.raises(ConcurrencyRefusal):
            await asyncio.gather(*(w.limiter.reserve(account, SMALL) for _ in range(2)))


async def test_a_ledger_that_was_never_there_keeps_nobody_out() -> None:
    async with world() as w:
        w.ledger.away = True
        got, errors = await outcomes_of(*(w.limiter.reserve(LIMITED, SMALL) for _ in range(3)))
        assert (got, [type(error) for error in errors]) == (2, [ConcurrencyRefusal])
        await w.limiter.require_credit(PAID)


async def test_a_crash_of_the_ledger_hangs_nobody() -> None:
    async with world() as w:
        w.ledger.broken = True
        with structlog.testing.capture_logs() as logs:
            (await w.limiter.reserve(LIMITED, SMALL)).give_back()
        assert "limits.exchange_crashed" in [entry["event"] for entry in logs]
        w.ledger.broken = False


# --- Pockets --------------------------------------------------------------------------------------

LONG_S = 2.5
"""No turn comes by itself within a test."""


async def pocketed(limiter: LedgerLimiter, account: Account = MANY) -> None:
    """Make so many requests that the next ones need not ask."""
    for _ in range(8):
        (await limiter.reserve(account, SMALL)).settle(USED, 3)
    book = limiter._books[account.account_id]
    limiter.wake(book)
    await asyncio.sleep(0)
    await until(lambda: book.has_pocket and book.next_turn is not None and not book.owes)


async def test_far_from_its_limits_a_request_waits_for_no_exchange() -> None:
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter)
        asked = len(w.ledger.exchanges)
        left = []
        for _ in range(5):
            reservation = await w.limiter.reserve(MANY, SMALL)
            left.append([standing.remaining for standing in reservation.standings])
            reservation.settle(USED, 3)
        await w.limiter.require_room(MANY)
        assert len(w.ledger.exchanges) == asked
        assert left == [[991 - n, 10_000 - 8 * 5 - n * 5 - 10] for n in range(5)]
        assert w.ledger.state_of(MANY).state.leases
        w.limiter.wake(w.limiter._books["many"])
        await until(lambda: len(w.ledger.exchanges) == asked + 1)
        found = w.ledger.state_of(MANY)
        # All was told, and what is there is what was not used.
        assert sum(found.state.requests.values()) == 13
        assert sum(found.state.tokens.values()) == 13 * 5
        assert found.state.spent("day", found.now) == 13 * 3


async def test_a_pocket_that_nobody_uses_is_given_back() -> None:
    async with world(pocket_s=0.02) as w:
        await pocketed(w.limiter)
        book = w.limiter._books["many"]
        await until(lambda: not book.holds)
        assert not any(lease.pocket for lease in w.ledger.state_of(MANY).state.leases.values())
        asked = len(w.ledger.exchanges)
        await asyncio.wait_for(w.limiter.reserve(MANY, SMALL), 5)
        assert len(w.ledger.exchanges) == asked + 1


async def test_one_burst_after_another_asks_once() -> None:
    """What waits when a pocket comes is admitted from it."""
    async with world(pocket_s=LONG_S) as w:
        await asyncio.gather(*(w.limiter.reserve(MANY, SMALL) for _ in range(20)))
        w.ledger.open.clear()
        asked = len(w.ledger.exchanges)
        first = asyncio.create_task(w.limiter.reserve(MANY, SMALL))
        await until(lambda: len(w.ledger.exchanges) == asked + 1)
        others = [asyncio.create_task(w.limiter.reserve(MANY, SMALL)) for _ in range(20)]
        await asyncio.sleep(0)
        w.ledger.open.set()
        await asyncio.gather(first, *others)
        assert len(w.ledger.exchanges) == asked + 1


@pytest.mark.parametrize("limits", [Limits(requests_per_minute=20), Limits(concurrency=100)])
async def test_other_limits_hold_for_the_next_request(limits: Limits) -> None:
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter)
        changed = Account(account_id="many", limits=limits)
        asked = len(w.ledger.exchanges)
        got, errors = await outcomes_of(*(w.limiter.reserve(changed, SMALL) for _ in range(100)))
        assert w.ledger.exchanges[asked][0].limits == limits
        # Eight were made before.
        assert got == (100 if limits.concurrency else 20 - 8)
        assert {type(error) for error in errors} <= {RateRefusal}


async def test_limits_that_change_during_an_exchange_leave_no_pocket() -> None:
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter)
        book = w.limiter._books["many"]
        w.ledger.open.clear()
        asked = len(w.ledger.exchanges)
        w.limiter.wake(book)
        await until(lambda: len(w.ledger.exchanges) == asked + 1)
        changed = Account(account_id="many", limits=Limits(concurrency=1))
        held = asyncio.create_task(w.limiter.reserve(changed, SMALL))
        await asyncio.sleep(0)
        w.ledger.open.set()
        await held
        with pytest.raises(ConcurrencyRefusal):
            await w.limiter.reserve(changed, SMALL)


async def test_whoever_lacks_what_another_has_in_its_pocket_waits_for_it() -> None:
    account = Account(account_id="a", limits=Limits(concurrency=64))
    async with world(pocket_s=0.2) as w:
        other = w.process(pocket_s=LONG_S)
        await pocketed(w.limiter, account)
        assert w.ledger.state_of(account).state.leases
        got, _ = await outcomes_of(*(other.reserve(account, SMALL) for _ in range(64)))
        assert got == 64
        with pytest.raises(ConcurrencyRefusal):
            await other.reserve(account, SMALL)
        await other.close()


async def test_nobody_waits_for_ever_for_what_another_has_in_its_pocket() -> None:
    account = Account(account_id="a", limits=Limits(concurrency=64))
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter, account)
        assert w.limiter._running is not None
        w.limiter._running.cancel()  # killed
        other = w.process(pocket_s=0.05)
        _, errors = await outcomes_of(*(other.reserve(account, SMALL) for _ in range(64)))
        assert 0 < len(errors) < 16
        assert {type(error) for error in errors} == {ConcurrencyRefusal}
        await other.close()


@pytest.mark.rule("limits.close")
async def test_a_process_that_ends_gives_back_its_pocket() -> None:
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter)
        await w.limiter.reserve(MANY, SMALL)
        await w.limiter.close()
        found = w.ledger.state_of(MANY).state
        assert not any(lease.pocket or lease.hold.in_flight for lease in found.leases.values())
        assert sum(found.requests.values()) == 9


@pytest.mark.rule("limits.ledger-away")
@pytest.mark.parametrize("how", ["away", "mute", "slow"])
async def test_a_pocket_ends_with_the_ledger_and_is_counted_once(how: str) -> None:
    async with world(pocket_s=LONG_S) as w:
        await pocketed(w.limiter)
        book = w.limiter._books["many"]
        (await w.limiter.reserve(MANY, SMALL)).settle(USED, 3)
        with structlog.testing.capture_logs():
            if how == "slow":
                w.ledger.open.clear()
            else:
                setattr(w.ledger, how, True)
            w.limiter.wake(book)
            await until(lambda: w.metrics.limits_alone._value.get() == 1)
            (await w.limiter.reserve(MANY, SMALL)).settle(USED, 3)
            assert not book.has_pocket
            w.ledger.away = w.ledger.mute = False
            w.ledger.open.set()
            await until(lambda: w.metrics.limits_alone._value.get() == 0)
            await until(lambda: not book.owes)
        found = w.ledger.state_of(MANY)
        assert sum(found.state.requests.values()) == 10
        assert found.state.spent("day", found.now) == 10 * 3
