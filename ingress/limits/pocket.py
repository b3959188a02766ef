"""What a process may admit of one account without asking. It knows no ledger and waits for nothing.

Requests that an account's pocket has enough for are admitted at once. All that is in it has been
reserved and counts as used at any moment until it has been told what became of it, so no limit can
be exceeded by it; and what one of its requests gives back goes into it again.
"""

from __future__ import annotations

import math
from typing import Final

from ingress.accounts.account import Limits
from ingress.limits.state import NO_ALLOWANCE, Allowance, Ask, Level, Outcome, Verdict
from ingress.limits.window import Window

_TURNS_AHEAD: Final = 2
_FEWEST: Final = 3
"""Requests that a pocket is worth: for fewer, asking costs no more than keeping it."""


class Pocket:
    """What was granted in one turn, and is left of it.

    Args:
        asked_at: When the turn was sent, by the clock of the process. The ledger took it later, so
            its time is never later than what is counted from there: what is admitted here leaves
            the window too late rather than too early.
        lasts_s: Since then.
    """

    __slots__ = (
        "_allowed",
        "_asked_at",
        "_ends_at",
        "_in_flight",
        "_limits",
        "_microcents",
        "_now",
        "_requests",
        "_requests_left",
        "_tokens",
        "_tokens_left",
        "_window",
    )

    def __init__(
        self, outcome: Outcome, limits: Limits, window: Window, *, asked_at: float, lasts_s: float
    ) -> None:
        self._limits = limits
        self._window = window
        self._now = outcome.now
        self._asked_at = asked_at
        self._ends_at = asked_at + lasts_s
        granted = outcome.pocket
        self._requests = granted.requests
        self._in_flight = granted.in_flight
        self._tokens = granted.tokens
        self._microcents = granted.microcents
        # Of the limits, as clients are told; None without such a limit.
        self._requests_left = None if outcome.requests is None else outcome.requests.remaining
        self._tokens_left = None if outcome.tokens is None else outcome.tokens.remaining

    def take(self, ask: Ask, at: float) -> tuple[Verdict, float] | None:
        """Admit a request; None if that cannot be done here.

        `at` is by the clock of the process; what comes with the verdict by the ledger's.
        """
        limits = self._limits
        if (
            at >= self._ends_at
            or self._requests < 1
            or (limits.concurrency is not None and self._in_flight < 1)
            or (limits.tokens_per_minute is not None and self._tokens < ask.tokens)
            or (limits.budget is not None and self._microcents < ask.microcents)
        ):
            return None
        now = self._now + (at - self._asked_at)
        part = self._window.part(now)
        if not ask.look:
            self._add(-1, -ask.tokens, -ask.microcents)
            self._in_flight -= 1
        full_in_s = self._window.left_at(part) - now
        verdict = Verdict(
            refusal=None,
            part=part,
            requests=_level(limits.requests_per_minute, self._requests_left, full_in_s),
            tokens=_level(limits.tokens_per_minute, self._tokens_left, full_in_s),
        )
        return verdict, now

    def leave(self) -> None:
        """A request is not in flight any more."""
        self._in_flight += 1

    def give_back(
        self, part: int, at: float, *, requests: int = 0, tokens: int = 0, microcents: int = 0
    ) -> None:
        """What a request of this part of the window had reserved, and has not used.

        What may have left the window counts nowhere any more, and cannot be used again.
        """
        if part + self._window.parts // 2 > self._window.part(self._now + (at - self._asked_at)):
            self._add(requests, tokens, microcents)

    def _add(self, requests: int, tokens: int, microcents: int) -> None:
        self._requests += requests
        self._tokens += tokens
        self._microcents += microcents
        if self._requests_left is not None:
            self._requests_left += requests
        if self._tokens_left is not None:
            self._tokens_left += tokens


def _level(limit: int | None, left: int | None, full_in_s: float) -> Level | None:
    if limit is None or left is None:
        return None
    return Level(limit, max(0, left), full_in_s)


class Appetite:
    """How much a process uses of an account lately, and so would like to have in advance."""

    __slots__ = (
        "_largest_microcents",
        "_largest_tokens",
        "_microcents",
        "_requests",
        "_since",
        "_tokens",
        "_wish",
    )

    def __init__(self) -> None:
        self._wish = NO_ALLOWANCE
        self._since = -math.inf
        self._requests = self._tokens = self._microcents = 0
        self._largest_tokens = self._largest_microcents = 0

    def add(self, ask: Ask) -> None:
        """A request has been admitted."""
        self._requests += 1
        self._tokens += ask.tokens
        self._microcents += ask.microcents
        self._largest_tokens = max(self._largest_tokens, ask.tokens)
        self._largest_microcents = max(self._largest_microcents, ask.microcents)

    def wish(self, at: float, turn_s: float) -> Allowance:
        """What would last for two turns, by what was used since it was asked for last.

        It becomes more at once, and less only with time. Nothing if it were hardly used. Turns
        follow one another after `turn_s` while there is a pocket.
        """
        elapsed_s, self._since = at - self._since, at
        before = self._wish
        wanted = int(_TURNS_AHEAD * turn_s * self._requests / max(elapsed_s, turn_s / 4))
        kept = before.requests if elapsed_s < turn_s else before.requests // 4
        number = max(wanted, kept)
        if number < _FEWEST:
            self._wish = NO_ALLOWANCE
        elif not self._requests:
            self._wish = Allowance(
                number,
                number,
                before.tokens * number // before.requests,
                before.microcents * number // before.requests,
            )
        else:
            self._wish = Allowance(
                number,
                number,
                max(self._tokens * number // self._requests, self._largest_tokens),
                max(self._microcents * number // self._requests, self._largest_microcents),
            )
        self._requests = self._tokens = self._microcents = 0
        self._largest_tokens = self._largest_microcents = 0
        return self._wish
