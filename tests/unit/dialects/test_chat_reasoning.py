"""The spellings of how much the model shall think."""

from typing import Any

import pytest

from schemas.job import ChatPrompt, Reasoning
from schemas.model_card import Capabilities
from tests.unit.dialects.chat_jobs import (
    OFFICIAL,
    card,
    chat,
    reasoning,
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Reasoning(effort="low")),
        ({"reasoning_effort": "high"}, Reasoning(effort="high")),
        ({"reasoning": {"effort": "high"}}, Reasoning(effort="high")),
        ({"reasoning": {"summary": "auto"}}, Reasoning(effort="low")),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, Reasoning(effort="low")),
        ({"thinking": {"type": "adaptive"}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, Reasoning(effort="low")),
        *(
            (off, Reasoning(effort="none", visible=False))
            for off in (
                {"reasoning_effort": "none"},
                {"reasoning": {"effort": "none"}},
                {"thinking": {"type": "disabled"}},
                {"chat_template_kwargs": {"enable_thinking": False}},
            )
        ),
        # precedence
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


def test_minimal_effort_is_a_matter_of_profile() -> None:
    assert reasoning(context=OFFICIAL, reasoning_effort="minimal") == Reasoning(effort="low")
    assert reasoning(context=OFFICIAL, reasoning={"effort": "minimal"}) == Reasoning(effort="low")


def test_a_model_without_reasoning_ignores_the_controls() -> None:
    plain = card(capabilities=Capabilities())
    assert reasoning(plain, reasoning_effort="high") == Reasoning()
    assert reasoning(plain, thinking={"type": "disabled"}) == Reasoning()


def test_headroom_is_added_while_reasoning_is_on() -> None:
    roomy = card(reasoning_headroom=24_576)
    assert chat(roomy, max_tokens=100).sampling.limit.max_tokens == 24_676
    assert chat(roomy, max_tokens=100, reasoning_effort="none").sampling.limit.max_tokens == 100


def test_the_effort_replaces_the_templates_own_switch() -> None:
    job = chat(
        reasoning_effort="high", chat_template_kwargs={"enable_thinking": False, "style": "x"}
    )
    assert isinstance(job.prompt, ChatPrompt)
    assert job.prompt.template_options == {"style": "x"}
    plain = chat(card(capabilities=Capabilities()), chat_template_kwargs={"enable_thinking": False})
    assert isinstance(plain.prompt, ChatPrompt)
    assert plain.prompt.template_options == {"enable_thinking": False}
