from __future__ import annotations

import asyncio

import pytest

from ingress.idempotency.key import KeyedRequest
from ingress.idempotency.patience import PatientStore
from ingress.idempotency.store import Earlier, MemoryIdempotencyStore
from ingress.stores.base import StoreUnavailable

ONE = KeyedRequest("ours", b"key", b"one")


class Slow(MemoryIdempotencyStore):
    """Answers when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = 0

    async def claim(self, request: KeyedRequest, owner: str, *, lease_s: float) -> Earlier | None:
        self.asked += 1
        await self.gate.wait()
        return await super().claim(request, owner, lease_s=lease_s)


@pytest.mark.rule("idempotency.away")
async def test_a_key_that_is_claimed_too_late_is_given_back() -> None:
    slow = Slow()
    store = PatientStore(slow, patience_s=0.02)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.claim(ONE, "a", lease_s=60)
    assert slow.asked == 1  # one that is away is not asked for a while
    slow.gate.set()
    await store.close()
    assert await slow.claim(ONE, "b", lease_s=60) is None


async def test_in_time_it_is_as_if_asked_itself() -> None:
    slow = Slow()
    slow.gate.set()
    store = PatientStore(slow, patience_s=10)
    assert await store.claim(ONE, "a", lease_s=60) is None
    await store.renew(["a"], lease_s=60)
    assert await store.end(ONE, "a", window_s=60, kept=True)
    earlier = await store.claim(ONE, "b", lease_s=60)
    assert earlier is not None
    assert earlier.kept
    await store.forget(earlier)
    assert await store.claim(ONE, "b", lease_s=60) is None
    await store.release(ONE, "b")
    assert await store.expired(1) == []
