"""What waits, who works and what failed, for Prometheus: looked up when it is asked for.

All of it is known elsewhere in the process. Of a model that was seen once there is a sample as long
as the process lives, so that nobody has to guess what an absent one means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ingress.backlog import Bound
from ingress.dialects.registry import DIALECTS
from ingress.retries import Loss
from ingress.services import Services
from schemas.errors import (
    ConcurrencyLimitExceeded,
    InsufficientCredits,
    ModelOverloaded,
    ModelUnavailable,
    RateLimitExceeded,
)
from schemas.job import JobClass
from schemas.process_metrics import StateCollector

_CLASSES: Final[tuple[JobClass, ...]] = tuple(
    job_class for job_class in get_args(JobClass) if job_class != "count"
)


class _Families:
    """All of them, still without samples."""

    def __init__(self) -> None:
        self.queued = GaugeMetricFamily(
            "headrace_queued_requests",
            "Requests of this process that wait for a worker; lines of batches are of class batch",
            labels=["model", "class"],
        )
        self.oldest = GaugeMetricFamily(
            "headrace_oldest_queued_seconds",
            "How long the one has waited that has waited longest",
            labels=["model", "class"],
        )
        self.tokens = GaugeMetricFamily(
            "headrace_queued_tokens",
            "Tokens of the prompts of live requests that wait, estimated",
            labels=["model"],
        )
        self.workers = GaugeMetricFamily(
            "headrace_workers", "Workers heard of lately", labels=["model"]
        )
        self.ready = GaugeMetricFamily(
            "headrace_workers_ready", "Workers heard of lately that take requests", labels=["model"]
        )
        self.slots = GaugeMetricFamily(
            "headrace_slots",
            "Slots of the workers heard of, by their last word: live, batch, free",
            labels=["model", "state"],
        )
        self.errors = CounterMetricFamily(
            "headrace_errors",
            "Requests that were answered with an error, or whose stream ended in one; those too "
            "that were refused before it was known for which model",
            labels=["dialect", "code", "status"],
        )

    def all(self) -> Sequence[Metric]:
        return (
            *(self.queued, self.oldest, self.tokens),
            *(self.workers, self.ready, self.slots, self.errors),
        )


REFUSALS: Final = (
    *get_args(Bound),
    *(ModelOverloaded.code, ModelUnavailable.code),
    *(ConcurrencyLimitExceeded.code, RateLimitExceeded.code, InsufficientCredits.code),
)


class _State:
    """Remembers which models there were.

    What is counted by model begins at 0 when a model is first seen: of a count that begins with
    its first event nobody could tell that it has grown.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._models: dict[str, None] = {}
        settings = services.settings
        for model in (*(model.id for model in settings.config.models), settings.model):
            if model is not None:
                self._know(model)
        self._errors: Counter[tuple[str, str, int]] = Counter()
        for dialect in DIALECTS.values():
            for error in (ConcurrencyLimitExceeded, RateLimitExceeded, InsufficientCredits):
                info = error("").info()
                self._errors[dialect.name, info.code, dialect.error_status(info)] = 0

    def _know(self, model: str) -> None:
        if model in self._models:
            return
        self._models[model] = None
        metrics = self._services.metrics
        for reason in REFUSALS:
            metrics.refusals.labels(model, reason)
        for loss in get_args(Loss):
            metrics.lost_attempts.labels(model, loss)

    def read(self) -> Sequence[Metric]:
        families = _Families()
        self._add_workers(families)
        self._add_queues(families)
        errors = {**self._errors, **self._services.activity.failures}
        for (dialect, code, status), count in errors.items():
            families.errors.add_metric((dialect, code, str(status)), count)
        return families.all()

    def _add_workers(self, families: _Families) -> None:
        workers = self._services.dispatcher.workers()
        for worker in workers:
            self._know(worker.card.id)
        heard = Counter(worker.card.id for worker in workers)
        ready = Counter(worker.card.id for worker in workers if not worker.draining)
        slots: Counter[tuple[str, str]] = Counter()
        for worker in workers:
            live = worker.running - worker.running_batch
            slots[worker.card.id, "live"] += live
            slots[worker.card.id, "batch"] += worker.running_batch
            slots[worker.card.id, "free"] += max(0, worker.slots - worker.running)
        for model in self._models:
            families.workers.add_metric((model,), heard[model])
            families.ready.add_metric((model,), ready[model])
            for state in ("live", "batch", "free"):
                families.slots.add_metric((model, state), slots[model, state])

    def _add_queues(self, families: _Families) -> None:
        services = self._services
        waiting = {(queue.model, queue.job_class): queue for queue in services.activity.waiting()}
        for model, _ in waiting:
            self._know(model)
        for model in self._models:
            for job_class in _CLASSES:
                queue = waiting.get((model, job_class))
                count, oldest_s = (queue.count, queue.oldest_s) if queue else (0, 0.0)
                families.queued.add_metric((model, job_class), count)
                families.oldest.add_metric((model, job_class), oldest_s)
            backlog = services.admission.backlogs.get(model)
            families.tokens.add_metric((model,), backlog.tokens if backlog else 0)


def show_state(services: Services) -> None:
    """Show it on the registry of the process, from now on."""
    state = _State(services)
    collector = StateCollector(lambda: _Families().all(), state.read)
    services.metrics.registry.register(collector)
    services.metrics.process.watch(services.dispatcher)
