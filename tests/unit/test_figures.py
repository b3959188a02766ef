"""What a request used, however many attempts it took."""

from __future__ import annotations

import pytest

from ingress.figures import Figures
from schemas.delta import Usage


def begun() -> Figures:
    figures = Figures()
    figures.accepted(10)
    figures.started(1, 12, 4)
    return figures


def test_until_the_end_it_is_what_has_been_told_and_has_arrived() -> None:
    figures = Figures()
    assert figures.so_far(0) == Usage(0, 0, 0, 0)
    figures.accepted(10)
    assert figures.so_far(0) == Usage(10, 0, 0, 0)
    figures.started(1, 12, 4)
    assert figures.so_far(3) == Usage(12, 4, 3, 0)
    assert figures.final is None


@pytest.mark.parametrize(("attempt", "told"), [(1, Usage(12, 5, 20, 7)), (2, Usage(12, 4, 20, 7))])
def test_the_prompt_counts_as_it_was_read_first(attempt: int, told: Usage) -> None:
    figures = begun()
    figures.accepted(30)
    figures.started(2, 32, 0)
    assert figures.input_tokens == 12
    assert figures.complete(attempt, Usage(12 if attempt == 1 else 32, 5, 20, 7)) == told
    assert figures.so_far(99) == figures.final == told


def test_an_end_that_comes_before_a_beginning_counts_as_told() -> None:
    figures = Figures()
    figures.accepted(10)
    assert figures.complete(2, Usage(11, 1, 0, 0)) == Usage(11, 1, 0, 0)


@pytest.mark.parametrize(
    ("told", "seen", "final"),
    [
        (Usage(0, 0, 0, 0), 5, Usage(12, 4, 5, 0)),
        (Usage(12, 4, 9, 2), 5, Usage(12, 4, 9, 2)),
    ],
)
def test_of_what_broke_off_the_larger_figures_count(told: Usage, seen: int, final: Usage) -> None:
    figures = begun()
    figures.broke_off(1, told, seen)
    assert figures.final == final
