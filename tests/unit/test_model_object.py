"""A model card as both client families read it."""

from typing import Any

import pytest
from anthropic.types import ModelInfo
from openai.types import Model

from ingress.model_object import model_object
from schemas.model_card import Capabilities, ModelCard, Pricing, ReasoningSupport

PLAIN = ModelCard(id="Big/Model", context_length=8192)
FULL = ModelCard(
    id="Big/Model",
    aliases=("claude-big",),
    display_name="Big",
    description="A big model.",
    owned_by="us",
    provider="qwen",
    tier="pass_included",
    created=1_779_148_800,
    context_length=1_048_576,
    max_output_tokens=131_072,
    honors_sampling=False,
    reasoning_headroom=24_576,
    zdr_supported=True,
    capabilities=Capabilities(
        vision=True,
        tools=True,
        n=False,
        regex=True,
        grammar=True,
        completions=True,
        reasoning=ReasoningSupport(
            efforts=("none", "low", "high", "max"), default="low", control="system_prompt"
        ),
    ),
    pricing=Pricing(
        input_cents_per_million=29,
        output_cents_per_million=440,
        cache_read_microcents_per_million=23_590_000,
    ),
)


@pytest.mark.rule("models.card")
def test_everything_that_is_known_is_in_the_card() -> None:
    found = model_object(FULL)
    wafer = found.pop("wafer")
    found.pop("capabilities")
    assert found == {
        "id": "Big/Model",
        "object": "model",
        "type": "model",
        "created": 1_779_148_800,
        "created_at": "2026-05-19T00:00:00Z",
        "owned_by": "us",
        "display_name": "Big",
        "lifecycle": "active",
        "max_model_len": 1_048_576,
        "max_input_tokens": 1_048_576,
        "max_tokens": 131_072,
        "zdr_supported": True,
        "supports_vision": True,
    }
    assert {
        "display_name": "Big",
        "description": "A big model.",
        "provider": "qwen",
        "tier": "pass_included",
        "context_length": 1_048_576,
        "max_output_tokens": 131_072,
        "honors_sampling": False,
        "reasoning_headroom_tokens": 24_576,
    }.items() <= wafer.items()


@pytest.mark.rule("models.capability-flags", "models.reasoning-efforts")
def test_capabilities() -> None:
    assert model_object(FULL)["wafer"]["capabilities"] == {
        "vision": True,
        "tools": True,
        "reasoning": True,
        "reasoning_effort": {
            "control": "system_prompt",
            "efforts": ("none", "low", "high", "max"),
            "default": "low",
        },
        "chat_completions": {
            "streaming": True,
            "tools": True,
            "tool_streaming": True,
            "json_object": True,
            "json_schema": True,
            "tools_with_response_format": True,
            "n": False,
            "logprobs": True,
            "regex": True,
            "grammar": True,
        },
        "responses": {"text_format": True, "tool_streaming": True},
        "messages": {"vision": True, "reasoning": True, "tool_streaming": True},
        "completions": True,
    }


@pytest.mark.parametrize(
    ("able", "path", "value"),
    [
        (Capabilities(vision=True), "vision", True),
        (Capabilities(vision=True), "messages.vision", True),
        (Capabilities(tools=True), "tools", True),
        (Capabilities(tools=True), "chat_completions.tools", True),
        (Capabilities(tools=True), "chat_completions.tool_streaming", True),
        (Capabilities(tools=True), "responses.tool_streaming", True),
        (Capabilities(tools=True), "messages.tool_streaming", True),
        (Capabilities(tools=True), "chat_completions.tools_with_response_format", True),
        (Capabilities(json_object=False), "chat_completions.json_object", False),
        (Capabilities(json_schema=False), "chat_completions.json_schema", False),
        (Capabilities(json_schema=False), "responses.text_format", False),
        (Capabilities(n=False), "chat_completions.n", False),
        (Capabilities(logprobs=False), "chat_completions.logprobs", False),
        (Capabilities(regex=True), "chat_completions.regex", True),
        (Capabilities(grammar=True), "chat_completions.grammar", True),
        (Capabilities(completions=True), "completions", True),
    ],
)
@pytest.mark.rule("models.capability-flags")
def test_each_flag_follows_its_capability(able: Capabilities, path: str, value: bool) -> None:
    def flag(capabilities: Capabilities) -> Any:
        card = ModelCard(id="m", context_length=1, capabilities=capabilities)
        found = model_object(card)["wafer"]["capabilities"]
        for name in path.split("."):
            found = found[name]
        return found

    assert flag(able) is value
    assert flag(Capabilities()) is not value


@pytest.mark.rule("models.reasoning-efforts", "models.pricing")
def test_what_is_unknown_is_absent() -> None:
    found = model_object(PLAIN)
    assert set(found["wafer"]) == {
        "display_name",
        "context_length",
        "honors_sampling",
        "reasoning_headroom_tokens",
        "capabilities",
    }
    assert found["wafer"]["capabilities"]["reasoning"] is False
    assert "reasoning_effort" not in found["wafer"]["capabilities"]
    assert found["display_name"] == "Big/Model"
    assert found["max_tokens"] == 8192  # without a cap the window is one


@pytest.mark.parametrize(
    ("microcents", "cents"), [(23_590_000, 24), (23_499_999, 23), (500_000, 1), (0, 0)]
)
@pytest.mark.rule("models.pricing")
def test_prices(microcents: int, cents: int) -> None:
    pricing = Pricing(
        input_cents_per_million=29,
        output_cents_per_million=440,
        cache_read_microcents_per_million=microcents,
    )
    card = ModelCard(id="m", context_length=1, pricing=pricing)
    assert model_object(card)["wafer"]["pricing"] == {
        "currency": "usd",
        "input_cents_per_million": 29,
        "output_cents_per_million": 440,
        "cache_read_cents_per_million": cents,
        "cache_read_microcents_per_million": microcents,
    }


@pytest.mark.parametrize("card", [PLAIN, FULL])
@pytest.mark.rule("models.one-body")
def test_both_clients_own_types_accept_it(card: ModelCard) -> None:
    found = model_object(card)
    assert Model.model_validate(found).owned_by == card.owned_by
    info = ModelInfo.model_validate(found)
    assert info.created_at.timestamp() == card.created
    assert info.max_input_tokens == card.context_length
    able = info.capabilities
    assert able is not None
    assert able.image_input.supported is card.capabilities.vision
    assert able.structured_outputs.supported is card.capabilities.json_schema
    assert able.thinking.supported is (card.capabilities.reasoning is not None)
    efforts = card.capabilities.reasoning.efforts if card.capabilities.reasoning else ()
    assert able.effort.supported is bool(efforts)
    assert able.effort.max.supported is ("max" in efforts)
    assert able.effort.medium.supported is ("medium" in efforts)


@pytest.mark.rule("models.aliases")
def test_an_alias_is_a_model_of_its_own() -> None:
    found = model_object(FULL, "claude-big")
    assert found["id"] == "claude-big"
    assert found["wafer"]["alias_of"] == "Big/Model"
    rest = {**found, "id": "Big/Model"}
    rest["wafer"] = {k: v for k, v in found["wafer"].items() if k != "alias_of"}
    assert rest == model_object(FULL)
