"""The scripted engine's common tick."""

from __future__ import annotations

import pytest

from workers.engines.scripted import Pause, due_at


@pytest.mark.parametrize(
    ("now", "seconds", "due"),
    [
        (10.0001, 0.01, 10.01),  # woken by the line at 10.00 a moment ago
        (10.004, 0.01, 10.01),
        (10.0, 0.01, 10.01),
        (10.0001, 0.05, 10.05),
        (10.002, 0.0, 10.01),  # a line that is still to come
    ],
)
def test_pauses_end_on_the_nearest_line_to_come(now: float, seconds: float, due: float) -> None:
    assert due_at(now, Pause(seconds, grid_s=0.01)) == pytest.approx(due)


def test_without_a_grid_a_pause_is_as_long_as_it_says() -> None:
    assert due_at(10.0, Pause(0.25)) == 10.25


@pytest.mark.parametrize(
    ("now", "due"), [(10.0, 10.013), (10.0029, 10.013), (10.0031, 10.013), (10.0135, 10.023)]
)
def test_a_grid_may_lie_beside_the_multiples(now: float, due: float) -> None:
    assert due_at(now, Pause(0.01, grid_s=0.01, phase_s=0.003)) == pytest.approx(due)
