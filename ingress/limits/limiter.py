"""The port of limits: a request reserves what it may use, and settles what it used.

One `Limiter` per process. What is reserved and not yet settled counts as used, so limits hold
whatever is in flight anywhere. A reservation is settled exactly once, or given back untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from ingress.accounts.account import Account
from ingress.limits.standing import Standing
from ingress.limits.state import Seen
from schemas.delta import Usage


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a request may use.

    Attributes:
        input_tokens: Of its prompt, estimated.
        output_tokens: Of its answer, all choices together.
        microcents: What that costs.
    """

    input_tokens: int
    output_tokens: int
    microcents: int = 0


class Reservation(Protocol):
    """What one request holds of its account's limits."""

    @property
    def standings(self) -> Sequence[Standing]:
        """As they were when it was made; for the response's headers."""
        ...

    def leave(self) -> None:
        """The request is not in flight any more, though not known yet what it used. Idempotent."""
        ...

    def settle(self, usage: Usage, microcents: int) -> None:
        """The request has ended, and this is what it used. Idempotent; never blocks."""
        ...

    def give_back(self) -> None:
        """The request was refused before it used anything. Idempotent; never blocks."""
        ...


class Limiter(Protocol):
    """Knows what accounts use."""

    async def require_credit(self, account: Account) -> None:
        """Check an account's budget by what this process knows; it asks if it knows nothing.

        Raises:
            InsufficientCredits: It is used up.
        """
        ...

    async def require_room(self, account: Account) -> None:
        """Check what `reserve` would say of a request that uses nothing; reserves nothing.

        Raises:
            InsufficientCredits, ConcurrencyLimitExceeded, RateLimitExceeded: As `reserve`.
        """
        ...

    async def reserve(self, account: Account, demand: Demand) -> Reservation:
        """Take what a request may use.

        Raises:
            InsufficientCredits: The budget is used up.
            ConcurrencyLimitExceeded: Too many requests are in flight.
            RateLimitExceeded: Too many requests, or tokens, in the last 60 seconds.
        """
        ...

    def charge(self, account: Account, usage: Usage, microcents: int) -> None:
        """Count work that was not reserved, such as of a batch, against the budget. Never blocks.

        Limits by the minute are about live requests, and know nothing of it.
        """
        ...

    def seen(self) -> Sequence[Seen]:
        """The accounts that this process has asked for."""
        ...

    async def close(self) -> None:
        """Settle what is left, and give back what this process holds."""
        ...


class _Nothing:
    """Holds nothing."""

    standings: Sequence[Standing] = ()

    def leave(self) -> None:
        pass

    def settle(self, usage: Usage, microcents: int) -> None:
        del usage, microcents

    def give_back(self) -> None:
        pass


NOTHING: Final[Reservation] = _Nothing()


class NoLimits:
    """A `Limiter` of a deployment that has none."""

    async def require_credit(self, account: Account) -> None:
        del account

    async def require_room(self, account: Account) -> None:
        del account

    async def reserve(self, account: Account, demand: Demand) -> Reservation:
        del account, demand
        return NOTHING

    def charge(self, account: Account, usage: Usage, microcents: int) -> None:
        del account, usage, microcents

    def seen(self) -> Sequence[Seen]:
        return ()

    async def close(self) -> None:
        pass
