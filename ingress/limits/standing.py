"""How an account stands with one of its limits. A plain value."""

from __future__ import annotations

from typing import Literal

import msgspec


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of an account, as clients are told of it.

    Attributes:
        kind: What it limits in 60 seconds.
        limit: So much.
        remaining: What is left of it now.
        reset_s: Seconds until all of it is there again, if nothing more is used.
        reset_at: When that is, in RFC 3339.
    """

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_s: float
    reset_at: str
