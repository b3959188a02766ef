"""Response headers that tell how an account stands with its limits.

Source: error catalogue, "Authentication, access, account"; the headers of both official APIs. The
one family tells when a limit is whole again as a duration, the other as a moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingress.limits.standing import Standing

Headers = Sequence[tuple[bytes, bytes]]

_OPENAI = {
    kind: tuple(f"x-ratelimit-{name}-{kind}".encode() for name in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}
_ANTHROPIC = {
    kind: tuple(
        f"anthropic-ratelimit-{kind}-{name}".encode() for name in ("limit", "remaining", "reset")
    )
    for kind in ("requests", "tokens")
}


def openai(standings: Sequence[Standing]) -> Headers:
    """`x-ratelimit-limit-requests`, `-remaining-…` and `-reset-…`, and the same of tokens."""
    headers = []
    for standing in standings:
        limit, remaining, reset = _OPENAI[standing.kind]
        headers.append((limit, b"%d" % standing.limit))
        headers.append((remaining, b"%d" % standing.remaining))
        headers.append((reset, _duration(standing.reset_s).encode()))
    return headers


def anthropic(standings: Sequence[Standing]) -> Headers:
    """`anthropic-ratelimit-requests-limit`, `-remaining` and `-reset`, and the same of tokens."""
    headers = []
    for standing in standings:
        limit, remaining, reset = _ANTHROPIC[standing.kind]
        headers.append((limit, b"%d" % standing.limit))
        headers.append((remaining, b"%d" % standing.remaining))
        headers.append((reset, standing.reset_at.encode()))
    return headers


def _duration(seconds: float) -> str:
    """As in `6m0s`, `1.5s` or `20ms`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    rest = f"{milliseconds / 1000:g}s"
    return f"{minutes}m{rest}" if minutes else rest
