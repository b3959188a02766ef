"""A model card as both client families read it: one object with the fields of either.

It must not know HTTP. Everything that a reader may do without is left out where it is unknown.

Source: model catalogue, sections 1 (`wafer`), 3 (capabilities) and 4 (one body for both).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from schemas.model_card import Capabilities, ModelCard, Pricing, ReasoningSupport

_MICROCENTS = 1_000_000
_LEVELS = ("low", "medium", "high", "xhigh", "max")


def model_object(card: ModelCard, alias: str | None = None) -> dict[str, Any]:
    """The catalogue's object for a model.

    Args:
        card: What is known of it.
        alias: The name to list it under instead of its id.
    """
    return {
        "id": alias or card.id,
        "object": "model",
        "type": "model",
        "created": card.created,
        "created_at": _rfc3339(card.created),
        "owned_by": card.owned_by,
        "display_name": card.display_name or alias or card.id,
        "lifecycle": "active",
        "max_model_len": card.context_length,
        "max_input_tokens": card.context_length,
        "max_tokens": card.max_output_tokens or card.context_length,
        "zdr_supported": card.zdr_supported,
        "supports_vision": card.capabilities.vision,
        "capabilities": _anthropic_capabilities(card.capabilities),
        "wafer": _wafer(card, alias),
    }


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _wafer(card: ModelCard, alias: str | None) -> dict[str, Any]:
    known = {
        "display_name": card.display_name or card.id,
        "description": card.description,
        "provider": card.provider,
        "tier": card.tier,
        "alias_of": card.id if alias else None,
        "context_length": card.context_length,
        "max_output_tokens": card.max_output_tokens,
        "honors_sampling": card.honors_sampling,
        "reasoning_headroom_tokens": card.reasoning_headroom,
        "capabilities": _capabilities(card.capabilities),
        "pricing": _pricing(card.pricing) if card.pricing else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _capabilities(able: Capabilities) -> dict[str, Any]:
    reasons = able.reasoning is not None
    found: dict[str, Any] = {
        "vision": able.vision,
        "tools": able.tools,
        "reasoning": reasons,
        "chat_completions": {
            "streaming": True,
            "tools": able.tools,
            "tool_streaming": able.tools,
            "json_object": able.json_object,
            "json_schema": able.json_schema,
            "tools_with_response_format": able.tools and able.json_schema,
            "n": able.n,
            "logprobs": able.logprobs,
            "regex": able.regex,
            "grammar": able.grammar,
        },
        "responses": {"text_format": able.json_schema, "tool_streaming": able.tools},
        "messages": {
            "vision": able.vision,
            "reasoning": reasons,
            "tool_streaming": able.tools,
        },
        "completions": able.completions,
    }
    if able.reasoning is not None:
        found["reasoning_effort"] = msgspec.structs.asdict(able.reasoning)
    return found


def _pricing(pricing: Pricing) -> dict[str, Any]:
    prices: dict[str, Any] = {
        "currency": pricing.currency,
        "input_cents_per_million": pricing.input_cents_per_million,
        "output_cents_per_million": pricing.output_cents_per_million,
    }
    microcents = pricing.cache_read_microcents_per_million
    if microcents is not None:
        prices["cache_read_cents_per_million"] = (microcents + _MICROCENTS // 2) // _MICROCENTS
        prices["cache_read_microcents_per_million"] = microcents
    return prices


def _anthropic_capabilities(able: Capabilities) -> dict[str, Any]:
    reasons = able.reasoning is not None
    levels = _levels(able.reasoning)
    return {
        "batch": _supported(False),
        "citations": _supported(False),
        "code_execution": _supported(False),
        "context_management": _supported(False),
        "effort": {"supported": bool(levels)}
        | {level: _supported(level in levels) for level in _LEVELS},
        "image_input": _supported(able.vision),
        "pdf_input": _supported(False),
        "server_tools": {
            "supported": False,
            "code_execution": _supported(False),
            "web_search": _supported(False),
        },
        "structured_outputs": _supported(able.json_schema),
        "thinking": {
            "supported": reasons,
            "types": {
                "adaptive": _supported(reasons),
                "between_tools": _supported(True),
                "disabled": _supported(True),
                "enabled": _supported(reasons),
            },
        },
    }


def _levels(reasoning: ReasoningSupport | None) -> frozenset[str]:
    return frozenset(reasoning.efforts if reasoning else ()) & frozenset(_LEVELS)


def _supported(supported: bool) -> dict[str, Any]:
    return {"supported": supported}
