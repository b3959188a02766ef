"""When a model counts as repeating itself."""

import random
from itertools import cycle, islice

import pytest

from workers.repetition import RepetitionGuard

WINDOW = 1024


def noticed_at(ids: list[int], *, step: int = 1) -> int | None:
    """After how many tokens, fed `step` at a time."""
    guard = RepetitionGuard(WINDOW)
    for start in range(0, len(ids), step):
        if guard.feed(tuple(ids[start : start + step])):
            return min(start + step, len(ids))
    return None


@pytest.mark.parametrize("period", [1, 2, 3, 17, 100, 256])
@pytest.mark.parametrize("step", [1, 5, 64])
def test_a_short_sequence_over_and_over_is_noticed(period: int, step: int) -> None:
    before = [random.Random(period).randrange(300_000) for _ in range(777)]
    loop = list(islice(cycle(range(1000, 1000 + period)), 3 * WINDOW))
    noticed = noticed_at(before + loop, step=step)
    assert noticed is not None
    assert WINDOW <= noticed - len(before) + 1 <= WINDOW + 64 + step + 1


@pytest.mark.parametrize(
    "ids",
    [
        list(range(5000)),
        list(islice(cycle(range(300)), 5000)),  # a long sequence
        [7] * (WINDOW - 1) + [8] + [7] * (WINDOW - 1),  # never the whole window
        [token for number in range(2000) for token in (7, 7, 7, number)],  # a numbered list
        [0x01010101] * 900 + [0x01010102] * 900,  # equal bytes across token boundaries
    ],
)
def test_other_text_is_left_alone(ids: list[int]) -> None:
    assert noticed_at(ids) is None
