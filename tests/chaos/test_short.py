"""The short run: the whole suite in small, on each engine. `make chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.scenarios import SCENARIOS
from tests.chaos.trial import Settings, Silent

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


async def test_killed_workers_and_a_restarted_broker_lose_nothing() -> None:
    settings = Settings(
        kills=12, workers=4, volley=2, pace_s=0.1, requests=24, concurrency=16, rounds=1
    )
    report = await SCENARIOS["short"](settings, Silent())
    assert report.holds, report.markdown()


@pytest.mark.sglang
async def test_a_killed_part_of_a_real_engine_loses_nothing() -> None:
    settings = Settings(
        engine="sglang", kills=1, workers=2, pace_s=1.0, requests=27, concurrency=16, rounds=1
    )
    report = await SCENARIOS["short"](settings, Silent())
    assert report.holds, report.markdown()
