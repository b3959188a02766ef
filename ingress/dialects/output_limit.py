"""How many tokens a request may generate.

The prompt's length is known only to the worker, so what comes out is the rule and not its result.

Source: Chat Completions, section 5 ("Output length"), steps 1 to 5.
"""

from __future__ import annotations

from schemas.job import Reasoning
from schemas.model_card import ModelCard
from schemas.sampling import OutputLimit


def output_limit(
    requested: int | None, card: ModelCard, reasoning: Reasoning, *, retry_without: bool
) -> OutputLimit:
    """The limit of a Job.

    Args:
        requested: The client's limit; None if it set none.
        card: Window, cap and headroom.
        reasoning: Headroom is added while it is on.
        retry_without: A client's limit that does not fit the window beside the prompt is dropped
            (Chat Completions) instead of failing the request (other dialects).
    """
    default = card.default_output_tokens
    if requested is None or requested > card.context_length:
        return OutputLimit(max_tokens=default, fallback_tokens=default, by_default=True)
    limit = requested
    if card.max_output_tokens is not None:
        limit = min(limit, card.max_output_tokens)
    return OutputLimit(
        max_tokens=limit,
        fallback_tokens=default if retry_without else None,
        headroom=card.reasoning_headroom if reasoning.enabled else 0,
    )
