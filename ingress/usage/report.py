"""Questions about usage, and how they are answered: in which time, parted by what.

Source: model catalogue, section 5 (usage of the caller).
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from ingress.usage.store import Group, UsageSum
from schemas.delta import Usage
from schemas.errors import UnsupportedValue

DAY_S: Final = 86_400
PERIODS: Final = {"1d": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S}
DEFAULT_PERIOD: Final = "30d"

_MICROCENTS: Final = 1_000_000
_SECONDS: Final = re.compile(r"\d{1,11}")
_LATEST: Final = 253_402_300_800


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A time that is asked about, in Unix seconds: from `start` on and before `end`."""

    start: float
    end: float


def span_of(query: Mapping[str, str], now: float) -> Span:
    """What a query asks about: `period` up to now, or from `start` to `end`; either may lack.

    Raises:
        UnsupportedValue: It cannot be understood.
    """
    period, start, end = (query.get(name) for name in ("period", "start", "end"))
    if period is not None and (start is not None or end is not None):
        raise UnsupportedValue("`period` goes without `start` and `end`.", param="period")
    if period is not None and period not in PERIODS:
        raise UnsupportedValue(f"`period` must be one of {', '.join(PERIODS)}.", param="period")
    ends_at = _asked(end, "end", now)
    span = Span(
        start=_asked(start, "start", max(0.0, ends_at - PERIODS[period or DEFAULT_PERIOD])),
        end=ends_at,
    )
    if span.end <= span.start:
        raise UnsupportedValue("`end` must be after `start`.", param="end")
    return span


def groups_of(text: str | None, allowed: Sequence[Group], default: str) -> tuple[Group, ...]:
    """What sums are wanted by: names with commas between.

    Raises:
        UnsupportedValue: One is not known.
    """
    wanted = [name.strip() for name in (text if text is not None else default).split(",")]
    if not set(wanted) <= set(allowed):
        names = ", ".join(f"`{name}`" for name in allowed)
        raise UnsupportedValue(f"`group_by` is one or several of {names}.", param="group_by")
    return cast("tuple[Group, ...]", tuple(dict.fromkeys(wanted)))


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where the next page of a report begins, which is of the same time as those before.

    Attributes:
        after: What the last sum before it was parted by.
    """

    span: Span
    after: tuple[str, ...]

    def text(self) -> str:
        """As a client gets it and brings it back."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


def place_of(text: str, groups: Sequence[Group]) -> Place:
    """The place that a client was told, of a report that is parted by `groups`.

    Raises:
        UnsupportedValue: It is none of them.
    """
    with suppress(ValueError, msgspec.DecodeError):
        place = msgspec.json.decode(base64.urlsafe_b64decode(text), type=Place)
        for group, part in zip(groups, place.after, strict=True):
            if group == "day":
                datetime.date.fromisoformat(part)
        if 0 <= place.span.start < place.span.end < _LATEST:
            return place
    raise UnsupportedValue("`page` is none of this report.", param="page")


def moment_of(text: str) -> float | None:
    """Unix seconds of a moment: of those seconds themselves, a date in UTC, or RFC 3339."""
    if _SECONDS.fullmatch(text):
        return float(text) if int(text) < _LATEST else None
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return max(0.0, moment.timestamp())
    except (ValueError, OverflowError):
        return None


def told_moment(seconds: float) -> str:
    """In RFC 3339, to the second."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def figures_of(used: UsageSum) -> dict[str, Any]:
    """A sum as it is shown."""
    usage = used.usage
    return {
        "request_count": used.requests,
        "cancelled_count": used.cancelled,
        "failed_count": used.failed,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "estimated_cost_cents": used.microcents / _MICROCENTS,
    }


def total_of(sums: Sequence[UsageSum]) -> UsageSum:
    """All of them together."""
    usages = [msgspec.structs.astuple(used.usage) for used in sums]
    return UsageSum(
        requests=sum(used.requests for used in sums),
        cancelled=sum(used.cancelled for used in sums),
        failed=sum(used.failed for used in sums),
        usage=Usage(*(sum(column) for column in zip(*usages, strict=True))),
        microcents=sum(used.microcents for used in sums),
    )


def _asked(text: str | None, param: str, default: float) -> float:
    if text is None:
        return default
    if (moment := moment_of(text)) is None:
        raise UnsupportedValue(
            f"`{param}` must be a date, a time in RFC 3339, or Unix seconds.", param=param
        )
    return moment
