"""The ingress port over RabbitMQ: Jobs out with confirms, replies back through a pool of queues.

Must not know what Deltas mean. Reply messages are routed by their `job_id`, so a queue may be
shared and reused; one that nobody waits for any more is dropped.

When the connection is lost the reply queues are gone: every open reply raises, and its owner may
`redispatch`, which finds it a queue on the next connection.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog
from aio_pika.abc import AbstractIncomingMessage, HeadersType

from schemas.blobs.base import BlobStore
from schemas.blobs.jobs import JobWriter
from schemas.codec import (
    AnnounceRequest,
    Cancel,
    CodecError,
    Control,
    Probe,
    SealedReply,
    decode_frame,
    decode_worker,
    encode_control,
)
from schemas.delta import ReplyMessage
from schemas.errors import (
    ModelOverloaded,
    ModelUnavailable,
    ProtocolViolation,
    RequestTooLarge,
    ServerShuttingDown,
    ServiceError,
)
from schemas.job import Job
from schemas.model_card import WorkerInfo
from schemas.transport import topology
from schemas.transport.base import ReplyLost
from schemas.transport.rabbit_connection import (
    BrokerConnection,
    ConnectionSettings,
    Session,
    declare_exchanges,
)
from schemas.transport.rabbit_pods import RabbitPods
from schemas.transport.rabbit_publisher import (
    Publisher,
    Refused,
    TooLarge,
    Unconfirmed,
    Unroutable,
)
from schemas.transport.rabbit_records import RabbitRecordQueue
from schemas.transport.rabbit_reply_pool import ReplyPool, ReplyQueue
from schemas.transport.reply_buffer import ReplyBuffer
from schemas.transport.sealing import Box, Sealer

log = structlog.get_logger(__name__)

_PULSE_S: Final = 1.0
"""How often something is published: the broker tells of an alarm only those who try."""

_CLOCKS_DIFFER_S: Final = 5.0
"""Above this the clock of a worker is worth a warning."""


class DispatcherSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of a `RabbitDispatcher`.

    Attributes:
        reply_queues: Reply queues declared ahead; beyond them requests share. 0: never share.
        reply_buffer_bytes: Unread bytes of one reply that break it.
        max_inline_bytes: What of a Job goes into the blob store, if there is one, is larger.
        max_job_bytes: The largest message of a Job that is published; the broker's own limit is its
            `max_message_size` (16 MiB by default since 4.0).
        publish_timeout_s: How long a Job may wait for the broker's confirmation.
        reconnect_wait_s: How long a Job waits for a connection that is just being made again.
        worker_ttl_s: A worker not heard of for this long is forgotten.
    """

    reply_queues: int = 64
    reply_buffer_bytes: int = 1 << 20
    max_inline_bytes: int = 256 << 10
    max_job_bytes: int = 60 << 20
    publish_timeout_s: float = 10.0
    reconnect_wait_s: float = 1.0
    worker_ttl_s: float = 15.0


_DEFAULTS = DispatcherSettings()


class RabbitReply:
    """The owner's end of a reply that comes over the broker.

    Attributes:
        box: What opens it; None where anybody may read it.
    """

    def __init__(self, dispatcher: RabbitDispatcher, job: Job, buffer: ReplyBuffer) -> None:
        self._dispatcher = dispatcher
        self._buffer = buffer
        self.job = job
        self.box = Box() if job.zdr else None
        self.home: tuple[ReplyPool, ReplyQueue] | None = None

    async def receive(self) -> Sequence[ReplyMessage]:
        return await self._buffer.take()

    def listen(self, listener: Callable[[ReplyMessage], bool]) -> None:
        self._buffer.listener = listener

    async def redispatch(self, job: Job) -> None:
        self.job = job
        self._buffer.renew()
        try:
            await self._dispatcher.send(self)
        except BaseException:
            self.interrupt("the attempt was not accepted")
            raise

    def interrupt(self, reason: str) -> None:
        self._buffer.fail(ReplyLost("The worker was lost.", diagnostic=reason))

    def probe(self) -> None:
        self._dispatcher.probe(self.job)

    async def cancel(self) -> None:
        self._dispatcher.cancel(self.job)

    async def close(self) -> None:
        self._dispatcher.forget(self)

    def put(self, message: ReplyMessage, size: int) -> None:
        if not self._buffer.put(message, size):
            log.warning("reply.overrun", job_id=self.job.job_id, request_id=self.job.request_id)
            self._dispatcher.overruns += 1
            self._dispatcher.cancel(self.job)

    def fail(self, error: ServiceError) -> None:
        self._buffer.fail(error)

    def leave_home(self) -> None:
        if self.home is not None:
            pool, queue = self.home
            pool.release(queue, self.job.job_id)
            self.home = None


class RabbitDispatcher:
    """See `schemas.transport.base.Dispatcher`.

    Attributes:
        records: The way of usage records, on the same connection.
        pods: The other processes, likewise.
        orphan_messages: Reply messages that nobody waited for.
        undecodable_frames: Reply frames that could not be read.
        overruns: Replies broken because they were not read.
    """

    def __init__(
        self, url: str, settings: DispatcherSettings, name: str, blobs: BlobStore | None
    ) -> None:
        self._settings = settings
        self._name = name
        self._connection = BrokerConnection(
            url, name=name, settings=settings, set_up=self._set_up, on_lost=self._on_lost
        )
        self._writer = JobWriter(blobs, settings.max_inline_bytes)
        self._sealer = Sealer()
        self._replies: dict[str, RabbitReply] = {}
        self._workers: dict[str, tuple[WorkerInfo, float]] = {}
        self._cancels: dict[str, Job] = {}  # not yet told, for want of a connection
        self._pool: ReplyPool
        self._publisher: Publisher
        self._closed = False
        self.records = RabbitRecordQueue(self._connection, lambda: self._publisher)
        self.pods = RabbitPods(name, lambda: self._connection.session)
        self.orphan_messages = 0
        self.undecodable_frames = 0
        self.overruns = 0

    @classmethod
    async def connect(
        cls,
        url: str,
        settings: DispatcherSettings = _DEFAULTS,
        name: str = "dispatcher",
        *,
        blobs: BlobStore | None = None,
    ) -> RabbitDispatcher:
        """Connect and put everything in place. Large Jobs go by way of `blobs`, if given.

        Raises:
            BrokerUnreachable: No usable broker within `settings.connect_timeout_s`.
        """
        dispatcher = cls(url, settings, name, blobs)
        await dispatcher._connection.open()
        return dispatcher

    @property
    def reconnects(self) -> int:
        return self._connection.reconnects

    def connected(self) -> bool:
        return self._connection.session is not None

    def blocked(self) -> bool:
        session = self._connection.session
        return session is not None and session.tap.blocked

    def dropped(self) -> Mapping[str, int]:
        return {
            "orphan": self.orphan_messages,
            "undecodable": self.undecodable_frames,
            "overrun": self.overruns,
        }

    async def dispatch(self, job: Job) -> RabbitReply:
        reply = RabbitReply(self, job, ReplyBuffer(self._settings.reply_buffer_bytes))
        self._replies[job.job_id] = reply
        try:
            await self.send(reply)
        except BaseException:
            self.forget(reply)
            raise
        return reply

    def workers(self) -> Sequence[WorkerInfo]:
        oldest = asyncio.get_running_loop().time() - self._settings.worker_ttl_s
        self._workers = {key: seen for key, seen in self._workers.items() if seen[1] >= oldest}
        return [worker for worker, _ in self._workers.values()]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._connection.close()
        for reply in self._replies.values():
            reply.fail(ServerShuttingDown("The server is shutting down."))
        self._replies.clear()
        await self._writer.close()

    async def send(self, reply: RabbitReply) -> None:
        """Publish the reply's Job with a reply queue of the current connection.

        Raises:
            ModelUnavailable, ModelOverloaded, RequestTooLarge: It was not accepted.
        """
        job = reply.job
        session = await self._connection.session_within(self._settings.reconnect_wait_s)
        if session is None or self._closed:
            raise ModelUnavailable("The service is not available.", diagnostic="no broker")
        if session.tap.blocked:
            raise ModelOverloaded("The service is overloaded.", diagnostic="broker blocked")
        body = await self._write(job, reply.box)
        if len(body) > self._settings.max_job_bytes:
            raise _too_large(job, f"{len(body)} bytes")
        pool, publisher = self._pool, self._publisher
        if reply.home is None or reply.home[0] is not pool:
            reply.home = (pool, await pool.lease(job.job_id))
        try:
            await self._publish(publisher, job, body, reply.home[1].name)
        except Unconfirmed as error:
            self.cancel(job)
            if session.alive:
                reason = "broker blocked" if session.tap.blocked else f"not confirmed: {error}"
                raise ModelOverloaded("The service is overloaded.", diagnostic=reason) from None
            raise ModelUnavailable(
                "The service is not available.", diagnostic="broker connection lost"
            ) from None
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    async def _write(self, job: Job, box: Box | None) -> bytes:
        """The message's body.

        Raises:
            ModelUnavailable: No worker is known that could read it.
        """
        if box is None:
            return await self._writer.write(job)
        keys = [
            worker.sealing_key
            for worker in self.workers()
            if worker.card.id == job.model and worker.sealing_key is not None
        ]
        if not keys:
            raise ModelUnavailable(
                "No worker serves this model at the moment.", diagnostic="no worker's key is known"
            )
        return self._sealer.seal(job, box, keys)

    async def _publish(self, publisher: Publisher, job: Job, body: bytes, reply_to: str) -> None:
        kind = topology.queue_kind(job)
        headers: HeadersType = {topology.ATTEMPT_HEADER: job.attempt}
        if isinstance(job.traceparent, str):
            headers[topology.TRACE_HEADER] = job.traceparent
        try:
            await publisher.publish(
                topology.JOBS_EXCHANGE,
                topology.job_queue(job.model, kind),
                body,
                timeout_s=self._settings.publish_timeout_s,
                headers=headers,
                correlation_id=job.job_id,
                reply_to=reply_to,
                persistent=not topology.is_transient(kind),
                content_type=topology.SEALED_TYPE if job.zdr else "application/json",
            )
        except Unroutable:
            raise ModelUnavailable(
                "No worker serves this model at the moment.", diagnostic="no job queue"
            ) from None
        except Refused:
            raise ModelOverloaded("The model is overloaded.", diagnostic="job queue full") from None
        except TooLarge:
            raise _too_large(job, f"broker refused {len(body)} bytes") from None

    def cancel(self, job: Job) -> None:
        """Tell the model's workers now, or once there is a connection again."""
        self._cancels[job.job_id] = job
        if (session := self._connection.session) is not None:
            self._post_cancels(session)

    def _post_cancels(self, session: Session) -> None:
        for job in self._cancels.values():
            _post_control(session, job, Cancel(job_id=job.job_id, attempt=job.attempt))
        self._cancels.clear()

    def probe(self, job: Job) -> None:
        """Ask the model's workers who holds this attempt, if there is a connection."""
        if (session := self._connection.session) is not None:
            _post_control(session, job, Probe(job_id=job.job_id, attempt=job.attempt))

    def forget(self, reply: RabbitReply) -> None:
        if self._replies.get(reply.job.job_id) is reply:
            del self._replies[reply.job.job_id]
        reply.leave_home()
        self._writer.release(reply.job.job_id)

    async def _set_up(self, session: Session) -> None:
        channel = await session.channel(confirms=False)
        exchanges = await declare_exchanges(channel)
        await session.start_posting()
        self._pool = ReplyPool(session, self._name, self._settings.reply_queues)
        await self._pool.open(self._on_frame)
        presence = await channel.declare_queue(
            topology.private_queue("workers", self._name, secrets.token_hex(8)),
            exclusive=True,
            arguments=topology.private_queue_arguments(),
        )
        await presence.bind(exchanges[topology.WORKERS_EXCHANGE])
        await presence.consume(self._on_announcement, no_ack=True)
        await self.pods.open(channel, exchanges[topology.CONTROL_EXCHANGE])
        self._publisher = Publisher(session)
        await self._publisher.open()
        session.post(
            topology.CONTROL_EXCHANGE, topology.CONTROL_ALL, encode_control(AnnounceRequest())
        )
        self._post_cancels(session)
        session.start(_pulse(session))

    def _on_lost(self, session: Session) -> None:
        for reply in self._replies.values():
            reply.home = None
            reply.fail(
                ReplyLost(
                    "The connection to the worker was lost.",
                    diagnostic=f"broker connection lost: {session.reason}",
                )
            )

    def _on_frame(self, queue: str, body: bytes) -> None:
        try:
            frame = decode_frame(body)
        except CodecError as error:
            self._on_undecodable(queue, error)
            return
        parts = len(frame.messages) + len(frame.sealed)
        size = len(body) // parts if parts else 0
        for message in frame.messages:
            reply = self._replies.get(message.job_id)
            if reply is None or message.attempt < reply.job.attempt:
                self.orphan_messages += 1  # of one who has left, or of an attempt that was left
            else:
                reply.put(message, size)
        for sealed in frame.sealed:
            self._on_sealed(sealed, size)

    def _on_sealed(self, sealed: SealedReply, size: int) -> None:
        reply = self._replies.get(sealed.job_id)
        if reply is None or reply.box is None:
            self.orphan_messages += 1
            return
        try:
            frame = decode_frame(reply.box.open(sealed.box, sealed.job_id.encode()))
        except CodecError as error:
            self.undecodable_frames += 1
            log.warning("reply.undecodable", job_id=sealed.job_id, reason=str(error))
            reply.fail(_not_understood(error))
            return
        for message in frame.messages:
            if message.attempt < reply.job.attempt:
                self.orphan_messages += 1
            else:
                reply.put(message, size)

    def _on_undecodable(self, queue: str, error: CodecError) -> None:
        self.undecodable_frames += 1
        log.warning("reply.undecodable", queue=queue, reason=str(error))
        waiting = self._pool.jobs_on(queue)
        if len(waiting) == 1:  # else it cannot be told whose it was
            (job_id,) = waiting
            if (reply := self._replies.get(job_id)) is not None:
                reply.fail(_not_understood(error))

    async def _on_announcement(self, message: AbstractIncomingMessage) -> None:
        try:
            worker = decode_worker(message.body)
        except CodecError as error:
            log.warning("worker.undecodable", reason=str(error))
            return
        if worker.draining and not worker.running:
            self._workers.pop(worker.worker_id, None)
            return
        ahead_s = worker.sent_at - time.time()
        if worker.worker_id not in self._workers and abs(ahead_s) > _CLOCKS_DIFFER_S:
            log.warning("worker.clock_differs", worker=worker.worker_id, ahead_s=round(ahead_s, 1))
        worker = msgspec.structs.replace(worker, clock_ahead_s=ahead_s)
        self._workers[worker.worker_id] = (worker, asyncio.get_running_loop().time())


def _not_understood(error: CodecError) -> ProtocolViolation:
    return ProtocolViolation(
        "The reply from the model could not be understood.", diagnostic=str(error)
    )


def _too_large(job: Job, diagnostic: str) -> RequestTooLarge:
    if job.zdr:  # others may go by way of a store
        return RequestTooLarge(
            "The request is too large to be served with zero data retention.",
            diagnostic=diagnostic,
        )
    return RequestTooLarge("The request is too large.", diagnostic=diagnostic)


async def _pulse(session: Session) -> None:
    """Publish something to nobody now and then, so that an alarm is noticed while we are idle."""
    while True:
        await asyncio.sleep(_PULSE_S)
        if not session.tap.blocked:
            session.post(topology.CONTROL_EXCHANGE, topology.CONTROL_NOBODY, b"")


def _post_control(session: Session, job: Job, control: Control) -> None:
    key = topology.control_key(job.model)
    session.post(topology.CONTROL_EXCHANGE, key, encode_control(control))
