"""Ending tasks and iterators for certain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

_AGAIN_S: Final = 0.5


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs, and wait until it has ended.

    Libraries may lose a cancellation that comes while they close something. It is repeated, so that
    nobody waits for ever for a task that has not heard of it. To be cancelled oneself only repeats
    it at once: whoever left here before them would leave them behind, to run on by themselves.
    """
    interrupted: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=_AGAIN_S)
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
    for task in tasks:
        if not task.cancelled():
            task.exception()  # whoever wanted to know has asked before


@asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """What a generator holds, such as an open file, is given back when the block is left."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
