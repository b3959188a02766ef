"""Who gives way to live requests, and how many slots batch work may have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas.job import Job, JobClass, TokenPrompt
from schemas.sampling import OutputLimit, SamplingParams
from tests.fixtures.stack import until
from workers.sharing import LatePeak, Shares, Sharing, least_to_lose


class Run:
    def __init__(
        self, job_class: JobClass = "batch", *, stake: int = 0, attempt: int = 1, **job: Any
    ) -> None:
        self.job = Job(
            job_id="j",
            attempt=attempt,
            model="m",
            job_class=job_class,
            prompt=TokenPrompt(prompts=((1,),)),
            sampling=SamplingParams(limit=OutputLimit(max_tokens=1)),
            created_at=0,
            deadline=0,
            queue_deadline=0,
            **job,
        )
        self.stake = stake
        self.gave_way = 0
        self.is_waiting = False

    def at_stake(self) -> int:
        return self.stake

    def waits(self, since: float) -> bool:
        return self.is_waiting

    def give_way(self) -> None:
        self.gave_way += 1


class Source:
    """What a job source is told."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def limit_batch(self, jobs: int) -> None:
        self.limits.append(jobs)


def sharing(shares: Shares, *, calm_s: float = 600) -> tuple[Sharing, Source]:
    source = Source()
    return Sharing(source, shares, calm_s=calm_s), source  # type: ignore[arg-type]


def begin(sharing: Sharing, *runs: Run) -> list[Run]:
    for run in runs:
        sharing.began(run)
    return list(runs)


@pytest.mark.parametrize(
    ("live", "limit"), [(0, 8), (1, 4), (3, 4), (4, 4), (5, 3), (7, 1), (8, 1), (20, 1)]
)
def test_what_batch_work_may_have(live: int, limit: int) -> None:
    assert Shares.of(8, share=0.5, floor=1).batch_limit(live) == limit


@pytest.mark.parametrize(
    ("share", "floor", "alone", "beside"),
    [(1.0, 0, 8, 7), (0.0, 0, 8, 0), (0.0, 2, 8, 2), (0.3, 0, 8, 2), (0.0, 100, 8, 7)],
)
def test_settings_make_the_rules(share: float, floor: int, alone: int, beside: int) -> None:
    shares = Shares.of(8, share=share, floor=floor)
    assert (shares.batch_limit(0), shares.batch_limit(1)) == (alone, beside)


def test_the_only_slot_is_never_the_floors() -> None:
    assert Shares.of(1, share=1.0, floor=1).batch_limit(1) == 0


@pytest.mark.rule("sharing.least-to-lose")
def test_those_with_least_to_lose_give_way() -> None:
    deep, shallow, unstarted = Run(stake=900), Run(stake=10), Run()
    assert least_to_lose([deep, unstarted, shallow], 2) == [unstarted, shallow]
    assert least_to_lose([deep, shallow], 0) == []
    assert least_to_lose([deep], 3) == [deep]


@pytest.mark.rule("sharing.least-to-lose")
def test_of_equals_the_one_that_gave_way_less_often_then_the_youngest() -> None:
    often, old, young = Run(attempt=5), Run(), Run()
    assert least_to_lose([often, old, young], 3) == [young, old, often]


@pytest.mark.rule("sharing.suspects")
def test_a_suspect_never_gives_way() -> None:
    suspect, other = Run(suspect=True), Run(stake=50)
    assert least_to_lose([suspect, other], 2) == [other]


def test_a_level_counts_for_a_moment_after_it_was_left() -> None:
    peak = LatePeak(1.0)
    peak.set(3, 0.0)
    assert (peak.at(0.0), peak.falls_at()) == (3, None)
    peak.set(2, 10.0)
    peak.set(1, 10.5)
    assert [peak.at(at) for at in (10.5, 10.9, 11.1)] == [3, 3, 2]
    assert peak.falls_at() == 11.5
    peak.set(2, 11.2)  # as high as what was left: no need to remember that
    assert (peak.at(20.0), peak.falls_at()) == (2, None)


@pytest.mark.rule("sharing.live-first")
async def test_a_live_job_that_finds_no_slot_has_one_run_give_way() -> None:
    shared, source = sharing(Shares.of(2, share=1.0, floor=0))
    assert source.limits == [2]
    deep, shallow = begin(shared, Run(stake=9), Run(stake=3))
    (live,) = begin(shared, Run("interactive"))
    assert (deep.gave_way, shallow.gave_way, source.limits[-1]) == (0, 1, 1)
    shared.ended(shallow)
    assert (deep.gave_way, shared.yielded) == (0, 1)
    begin(shared, Run("interactive"), Run("interactive"))
    assert (deep.gave_way, source.limits[-1], shared.live) == (1, 0, 3)
    assert live.gave_way == 0


@pytest.mark.rule("sharing.live-first")
async def test_a_free_slot_costs_nobody_anything() -> None:
    shared, _ = sharing(Shares.of(3, share=1.0, floor=0))
    batch = begin(shared, Run(), Run())
    begin(shared, Run("interactive"))
    assert [run.gave_way for run in batch] == [0, 0]


async def test_one_that_comes_when_there_is_no_slot_any_more_leaves_at_once() -> None:
    shared, _ = sharing(Shares.of(2, share=1.0, floor=0))
    begin(shared, Run(stake=5), Run("interactive"))
    (late,) = begin(shared, Run())
    assert late.gave_way == 1


@pytest.mark.rule("sharing.share")
async def test_above_its_share_it_gives_way_though_there_are_slots() -> None:
    shared, source = sharing(Shares.of(4, share=0.5, floor=0))
    batch = begin(shared, *(Run(stake=stake) for stake in (4, 3, 2)))
    begin(shared, Run("interactive"))
    assert [run.gave_way for run in batch] == [0, 0, 1]
    assert source.limits[-1] == 2


@pytest.mark.rule("sharing.floor")
async def test_the_floor_stays_whatever_comes() -> None:
    shared, source = sharing(Shares.of(2, share=0.0, floor=1))
    kept, other = begin(shared, Run(stake=4), Run(stake=1))
    begin(shared, *(Run("interactive") for _ in range(5)))
    assert (kept.gave_way, other.gave_way, source.limits[-1]) == (0, 1, 1)


@pytest.mark.rule("sharing.calm")
async def test_a_slot_that_a_live_job_left_stays_free_for_the_next_one() -> None:
    shared, source = sharing(Shares.of(2, share=1.0, floor=0))
    begin(shared, Run(stake=1))
    for _ in range(5):
        (live,) = begin(shared, Run("interactive"))
        shared.ended(live)
    assert source.limits == [2, 1]  # neither taken nor given back in between
    assert shared.yielded == 0


@pytest.mark.rule("sharing.calm")
async def test_batch_work_fills_up_again_when_live_traffic_ebbs() -> None:
    shared, source = sharing(Shares.of(4, share=1.0, floor=0), calm_s=0.05)
    first, second = begin(shared, Run("interactive"), Run("interactive"))
    assert source.limits == [4, 3, 2]
    shared.ended(first)
    assert source.limits[-1] == 2
    await until(lambda: source.limits[-1] == 3)
    shared.ended(second)
    await until(lambda: source.limits[-1] == 4)
    shared.close()


async def test_closed_it_tells_nobody_anything() -> None:
    shared, source = sharing(Shares.of(2, share=1.0, floor=0), calm_s=0.01)
    (live,) = begin(shared, Run("interactive"))
    shared.ended(live)
    shared.close()
    await asyncio.sleep(0.02)
    assert source.limits == [2, 1]


@pytest.mark.rule("sharing.squeeze")
async def test_where_live_jobs_wait_in_the_engine_batch_work_gets_less_and_less() -> None:
    shared, source = sharing(Shares.of(8, share=1.0, floor=1))
    begun = begin(shared, *(Run(stake=10 + at) for at in range(5)))
    (unstarted,) = begin(shared, Run())
    (live,) = begin(shared, Run("interactive"))
    shared.look()
    assert shared.yielded == 0
    live.is_waiting = True
    shared.look()
    assert [run.gave_way for run in begun] == [1, 0, 0, 0, 0]
    assert (unstarted.gave_way, source.limits[-1]) == (0, 5)
    shared.look()
    assert [run.gave_way for run in begun] == [1, 1, 1, 0, 0]
    shared.look()
    assert [run.gave_way for run in begun] == [1, 1, 1, 1, 1]  # one is left: the floor
    assert (unstarted.gave_way, source.limits[-1]) == (0, 1)


@pytest.mark.rule("sharing.squeeze")
async def test_and_gets_it_back_when_none_waits_any_more() -> None:
    shared, source = sharing(Shares.of(4, share=1.0, floor=0))
    begin(shared, Run(stake=1), Run(stake=2))
    (live,) = begin(shared, Run("interactive"))
    live.is_waiting = True
    shared.look()
    assert source.limits[-1] == 1
    live.is_waiting = False
    shared.look()
    shared.look()
    shared.look()
    assert source.limits[-3:] == [1, 2, 3]
