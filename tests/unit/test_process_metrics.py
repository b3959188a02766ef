"""What a process tells of itself: the state is looked up on its event loop, whoever asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily

from schemas import process_metrics
from schemas.process_metrics import ProcessMetrics, StateCollector
from tests.fixtures.metrics import Samples
from tests.fixtures.stack import until


class Link:
    """A connection that is as it is told to be."""

    def __init__(self) -> None:
        self.up = True
        self.alarm = False
        self.reconnects = 0

    def connected(self) -> bool:
        return self.up

    def blocked(self) -> bool:
        return self.alarm

    def dropped(self) -> Mapping[str, int]:
        return {"orphan": 3}


async def test_the_broker_is_shown_as_it_is_when_asked() -> None:
    registry, link = CollectorRegistry(), Link()
    ProcessMetrics(registry).watch(link)
    samples = Samples.of(registry)
    assert samples("headrace_broker_connected") == 1
    assert samples("headrace_broker_blocked") == 0
    link.up, link.alarm, link.reconnects = False, True, 2
    samples = Samples.of(registry)
    assert samples("headrace_broker_connected") == 0
    assert samples("headrace_broker_blocked") == 1
    assert samples("headrace_broker_reconnects_total") == 2
    assert samples("headrace_messages_dropped_total", reason="orphan") == 3


async def test_a_busy_event_loop_is_seen() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry)
    async with metrics.measuring():
        await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 - that is the point
        await until(lambda: Samples.of(registry)("headrace_event_loop_lag_seconds_count") > 0)
    samples = Samples.of(registry)
    assert samples("headrace_event_loop_lag_seconds_bucket", le="0.25") == 0
    assert samples("headrace_event_loop_lag_seconds_sum") > 0.3


async def test_what_runs_and_what_it_takes_is_shown() -> None:
    registry = CollectorRegistry()
    ProcessMetrics(registry)
    samples = Samples.of(registry)
    assert samples.total("headrace_build_info") == 1
    assert samples("process_resident_memory_bytes") > 1e6


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily("headrace_turns", "Turns")


async def test_state_is_looked_up_on_the_loop_for_another_thread() -> None:
    loop = asyncio.get_running_loop()

    def read() -> Sequence[Metric]:
        assert asyncio.get_running_loop() is loop
        family = _family()
        family.add_metric((), 7)
        return [family]

    registry = CollectorRegistry()
    registry.register(StateCollector(lambda: [_family()], read))
    assert Samples.of(registry)("headrace_turns") == 7  # in the loop's own thread
    assert (await asyncio.to_thread(Samples.of, registry))("headrace_turns") == 7


async def test_a_scrape_is_answered_while_the_loop_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics, "_PATIENCE_S", 0.05)
    registry = CollectorRegistry()
    ProcessMetrics(registry).watch(Link())
    asking = asyncio.get_running_loop().run_in_executor(None, Samples.of, registry)
    time.sleep(0.3)  # noqa: ASYNC251 - the loop stands
    samples = await asking
    assert samples.total("headrace_build_info") == 1
    assert samples.total("headrace_broker_connected") == 0  # nobody knows
