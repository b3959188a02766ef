"""What a client is told whom a limit refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from ingress.accounts.account import Limits
from ingress.limits.standing import Standing
from ingress.limits.state import Ask, Verdict
from schemas.errors import (
    ConcurrencyLimitExceeded,
    InsufficientCredits,
    RateLimitExceeded,
    RequestError,
)

_USED_UP = "The budget of this account is used up."
_NEVER_RETRY_AFTER_S = 60


class RateRefusal(RateLimitExceeded):
    """Attributes: standings: Of the account, for the headers of the answer."""

    standings: Sequence[Standing] = ()


class TooLargeForLimit(RateRefusal):
    """One request alone is more than a minute may have: trying again would not help."""

    retryable = False


class ConcurrencyRefusal(ConcurrencyLimitExceeded):
    """Attributes: standings: Of the account, for the headers of the answer."""

    standings: Sequence[Standing] = ()


Refused = RateRefusal | ConcurrencyRefusal
"""What tells how the account stands."""


def used_up() -> InsufficientCredits:
    """The error for an account without credit."""
    return InsufficientCredits(_USED_UP)


def refusal(
    verdict: Verdict, ask: Ask, limits: Limits, standings: Sequence[Standing]
) -> RequestError:
    """The error for a request that is refused."""
    retry_after_s = max(1, math.ceil(verdict.retry_after_s))
    assert verdict.refusal is not None
    error: Refused
    match verdict.refusal:
        case "budget":
            return InsufficientCredits(
                "What is left of this account's budget does not cover what the request may cost."
                if ask.microcents
                else _USED_UP
            )
        case "size":
            error = TooLargeForLimit(
                f"The request may use {ask.tokens} tokens, and this account's limit is "
                f"{limits.tokens_per_minute} per minute. Send a shorter prompt, or ask for less "
                "output.",
                retry_after_s=_NEVER_RETRY_AFTER_S,
            )
        case "reserved":
            error = RateRefusal(
                "What is left of this account's budget is reserved by its requests in flight.",
                retry_after_s=retry_after_s,
            )
        case "concurrency":
            error = ConcurrencyRefusal(
                f"This account may have {limits.concurrency} requests in flight.",
                retry_after_s=retry_after_s,
            )
        case "requests":
            error = RateRefusal(
                f"This account may make {limits.requests_per_minute} requests per minute.",
                retry_after_s=retry_after_s,
            )
        case "tokens":
            error = RateRefusal(
                f"This account may use {limits.tokens_per_minute} tokens per minute, and the "
                f"request may use {ask.tokens}.",
                retry_after_s=retry_after_s,
            )
        case _:
            assert_never(verdict.refusal)
    error.standings = standings
    return error
