"""The short run: the whole suite in small, on each engine. `make chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.scenarios import SCENARIOS
from tests.chaos.trial import Settings, Silent

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


async def test_killed_workers_and_a_restarted_broker_lose_nothing() -> None:
    settings = Settings(kills=24, workers=5, volley=3, pace_s=0.1, requests=48)
    report = await SCENARIOS["short"](settings, Silent())
    assert report.holds, report.markdown()


@pytest.mark.sglang
async def test_killed_parts_of_a_real_engine_lose_nothing() -> None:
    settings = Settings(
        engine="sglang", kills=3, workers=2, pace_s=1.0, requests=27, concurrency=16
    )
    report = await SCENARIOS["short"](settings, Silent())
    assert report.holds, report.markdown()
