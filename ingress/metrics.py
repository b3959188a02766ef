"""Instruments of whoever sends Jobs: the ingress, and the batcher for the lines of batches.

Labels come from closed sets, never from ids; `class` is `interactive` or `batch`. Fed once per
request, when its figures are final; nothing here runs per Delta. What is a state and not an event
is in `ingress.state_metrics`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingress.usage.metrics import UsageMetrics
from schemas.delta import Usage
from schemas.job import JobClass
from schemas.process_metrics import ProcessMetrics

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_QUEUE_S = (*_LATENCY_S, 7200, 86400)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class IngressMetrics:
    """All instruments, those of the process itself among them.

    Args:
        registry: Where they are shown; one of their own unless the process shows others too.

    Attributes:
        process: See `ProcessMetrics`.
        usage: Those of usage records.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.process = ProcessMetrics(self.registry)
        self.usage = UsageMetrics(self.registry)
        self.requests = Counter(
            "headrace_requests_total",
            "Requests ended",
            ["dialect", "model", "outcome", "status"],
            registry=self.registry,
        )
        self.repeated = Counter(
            "headrace_repeated_requests_total",
            "Requests that got the answer of an earlier one with their Idempotency-Key, by whether "
            "that was running: joined, replayed",
            ["dialect", "model", "how"],
            registry=self.registry,
        )
        self.counts = Counter(
            "headrace_token_counts_total",
            "Requests to count tokens, by how they ended: exact, estimated, failed, cancelled",
            ["dialect", "model", "outcome"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "headrace_requests_in_flight", "Requests in flight", registry=self.registry
        )
        self.queue_wait = Histogram(
            "headrace_queue_wait_seconds",
            "From handing a request over until a worker accepted it",
            ["model", "class"],
            buckets=_QUEUE_S,
            registry=self.registry,
        )
        self.refusals = Counter(
            "headrace_refusals_total",
            "Requests refused for want of capacity or by a limit of their account, by the bound "
            "that was reached or the error",
            ["model", "reason"],
            registry=self.registry,
        )
        self.limits_exchange = Histogram(
            "headrace_limits_exchange_seconds",
            "Exchanges with the ledger that accounts' limits are held by",
            buckets=(0.001, 0.0025, *_LATENCY_S[:8]),
            registry=self.registry,
        )
        self.limits_alone = Gauge(
            "headrace_limits_alone",
            "1 while the ledger is away and this process holds limits by itself",
            registry=self.registry,
        )
        self.limits_decided_alone = Counter(
            "headrace_limits_decided_alone_total",
            "Requests admitted or refused without the ledger",
            registry=self.registry,
        )
        self.lost_attempts = Counter(
            "headrace_lost_attempts_total",
            "Times that a reply had to go on with another worker, by why the attempt was lost",
            ["model", "reason"],
            registry=self.registry,
        )
        self.continuations = Counter(
            "headrace_continuations_total",
            "Times that another worker went on with a reply and its tokens came again",
            ["model"],
            registry=self.registry,
        )
        self.disconnects = Counter(
            "headrace_client_disconnects_total",
            "Requests whose client left before the end, by what they were at: preparing, queued, "
            "prefill, decode, ended (all was generated, not all was written)",
            ["dialect", "model", "phase"],
            registry=self.registry,
        )
        self.duplicates = Counter(
            "headrace_duplicate_messages_total",
            "Reply messages left out because they had come before, or of an attempt that was left",
            ["model"],
            registry=self.registry,
        )
        self.move_wait = Histogram(
            "headrace_move_wait_seconds",
            "From noticing that an attempt is lost until another worker accepted the next one",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.move_read = Histogram(
            "headrace_move_read_seconds",
            "From the acceptance of a further attempt to its first token: all is read again",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.ttft = Histogram(
            "headrace_time_to_first_token_seconds",
            "From arrival to the first token",
            ["dialect", "model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.token_latency = Histogram(
            "headrace_inter_token_latency_seconds",
            "Mean time between two tokens of one choice, once per request",
            ["dialect", "model"],
            buckets=_TOKEN_S,
            registry=self.registry,
        )
        self.longest_gap = Histogram(
            "headrace_longest_token_gap_seconds",
            "Longest time without anything new after the first token, once per request",
            ["dialect", "model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.duration = Histogram(
            "headrace_request_duration_seconds",
            "From arrival to the end of the answer",
            ["dialect", "model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.input_tokens = self._tokens("headrace_input_tokens_total", "Prompt tokens")
        self.cached_tokens = self._tokens(
            "headrace_cached_tokens_total", "Prompt tokens that the engine's prefix cache had"
        )
        self.output_tokens = self._tokens("headrace_output_tokens_total", "Generated tokens")
        self.reasoning_tokens = self._tokens(
            "headrace_reasoning_tokens_total", "Generated tokens that are reasoning"
        )
        self.transfers = Counter(
            "headrace_file_transfers_total",
            "Uploads and downloads of files ended, by direction and how",
            ["direction", "outcome"],
            registry=self.registry,
        )
        self.transferred_bytes = Counter(
            "headrace_file_bytes_total",
            "Bytes of files uploaded and downloaded, whatever became of the transfer",
            ["direction"],
            registry=self.registry,
        )

    def _tokens(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, ["model", "class"], registry=self.registry)

    def count_tokens(self, model: str, job_class: JobClass, usage: Usage) -> None:
        """Count what a request has used, once its figures are final."""
        for counter, tokens in (
            (self.input_tokens, usage.input_tokens),
            (self.cached_tokens, usage.cached_tokens),
            (self.output_tokens, usage.output_tokens),
            (self.reasoning_tokens, usage.reasoning_tokens),
        ):
            counter.labels(model, job_class).inc(tokens)
