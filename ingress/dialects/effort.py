"""How much a model shall think: what was asked for -> a tier the model has.

The spellings of the wish are each dialect's own business; the mapping is the same for all.

Source: Chat Completions, section 11 (tier mapping, defaults).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from schemas.job import Effort, Reasoning
from schemas.model_card import ReasoningSupport

RANK: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every effort, from least to most."""

DOCUMENTED = "must be one of 'none', 'low', 'medium', 'high', 'xhigh' or 'max'"
"""What to say to any other. Not every caller may say `minimal`, and none needs to."""

Wish: TypeAlias = Effort | Literal["enabled"]
"""An effort, or only that the model shall think."""


def resolve(wish: Wish | None, support: ReasoningSupport | None) -> Reasoning:
    """What to tell the worker.

    Args:
        wish: What the request asks for; None if it does not say.
        support: None for a model that is not known to reason; a wish then has no effect on what it
            does. Should it reason all the same, that is not shown to who wants none.
    """
    if support is None:
        return Reasoning(visible=wish != "none")
    if wish is None:
        effort = support.default
    elif wish == "enabled":
        effort = _when_enabled(support)
    else:
        effort = wish
    # A model that cannot stop thinking runs at its lowest tier; what it thinks is not shown.
    return Reasoning(effort=_nearest(effort, support), visible=effort != "none")


def _nearest(effort: Effort, support: ReasoningSupport) -> Effort:
    if effort in support.efforts:
        return effort
    wanted = RANK.index(effort)
    tiers = [tier for tier in support.efforts if tier != "none"]
    ranked = ((abs(RANK.index(tier) - wanted), -RANK.index(tier), tier) for tier in tiers)
    return min(ranked, default=(0, 0, RANK[0]))[2]


def _when_enabled(support: ReasoningSupport) -> Effort:
    if support.default != "none":
        return support.default
    if "high" in support.efforts:
        return "high"
    return next((tier for tier in support.efforts if tier != "none"), "none")
