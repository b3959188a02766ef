"""How many entries of a list a client wants."""

from __future__ import annotations

from schemas.errors import UnsupportedValue


def page_limit(text: str | None, *, default: int, largest: int) -> int:
    """The parameter `limit` of a list.

    Raises:
        UnsupportedValue: It is no number from 1 to `largest`.
    """
    if text is None:
        return default
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= largest:
        raise UnsupportedValue(f"`limit` must be from 1 to {largest}.", param="limit")
    return limit
