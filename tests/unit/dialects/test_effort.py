from typing import Any

import pytest

from ingress.dialects.effort import resolve
from schemas.job import Reasoning
from schemas.model_card import ReasoningSupport


@pytest.mark.parametrize(
    ("wish", "efforts", "default", "effort"),
    [
        (None, "none high max", "none", "none"),
        (None, "none low high", "high", "high"),
        ("medium", "none low high max", "low", "high"),  # a tie goes up
        ("low", "none high max", "none", "high"),
        ("xhigh", "none low high max", "low", "max"),  # a tie goes up
        ("xhigh", "none low medium", "low", "medium"),
        ("max", "none low", "low", "low"),
        ("minimal", "none low high", "low", "low"),
        ("minimal", "none high max", "none", "high"),
        ("minimal", "none minimal low", "low", "minimal"),
        ("enabled", "none low high", "low", "low"),
        ("enabled", "none low high", "none", "high"),
        ("enabled", "none low medium", "none", "low"),
        ("enabled", "none", "none", "none"),
        ("high", "none", "none", "none"),
    ],
)
def test_nearest_tier(wish: Any, efforts: str, default: Any, effort: str) -> None:
    support = ReasoningSupport(efforts=tuple(efforts.split()), default=default)  # type: ignore[arg-type]
    assert resolve(wish, support).effort == effort


def test_off_on_a_model_that_always_thinks_hides_its_lowest_tier() -> None:
    support = ReasoningSupport(efforts=("low", "high"), default="high")
    assert resolve("none", support) == Reasoning(effort="low", visible=False)


def test_what_is_off_by_default_is_hidden() -> None:
    support = ReasoningSupport(efforts=("none", "high"), default="none")
    assert resolve(None, support) == Reasoning(effort="none", visible=False)
