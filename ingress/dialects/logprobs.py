"""Log probabilities on the wire: an entry of the two newer OpenAI dialects, and what JSON holds.

It knows tokens and no dialect.

Source: Chat Completions, section 2 (`logprobs`); Responses, section 5 (output items).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schemas.delta import TokenLogprob, TopLogprob

_LOWEST: Final = -9999.0


def finite(logprob: float) -> float:
    """A number that JSON has: impossible tokens have minus infinity."""
    # Written so that NaN is clamped too.
    return logprob if logprob > _LOWEST else _LOWEST


def entries(tokens: Sequence[TokenLogprob], top: int) -> list[dict[str, Any]]:
    """One entry per token, each with as many alternatives as were asked for."""
    return [
        {**_entry(token), "top_logprobs": [_entry(other) for other in token.top[:top]]}
        for token in tokens
    ]


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": token.token,
        "bytes": list(token.token_bytes),
        "logprob": finite(token.logprob),
    }
