"""A process that has started is not looked through for garbage again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from ingress.garbage import spare_what_is_there


class Ring:
    """Only a look for cycles finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("as_before")
def test_what_is_there_is_spared_and_what_comes_later_is_not() -> None:
    stays = weakref.ref(Ring())
    gone = Ring()
    before = weakref.ref(gone)
    spare_what_is_there()
    assert stays() is None, "garbage of the start is not kept"
    del gone
    after = weakref.ref(Ring())
    gc.collect()
    assert before() is not None
    assert after() is None
    assert gc.get_threshold()[0] > 700
