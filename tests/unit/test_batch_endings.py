"""Ending tasks for certain, whoever loses or repeats a cancellation."""

from __future__ import annotations

import asyncio

from ingress.batch.endings import cancelled


class Deaf:
    """Hears only so many cancellations later than others.

    Attributes:
        heard: Cancellations so far.
    """

    def __init__(self, loses: int) -> None:
        self._loses = loses
        self.heard = 0
        self.begun = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                self.begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.heard += 1
                if self.heard > self._loses:
                    raise


async def test_a_lost_cancellation_is_repeated() -> None:
    deaf = Deaf(loses=1)
    task = asyncio.create_task(deaf.run())
    await deaf.begun.wait()
    async with asyncio.timeout(5):
        await cancelled(task)
    assert task.cancelled()


async def test_who_is_cancelled_while_ending_others_leaves_none_behind() -> None:
    deaf = Deaf(loses=3)
    task = asyncio.create_task(deaf.run())
    await deaf.begun.wait()
    ending = asyncio.create_task(cancelled(task))
    left_behind = False
    async with asyncio.timeout(10):
        while not task.done():
            await asyncio.sleep(0)
            ending.cancel()
            left_behind |= ending.done() and not task.done()
            if left_behind:
                task.cancel()  # for the test's own end
    await asyncio.wait({ending})
    assert not left_behind
    assert ending.cancelled()
    assert deaf.heard == 4


async def test_what_failed_is_no_error_of_who_ends_it() -> None:
    async def fail() -> None:
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    await cancelled(task)
    assert isinstance(task.exception(), ValueError)
