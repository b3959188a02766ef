"""Instruments of a worker. Labels come from closed sets, never from ids."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class WorkerMetrics:
    """All instruments, on a registry of their own so that two workers fit one process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.jobs = Counter(
            "headrace_worker_jobs_total", "Jobs settled", ["outcome"], registry=self.registry
        )
        self.running = Gauge("headrace_worker_jobs_running", "Jobs held", registry=self.registry)
        self.running_batch = Gauge(
            "headrace_worker_batch_jobs_running", "Batch Jobs among them", registry=self.registry
        )
        self.engine_running = Gauge(
            "headrace_worker_engine_running",
            "Requests inside the engine, by its own count, at the last announcement",
            registry=self.registry,
        )
        self.slots = Gauge("headrace_worker_slots", "Jobs it runs at once", registry=self.registry)
        self.output_tokens = Counter(
            "headrace_worker_output_tokens_total",
            "Tokens of completed Jobs",
            registry=self.registry,
        )
