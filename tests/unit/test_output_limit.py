"""Fitting the output limit to what the prompt leaves of the window."""

from __future__ import annotations

import pytest

from schemas.errors import ContextLengthExceeded
from schemas.sampling import OutputLimit
from workers.prompt import fit_output_limit


@pytest.mark.rule("chat.headroom")
@pytest.mark.parametrize(
    ("limit", "prompt", "window", "want"),
    [
        (OutputLimit(max_tokens=10), 90, 100, 10),  # fits exactly
        (OutputLimit(max_tokens=10, fallback_tokens=50), 20, 100, 10),
        (OutputLimit(max_tokens=90, fallback_tokens=50), 20, 100, 50),  # the default fits
        (OutputLimit(max_tokens=90, fallback_tokens=50), 80, 100, 20),  # what is left
        (OutputLimit(max_tokens=90, fallback_tokens=90), 99, 100, 1),
        (OutputLimit(max_tokens=10, headroom=30), 20, 100, 40),
        (OutputLimit(max_tokens=10, headroom=30), 80, 100, 20),  # of the headroom, what there is
        (OutputLimit(max_tokens=10, fallback_tokens=50, headroom=30), 80, 100, 20),
        (OutputLimit(max_tokens=90, fallback_tokens=50, headroom=30), 20, 100, 50),
    ],
)
def test_fits(limit: OutputLimit, prompt: int, window: int, want: int) -> None:
    assert fit_output_limit(limit, prompt, window) == want


@pytest.mark.parametrize(
    ("limit", "prompt"),
    [
        (OutputLimit(max_tokens=11), 90),  # may not be lowered
        (OutputLimit(max_tokens=11, headroom=5), 90),
        (OutputLimit(max_tokens=1, fallback_tokens=1), 100),  # no room at all
        (OutputLimit(max_tokens=1, fallback_tokens=1), 500),
    ],
)
def test_does_not_fit(limit: OutputLimit, prompt: int) -> None:
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 100 tokens"):
        fit_output_limit(limit, prompt, 100)
