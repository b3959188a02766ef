"""Both ports in one process: the same rules as over a broker, with nothing in between.

Queues are bounded, Jobs are redelivered when their holder leaves, cancels reach the holder or a
later one. Values are immutable, so they are handed over as they are and no codec is needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec
import structlog

from schemas.delta import ALIVE, ReplyMessage
from schemas.errors import ModelOverloaded, ModelUnavailable, ServerShuttingDown, ServiceError
from schemas.job import Job, JobClass
from schemas.model_card import WorkerInfo
from schemas.transport.base import COUNT_SLOTS, ReplyLost
from schemas.transport.reply_buffer import ReplyBuffer
from schemas.transport.topology import JOB_CLASSES

log = structlog.get_logger(__name__)


class _Dispatched:
    """One attempt of a Job, from its dispatch until it is settled."""

    __slots__ = ("cancelled", "holder", "job", "redelivered", "reply")

    def __init__(self, job: Job, reply: MemoryReply) -> None:
        self.job = job
        self.reply = reply
        self.redelivered = False
        self.cancelled = False
        self.holder: MemoryDelivery | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.holder is not None:
            self.holder.cancelled.set()


class _Model:
    """The queues of one model and the sources that serve it."""

    def __init__(self, max_queued_jobs: int) -> None:
        self.max_queued_jobs = max_queued_jobs
        self.queues: dict[JobClass, deque[_Dispatched]] = {
            job_class: deque() for job_class in JOB_CLASSES
        }
        self.sources: list[MemoryJobSource] = []

    def hand_out(self) -> None:
        """Give what waits to whoever has a free slot, the least busy first."""
        for job_class, queue in self.queues.items():
            while queue:
                takers = [source for source in self.sources if source.has_room(job_class)]
                if not takers:
                    break
                least_busy = min(takers, key=lambda source: source.busy(job_class))
                least_busy.take(queue.popleft())


class MemoryTransport:
    """What dispatchers and job sources of one process have in common.

    Attributes:
        dead_letters: Jobs set aside, with the reason; None for what may not be kept.
        blocked: Nothing is carried now, as by a broker in alarm; what is sent meanwhile is lost.
    """

    def __init__(self) -> None:
        self.models: dict[str, _Model] = {}
        self.workers: dict[MemoryJobSource, WorkerInfo] = {}
        self.dead_letters: list[tuple[Job | None, str]] = []
        self.blocked = False

    def dispatcher(self, *, reply_buffer_bytes: int = 1 << 20) -> MemoryDispatcher:
        """A new ingress end.

        Args:
            reply_buffer_bytes: Unread bytes of one reply that break it.
        """
        return MemoryDispatcher(self, reply_buffer_bytes)

    def job_source(
        self, *, model: str, slots: int, max_queued_jobs: int = 1000, batch_floor: int = 0
    ) -> MemoryJobSource:
        """A new worker end.

        Args:
            model: What it serves.
            slots: Jobs of one class it holds at once.
            batch_floor: Slots that interactive Jobs never take.
            max_queued_jobs: Waiting Jobs per class above which further ones are refused. The first
                source of a model decides.
        """
        serving = self.models.setdefault(model, _Model(max_queued_jobs))
        source = MemoryJobSource(self, serving, slots, batch_floor)
        serving.sources.append(source)
        serving.hand_out()
        return source


class MemoryReply:
    """See `schemas.transport.base.Reply`."""

    def __init__(self, dispatcher: MemoryDispatcher, buffer: ReplyBuffer) -> None:
        self._dispatcher = dispatcher
        self._buffer = buffer
        self._attempts: list[_Dispatched] = []
        self._attempt = 0
        self.closed = False

    async def receive(self) -> Sequence[ReplyMessage]:
        return await self._buffer.take()

    def listen(self, listener: Callable[[ReplyMessage], bool]) -> None:
        self._buffer.listener = listener

    def interrupt(self, reason: str) -> None:
        self._buffer.fail(ReplyLost("The worker was lost.", diagnostic=reason))

    def probe(self) -> None:
        holder = self._attempts[-1].holder
        if holder is not None and not holder.redelivered:
            holder.send(ReplyMessage(holder.job.job_id, holder.job.attempt, ALIVE, ()))

    async def redispatch(self, job: Job) -> None:
        self._attempt = job.attempt
        self._buffer.renew()
        try:
            self.send(job)
        except ServiceError:
            self.interrupt("the attempt was not accepted")
            raise

    async def cancel(self) -> None:
        for attempt in self._attempts:
            attempt.cancel()

    async def close(self) -> None:
        self.closed = True
        self._dispatcher.replies.discard(self)

    def send(self, job: Job) -> None:
        dispatched = _Dispatched(job, self)
        self._dispatcher.enqueue(dispatched)
        self._attempts.append(dispatched)

    def put(self, message: ReplyMessage) -> None:
        if self.closed or message.attempt < self._attempt or self._dispatcher.blocked():
            return
        if not self._buffer.put(message, _size(message)):
            log.warning("reply.overrun", job_id=message.job_id)
            for attempt in self._attempts:
                attempt.cancel()

    def shut_down(self) -> None:
        self._buffer.fail(ServerShuttingDown("The server is shutting down."))
        for attempt in self._attempts:
            attempt.cancel()


def _size(message: ReplyMessage) -> int:
    """About as many bytes as it would take on the wire."""
    return 64 + sum(32 + len(getattr(delta, "text", "")) for delta in message.deltas)


class MemoryDispatcher:
    """See `schemas.transport.base.Dispatcher`."""

    def __init__(self, transport: MemoryTransport, reply_buffer_bytes: int) -> None:
        self._transport = transport
        self._reply_buffer_bytes = reply_buffer_bytes
        self._closed = False
        self.replies: set[MemoryReply] = set()

    async def dispatch(self, job: Job) -> MemoryReply:
        reply = MemoryReply(self, ReplyBuffer(self._reply_buffer_bytes))
        reply.send(job)
        self.replies.add(reply)
        return reply

    def enqueue(self, dispatched: _Dispatched) -> None:
        job = dispatched.job
        serving = self._transport.models.get(job.model)
        if serving is None or self._closed:
            raise ModelUnavailable("No worker serves this model at the moment.")
        if self.blocked():
            raise ModelOverloaded("The service is overloaded.", diagnostic="transport blocked")
        queue = serving.queues[job.job_class]
        if len(queue) >= serving.max_queued_jobs:
            raise ModelOverloaded("The model is overloaded.", diagnostic="job queue full")
        queue.append(dispatched)
        serving.hand_out()

    def workers(self) -> Sequence[WorkerInfo]:
        return list(self._transport.workers.values())

    def connected(self) -> bool:
        return not self._closed

    def blocked(self) -> bool:
        return self._transport.blocked

    @property
    def reconnects(self) -> int:
        return 0

    def dropped(self) -> Mapping[str, int]:
        return {}

    async def close(self) -> None:
        self._closed = True
        for reply in self.replies:
            reply.shut_down()
        self.replies.clear()


class MemoryDelivery:
    """See `schemas.transport.base.Delivery`."""

    def __init__(self, source: MemoryJobSource, dispatched: _Dispatched) -> None:
        self._source = source
        self._dispatched = dispatched
        self._settled = False
        self._redelivered = dispatched.redelivered
        self._cancelled = asyncio.Event()
        if dispatched.cancelled:
            self._cancelled.set()
        dispatched.holder = self

    @property
    def job(self) -> Job:
        return self._dispatched.job

    @property
    def redelivered(self) -> bool:
        return self._redelivered

    @property
    def cancelled(self) -> asyncio.Event:
        return self._cancelled

    def send(self, message: ReplyMessage) -> None:
        if self._dispatched.holder is self:
            self._dispatched.reply.put(message)

    async def writable(self) -> None:
        return

    async def ack(self) -> None:
        self._settle()

    async def requeue(self) -> None:
        if self._settle():
            self._source.give_back(self._dispatched)

    async def dead_letter(self, reason: str) -> None:
        if self._settle():
            self._source.set_aside(self.job, reason)

    def lose(self) -> None:
        """The source is gone: the Job is somebody else's now."""
        if self._settle():
            self._cancelled.set()
            self._source.give_back(self._dispatched)

    def _settle(self) -> bool:
        """Whether it is this call that settles it."""
        if self._settled:
            return False
        self._settled = True
        self._dispatched.holder = None
        self._source.release(self)
        return True


class MemoryJobSource:
    """See `schemas.transport.base.JobSource`."""

    def __init__(
        self, transport: MemoryTransport, serving: _Model, slots: int, batch_floor: int
    ) -> None:
        self._transport = transport
        self._serving = serving
        self._slots = slots
        self._live_slots = max(1, slots - batch_floor)
        self._batch_limit = slots
        self._incoming: deque[MemoryDelivery] = deque()
        self._held: dict[MemoryDelivery, None] = {}
        self._arrived = asyncio.Event()
        self._draining = False

    async def deliveries(self) -> AsyncIterator[MemoryDelivery]:
        while True:
            while self._incoming:
                yield self._incoming.popleft()
            if self._draining:
                return
            self._arrived.clear()
            await self._arrived.wait()

    def limit_batch(self, jobs: int) -> None:
        self._batch_limit = jobs
        self._serving.hand_out()

    async def announce(self, worker: WorkerInfo) -> None:
        if self in self._serving.sources:
            self._transport.workers[self] = worker

    def connected(self) -> bool:
        return not self._draining

    def blocked(self) -> bool:
        return self._transport.blocked

    @property
    def reconnects(self) -> int:
        return 0

    def dropped(self) -> Mapping[str, int]:
        return {}

    async def drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._arrived.set()
        if (worker := self._transport.workers.get(self)) is not None:
            self._transport.workers[self] = msgspec.structs.replace(worker, draining=True)
        while self._incoming:
            await self._incoming.pop().requeue()

    async def close(self) -> None:
        await self.drain()
        if self in self._serving.sources:
            self._serving.sources.remove(self)
            self._transport.workers.pop(self, None)
            for delivery in reversed(tuple(self._held)):
                delivery.lose()

    def busy(self, job_class: JobClass) -> int:
        """Jobs held that stand in the way of one more of this class."""
        held = [delivery.job.job_class for delivery in self._held]
        if job_class == "batch":  # takes only what interactive ones leave free
            return len(held) - held.count("count")
        return held.count(job_class)

    def has_room(self, job_class: JobClass) -> bool:
        if self._draining:
            return False
        busy = self.busy(job_class)
        match job_class:
            case "count":
                return busy < COUNT_SLOTS
            case "interactive":
                return busy < self._live_slots
            case "batch":
                held = sum(delivery.job.job_class == "batch" for delivery in self._held)
                return busy < self._slots and held < self._batch_limit

    def take(self, dispatched: _Dispatched) -> None:
        delivery = MemoryDelivery(self, dispatched)
        self._held[delivery] = None
        self._incoming.append(delivery)
        self._arrived.set()

    def release(self, delivery: MemoryDelivery) -> None:
        self._held.pop(delivery, None)
        self._serving.hand_out()

    def give_back(self, dispatched: _Dispatched) -> None:
        dispatched.redelivered = True
        self._serving.queues[dispatched.job.job_class].appendleft(dispatched)
        self._serving.hand_out()

    def set_aside(self, job: Job, reason: str) -> None:
        self._transport.dead_letters.append((None if job.zdr else job, reason))
