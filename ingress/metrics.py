"""Instruments of the ingress and their exposition. Labels come from closed sets, never from ids.

Fed once per request from its canonical line; nothing here runs per Delta.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class IngressMetrics:
    """All instruments, on a registry of their own so that two apps fit one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self.queued = Gauge(
            "headrace_queued_requests",
            "Requests that wait for a worker",
            ["model"],
            registry=self.registry,
        )
        self.queued_tokens = Gauge(
            "headrace_queued_tokens",
            "Tokens of their prompts, estimated",
            ["model"],
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "headrace_queue_wait_seconds",
            "From handing a request over until a worker accepted it",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.refusals = Counter(
            "headrace_refusals_total",
            "Requests refused for want of capacity, by the bound that was reached or the error",
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
        self.move_wait = Histogram(
            "headrace_move_wait_seconds",
            "From noticing that an attempt is lost until another worker accepted the next one",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.move_read = Histogram(
            "headrace_move_read_seconds",
            "From that acceptance to the next token: prompt and answer so far are read again",
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
        self.duration = Histogram(
            "headrace_request_duration_seconds",
            "From arrival to the end of the answer",
            ["dialect", "model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.input_tokens = Counter(
            "headrace_input_tokens_total", "Prompt tokens", ["model"], registry=self.registry
        )
        self.output_tokens = Counter(
            "headrace_output_tokens_total", "Generated tokens", ["model"], registry=self.registry
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
        self.workers = Gauge(
            "headrace_workers", "Workers heard of", ["model"], registry=self.registry
        )
