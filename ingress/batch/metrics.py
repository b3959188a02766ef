"""Instruments of a batcher. Labels come from closed sets, never from ids."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_COMMIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class BatcherMetrics:
    """All instruments.

    Args:
        registry: Where they are shown; one of their own unless the process shows others too.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.lines = Counter(
            "headrace_batch_lines_total",
            "Lines whose result was stored, by outcome: succeeded, errored",
            ["outcome"],
            registry=self.registry,
        )
        self.running = Gauge(
            "headrace_batch_lines_running", "Lines in flight", registry=self.registry
        )
        self.active = Gauge(
            "headrace_batches_active",
            "Batches that this process has in hand, by status",
            ["status"],
            registry=self.registry,
        )
        self.ended = Counter(
            "headrace_batches_total",
            "Batches ended, by how: completed, failed, expired, cancelled",
            ["status"],
            registry=self.registry,
        )
        self.commit = Histogram(
            "headrace_batch_commit_seconds",
            "Storing a group of results, waiting for the database included",
            buckets=_COMMIT_S,
            registry=self.registry,
        )
