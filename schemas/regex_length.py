"""Regular expressions narrowed to matches of some length.

A grammar compiler that is given a pattern and a length enforces one of the two. But the length can
be written into the pattern: `[a-z]+` of at most five characters is `[a-z]{1,5}`. Where several
parts may grow, one of them is written out count by count. Groups whose own length differs from
match to match cannot be counted so, and what becomes too long by it is not worth its compilation.

Source: JSON Schema 2020-12, validation, section 6.3 (lengths are counted in characters).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, TypeAlias

from schemas.regex import Group, Item, Row, UnsupportedRegex, whole_rows

Span: TypeAlias = tuple[float, float]
"""From and to, both included; the end may be infinite."""

LONGEST_COUNTED: Final = 256
"""Compilation, and with it every token, takes time that grows faster than what is counted."""

_MOST_COUNTED: Final = 500
"""Over all alternatives together."""

_MOST_ITEMS: Final = 50
_MOST_STEPS: Final = 1_000


def rows_of_length(pattern: str, least: int, most: int | None) -> list[Row]:
    """The ways to match all of a string of some length, as `whole_rows`; none if there are none.

    Raises:
        UnsupportedRegex: It cannot be written down.
    """
    wanted = (least, math.inf if most is None else most)
    found: list[Row] = []
    counted = 0.0
    steps = iter(range(_MOST_STEPS))
    for row in whole_rows(pattern):
        for narrowed in _narrowed(row, wanted, steps):
            if narrowed is not row:
                counts = [_counted(item) for item in narrowed]
                counted += 1 + sum(counts)
                if max(counts) > LONGEST_COUNTED or counted > _MOST_COUNTED:
                    raise UnsupportedRegex("has too many ways to reach a length")
            found.append(narrowed)
    return found


def _narrowed(row: Row, wanted: Span, steps: Iterator[int]) -> Iterator[Row]:
    """The same row as often as it takes, each time with some counts narrowed.

    Args:
        row: What is narrowed.
        wanted: Its length.
        steps: One is taken for each part that is looked at.
    """
    low, high = _of_row(row)
    if low > wanted[1] or high < wanted[0]:
        return
    if wanted[0] <= low and high <= wanted[1]:
        yield row
        return
    if len(row) > _MOST_ITEMS or next(steps, None) is None:
        raise UnsupportedRegex("has too many ways to reach a length")
    index = next(index for index, item in enumerate(row) if _varies(_of_item(item)))
    fixed, item, rest = row[:index], row[index], row[index + 1 :]
    width, widest = _of_what(item)
    if width != widest or not width:
        raise UnsupportedRegex("repeats a group of no fixed length")
    start = _of_row(fixed)[0]
    left = (wanted[0] - start, wanted[1] - start)
    for counted, narrowed in _counts(item, width, rest, left, steps):
        yield (*fixed, counted, *narrowed)


def _counts(
    item: Item, width: float, rest: Row, wanted: Span, steps: Iterator[int]
) -> Iterator[tuple[Item, Row]]:
    """How often an item may come, and what may then follow it."""
    rest_low, rest_high = _of_row(rest)
    count, last = item.span
    if rest_high != math.inf:
        count = max(count, math.ceil((wanted[0] - rest_high) / width))
    if rest_low == rest_high:
        if wanted[1] != math.inf:
            last = min(last, (wanted[1] - rest_low) // width)
        if count <= last:
            yield _times(item, count, last), rest
        return
    while count <= last:
        left = (wanted[0] - count * width, wanted[1] - count * width)
        if left[1] < rest_low:
            return
        if left[0] <= rest_low and wanted[1] == math.inf:
            yield _times(item, count, last), rest
            return
        for narrowed in _narrowed(rest, left, steps):
            yield _times(item, count, count), narrowed
        count += 1


def _times(item: Item, least: float, most: float) -> Item:
    end = "" if most == math.inf else int(most)
    return Item(item.what, f"{{{int(least)},{end}}}")


def _counted(item: Item) -> float:
    low, high = item.span
    return low if high == math.inf else high


# --- Lengths -------------------------------------------------------------------------------------


def _varies(span: Span) -> bool:
    return span[0] != span[1]


def _of_row(row: Row) -> Span:
    spans = [_of_item(item) for item in row]
    return sum(low for low, _ in spans), sum(high for _, high in spans)


def _of_item(item: Item) -> Span:
    low, high = _of_what(item)
    least, most = item.span
    return low * least, high * most if high and most else 0


def _of_what(item: Item) -> Span:
    """Of what an item repeats."""
    if not isinstance(item.what, Group):
        return 1, 1
    spans = [_of_row(alternative.items) for alternative in item.what.alternatives]
    return min(low for low, _ in spans), max(high for _, high in spans)
