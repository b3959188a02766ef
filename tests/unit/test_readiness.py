"""Several processes that share a port are ready together, or not at all."""

from __future__ import annotations

import pytest

from ingress.readiness import Readiness

WELL = Readiness(broker=True, worker=True, shutting_down=False)


def test_all_that_are_well_are_ready() -> None:
    assert WELL.ready
    assert Readiness.of_all([WELL, WELL]) == WELL


@pytest.mark.parametrize(
    "other",
    [
        Readiness(broker=False, worker=True, shutting_down=False),
        Readiness(broker=True, worker=False, shutting_down=False),
        Readiness(broker=True, worker=True, shutting_down=True),
    ],
)
def test_any_that_is_not_may_get_the_next_request(other: Readiness) -> None:
    assert not other.ready
    assert Readiness.of_all([WELL, other]) == other
    assert not Readiness.of_all([other, WELL]).ready
