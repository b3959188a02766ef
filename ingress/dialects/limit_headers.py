"""Response headers that tell how an account stands with its limits.

Source: error catalogue, "Authentication, access, account"; the headers of both official APIs. The
one family tells when a limit is whole again as a duration, the other as a moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingress.limits.standing import Standing

Headers = Sequence[tuple[bytes, bytes]]


def openai(standings: Sequence[Standing]) -> Headers:
    """`x-ratelimit-limit-requests`, `-remaining-…` and `-reset-…`, and the same of tokens."""
    headers = []
    for standing in standings:
        for name, value in (
            ("limit", str(standing.limit)),
            ("remaining", str(standing.remaining)),
            ("reset", _duration(standing.reset_s)),
        ):
            headers.append((f"x-ratelimit-{name}-{standing.kind}".encode(), value.encode()))
    return headers


def anthropic(standings: Sequence[Standing]) -> Headers:
    """`anthropic-ratelimit-requests-limit`, `-remaining` and `-reset`, and the same of tokens."""
    headers = []
    for standing in standings:
        for name, value in (
            ("limit", str(standing.limit)),
            ("remaining", str(standing.remaining)),
            ("reset", standing.reset_at),
        ):
            headers.append((f"anthropic-ratelimit-{standing.kind}-{name}".encode(), value.encode()))
    return headers


def _duration(seconds: float) -> str:
    """As in `6m0s`, `1.5s` or `20ms`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    rest = f"{milliseconds / 1000:g}s"
    return f"{minutes}m{rest}" if minutes else rest
