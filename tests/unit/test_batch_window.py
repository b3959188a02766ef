"""The windows of lines in flight: bounded, in turn, and each model's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ingress.batch.window import Place, Window


class Limits(dict[str, int]):
    def of(self, model: str) -> int:
        return self.get(model, 0)


async def entered(window: Window, model: str = "m", size: int = 1) -> Place:
    place = await window.enter(model, size)
    assert place is not None
    return place


async def waiting(window: Window, model: str = "m", size: int = 1) -> asyncio.Task[Place | None]:
    task = asyncio.create_task(window.enter(model, size))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_no_more_lines_than_the_limit_and_who_waited_first_is_first() -> None:
    window = Window(Limits(m=2).of, max_bytes=100)
    first, _ = await entered(window), await entered(window)
    third, fourth = await waiting(window), await waiting(window)
    first.leave()
    await asyncio.sleep(0)
    assert (third.done(), fourth.done(), len(window)) == (True, False, 2)
    fourth.cancel()


async def test_large_lines_go_alone_and_small_ones_do_not_overtake() -> None:
    window = Window(Limits(m=10).of, max_bytes=100)
    huge = await entered(window, size=1000)
    small = await waiting(window)
    huge.leave()
    assert await small is not None


async def test_a_model_has_a_window_of_its_own_and_none_without_workers() -> None:
    limits = Limits(a=1, b=1)
    window = Window(limits.of, max_bytes=100)
    await entered(window, "a")
    await entered(window, "b")
    late = await waiting(window, "a")
    limits["a"] = 0
    window.refresh()
    assert await late is None
    assert await window.enter("nobody", 1) is None


@pytest.mark.parametrize("given", [False, True])
async def test_one_who_gives_up_waiting_leaves_nothing_behind(given: bool) -> None:
    window = Window(Limits(m=1).of, max_bytes=100)
    first = await entered(window)
    second = await waiting(window)
    if given:
        first.leave()  # it has the place, but has not heard of it
    second.cancel()
    with suppress(asyncio.CancelledError):
        await second
    if not given:
        first.leave()
    assert len(window) == 0
    await entered(window)
