"""The two ports of a transport.

The ingress holds a `Dispatcher`: it sends a Job and gets its `Reply`. A worker holds a `JobSource`:
it takes `Delivery`s and answers each with reply messages. A transport carries bytes in order; it
never looks at what Deltas mean, except to report a Job that it could not deliver or decode.

Rules every transport obeys (the contract suite checks them):

* A Job is accepted or refused, never lost in between; `dispatch` returns only when it is accepted.
* Reply messages of one Job arrive in the order in which they were sent, each once per attempt.
* `Delivery.send` never blocks and never waits for the wire; what was sent within one turn of the
  event loop travels together.
* A Delivery is settled exactly once (`ack`, `requeue`, `dead_letter`); further calls do nothing.
* A worker that disappears without settling gives its Jobs to another one, marked `redelivered`.
* Cancelling a Reply reaches the worker that holds the Job, and one that gets it later. So does the
  end of its reader, as soon as the worker says anything. What the worker says afterwards still
  arrives, until the Reply is closed.
* Of a Job that requires zero data retention, and of its reply, nothing reaches a disk readably.
* A probe is answered by the source that holds the attempt, whatever its runner is doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from schemas.delta import ReplyMessage
from schemas.errors import InternalError, WorkerFailed
from schemas.job import Job
from schemas.model_card import WorkerInfo

COUNT_SLOTS: Final = 64
"""Counting Jobs that a source holds at once, beside its slots: they never wait for generation, and
generation never waits for them."""


class ReplySuspended(InternalError):
    """More of the reply has arrived than its reader takes; the attempt was cancelled."""


class ReplyLost(WorkerFailed):
    """The reply can no longer arrive: its connection is gone, or its worker is silent."""


class RecordsNotTaken(ConnectionError):
    """Records were not put into their queue, or that was not confirmed; try again."""


class SourceBroken(ConnectionError):
    """Jobs cannot arrive although the broker answers, and trying again has not helped."""


class Reply(Protocol):
    """The owner's end of one Job's reply."""

    async def receive(self) -> Sequence[ReplyMessage]:
        """Everything that has arrived since the last call; waits for at least one message.

        Raises:
            ReplyLost: All that had arrived was read, and no more can: the connection was lost, or
                `interrupt` was called.
            ReplySuspended: As before, because too much was unread; the attempt is cancelled.
            ServiceError: As before, for good.
        """
        ...

    def listen(self, listener: Callable[[ReplyMessage], bool]) -> None:
        """Offer `listener` each message that comes while `receive` waits.

        It is called the moment the message arrives and says whether it has taken it; then `receive`
        goes on waiting and never returns it. It must not raise.
        """
        ...

    def interrupt(self, reason: str) -> None:
        """Believe the attempt lost: `receive` raises `ReplyLost` once it has nothing else."""
        ...

    def probe(self) -> None:
        """Ask whoever holds the attempt to show that it is alive; an `ALIVE` message comes back."""
        ...

    async def redispatch(self, job: Job) -> None:
        """Send a further attempt of the same Job; from now on only its messages arrive here.

        Further attempts are numbered upwards, also those that were not accepted: an earlier one may
        yet turn up at a worker.

        Raises:
            ServiceError: As `Dispatcher.dispatch`; then the reply is still lost.
        """
        ...

    async def cancel(self) -> None:
        """Tell whoever holds the Job, or gets it later, that nobody waits. Idempotent."""
        ...

    async def close(self) -> None:
        """Give back what the reply occupies. Idempotent. Does not cancel the Job."""
        ...


class Dispatcher(Protocol):
    """The ingress port."""

    async def dispatch(self, job: Job) -> Reply:
        """Hand over a Job.

        Raises:
            ModelUnavailable: Nobody serves the model, or the broker cannot be reached.
            ModelOverloaded: The queue is full.
            RequestTooLarge: The Job exceeds what the transport carries.
        """
        ...

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers heard of recently, draining ones included."""
        ...

    def connected(self) -> bool:
        """Whether Jobs can be handed over now: connection open and reply consumers in place."""
        ...

    def blocked(self) -> bool:
        """Whether the transport is connected but carries nothing, so that silence tells nothing."""
        ...

    @property
    def reconnects(self) -> int:
        """How often the connection was made again."""
        ...

    def dropped(self) -> Mapping[str, int]:
        """How many messages were thrown away, by why; for metrics."""
        ...

    async def close(self) -> None: ...


class Delivery(Protocol):
    """A Job in a worker's hands."""

    @property
    def job(self) -> Job: ...

    @property
    def redelivered(self) -> bool:
        """Whether an earlier holder disappeared without settling it."""
        ...

    @property
    def cancelled(self) -> asyncio.Event:
        """Set once nobody waits for the reply any more."""
        ...

    def send(self, message: ReplyMessage) -> None:
        """Queue a message for the reply. Never blocks; does nothing once the reader is gone."""
        ...

    async def writable(self) -> None:
        """Wait until the transport has room, or nobody waits for the reply any more.

        Returns at once unless the transport is far behind.
        """
        ...

    async def ack(self) -> None:
        """The Job is done, whatever its end. Everything sent before is on its way first."""
        ...

    async def requeue(self) -> None:
        """Give the Job back, unstarted, for another worker."""
        ...

    async def dead_letter(self, reason: str) -> None:
        """Set the Job aside for people to look at. `reason` contains nothing of the prompt.

        Of a Job that requires zero data retention only the reason is kept.
        """
        ...


class JobSource(Protocol):
    """The worker port."""

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Jobs as they come, never more unsettled at once than the source's slots per class.

        Interactive Jobs come as long as they alone leave a slot that is not the batch floor's.
        Batch Jobs are taken only while there is a slot for them, up to `limit_batch`; counting Jobs
        have `COUNT_SLOTS` of their own.

        Ends when the source is drained or closed.

        Raises:
            SourceBroken: The process should end, and say so.
        """
        ...

    def limit_batch(self, jobs: int) -> None:
        """Take no batch Job from now on while that many are held. No limit but slots at first."""
        ...

    async def announce(self, worker: WorkerInfo) -> None:
        """Tell every dispatcher about this worker, and remember it as the answer for those who ask.

        Does nothing while the transport is not connected.
        """
        ...

    def connected(self) -> bool:
        """Whether Jobs can arrive now: connection open and consumers in place."""
        ...

    def blocked(self) -> bool:
        """As of a `Dispatcher`."""
        ...

    @property
    def reconnects(self) -> int:
        """As of a `Dispatcher`."""
        ...

    def dropped(self) -> Mapping[str, int]:
        """How many messages were thrown away or set aside, by why; for metrics."""
        ...

    async def drain(self) -> None:
        """Take no more Jobs. Deliveries already handed out stay valid."""
        ...

    async def close(self) -> None:
        """Drain, send what is queued, and leave."""
        ...


Keep: TypeAlias = Callable[[Sequence[bytes]], Awaitable[Mapping[int, str]]]
"""Keeps several bodies. Returns once they are safe, with the numbers of those that make no sense
and why; it waits for what it needs."""


class RecordQueue(Protocol):
    """Where usage records wait for whoever keeps them, through the end of any process."""

    async def put(self, body: bytes) -> None:
        """Add a body; returns when it is safely there.

        Raises:
            RecordsNotTaken: It is not, or nobody knows. Put again, it may be there twice.
        """
        ...

    async def take(self, keep: Keep) -> None:
        """Have what is there kept, until cancelled. What makes no sense is set aside.

        Who takes something and dies before it is kept leaves it to others.
        """
        ...
