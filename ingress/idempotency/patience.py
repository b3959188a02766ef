"""A store of keys that nobody waits for too long: who asks for answers must not hang on it.

What it was asked and did not do in time it may do later: nothing can be taken out of a database's
hands. A key that is claimed too late is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import structlog

from ingress.idempotency.key import KeyedRequest
from ingress.idempotency.store import Earlier, IdempotencyStore
from ingress.stores.base import StoreUnavailable

log = structlog.get_logger()

T = TypeVar("T")


class PatientStore:
    """An `IdempotencyStore` that counts as away where it does not answer in time, and for as long.

    Args:
        patience_s: How long it may take.
    """

    def __init__(self, store: IdempotencyStore, *, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._away_until = 0.0
        self._asked: set[asyncio.Task[Any]] = set()

    async def claim(self, request: KeyedRequest, owner: str, *, lease_s: float) -> Earlier | None:
        """See the port."""
        waiting = True

        async def claim() -> Earlier | None:
            earlier = await self._store.claim(request, owner, lease_s=lease_s)
            if earlier is None and not waiting:
                await self._store.release(request, owner)
            return earlier

        try:
            return await self._in_time(claim())
        finally:
            waiting = False

    async def renew(self, owners: Sequence[str], *, lease_s: float) -> None:
        """See the port."""
        await self._in_time(self._store.renew(owners, lease_s=lease_s))

    async def end(self, request: KeyedRequest, owner: str, *, window_s: float, kept: bool) -> bool:
        """See the port."""
        return await self._in_time(self._store.end(request, owner, window_s=window_s, kept=kept))

    async def release(self, request: KeyedRequest, owner: str) -> None:
        """See the port."""
        await self._in_time(self._store.release(request, owner))

    async def expired(self, limit: int) -> Sequence[Earlier]:
        """See the port."""
        return await self._in_time(self._store.expired(limit))

    async def forget(self, earlier: Earlier) -> None:
        """See the port."""
        await self._in_time(self._store.forget(earlier))

    async def close(self) -> None:
        """Wait for what it was asked, but not for long."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=self._patience_s)
        asked = tuple(self._asked)
        for asking in asked:
            asking.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def _in_time(self, asking: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop().time() < self._away_until:
            asking.close()
            raise _unavailable()
        asked = asyncio.create_task(asking)
        self._asked.add(asked)
        asked.add_done_callback(self._answered)
        done, _ = await asyncio.wait({asked}, timeout=self._patience_s)
        if not done:
            self._is_away("no answer")
            raise _unavailable()
        try:
            return asked.result()
        except StoreUnavailable as error:
            self._is_away(error.diagnostic)
            raise

    def _answered(self, asked: asyncio.Task[Any]) -> None:
        self._asked.discard(asked)
        if not asked.cancelled():
            asked.exception()  # it has been told, or nobody waits for it any more

    def _is_away(self, reason: str | None) -> None:
        self._away_until = asyncio.get_running_loop().time() + self._patience_s
        log.warning("idempotency.store_unavailable", reason=reason)


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("The store of idempotency keys is not available.")
