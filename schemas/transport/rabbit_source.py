"""The worker port over RabbitMQ: Jobs in, as many as there are slots.

Live Jobs are pushed by the broker up to the prefetch, batch Jobs are fetched as there are slots for
them (`rabbit_batch_jobs`). Counting Jobs are pushed to a consumer of their own, whose prefetch has
nothing to do with slots.

Interactive Jobs come from two queues, for those that require zero data retention have their own.
Both push up to the prefetch, neither knowing of the other; what comes beyond the slots waits here,
in the order in which it came.

When the connection is lost, the broker gives the Jobs to somebody else and replies can no longer be
relied on: every Delivery of that connection becomes cancelled, and settling it does nothing. When
only the channel that delivered it is lost (an acknowledgement timeout), it goes on: its owner hears
it still speaking and ignores the worker that gets the Job again.

Must not know what Deltas mean, except to say in a reply that a Job could not be read.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping

import msgspec
import structlog
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity

from schemas.blobs.base import BlobStore
from schemas.blobs.jobs import JobReader, JobUnavailable
from schemas.codec import (
    AnnounceRequest,
    Cancel,
    CodecError,
    Probe,
    decode_control,
    encode_frame,
    encode_worker,
)
from schemas.delta import ALIVE, OUT_OF_BAND, Failed, Interrupted, ReplyMessage
from schemas.errors import InternalError
from schemas.job import Job, JobClass
from schemas.model_card import WorkerInfo
from schemas.transport import topology
from schemas.transport.base import COUNT_SLOTS, SourceBroken
from schemas.transport.cancel_memory import CancelMemory
from schemas.transport.rabbit_batch_jobs import BatchJobs
from schemas.transport.rabbit_connection import (
    BrokerConnection,
    ConnectionSettings,
    Session,
    declare_exchanges,
)
from schemas.transport.rabbit_delivery import Outbox, RabbitDelivery, settled
from schemas.transport.rabbit_job_queues import JobQueues
from schemas.transport.rabbit_publisher import Publisher, Refused, TooLarge, Unconfirmed, Unroutable
from schemas.transport.sealing import Box, NotForUs, Opener
from schemas.transport.topology import QueueKind

log = structlog.get_logger(__name__)

_DEAD_LETTER_TIMEOUT_S = 10.0


class SourceSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of a `RabbitJobSource`.

    Attributes:
        max_queued_jobs: Ready Jobs per queue above which further ones are refused. Whoever declares
            a queue first decides.
        poll_s: How often it is tried again to consume from a queue that was taken away.
        batch_floor: Slots that interactive Jobs never take.
        cancel_memory_s: How long a cancelled Job is remembered, in case it arrives later.
        blob_patience_s: How long a blob store that fails is tried.
        zero_retention: Take Jobs that require it.
    """

    max_queued_jobs: int = 1000
    poll_s: float = 0.25
    batch_floor: int = 0
    cancel_memory_s: float = 3600.0
    blob_patience_s: float = 2.0
    zero_retention: bool = True


_DEFAULTS = SourceSettings()


class RabbitJobSource:
    """See `schemas.transport.base.JobSource`.

    Attributes:
        undecodable_jobs: Messages set aside because they could not be read.
        duplicate_jobs: Messages of an attempt that was here already.
    """

    def __init__(
        self,
        url: str,
        model: str,
        slots: int,
        settings: SourceSettings,
        name: str,
        blobs: BlobStore | None,
    ) -> None:
        self._model = model
        self._slots = slots
        self._settings = settings
        self._name = name
        self._connection = BrokerConnection(
            url,
            name=name,
            settings=settings,
            set_up=self._set_up,
            on_lost=self._on_lost,
            on_broken=self._on_broken,
        )
        self._reader = JobReader(blobs, settings.blob_patience_s)
        self._opener = Opener()
        self._outbox: Outbox
        self._publisher: Publisher
        live_slots = max(1, slots - settings.batch_floor)
        self._class_slots: dict[JobClass, int] = {"interactive": live_slots, "count": COUNT_SLOTS}
        prefetch: dict[QueueKind, int] = {
            "interactive": live_slots,
            "transient": live_slots,
            "count": COUNT_SLOTS,
        }
        self._queues = JobQueues(
            model,
            prefetch,
            self._on_job,
            max_queued_jobs=settings.max_queued_jobs,
            poll_s=settings.poll_s,
            restore_s=settings.restore_s,
        )
        self._batch = BatchJobs(model, slots, self._queues, self._on_job, poll_s=settings.poll_s)
        self._batch_limit = slots
        self._transient_kinds: tuple[QueueKind, ...] = ("count",)
        if settings.zero_retention:
            self._transient_kinds += ("transient",)
        self._incoming: deque[RabbitDelivery] = deque()
        self._arrived = asyncio.Event()
        self._held: set[RabbitDelivery] = set()
        self._cancels = CancelMemory(settings.cancel_memory_s)
        self._worker: WorkerInfo | None = None
        self._draining = False
        self._broken = False
        self._closed = False
        self._returned = 0
        self.undecodable_jobs = 0
        self.duplicate_jobs = 0

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        model: str,
        slots: int,
        settings: SourceSettings = _DEFAULTS,
        name: str = "worker",
        blobs: BlobStore | None = None,
    ) -> RabbitJobSource:
        """Connect, declare the model's queues and begin to consume.

        Large Jobs are fetched from `blobs`, which is where the dispatchers put them.

        Raises:
            BrokerUnreachable: No usable broker within `settings.connect_timeout_s`.
        """
        source = cls(url, model, slots, settings, name, blobs)
        await source._connection.open()
        return source

    @property
    def reconnects(self) -> int:
        return self._connection.reconnects

    @property
    def returned_frames(self) -> int:
        """Reply frames that came back because their reader is gone."""
        return self._returned + self._outbox.returned

    def connected(self) -> bool:
        # Nothing else depends on the transient queues, and Jobs for them are refused while they
        # cannot be reached.
        return self._connection.session is not None and self._queues.pushes("interactive")

    def blocked(self) -> bool:
        session = self._connection.session
        return session is not None and session.tap.blocked

    def dropped(self) -> Mapping[str, int]:
        return {
            "returned": self.returned_frames,
            "duplicate": self.duplicate_jobs,
            "undecodable_job": self.undecodable_jobs,
        }

    async def deliveries(self) -> AsyncIterator[RabbitDelivery]:
        while True:
            while (delivery := self._next()) is not None:
                yield delivery
            if self._draining:
                return
            if self._broken:
                raise SourceBroken(f"no Jobs of {self._model} can be taken from the broker")
            self._arrived.clear()
            await self._arrived.wait()

    def limit_batch(self, jobs: int) -> None:
        self._batch_limit = jobs
        self._count_slots()

    async def announce(self, worker: WorkerInfo) -> None:
        self._worker = worker
        self._tell_of_worker()

    async def drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._count_slots()
        self._arrived.set()
        if (session := self._connection.session) is not None and self._worker is not None:
            self._worker = msgspec.structs.replace(self._worker, draining=True)
            self._post_worker(session)
        await self._queues.end()
        while self._incoming:
            await self._incoming.popleft().requeue()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.drain()
        self._outbox.flush()
        if (session := self._connection.session) is not None and self._worker is not None:
            # Draining with nothing left to run: dispatchers forget it at once.
            self._worker = msgspec.structs.replace(self._worker, running=0)
            self._post_worker(session)
        await self._connection.close()
        self._outbox.lose()

    # --- Jobs ---

    async def _on_job(self, message: AbstractIncomingMessage) -> None:
        if not self._outbox.session.alive:
            return  # the broker gives it to somebody else
        if self._draining:
            await settled(message.nack(requeue=True))
            return
        outbox = self._outbox
        try:
            job, box = await self._read(message)
        except CodecError as error:
            await self._refuse(message, str(error))
            return
        except NotForUs:
            await self._pass_on(message)
            return
        except JobUnavailable as error:
            await self._do_without(message, error)
            return
        if not outbox.session.alive or self._draining:  # reading may have taken a while
            await settled(message.nack(requeue=True))
            return
        if not message.redelivered and self._holds(job):
            self.duplicate_jobs += 1
            log.warning("job.duplicate", job_id=job.job_id, attempt=job.attempt)
            await settled(message.ack())
            return
        delivery = RabbitDelivery(job, message, outbox, box, self._release, self._set_aside)
        if self._cancels.covers(job):
            delivery.cancelled.set()
        if delivery.redelivered:
            log.info("job.redelivered", job_id=job.job_id, request_id=job.request_id)
        self._held.add(delivery)
        self._count_slots()
        self._incoming.append(delivery)
        self._arrived.set()

    async def _read(self, message: AbstractIncomingMessage) -> tuple[Job, Box | None]:
        """The Job, and what its replies are closed with if nobody else may read them.

        Raises:
            CodecError, JobUnavailable, NotForUs: There is none.
        """
        if message.content_type == topology.SEALED_TYPE:
            return self._opener.open(message.body)
        return await self._reader.read(message.body), None

    async def _pass_on(self, message: AbstractIncomingMessage) -> None:
        """Have a Job sent again by its owner, who will have heard of this worker by then."""
        log.info("job.not_for_us", job_id=message.correlation_id)
        if message.redelivered:
            self._answer(message, Interrupted("redelivered"), seq=OUT_OF_BAND)
        else:
            self._answer(message, Interrupted("unreadable"))
        await settled(message.ack())

    def _next(self) -> RabbitDelivery | None:
        """What to hand out now.

        What came over a channel that was lost may still be running here, while the new one brings
        as much again: that waits for their slots. A Job that came again is not run, only reported.
        """
        for delivery in self._incoming:
            if delivery.redelivered or self._has_room(delivery.job.job_class):
                self._incoming.remove(delivery)
                return delivery
        return None

    def _has_room(self, job_class: JobClass) -> bool:
        slots = self._class_slots.get(job_class, self._slots)
        held = sum(delivery.job.job_class == job_class for delivery in self._held)
        waiting = sum(delivery.job.job_class == job_class for delivery in self._incoming)
        return held - waiting < slots

    def _holds(self, job: Job) -> bool:
        """Whether this very attempt is here already: somebody put its message in twice."""
        return any(
            (held.job.job_id, held.job.attempt) == (job.job_id, job.attempt) for held in self._held
        )

    def _release(self, delivery: RabbitDelivery) -> None:
        self._held.discard(delivery)
        self._count_slots()
        self._arrived.set()

    def _count_slots(self) -> None:
        """See whether there are slots for more batch Jobs."""
        held = [delivery.job.job_class for delivery in self._held]
        batch = held.count("batch")
        free = self._slots - batch - held.count("interactive")
        self._batch.make_room(0 if self._draining else min(free, self._batch_limit - batch))

    async def _refuse(self, message: AbstractIncomingMessage, reason: str) -> None:
        """Set a message aside that is no Job, and tell whoever waits for its reply."""
        self.undecodable_jobs += 1
        log.error("job.undecodable", job_id=message.correlation_id, reason=reason)
        error = InternalError("The request could not be read by the worker.")
        self._answer(message, Failed(error.info()))
        await self._set_aside(message, reason)

    async def _do_without(self, message: AbstractIncomingMessage, missing: JobUnavailable) -> None:
        """Settle a message whose Job cannot be had. Given back, it might come here again."""
        if not self._cancels.covers(missing.job):
            log.error("job.unavailable", job_id=missing.job.job_id, reason=str(missing))
        self._answer(message, missing.answer)
        await settled(message.ack())

    def _answer(
        self, message: AbstractIncomingMessage, answer: Failed | Interrupted, *, seq: int = 0
    ) -> None:
        """Tell whoever waits for the reply to a message; nothing else is said of it here."""
        if message.reply_to and message.correlation_id:
            attempt = message.headers.get(topology.ATTEMPT_HEADER)
            reply = ReplyMessage(
                message.correlation_id,
                attempt if isinstance(attempt, int) else 1,
                seq,
                (answer,),
            )
            self._outbox.session.post("", message.reply_to, encode_frame((reply,)))

    async def _set_aside(self, message: AbstractIncomingMessage, reason: str) -> None:
        """Put a message into the dead-letter queue with a reason, then acknowledge it.

        Of one that requires zero data retention only the reason is kept.
        """
        try:
            await self._publisher.publish(
                topology.DEAD_EXCHANGE,
                "",
                b"" if self._is_transient(message) else message.body,
                timeout_s=_DEAD_LETTER_TIMEOUT_S,
                headers={topology.REASON_HEADER: reason},
                correlation_id=message.correlation_id,
            )
        except (Unroutable, Refused, TooLarge, Unconfirmed) as error:
            log.error("job.dead_letter_failed", reason=type(error).__name__)
            await settled(message.reject(requeue=False))  # set aside by the broker, without reason
            return
        await settled(message.ack())

    def _is_transient(self, message: AbstractIncomingMessage) -> bool:
        transient = topology.job_queue(self._model, "transient")
        return message.content_type == topology.SEALED_TYPE or message.routing_key == transient

    # --- control and presence ---

    async def _on_control(self, message: AbstractIncomingMessage) -> None:
        try:
            control = decode_control(message.body)
        except CodecError as error:
            log.warning("control.undecodable", reason=str(error))
            return
        match control:
            case Cancel():
                self._cancels.add(control, asyncio.get_running_loop().time())
                for delivery in self._held:
                    if self._cancels.covers(delivery.job):
                        delivery.cancelled.set()
            case Probe():
                for delivery in self._held:
                    if _runs(delivery, control):
                        delivery.send(ReplyMessage(control.job_id, control.attempt, ALIVE, ()))
            case AnnounceRequest():
                self._tell_of_worker()

    def _tell_of_worker(self) -> None:
        """Not without consumers: whoever heard of it would count on it."""
        session = self._connection.session
        if session is not None and (self._draining or self.connected()):
            self._post_worker(session)

    def _post_worker(self, session: Session) -> None:
        if self._worker is not None:
            key = self._opener.public_key if self._settings.zero_retention else None
            worker = msgspec.structs.replace(self._worker, sent_at=time.time(), sealing_key=key)
            session.post(topology.WORKERS_EXCHANGE, "", encode_worker(worker))

    # --- connection ---

    async def _set_up(self, session: Session) -> None:
        channel = await session.channel(confirms=False)
        exchanges = await declare_exchanges(channel)
        dead = await channel.declare_queue(
            topology.DEAD_QUEUE, durable=True, arguments=topology.dead_queue_arguments()
        )
        await dead.bind(exchanges[topology.DEAD_EXCHANGE])
        self._outbox = Outbox(session)
        await session.start_posting(self._outbox.on_returned)
        self._publisher = Publisher(session)
        await self._publisher.open()
        control = await channel.declare_queue(
            topology.private_queue("control", self._name, secrets.token_hex(8)),
            exclusive=True,
            arguments=topology.private_queue_arguments(),
        )
        for key in (topology.control_key(self._model), topology.CONTROL_ALL):
            await control.bind(exchanges[topology.CONTROL_EXCHANGE], key)
        await control.consume(self._on_control, no_ack=True)
        for kind in ("interactive", "batch"):
            await self._queues.declare(session, kind)
        if not self._draining:
            await self._queues.push(session, "interactive")
            session.start(self._batch.fetch(session))
            for kind in self._transient_kinds:
                try:
                    await self._queues.declare(session, kind)
                    await self._queues.push(session, kind)
                except ChannelNotFoundEntity:  # its node is down
                    session.start(self._queues.resume(session, kind))
        self._post_worker(session)

    def _on_broken(self) -> None:
        log.error("jobs.source_broken", model=self._model)
        self._broken = True
        self._arrived.set()

    def _on_lost(self, _: Session) -> None:
        self._queues.lose()
        self._returned += self._outbox.returned
        self._outbox.returned = 0
        self._outbox.lose()
        self._held.difference_update(self._incoming)
        self._incoming.clear()
        self._count_slots()


def _runs(delivery: RabbitDelivery, probe: Probe) -> bool:
    """Whether it is this attempt's own; one that came again is reported to its owner, not run."""
    job = delivery.job
    return (job.job_id, job.attempt) == (probe.job_id, probe.attempt) and not delivery.redelivered
