"""What it has cost to run one Job, and when that is enough.

A worker that was lost may have been lost through the Job it ran. Losses count in a row: new tokens
in between clear the Job, and a loss in the company of another suspect proves nothing. Whatever else
ends an attempt (a worker that leaves, a reader too slow, a broker gone) is nobody's fault and only
costs time, which is limited too. Batch work that made room for a live request costs nothing at all,
however often it does.

Source: streaming failures, section 4.
"""

from __future__ import annotations

import math
import random
from typing import Final, Literal, TypeAlias

from schemas.errors import GenerationFailed, WorkerFailed

Loss: TypeAlias = Literal[
    "redelivered",
    "engine_lost",
    "silent",
    "stalled",
    "gap",
    "draining",
    "unreadable",
    "suspended",
    "disconnected",
    "unclaimed",
    "blocked",
    "duplicated",
    "yielded",
]
"""Why an attempt will not go on.

`redelivered`: another worker got the Job. `engine_lost`, `draining`, `unreadable`: the worker said
so.
`silent`: it said nothing at all. `stalled`: it is there but generates nothing. `gap`: a part of
what it said is missing. `suspended`: too much was unread. `disconnected`: the broker is gone.
`unclaimed`: no worker accepts it although some have room, so one that hangs may have it. `blocked`:
nothing was heard of it, but then the broker lets nobody speak. `duplicated`: two workers run it.
`yielded`: it is batch work and made room for a live request.
"""

MAX_STRIKES: Final = 2
"""A Job that was lost with this many workers in a row is not tried on another one."""

MAX_LOST_WORKERS: Final = 10
"""Nor is one that was lost with this many, whatever it achieved in between."""

_STRIKES: Final = frozenset(("redelivered", "engine_lost", "silent", "stalled", "gap"))
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0


class Retries:
    """Counts the lost attempts of one Job and spaces the next ones.

    Args:
        retry_s: How long attempts that get nowhere may go on.

    Attributes:
        losses: Why each lost attempt was lost, in order.
        strikes: Workers lost in a row.
        in_doubt: The last of them may have been lost through another suspect.
        ends_at: When attempts that get nowhere have gone on for too long.
    """

    def __init__(self, retry_s: float) -> None:
        self.losses: list[Loss] = []
        self.strikes = 0
        self.in_doubt = False
        self.ends_at = math.inf
        self._retry_s = retry_s
        self._lost_workers = 0
        self._tries = 0

    def lost(
        self, loss: Loss, *, accepted: bool, progressed: bool, alone: bool = True, now: float
    ) -> None:
        """An attempt was lost.

        Args:
            loss: How.
            accepted: A worker had begun to run it.
            progressed: It had produced new tokens.
            alone: No other suspect ran beside it.
            now: In the clock of `ends_at`.
        """
        self.losses.append(loss)
        if progressed:
            self.strikes = self._tries = 0
            self.in_doubt = False
            self.ends_at = math.inf
        if loss == "yielded":
            self._tries = 0
            return
        if self.ends_at == math.inf:
            self.ends_at = now + self._retry_s
        if accepted and loss in _STRIKES:
            self.in_doubt = self.strikes > 0 and not alone
            self.strikes += not self.in_doubt
            self._lost_workers += 1

    def excuse(self, waited_s: float) -> None:
        """Time passed in which nobody tried: it does not count."""
        self.ends_at += waited_s

    def check(self, now: float) -> None:
        """Whether there may be another attempt.

        Raises:
            GenerationFailed: The Job seems to be the reason.
            WorkerFailed: It is enough all the same.
        """
        if self.strikes >= MAX_STRIKES:
            raise GenerationFailed("This request could not be completed on any worker.")
        if self._lost_workers >= MAX_LOST_WORKERS or now >= self.ends_at:
            raise WorkerFailed("The workers that were answering this request were lost.")

    def next_delay_s(self) -> float:
        """How long to wait before the next try: longer and longer while all is in vain.

        The first one goes at once. Others wait at random, or all replies that one loss has hit
        would knock together.
        """
        tries, self._tries = self._tries, self._tries + 1
        if not tries:
            return 0.0
        return min(_FIRST_DELAY_S * 2.0 ** (tries - 1), _MAX_DELAY_S) * random.uniform(0.5, 1.0)
