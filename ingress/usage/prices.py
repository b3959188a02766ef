"""What tokens cost. Pure."""

from __future__ import annotations

from schemas.delta import Usage
from schemas.model_card import Pricing

_MICROCENTS = 1_000_000
_PER = 1_000_000


def cost_microcents(usage: Usage, pricing: Pricing | None) -> int:
    """The price of a request in millionths of a cent, rounded up; 0 for a model without prices.

    Source: model catalogue, `wafer.pricing`.
    """
    if pricing is None:
        return 0
    cached = pricing.cache_read_microcents_per_million
    if cached is None:
        cached = pricing.input_cents_per_million * _MICROCENTS
    fresh_tokens = usage.input_tokens - usage.cached_tokens
    total = (
        fresh_tokens * pricing.input_cents_per_million * _MICROCENTS
        + usage.cached_tokens * cached
        + usage.output_tokens * pricing.output_cents_per_million * _MICROCENTS
    )
    return -(-total // _PER)
