"""The most that a request may use of its account's limits. Pure."""

from __future__ import annotations

from ingress.accounts.account import Limits
from ingress.limits.limiter import Demand
from ingress.usage.prices import cost_microcents
from schemas.delta import Usage
from schemas.job import Job
from schemas.model_card import ModelCard


def demand_of(
    job: Job, card: ModelCard, limits: Limits, *, input_tokens: int, by_default: int
) -> Demand:
    """The prompt, and all choices at the output limit.

    A model's own limit is so high that few answers come near it, and reserving it would keep others
    out for nothing. So who sets none reserves `by_default` tokens for each choice, and never more
    than the account could have. What such an answer uses beyond that counts when it has ended.
    `input_tokens` are those of all prompts, estimated.
    """
    limit = job.sampling.limit
    if limit.by_default:
        output_tokens = min(limit.max_tokens, by_default) * job.choices
        if limits.tokens_per_minute is not None:
            output_tokens = min(output_tokens, max(0, limits.tokens_per_minute - input_tokens))
    else:
        output_tokens = (limit.max_tokens + limit.headroom) * job.choices
    most = Usage(input_tokens, 0, output_tokens, 0)
    return Demand(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        microcents=cost_microcents(most, card.pricing),
    )
