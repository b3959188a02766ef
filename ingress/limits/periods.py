"""Days and months, by UTC, as numbers: the periods of budgets. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from ingress.accounts.account import Period

_DAY_S: Final = 86_400


def period_number(period: Period, now: float) -> int:
    """Which day or month a moment is in, by UTC, as a number that differs from all others."""
    return NUMBERS[period](now)


def _day(now: float) -> int:
    return math.floor(now / _DAY_S)


def _month(now: float) -> int:
    """Months since March of the year 0, in the calendar as it is today."""
    # Years are counted from March, so that a leap day is the last of its year. 400 of them always
    # have 146,097 days; 719,468 days went before 1970.
    era, day = divmod(_day(now) + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    return (era * 400 + year) * 12 + (5 * day_of_year + 2) // 153


def _ever(now: float) -> int:
    del now
    return 0


NUMBERS: Final[Mapping[Period, Callable[[float], int]]] = {
    "day": _day,
    "month": _month,
    "total": _ever,
}
