"""When it is enough, and how long to wait until then."""

from __future__ import annotations

import math

import pytest

from ingress.retries import MAX_LOST_WORKERS, Loss, Retries
from schemas.errors import GenerationFailed, WorkerFailed

STRIKES: tuple[Loss, ...] = ("redelivered", "engine_lost", "silent", "stalled", "gap")
FREE: tuple[Loss, ...] = ("draining", "suspended", "disconnected")


def lose(
    retries: Retries,
    loss: Loss = "redelivered",
    *,
    accepted: bool = True,
    progressed: bool = False,
    now: float = 0.0,
) -> None:
    retries.lost(loss, accepted=accepted, progressed=progressed, now=now)
    retries.check(now)


@pytest.mark.parametrize("loss", STRIKES)
def test_two_in_a_row_convict(loss: Loss) -> None:
    retries = Retries(120)
    lose(retries, loss)
    assert retries.strikes == 1
    with pytest.raises(GenerationFailed):
        lose(retries, loss)


@pytest.mark.parametrize("loss", STRIKES)
def test_one_that_was_not_accepted_is_nobodys_fault(loss: Loss) -> None:
    retries = Retries(120)
    for _ in range(3 * MAX_LOST_WORKERS):
        lose(retries, loss, accepted=False)
    assert retries.strikes == 0


@pytest.mark.parametrize("loss", FREE)
def test_others_cost_nothing_and_clear_nothing(loss: Loss) -> None:
    retries = Retries(120)
    lose(retries)
    for _ in range(3 * MAX_LOST_WORKERS):
        lose(retries, loss)
    assert retries.strikes == 1
    lose(retries, loss, progressed=True)
    assert retries.strikes == 0


@pytest.mark.rule("sharing.waits")
def test_batch_work_that_made_room_has_lost_nothing() -> None:
    retries = Retries(120)
    lose(retries, "redelivered", now=10)
    for _ in range(10 * MAX_LOST_WORKERS):
        lose(retries, "yielded", now=20)
        assert retries.next_delay_s() == 0
    assert (retries.strikes, retries.ends_at) == (1, 130)
    fresh = Retries(120)
    lose(fresh, "yielded", now=5)
    assert fresh.ends_at == math.inf


def test_time_in_which_nobody_tried_does_not_count() -> None:
    retries = Retries(120)
    lose(retries, "draining", now=0)
    retries.excuse(5000)
    lose(retries, "draining", now=5100)
    with pytest.raises(WorkerFailed):
        lose(retries, "draining", now=5120)


def test_progress_makes_it_the_first_of_a_row() -> None:
    retries = Retries(120)
    lose(retries)
    lose(retries, progressed=True)
    assert retries.strikes == 1
    with pytest.raises(GenerationFailed):
        lose(retries)


def test_there_is_a_last_worker_whatever_was_achieved() -> None:
    retries = Retries(120)
    for _ in range(MAX_LOST_WORKERS - 1):
        lose(retries, progressed=True)
    with pytest.raises(WorkerFailed):
        lose(retries, progressed=True)
    assert len(retries.losses) == MAX_LOST_WORKERS


def test_time_without_progress_has_an_end() -> None:
    retries = Retries(120)
    assert retries.ends_at == math.inf
    lose(retries, "draining", now=1000)
    lose(retries, "draining", now=1119)
    assert retries.ends_at == 1120
    lose(retries, "draining", progressed=True, now=1119)
    assert retries.ends_at == 1239
    with pytest.raises(WorkerFailed):
        lose(retries, "draining", now=1239)


def test_waits_grow_until_there_is_progress() -> None:
    retries = Retries(120)
    delays = [retries.next_delay_s() for _ in range(8)]
    most = [0, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, most, strict=True))
    lose(retries, "draining")
    assert retries.next_delay_s() > 0
    lose(retries, "draining", progressed=True)
    assert retries.next_delay_s() == 0


def test_those_hit_together_do_not_wait_together() -> None:
    delays = set()
    for _ in range(8):
        retries = Retries(120)
        retries.next_delay_s()
        delays.add(retries.next_delay_s())
    assert len(delays) > 1
