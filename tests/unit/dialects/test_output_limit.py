import pytest

from ingress.dialects.output_limit import output_limit
from schemas.job import Reasoning
from schemas.model_card import ModelCard
from schemas.sampling import OutputLimit

OFF = Reasoning(effort="none", visible=False)
ON = Reasoning(effort="low")


@pytest.mark.parametrize(
    ("requested", "cap", "context", "limit", "default"),
    [
        (None, None, 262_144, 65_536, 65_536),
        (None, None, 1_000, 500, 500),
        (None, 131_072, 262_144, 131_072, 131_072),
        (700, None, 1_000, 700, 500),
        (1_000, None, 1_000, 1_000, 500),
        (1_001, None, 1_000, 500, 500),
        (900, 800, 1_000, 800, 800),
        (1_001, 800, 1_000, 800, 800),
        (10, 800, 1_000, 10, 800),
    ],
)
def test_rules(
    requested: int | None, cap: int | None, context: int, limit: int, default: int
) -> None:
    card = ModelCard(id="m", context_length=context, max_output_tokens=cap)
    found = output_limit(requested, card, OFF, retry_without=True)
    by_default = requested is None or requested > context
    assert found == OutputLimit(max_tokens=limit, fallback_tokens=default, by_default=by_default)


def test_a_limit_that_must_fit_has_no_fallback_but_a_default_always_has() -> None:
    card = ModelCard(id="m", context_length=1_000)
    assert output_limit(10, card, OFF, retry_without=False).fallback_tokens is None
    assert output_limit(None, card, OFF, retry_without=False).fallback_tokens == 500


def test_headroom_goes_on_top_of_the_clients_limit_only() -> None:
    card = ModelCard(id="m", context_length=1_000, max_output_tokens=800, reasoning_headroom=50)
    limit = OutputLimit(max_tokens=800, fallback_tokens=800)
    roomier = OutputLimit(max_tokens=800, fallback_tokens=800, headroom=50)
    assert output_limit(900, card, ON, retry_without=True) == roomier
    assert output_limit(900, card, OFF, retry_without=True) == limit
    of_model = OutputLimit(max_tokens=800, fallback_tokens=800, by_default=True)
    assert output_limit(None, card, ON, retry_without=True) == of_model
