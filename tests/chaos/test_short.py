"""The short run: the whole suite in small, on scripted engines. `make chaos` is the long one.

What becomes of streams whose real engine is killed is in `tests.integration.test_fleet`.
"""

from __future__ import annotations

import pytest

from tests.chaos.scenarios import SCENARIOS
from tests.chaos.trial import Settings, Silent

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


async def test_killed_workers_and_a_restarted_broker_lose_nothing() -> None:
    settings = Settings(
        # One at a time: who loses two workers within a moment is rightly taken for the cause.
        kills=4,
        workers=3,
        volley=1,
        pace_s=0.1,
        requests=24,
        concurrency=12,
        rounds=1,
    )
    report = await SCENARIOS["short"](settings, Silent())
    assert report.holds, report.markdown()


async def test_a_batch_whose_batchers_and_worker_are_killed_has_every_line_once() -> None:
    settings = Settings(kills=3, seed=3, workers=2, pods=1, concurrency=16, pace_s=1.0, lines=300)
    report = await SCENARIOS["batch"](settings, Silent())
    assert report.holds, report.markdown()
