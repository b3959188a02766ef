"""Instruments of usage records. Labels come from closed sets, never from ids."""

from __future__ import annotations

from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge

Place: TypeAlias = Literal["store", "broker", "file"]
"""Where records are brought."""


class UsageMetrics:
    """All instruments.

    Args:
        registry: Where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "headrace_usage_records_total",
            "Records of requests, by where they went and whether they got there: sent, dropped",
            ["to", "outcome"],
            registry=registry,
        )
        self.waiting = Gauge(
            "headrace_usage_records_waiting",
            "Records of requests that are not yet where they are to go",
            ["to"],
            registry=registry,
        )
