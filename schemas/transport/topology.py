"""Names and arguments of everything declared on the broker, as plain values.

Declared in one place so that both sides, the tests and an operator's tools agree. Job queues are
quorum queues: they survive the loss of a node. Classes have queues of their own, because prefetch
defeats message priority and quorum priorities differ between broker versions.

The queue of counting Jobs is of another kind: an answer is awaited for seconds only, and a lost one
costs an estimate. So it is a classic queue of transient messages that expire, and it goes when its
last worker has gone, upon which a count is refused at once instead of waiting for nobody. While its
node of a cluster is down it can be neither used nor declared, which must harm nothing else.

So is the queue of Jobs that require zero data retention: nothing in it outlives the broker, nothing
of it is set aside. Their bodies are sealed besides, for a broker may write to its disk what it was
told to forget.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from schemas.job import Job, JobClass

JOBS_EXCHANGE: Final = "headrace.jobs"
"""Direct; routing key `job_queue(model, kind)`."""

CONTROL_EXCHANGE: Final = "headrace.control"
"""Topic; routing key `control_key(model)`: cancels and questions to the workers of a model; or see
`CONTROL_PODS`, whose answers have the asker's queue as their key."""

WORKERS_EXCHANGE: Final = "headrace.workers"
"""Fanout: announcements of workers to every dispatcher."""

DEAD_EXCHANGE: Final = "headrace.dead"
"""Fanout to `DEAD_QUEUE`."""

DEAD_QUEUE: Final = "headrace.dead"

USAGE_EXCHANGE: Final = "headrace.usage"
"""Fanout to `USAGE_QUEUE`, and to whatever else wants to know what was used."""

USAGE_QUEUE: Final = "headrace.usage"

USAGE_QUEUE_BYTES: Final = 1 << 30
"""Of records that nobody has kept yet; some millions. Above it further ones are refused."""

USAGE_DELIVERY_LIMIT: Final = 1_000_000
"""Records come back with every batcher that dies over them, and are not set aside for that; newer
brokers have a low limit of their own where none is given."""

EXCHANGES: Final = (
    (JOBS_EXCHANGE, "direct"),
    (CONTROL_EXCHANGE, "topic"),
    (WORKERS_EXCHANGE, "fanout"),
    (DEAD_EXCHANGE, "fanout"),
    (USAGE_EXCHANGE, "fanout"),
)
"""Name and type of every exchange, all durable. Either side declares them."""

TRACE_HEADER: Final = "traceparent"
"""Where the Job belongs in a trace, for tools that look at messages and not into them."""

ATTEMPT_HEADER: Final = "x-headrace-attempt"
"""The Job's attempt, so that even one whose body cannot be read gets an answer in its reply. Its
`job_id` is the correlation id, its reply queue `reply_to`."""

REASON_HEADER: Final = "x-headrace-reason"
"""Why a message lies in the dead-letter queue."""

SEALED_TYPE: Final = "application/x-headrace-sealed"
"""Content type of a Job's message that only its workers can read."""

CONSUMER_TIMEOUT_MS: Final = 24 * 3600 * 1000
"""How long a worker may hold a Job before the broker takes it for stuck; far above the longest
request, since owners watch their workers themselves. Brokers before 3.12 ignore this and have one
limit for all queues, in their own configuration."""

DELIVERY_LIMIT: Final = 5
"""How often the broker itself hands a Job out before it sets it aside; a last resort, since workers
report a redelivered Job to its owner and do not run it."""

JOB_CLASSES: Final[tuple[JobClass, ...]] = ("interactive", "batch", "count")

QueueKind: TypeAlias = JobClass | Literal["transient"]
"""`transient` is the queue of Jobs that require zero data retention."""

QUEUE_KINDS: Final[tuple[QueueKind, ...]] = (*JOB_CLASSES, "transient")

BATCH_QUEUE_FACTOR: Final = 10
"""How many times as many batch Jobs may be ready as live ones: they wait without harm, each owner
has only so many out, and those that give way to live requests come back there."""

COUNT_MESSAGE_TTL_MS: Final = 10_000
"""After this nobody waits for a count any more. It also bounds how often the broker hands out one
that kills its workers."""

UNUSED_QUEUE_TTL_MS: Final = 30_000
"""How long a classic queue stays without a consumer; time enough for one that reconnects."""

TRANSIENT_QUEUE_BYTES: Final = 256 << 20
"""Bytes of transient Jobs that may be ready: they travel whole, and are to lie in memory."""


def queue_kind(job: Job) -> QueueKind:
    """Where a Job belongs."""
    return "transient" if job.zdr and job.job_class != "count" else job.job_class


def is_transient(kind: QueueKind) -> bool:
    """Whether Jobs there do not outlive their broker, and may be lost without much harm."""
    return kind in ("count", "transient")


def job_queue(model: str, kind: QueueKind) -> str:
    """Name of a model's queue, and routing key of its Jobs."""
    return f"{JOBS_EXCHANGE}.{model}.{kind}"


def job_queue_arguments(kind: QueueKind, max_length: int) -> dict[str, Any]:
    """Arguments of a job queue that refuses, and says so, above `max_length` ready Jobs.

    Job queues drop nothing by age: a batch Job waits for hours, and what nobody wants any more says
    so itself, by its deadline or by a reply queue that is gone.
    """
    if kind == "batch":
        max_length *= BATCH_QUEUE_FACTOR
    bounds = {"x-max-length": max_length, "x-overflow": "reject-publish"}
    unused = {"x-queue-type": "classic", "x-expires": UNUSED_QUEUE_TTL_MS}
    if kind == "count":
        return {**bounds, **unused, "x-message-ttl": COUNT_MESSAGE_TTL_MS}
    if kind == "transient":
        return {**bounds, **unused, "x-max-length-bytes": TRANSIENT_QUEUE_BYTES}
    return {
        **bounds,
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": DEAD_EXCHANGE,
        "x-consumer-timeout": CONSUMER_TIMEOUT_MS,
    }


def dead_queue_arguments() -> dict[str, Any]:
    return {"x-queue-type": "quorum"}


def usage_queue_arguments() -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-max-length-bytes": USAGE_QUEUE_BYTES,
        "x-overflow": "reject-publish",
        "x-delivery-limit": USAGE_DELIVERY_LIMIT,
        "x-dead-letter-exchange": DEAD_EXCHANGE,
    }


def private_queue(purpose: Literal["reply", "workers", "control"], owner: str, unique: str) -> str:
    """Name of an exclusive queue of one connection. Of a reply queue, also its consumer's tag."""
    return f"headrace.{purpose}.{owner}.{unique}"


def private_queue_arguments() -> dict[str, Any]:
    """Said outright, since a virtual host may have quorum queues as its default."""
    return {"x-queue-type": "classic"}


def control_key(model: str) -> str:
    """Routing key for the workers of a model; they bind this and `CONTROL_ALL`."""
    return f"model.{model}"


CONTROL_ALL: Final = "all"
"""Routing key for every worker."""

CONTROL_PODS: Final = "pods"
"""Routing key for every process that is no worker: how do you stand?"""

CONTROL_NOBODY: Final = "nobody"
"""Routing key of what is published only to see whether the broker takes it."""
