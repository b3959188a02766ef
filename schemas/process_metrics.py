"""What every process tells Prometheus of itself: version, resources, event loop, broker.

Nothing here is done per request. What is a count or a state somewhere else in the process is looked
up when somebody asks, so that keeping it costs nothing; and on the event loop, whichever thread the
question comes in.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final, Protocol

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LAG_EVERY_S: Final = 0.25

_PATIENCE_S: Final = 2.0
"""How long a scrape waits for an event loop that does not turn; then it tells what is left."""


class Link(Protocol):
    """A process's connection to the broker: either port of a transport."""

    def connected(self) -> bool: ...

    def blocked(self) -> bool:
        """Whether it is connected but carries nothing."""
        ...

    @property
    def reconnects(self) -> int:
        """How often it was made again."""
        ...

    def dropped(self) -> Mapping[str, int]:
        """Messages that were thrown away or set aside, by why; every reason, from 0 on."""
        ...


class StateCollector(Collector):
    """Families of samples that are made when they are asked for.

    Args:
        families: All of them without samples, for who wants to know what there is.
        read: Makes them, on the event loop that is running now.
    """

    def __init__(
        self, families: Callable[[], Sequence[Metric]], read: Callable[[], Sequence[Metric]]
    ) -> None:
        self._families = families
        self._read = read
        self._loop = asyncio.get_running_loop()

    def describe(self) -> Iterator[Metric]:
        """What there is."""
        return iter(self._families())

    def collect(self) -> Iterator[Metric]:
        """How it stands; nothing while the loop does not turn."""
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                return iter(self._read())
        made: concurrent.futures.Future[Sequence[Metric]] = concurrent.futures.Future()
        try:
            self._loop.call_soon_threadsafe(_fulfil, made, self._read)
            return iter(made.result(_PATIENCE_S))
        except (RuntimeError, TimeoutError):  # it is closed, or busy
            return iter(())


def _fulfil(
    made: concurrent.futures.Future[Sequence[Metric]], read: Callable[[], Sequence[Metric]]
) -> None:
    try:
        made.set_result(read())
    except Exception as error:  # the asker's, not the loop's
        made.set_exception(error)


def _broker_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily]:
    return (
        GaugeMetricFamily("headrace_broker_connected", "1 while Jobs can go over the broker"),
        GaugeMetricFamily(
            "headrace_broker_blocked",
            "1 while the broker takes nothing, for want of memory or disk",
        ),
        CounterMetricFamily("headrace_broker_reconnects", "Connections to the broker made again"),
    )


def _dropped_family() -> CounterMetricFamily:
    return CounterMetricFamily(
        "headrace_messages_dropped",
        "Messages thrown away or set aside: of replies `orphan` (nobody waits for it any more), "
        "`undecodable`, `overrun` (its reader did not read), `returned` (the reader's queue is "
        "gone); of Jobs `duplicate` (that attempt runs here already), `undecodable_job`",
        labels=["reason"],
    )


class ProcessMetrics:
    """Instruments of one process, whatever it does.

    Args:
        registry: Where they are shown, and whatever else the process has.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        # When a count began would be a sample for every one, and nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        Info("headrace_build", "What runs here", registry=registry).info(
            {"version": version("headrace"), "python": platform.python_version()}
        )
        self.lag = Histogram(
            "headrace_event_loop_lag_seconds",
            "How much later than it should a timer of the event loop came, four times a second",
            buckets=_LAG_S,
            registry=registry,
        )

    def watch(self, link: Link) -> None:
        """Tell how the connection to the broker stands."""

        def families() -> Sequence[Metric]:
            return (*_broker_families(), _dropped_family())

        def read() -> Sequence[Metric]:
            connected, blocked, reconnects = _broker_families()
            dropped = _dropped_family()
            connected.add_metric((), float(link.connected()))
            blocked.add_metric((), float(link.blocked()))
            reconnects.add_metric((), link.reconnects)
            for reason, count in link.dropped().items():
                dropped.add_metric((reason,), count)
            return connected, blocked, reconnects, dropped

        self.registry.register(StateCollector(families, read))

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """While the block runs the lag of its event loop is measured."""
        task = asyncio.create_task(self._measure())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _measure(self) -> None:
        while True:
            due = time.monotonic() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            self.lag.observe(max(0.0, time.monotonic() - due))
