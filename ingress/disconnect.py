"""A client that leaves: work for nobody ends at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from schemas.errors import ClientClosedRequest

T = TypeVar("T")


async def until_gone(receive: Receive) -> None:
    """Wait until the client has left. The request's body must have been read."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves.

    Raises:
        ClientClosedRequest: It has left.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientClosedRequest("The client went away.")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
