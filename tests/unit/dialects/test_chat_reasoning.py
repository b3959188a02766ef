"""The spellings of how much the model shall think."""

from typing import Any

import pytest

from schemas.errors import UnsupportedValue
from schemas.job import ChatPrompt, Reasoning
from schemas.model_card import Capabilities
from tests.unit.dialects.chat_jobs import (
    OFFICIAL,
    VALUE,
    card,
    chat,
    reasoning,
    refusal,
    thinker,
)


@pytest.mark.rule("chat.reasoning-equivalent", "chat.reasoning-off", "chat.reasoning-default")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Reasoning(effort="low")),
        ({"reasoning_effort": "high"}, Reasoning(effort="high")),
        ({"reasoning": {"effort": "high"}}, Reasoning(effort="high")),
        ({"reasoning": {"summary": "auto"}}, Reasoning(effort="low")),
        ({"reasoning": {"enabled": True}}, Reasoning(effort="low")),
        ({"reasoning": {"enabled": "no"}}, Reasoning(effort="low")),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, Reasoning(effort="low")),
        ({"thinking": {"type": "adaptive"}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, Reasoning(effort="low")),
        *(
            (off, Reasoning(effort="none", visible=False))
            for off in (
                {"reasoning_effort": "none"},
                {"reasoning": {"effort": "none"}},
                {"reasoning": {"enabled": False}},
                {"thinking": {"type": "disabled"}},
                {"chat_template_kwargs": {"enable_thinking": False}},
            )
        ),
        # precedence
        ({"reasoning": {"effort": "high", "enabled": False}}, Reasoning(effort="high")),
        (
            {"reasoning": {"enabled": False}, "thinking": {"type": "enabled"}},
            Reasoning(effort="none", visible=False),
        ),
        (
            {
                "reasoning_effort": "high",
                "reasoning": {"effort": "none"},
                "thinking": {"type": "disabled"},
            },
            Reasoning(effort="high"),
        ),
        (
            {"reasoning": {"effort": "high"}, "thinking": {"type": "disabled"}},
            Reasoning(effort="high"),
        ),
        (
            {
                "thinking": {"type": "disabled"},
                "chat_template_kwargs": {"enable_thinking": True},
            },
            Reasoning(effort="none", visible=False),
        ),
    ],
)
def test_reasoning_controls(fields: dict[str, Any], expected: Reasoning) -> None:
    assert reasoning(**fields) == expected


@pytest.mark.rule("chat.reasoning-effort")
@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh", "max"])
def test_every_documented_effort_in_both_its_fields(effort: Any) -> None:
    able = thinker("none", "low", "medium", "high", "xhigh", "max", default="low")
    expected = Reasoning(effort=effort, visible=effort != "none")
    assert reasoning(able, reasoning_effort=effort) == expected
    assert reasoning(able, reasoning={"effort": effort}) == expected


@pytest.mark.rule("chat.reasoning-nearby-tier")
@pytest.mark.parametrize(
    ("effort", "tier"), [("low", "high"), ("medium", "high"), ("xhigh", "max"), ("none", "none")]
)
def test_an_effort_that_is_not_listed_runs_at_a_nearby_tier(effort: str, tier: Any) -> None:
    found = reasoning(thinker("none", "high", "max", default="none"), reasoning_effort=effort)
    assert found.effort == tier


@pytest.mark.rule("chat.reasoning-unknown")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "ultra"}, "reasoning_effort"),
        ({"reasoning": {"effort": ""}}, "reasoning.effort"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        # one that is overruled is no less wrong
        ({"reasoning_effort": "high", "reasoning": {"effort": "ultra"}}, "reasoning.effort"),
    ],
)
def test_an_unknown_value(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (VALUE, param)


@pytest.mark.rule("chat.reasoning-unknown")
def test_only_documented_efforts_are_named_to_who_sends_another() -> None:
    for effort in ("ultra", "minimal", 5, ["high"]):
        with pytest.raises(UnsupportedValue) as caught:
            chat(reasoning_effort=effort)
        assert caught.value.message == (
            "`reasoning_effort` must be one of 'none', 'low', 'medium', 'high', 'xhigh' or 'max'."
        )


@pytest.mark.rule("chat.reasoning-default")
def test_the_models_default_and_what_enabled_makes_of_it() -> None:
    off, on = thinker("none", "high", default="none"), thinker("none", "low", default="low")
    assert reasoning(off) == Reasoning(effort="none", visible=False)
    assert reasoning(on) == Reasoning(effort="low")
    for thinking in ("enabled", "adaptive"):
        assert reasoning(off, thinking={"type": thinking}) == Reasoning(effort="high")
        assert reasoning(on, thinking={"type": thinking}) == Reasoning(effort="low")


@pytest.mark.rule("chat.reasoning-off")
def test_every_spelling_of_off_is_the_same_request() -> None:
    off = chat(reasoning_effort="none")
    assert off != chat()
    for fields in (
        {"reasoning": {"effort": "none"}},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"reasoning_effort": "none"}},
        {"chat_template_kwargs": {"thinking": False, "reasoning_effort": "high"}},
    ):
        assert chat(**fields) == off


@pytest.mark.rule("chat.reasoning-template")
@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({"thinking": True}, "low"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "high", "enable_thinking": True}, "high"),
        ({"reasoning_effort": "ultra"}, "low"),
        ({"reasoning_effort": ["high"]}, "low"),
    ],
)
def test_switches_of_the_template(options: dict[str, Any], effort: Any) -> None:
    assert reasoning(chat_template_kwargs=options) == Reasoning(effort=effort)


@pytest.mark.rule("chat.reasoning-minimal")
def test_minimal_effort_is_a_matter_of_profile() -> None:
    assert reasoning(context=OFFICIAL, reasoning_effort="minimal") == Reasoning(effort="low")
    assert reasoning(context=OFFICIAL, reasoning={"effort": "minimal"}) == Reasoning(effort="low")


def test_a_model_without_reasoning_ignores_the_controls() -> None:
    plain = card(capabilities=Capabilities())
    assert reasoning(plain, reasoning_effort="high") == Reasoning()
    # Only that it is not wanted still counts: a model may reason without being known to.
    assert reasoning(plain, thinking={"type": "disabled"}) == Reasoning(visible=False)


@pytest.mark.rule("chat.headroom")
def test_headroom_is_added_while_reasoning_is_on() -> None:
    roomy = card(reasoning_headroom=24_576)
    assert chat(roomy, max_tokens=100).sampling.limit.headroom == 24_576
    assert chat(roomy, max_tokens=100, reasoning_effort="none").sampling.limit.headroom == 0


@pytest.mark.rule("chat.reasoning-template")
def test_the_effort_replaces_the_templates_own_switch() -> None:
    job = chat(
        reasoning_effort="high", chat_template_kwargs={"enable_thinking": False, "style": "x"}
    )
    assert isinstance(job.prompt, ChatPrompt)
    assert job.prompt.template_options == {"style": "x"}
    plain = chat(card(capabilities=Capabilities()), chat_template_kwargs={"enable_thinking": False})
    assert isinstance(plain.prompt, ChatPrompt)
    assert plain.prompt.template_options == {"enable_thinking": False}
