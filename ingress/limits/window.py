"""The minute that limits are about, divided into parts. Pure.

A window counts by parts of equal length. One that has begun to leave it counts until all of it has
left, so that no 60 seconds, wherever they begin, ever have more than the limit; what that costs is
one part in 120 of what would be possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

Parts: TypeAlias = Mapping[int, int]
"""Amounts by the part of the window in which they count."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How the last minute is divided.

    Attributes:
        length_s: Of the window; but for tests, a minute.
        parts: So many of it.
    """

    length_s: float = 60.0
    parts: int = 120

    def part(self, now: float) -> int:
        """In which part a moment is."""
        return math.floor(now * self.parts / self.length_s)

    def left_at(self, part: int) -> float:
        """When nothing of a part counts any more."""
        return (part + 1 + self.parts) * self.length_s / self.parts

    def recent(self, amounts: Parts, part: int) -> dict[int, int]:
        """What of these counts in the window that ends in `part`."""
        # As far ahead as back: the clock may have been put back a little.
        first, last = part - self.parts, part + self.parts
        return {at: n for at, n in amounts.items() if n and first <= at <= last}


MINUTE: Final = Window()


def added(a: Parts, b: Parts) -> dict[int, int]:
    """Both together."""
    together = dict(a)
    for part, amount in b.items():
        together[part] = together.get(part, 0) + amount
    return together
