"""Strings and numbers: their keywords in the forms that constrained decoding enforces.

Each function takes the keywords of one type and returns the whole schema, or None if no value
obeys it.

Source: JSON Schema 2020-12, validation, sections 6.2 and 6.3; XGrammar 0.2.7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from schemas.json_schema.conjunction import common_types
from schemas.regex import UnsupportedRegex, parse
from schemas.regex_length import LONGEST_COUNTED, rows_of_length

_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_INT64: Final = 2**63


def string(own: Mapping[str, Any]) -> dict[str, Any] | None:
    least, most = own.get("minLength", 0), own.get("maxLength")
    if most is not None and least > most:
        return None
    least = min(least, LONGEST_COUNTED)
    most = most if most is not None and most <= LONGEST_COUNTED else None
    parts: dict[str, Any] = {"type": "string"}
    if "pattern" in own and is_enforceable(own["pattern"]):
        parts["pattern"] = own["pattern"]
        try:
            rows = rows_of_length(own["pattern"], least, most)
        except UnsupportedRegex:
            return parts  # of the two, the pattern says more
        if not rows:
            return None
    if least:
        parts["minLength"] = least
    if most is not None:
        parts["maxLength"] = most
    return parts


def integer(own: Mapping[str, Any]) -> dict[str, Any] | None:
    low, above, high, below = map(own.get, _BOUNDS)
    lows = [math.ceil(low)] if low is not None else []
    lows += [math.floor(above) + 1] if above is not None else []
    highs = [math.floor(high)] if high is not None else []
    highs += [math.ceil(below) - 1] if below is not None else []
    least, most = max(lows, default=None), min(highs, default=None)
    if least is not None and most is not None and least > most:
        return None
    return {"type": "integer"} | _within_64_bits({"minimum": least, "maximum": most})


def number(own: Mapping[str, Any]) -> dict[str, Any] | None:
    low, above, high, below = map(own.get, _BOUNDS)
    if low is not None and high is not None and low > high:
        return None
    for least, most in ((low, below), (above, high), (above, below)):
        if least is not None and most is not None and least >= most:
            return None
    return {"type": "number"} | _within_64_bits(
        dict(zip(_BOUNDS, (low, above, high, below), strict=True))
    )


def _within_64_bits(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds that can be enforced; those beyond 64 bits hardly ever have to be."""
    return {
        name: bound for name, bound in bounds.items() if bound is not None and abs(bound) < _INT64
    }


def is_enforceable(pattern: str) -> bool:
    """Whether decoding can enforce a regular expression."""
    try:
        parse(pattern)
    except UnsupportedRegex:
        return False
    return True


def obeys(value: Any, allowed: list[str] | None, base: Mapping[str, Any]) -> bool:
    """Whether one of an enumeration's values obeys the keywords beside it, as far as is easy.

    Args:
        value: The value.
        allowed: Types; None for all.
        base: The keywords.
    """
    if allowed is not None and not common_types(_types_of(value), allowed):
        return False
    if isinstance(value, str):
        least, most = base.get("minLength", 0), base.get("maxLength", len(value))
        return bool(least <= len(value) <= most)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    low, above, high, below = map(base.get, _BOUNDS)
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    )


def _types_of(value: Any) -> list[str]:
    match value:
        case None:
            return ["null"]
        case bool():
            return ["boolean"]
        case int():
            return ["integer", "number"]
        case float():
            return ["integer", "number"] if value.is_integer() else ["number"]
        case str():
            return ["string"]
        case list():
            return ["array"]
        case _:
            return ["object"]
