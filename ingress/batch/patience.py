"""Waiting for a database or a blob store that is away: as long as it takes, and longer each time.

A batch loses nothing by waiting. Whoever calls must be able to call again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from ingress.stores.base import StoreUnavailable
from schemas.blobs.base import BlobStoreUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

AWAY: Final = (StoreUnavailable, BlobStoreUnavailable)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class Pauses:
    """The pauses between tries that are in vain; each is longer, and a little at random.

    Args:
        first_s: About the first one.
        longest_s: About the longest.
    """

    def __init__(
        self, first_s: float = _FIRST_PAUSE_S, longest_s: float = _LONGEST_PAUSE_S
    ) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    async def pause(self) -> None:
        """Wait before the next try."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        """It has worked."""
        self._next_s = self._first_s


async def persistently(call: Callable[[], Awaitable[T]], *, what: str) -> T:
    """What `call` returns, once the stores it needs are there.

    Args:
        call: Called until it does not fail for want of a store; other errors are the caller's.
        what: Is being done, for the log.
    """
    pauses = Pauses()
    failed = False
    while True:
        try:
            result = await call()
        except AWAY as error:
            if not failed:
                log.warning("batch.store_away", doing=what, reason=reason_of(error))
            failed = True
            await pauses.pause()
            continue
        if failed:
            log.info("batch.store_back", doing=what)
        return result


def reason_of(error: Exception) -> str:
    """Why a store is away, for the log."""
    return (isinstance(error, StoreUnavailable) and error.diagnostic) or str(error)
