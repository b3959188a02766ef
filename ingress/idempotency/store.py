"""The port of idempotent requests: who runs the request of a key, and what came of it.

Rules every store obeys (the contract suite checks them):

* Of several who claim a key at once, one gets it.
* Whoever runs a request has its key for as long as it says so in time. Then others may have it, and
  the first can change nothing about it any more.
* A key belongs to one request until the window has passed; a request that failed gives it back.
* Every method may be called again when nobody knows whether it has happened.

Times are by the store's own clock: processes need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from ingress.idempotency.key import KeyedRequest


class KeyConflict(Exception):
    """The key belongs to another request."""


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request that had the key before.

    Attributes:
        account, key: See `KeyedRequest`.
        created_at: When it claimed the key; so no later one is mistaken for it.
        kept: It has ended, and its answer is kept; else it runs.
    """

    account: str
    key: bytes
    created_at: float
    kept: bool


class IdempotencyStore(Protocol):
    """Where keys are kept. `owner` is who runs a request, by a name that nobody else ever has.

    All methods raise `StoreUnavailable` where it cannot be reached.
    """

    async def claim(self, request: KeyedRequest, owner: str, *, lease_s: float) -> Earlier | None:
        """Take the key; None if that is done, and the request is the owner's to run.

        A request that has ended and whose answer is not kept makes room for the next one.

        Raises:
            KeyConflict: The key belongs to another request.
        """
        ...

    async def renew(self, owners: Sequence[str], *, lease_s: float) -> None:
        """Keep the keys of requests that still run for longer."""
        ...

    async def end(self, request: KeyedRequest, owner: str, *, window_s: float, kept: bool) -> bool:
        """It has succeeded: the key stays its for the window, counted from its claim.

        Returns whether the owner still had it.
        """
        ...

    async def release(self, request: KeyedRequest, owner: str) -> None:
        """It has failed: the key is anybody's."""
        ...

    async def expired(self, limit: int) -> Sequence[Earlier]:
        """Requests whose window has passed, or whose owner is gone."""
        ...

    async def forget(self, earlier: Earlier) -> None:
        """Give the key back, unless a later request has claimed it."""
        ...


class _Record(msgspec.Struct):
    digest: bytes
    owner: str
    running: bool
    created_at: float
    expires_at: float
    kept: bool = False


class MemoryIdempotencyStore:
    """Keys of one process, for where there is no database.

    Args:
        clock: In seconds.
    """

    MAX_KEYS: Final = 100_000
    """The oldest are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[tuple[str, bytes], _Record] = {}

    async def claim(self, request: KeyedRequest, owner: str, *, lease_s: float) -> Earlier | None:
        """See the port."""
        place, now = (request.account, request.key), self._clock()
        found = self._records.get(place)
        if found is not None and found.expires_at > now:
            if found.digest != request.digest:
                raise KeyConflict
            runs_elsewhere = found.running and found.owner != owner
            if runs_elsewhere or found.kept:
                return _earlier(place, found)
        self._records.pop(place, None)  # the newest are last
        self._records[place] = _Record(request.digest, owner, True, now, now + lease_s)
        while len(self._records) > self.MAX_KEYS:
            del self._records[next(iter(self._records))]
        return None

    async def renew(self, owners: Sequence[str], *, lease_s: float) -> None:
        """See the port."""
        known = set(owners)
        for record in self._records.values():
            if record.running and record.owner in known:
                record.expires_at = self._clock() + lease_s

    async def end(self, request: KeyedRequest, owner: str, *, window_s: float, kept: bool) -> bool:
        """See the port."""
        record = self._records.get((request.account, request.key))
        if record is None or not record.running or record.owner != owner:
            return False
        record.running = False
        record.expires_at = record.created_at + window_s
        record.kept = kept
        return True

    async def release(self, request: KeyedRequest, owner: str) -> None:
        """See the port."""
        place = (request.account, request.key)
        record = self._records.get(place)
        if record is not None and record.running and record.owner == owner:
            del self._records[place]

    async def expired(self, limit: int) -> Sequence[Earlier]:
        """See the port."""
        now = self._clock()
        old = (
            _earlier(place, record)
            for place, record in self._records.items()
            if record.expires_at <= now
        )
        return [earlier for earlier, _ in zip(old, range(limit), strict=False)]

    async def forget(self, earlier: Earlier) -> None:
        """See the port."""
        place = (earlier.account, earlier.key)
        record = self._records.get(place)
        if record is not None and record.created_at == earlier.created_at:
            del self._records[place]


def _earlier(place: tuple[str, bytes], record: _Record) -> Earlier:
    account, key = place
    return Earlier(account=account, key=key, created_at=record.created_at, kept=record.kept)
