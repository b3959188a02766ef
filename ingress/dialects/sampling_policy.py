"""Which sampling fields reach a model.

Source: Chat Completions, section 4 ("Sampling policy"): the same for the three dialects of
conversations, and none of it for text completions. Dialect profiles, #14.
"""

from __future__ import annotations

from typing import Any

from ingress.dialects.profile import Profile
from schemas.model_card import ModelCard

POLICED = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Fields that models with sampling of their own ignore."""


def ignored_sampling(request: Any, card: ModelCard, profile: Profile) -> tuple[str, ...]:
    """The fields of a request that will have no effect, if the profile wants them named."""
    if card.honors_sampling or not profile.name_ignored_sampling:
        return ()
    return tuple(name for name in POLICED if getattr(request, name, None) is not None)
