"""What every ledger promises; run against each by a subclass that says how to open one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ingress.accounts.account import Budget, Limits
from ingress.limits.ledger import Ledger
from ingress.limits.state import NO_ALLOWANCE, Allowance, Ask, Hold, Settlement, Turn, Verdict

LedgerOpener = Callable[[], Awaitable[Ledger]]
"""Opens the one ledger, whose holds last a quarter of a second; each call is another process."""

HOLD_S = 0.25
ODD_IDS = ("a", "A", "ä", "\x00", "x" * 200, "b\\u0000", "😀")


def a_turn(
    account_id: str = "ours",
    limits: Limits = Limits(concurrency=5),  # noqa: B008 - a frozen value
    *,
    hold: Hold = Hold(),  # noqa: B008
    settlement: Settlement = Settlement(0),  # noqa: B008
    asks: int = 0,
    pocket: Allowance = NO_ALLOWANCE,
) -> Turn:
    return Turn(
        account_id=account_id,
        limits=limits,
        hold=hold,
        settlement=settlement,
        asks=(Ask(1),) * asks,
        pocket=pocket,
    )


def granted(verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.refusal is None for verdict in verdicts)


class LedgerSuite:
    """The promises."""

    async def test_processes_share_what_an_account_has(self, open_ledger: LedgerOpener) -> None:
        one, two = await open_ledger(), await open_ledger()
        (first,) = await one.exchange("one", [a_turn(asks=3)])
        (second,) = await two.exchange("two", [a_turn(asks=3)])
        assert (granted(first.verdicts), granted(second.verdicts)) == (3, 2)
        (third,) = await one.exchange("one", [a_turn(hold=Hold(1), asks=3)])
        assert granted(third.verdicts) == 2

    async def test_many_processes_and_accounts_at_once_exceed_nothing(
        self, open_ledger: LedgerOpener
    ) -> None:
        limits = Limits(requests_per_minute=25)
        ledgers = [await open_ledger() for _ in range(3)]
        names = ["first", "second", "third"]

        async def ask(process: int, number: int) -> list[int]:
            # Each in another order, which must make nobody wait for another who waits for it.
            order = names if (process + number) % 2 else names[::-1]
            turns = [a_turn(name, limits, settlement=Settlement(number), asks=2) for name in order]
            outcomes = await ledgers[process].exchange(str(process), turns)
            return [granted(outcome.verdicts) for outcome in outcomes]

        async with asyncio.timeout(30):
            got = await asyncio.gather(*(ask(n % 3, n) for n in range(24)))
        assert sum(map(sum, got)) == 3 * 25

    async def test_a_process_that_says_nothing_holds_nothing_after_a_while(
        self, open_ledger: LedgerOpener
    ) -> None:
        ledger = await open_ledger()
        (before,) = await ledger.exchange("killed", [a_turn(asks=5)])
        (full,) = await ledger.exchange("alive", [a_turn(asks=1)])
        assert (granted(before.verdicts), granted(full.verdicts)) == (5, 0)
        async with asyncio.timeout(5):
            while not granted((await ledger.exchange("alive", [a_turn(asks=1)]))[0].verdicts):
                await asyncio.sleep(0.02)
        (after,) = await ledger.exchange("alive", [a_turn()])
        assert HOLD_S <= after.now - before.now < HOLD_S + 2
        assert set(after.state.leases) == {"alive"}

    async def test_a_hold_that_is_renewed_stays(self, open_ledger: LedgerOpener) -> None:
        ledger = await open_ledger()
        (before,) = await ledger.exchange("slow", [a_turn(asks=5)])
        renewed, held_for = before, 0.0
        while held_for < 2 * HOLD_S:
            await asyncio.sleep(HOLD_S / 5)
            (refused,) = await ledger.exchange("other", [a_turn(asks=1)])
            if refused.now - renewed.now < HOLD_S:
                assert not granted(refused.verdicts)
                held_for = refused.now - before.now
            else:  # the machine stood still, and nothing was renewed in time
                before, held_for = refused, 0.0
            (renewed,) = await ledger.exchange("slow", [a_turn(hold=Hold(5))])

    async def test_a_pocket_counts_for_all_until_it_is_given_back_or_lapses(
        self, open_ledger: LedgerOpener
    ) -> None:
        limits = Limits(concurrency=16, requests_per_minute=100)
        wish = Allowance(requests=9, in_flight=9)
        one, two = await open_ledger(), await open_ledger()
        (granted_one,) = await one.exchange("one", [a_turn(limits=limits, pocket=wish)])
        assert granted_one.pocket == Allowance(requests=9, in_flight=2)
        (refused,) = await two.exchange("two", [a_turn(limits=limits, asks=16)])
        assert granted(refused.verdicts) == 14
        assert [verdict.in_pockets for verdict in refused.verdicts[14:]] == [True] * 2
        assert refused.requests is not None
        assert refused.requests.remaining == 100 - 9 - 14
        # It is given back, and not granted again, for somebody waits for it.
        (again,) = await one.exchange("one", [a_turn(limits=limits, pocket=wish)])
        assert not again.pocket
        (now,) = await two.exchange("two", [a_turn(limits=limits, hold=Hold(14), asks=3)])
        assert granted(now.verdicts) == 2
        assert now.verdicts[2].refusal == "concurrency"
        assert not now.verdicts[2].in_pockets
        # Of a process that says nothing any more it may all have been used.
        (before,) = await one.exchange("three", [a_turn("ours too", limits, pocket=wish)])
        assert before.pocket
        async with asyncio.timeout(5):
            while "three" in before.state.leases:
                (before,) = await two.exchange("two", [a_turn("ours too", limits)])
                await asyncio.sleep(0.02)
        assert sum(before.state.requests.values()) == 9

    async def test_what_was_spent_is_known_to_all(self, open_ledger: LedgerOpener) -> None:
        limits = Limits(budget=Budget(cents=1, period="total"))
        one, two = await open_ledger(), await open_ledger()
        spent = [Settlement(number, microcents=400_000) for number in (1, 2, 2, 3)]
        for settlement in spent:  # the second one comes twice
            (outcome,) = await one.exchange("one", [a_turn("a", limits, settlement=settlement)])
        assert outcome.state.spent("total", outcome.now) == 1_200_000
        (refused,) = await two.exchange("two", [a_turn("a", limits, asks=1)])
        assert refused.verdicts[0].refusal == "budget"
        assert outcome.state.out_of_credit(limits, outcome.now)

    async def test_accounts_are_told_apart(self, open_ledger: LedgerOpener) -> None:
        ledger = await open_ledger()
        limits = Limits(concurrency=1)
        turns = [a_turn(name, limits, asks=2) for name in ODD_IDS]
        for outcome in await ledger.exchange("one", turns):
            assert granted(outcome.verdicts) == 1
