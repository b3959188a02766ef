"""Instruments of a worker. Labels come from closed sets, never from ids.

Fed once per Job, when it is settled; nothing here runs per Delta.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from schemas.delta import Usage

_PREFILL_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class WorkerMetrics:
    """All instruments, on a registry of their own so that two workers fit one process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.info = Info(
            "headrace_worker", "The model that is served, and by what", registry=self.registry
        )
        self.jobs = Counter(
            "headrace_worker_jobs_total",
            "Jobs settled, by outcome: completed, failed, cancelled, interrupted (it goes on "
            "elsewhere), yielded (batch work, suspended for live requests), counted",
            ["outcome"],
            registry=self.registry,
        )
        self.preemptions = Counter(
            "headrace_worker_preemptions_total",
            "Times that batch work was suspended for live requests",
            registry=self.registry,
        )
        self.running = Gauge("headrace_worker_jobs_running", "Jobs held", registry=self.registry)
        self.running_batch = Gauge(
            "headrace_worker_batch_jobs_running", "Batch Jobs held", registry=self.registry
        )
        self.engine_running = Gauge(
            "headrace_worker_engine_running",
            "Requests inside the engine, by its own count, at the last announcement",
            registry=self.registry,
        )
        self.slots = Gauge("headrace_worker_slots", "Jobs it runs at once", registry=self.registry)
        self.slots_free = Gauge(
            "headrace_worker_slots_free", "Slots without a Job", registry=self.registry
        )
        self.draining = Gauge(
            "headrace_worker_draining",
            "1 once it takes no more Jobs, for it is about to leave",
            registry=self.registry,
        )
        self.prefill = Histogram(
            "headrace_worker_prefill_seconds",
            "From accepting a Job to its first token: waiting inside the engine, and its prompt",
            buckets=_PREFILL_S,
            registry=self.registry,
        )
        self.input_tokens = Counter(
            "headrace_worker_input_tokens_total",
            "Prompt tokens of Jobs settled, those of every attempt",
            registry=self.registry,
        )
        self.cached_tokens = Counter(
            "headrace_worker_cached_tokens_total",
            "Prompt tokens of Jobs settled that the engine's prefix cache had",
            registry=self.registry,
        )
        self.output_tokens = Counter(
            "headrace_worker_output_tokens_total",
            "Tokens generated here, whatever became of the Job",
            registry=self.registry,
        )

    def settled(
        self, outcome: str, usage: Usage, *, generated: int, prefill_s: float | None
    ) -> None:
        """A Job that was to generate is settled.

        Args:
            outcome: As `jobs` has it.
            usage: Of all its attempts.
            generated: Tokens, by this one.
            prefill_s: See `prefill`; None if there was no token.
        """
        self.jobs.labels(outcome=outcome).inc()
        if outcome == "yielded":
            self.preemptions.inc()
        if prefill_s is not None:
            self.prefill.observe(prefill_s)
        self.input_tokens.inc(usage.input_tokens)
        self.cached_tokens.inc(usage.cached_tokens)
        self.output_tokens.inc(generated)
