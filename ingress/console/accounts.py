"""How far accounts use their limits, of those that are near them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ingress.accounts.account import Limits
from ingress.console.status import AccountUse, LimitUse
from ingress.limits.state import AccountState, Seen, forget
from ingress.limits.window import Window

NEAR: Final = 0.8
"""So much of a limit is worth showing."""

MOST_ACCOUNTS: Final = 50

_MICROCENTS: Final = 1_000_000


def near_limits(
    seen: Iterable[Seen], refused: Mapping[str, int], names: Mapping[str, str], window: Window
) -> tuple[AccountUse, ...]:
    """The accounts that are near a limit or were refused something, the nearest first.

    Args:
        seen: All that this process has asked for.
        refused: How many requests of each account were, lately.
        names: For people, by id.
        window: By which limits are counted.
    """
    found = []
    for one in seen:
        uses = tuple(uses_of(one.limits, one.state, one.now, window))
        times = refused.get(one.account_id, 0)
        if times or any(_part(use) >= NEAR for use in uses):
            name = names.get(one.account_id, "")
            found.append(AccountUse(account=one.account_id, name=name, refused=times, uses=uses))
    found.sort(key=nearness, reverse=True)
    return tuple(found[:MOST_ACCOUNTS])


def nearness(account: AccountUse) -> tuple[float, int]:
    """By what accounts are ordered."""
    return max((_part(use) for use in account.uses), default=0.0), account.refused


def uses_of(limits: Limits, state: AccountState, now: float, window: Window) -> Iterator[LimitUse]:
    """How far an account uses each limit it has, by what was last seen of it."""
    state = forget(state, now, window)
    holds = [lease.hold for lease in state.leases.values()]
    if limits.concurrency is not None:
        in_flight = sum(hold.in_flight for hold in holds)
        yield LimitUse(kind="concurrency", unit="", used=in_flight, limit=limits.concurrency)
    if limits.requests_per_minute is not None:
        requests = sum(state.requests.values())
        yield LimitUse(
            kind="requests", unit="per minute", used=requests, limit=limits.requests_per_minute
        )
    if limits.tokens_per_minute is not None:
        part = window.part(now)
        held = sum(sum(window.recent(hold.tokens, part).values()) for hold in holds)
        tokens = sum(state.tokens.values()) + held
        yield LimitUse(
            kind="tokens", unit="per minute", used=tokens, limit=limits.tokens_per_minute
        )
    if (budget := limits.budget) is not None:
        reserved = sum(hold.microcents for hold in holds)
        cents = (state.spent(budget.period, now) + reserved) / _MICROCENTS
        yield LimitUse(
            kind="budget", unit=f"cents per {budget.period}", used=cents, limit=budget.cents
        )


def _part(use: LimitUse) -> float:
    return use.used / use.limit if use.limit else 1.0
