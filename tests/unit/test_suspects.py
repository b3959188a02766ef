"""Testing Jobs that may have cost a worker its life: one after the other, but not for ever."""

from __future__ import annotations

import asyncio

from tests.fixtures.stack import until
from workers.suspects import Suspect, Suspects


class Told(Suspect):
    """Counts how often it was told of company."""

    def __init__(self, *, exclusive: bool = False) -> None:
        super().__init__(exclusive=exclusive, on_company=self._count)
        self.told = 0

    def _count(self) -> None:
        self.told += 1


async def test_the_next_one_waits_until_the_first_is_cleared() -> None:
    suspects, first, second = Suspects(600), Told(), Told()
    await suspects.test(first)
    waiting = asyncio.create_task(suspects.test(second))
    await until(lambda: suspects.waiting == 1)
    suspects.clear(first)
    await waiting
    assert (first.alone, second.alone, first.told) == (True, True, 0)
    suspects.clear(first)  # once more, which must not clear the second
    third = asyncio.create_task(suspects.test(Told()))
    await until(lambda: suspects.waiting == 1)
    third.cancel()
    await asyncio.wait({third})
    assert suspects.waiting == 0


async def test_patience_ends_and_both_know() -> None:
    suspects, first, second, third = Suspects(0.01), Told(), Told(), Told()
    await suspects.test(first)
    await suspects.test(second)
    assert (first.alone, second.alone) == (False, False)
    await suspects.test(third)
    assert (first.told, second.told, third.told) == (1, 0, 0), "each is told once, or at its start"
    for suspect in (first, second, third):
        suspects.clear(suspect)
    last = Told()
    await suspects.test(last)
    assert last.alone


async def test_an_exclusive_one_waits_for_all_and_is_not_disturbed() -> None:
    suspects, first, exclusive, third = Suspects(0), Told(), Told(exclusive=True), Told()
    await suspects.test(first)
    testing = asyncio.create_task(suspects.test(exclusive))
    after = asyncio.create_task(suspects.test(third))
    await until(lambda: suspects.waiting == 2)
    suspects.clear(first)
    await testing
    await until(lambda: suspects.waiting == 1)
    assert exclusive.alone
    assert not after.done()
    suspects.clear(exclusive)
    await after
    assert third.alone
    assert exclusive.told == 0


async def test_an_exclusive_one_that_is_given_up_leaves_its_turn() -> None:
    suspects, first = Suspects(0), Told()
    await suspects.test(first)
    testing = asyncio.create_task(suspects.test(Told(exclusive=True)))
    await until(lambda: suspects.waiting == 1)
    testing.cancel()
    await asyncio.wait({testing})
    await suspects.test(Told())
    assert first.told == 1
