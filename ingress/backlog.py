"""What waits for a worker: how much it is, how fast it goes, and so whether one more would fit.

One Backlog per model and process. It sees what this process handed over and no worker has accepted
yet; in a queue that several processes share, each one's part grows and drains with the whole, so
the wait that follows from the part is that of all.

The rate is measured only while a queue stands, that is while somebody has waited for longer than a
free worker would take: a queue that is empty says nothing about how fast it could drain. Without a
measurement the answer is yes; the broker has a bound of its own.

Must not know HTTP, the broker or what a Job asks. The clock is handed in.

Source: wire reference, "Shutdown and overload": overload is decided at admission.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from schemas.errors import ModelOverloaded

STANDING_S: Final = 0.25
"""Who has waited for longer stands in a queue, and did not just find a free worker."""

_MEMORY_S: Final = 30.0
"""Time constant of the measured rate: about what happened in the last half minute counts."""

_RETRY_AFTER_S: Final = (1, 60)
"""Clients that are told more than a minute go by a back-off of their own, which is shorter."""

_SPREAD: Final = 0.5
"""Clients that were refused together come back over half as long again."""


Bound: TypeAlias = Literal["concurrency", "queue_length", "queue_tokens", "expected_wait"]


class Overload(ModelOverloaded):
    """Refused at admission.

    Attributes:
        reason: Which bound was reached.
    """

    def __init__(self, message: str, *, reason: Bound, retry_after_s: int | None) -> None:
        super().__init__(message, diagnostic=reason, retry_after_s=retry_after_s)
        self.reason = reason


class Place:
    """One request's place among those that wait; it may be taken more than once."""

    __slots__ = ("_backlog", "tokens")

    def __init__(self, backlog: Backlog, tokens: int) -> None:
        self._backlog = backlog
        self.tokens = tokens

    def take(self) -> None:
        """The request waits for a worker from now on. Idempotent."""
        self._backlog.add(self)

    def leave(self, *, accepted: bool) -> None:
        """It no longer does: a worker has it, or nobody wants it any more. Idempotent."""
        self._backlog.remove(self, accepted=accepted)


class Backlog:
    """The requests of one model that wait for a worker, the oldest first.

    Args:
        max_requests: Above so many further ones are refused.
        max_tokens: The same for the tokens of their prompts, about.
        max_wait_s: Nobody is let in who would wait for longer, by the measured rate.
        clock: Seconds that only grow.
        on_accepted: Called with the seconds that a request waited until a worker accepted it.

    Attributes:
        tokens: Of all that wait, about.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_tokens: int,
        max_wait_s: float,
        clock: Callable[[], float],
        on_accepted: Callable[[float], object] = lambda _: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._on_accepted = on_accepted
        self._chance = chance
        self._since: dict[Place, float] = {}
        self._measured_at = clock()
        self._accepted = 0.0  # out of a standing queue, lately
        self._stood_s = 0.0  # for how long there was one
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(self, place: Place) -> None:
        if place in self._since:
            return
        self._measure()
        self._since[place] = self._clock()
        self.tokens += place.tokens

    def remove(self, place: Place, *, accepted: bool) -> None:
        if place not in self._since:
            return
        self._measure()
        waited_s = self._clock() - self._since.pop(place)
        self.tokens -= place.tokens
        if accepted:
            self._on_accepted(waited_s)
            if waited_s > STANDING_S:
                self._accepted += 1

    def check(self, tokens: int, *, free_slots: int) -> None:
        """Refuse one more request if it had to wait too long, or there is too much already.

        Args:
            tokens: Of its prompt, about.
            free_slots: That workers told of; what fits into them does not wait.

        Raises:
            Overload: With the time after which it would fit, as far as that is known.
        """
        ahead = len(self)
        if ahead < max(free_slots, 1):
            return
        rate = self.rate()
        if ahead >= self._max_requests:
            raise Overload(
                "Too many requests wait for this model; try again shortly.",
                reason="queue_length",
                retry_after_s=self._seconds(ahead - self._max_requests + 1, rate),
            )
        if (excess := self.tokens + tokens - self._max_tokens) > 0:
            raise Overload(
                "Too much work waits for this model; try again shortly.",
                reason="queue_tokens",
                retry_after_s=self._seconds(excess * ahead / max(self.tokens, 1), rate),
            )
        if rate and (wait_s := ahead / rate) > self._max_wait_s:
            raise Overload(
                "The wait for this model would be too long; try again shortly.",
                reason="expected_wait",
                retry_after_s=self._spread(wait_s - self._max_wait_s),
            )

    def rate(self) -> float | None:
        """Requests per second that workers accept out of a queue that stands; None if unknown."""
        self._measure()
        return self._accepted / self._stood_s if self._accepted and self._stood_s else None

    def retry_after_s(self) -> int | None:
        """When what waits now will have been accepted; None if there is no saying."""
        return self._seconds(max(len(self), 1), self.rate())

    def _seconds(self, requests: float, rate: float | None) -> int | None:
        return self._spread(requests / rate) if rate else None

    def _spread(self, seconds: float) -> int:
        least, most = _RETRY_AFTER_S
        return min(most, max(least, math.ceil(seconds * (1 + _SPREAD * self._chance()))))

    def _measure(self) -> None:
        """Bring the measurement up to now; what it counted before fades."""
        now, before = self._clock(), self._measured_at
        if now <= before:
            return
        self._measured_at = now
        fading = math.exp((before - now) / _MEMORY_S)
        self._accepted *= fading
        self._stood_s *= fading
        if self._since:
            standing_since = max(before, next(iter(self._since.values())) + STANDING_S)
            if standing_since < now:
                self._stood_s += _MEMORY_S * (1 - math.exp((standing_since - now) / _MEMORY_S))
