"""A Job in a worker's hands, and the outbox through which its reply leaves.

What is sent within one turn of the event loop travels as one message per reply queue, written
straight to the socket. Nothing waits: frames and acknowledgements are read by the broker in the
order in which they are written, so when a Job is acknowledged its whole reply has arrived there. A
broker that dies in between loses the reply queue as well, and the owner notices that.

Must not know what Deltas mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog
from aio_pika.abc import AbstractIncomingMessage

from schemas.codec import SealedReply, encode_frame
from schemas.delta import ReplyMessage
from schemas.job import Job
from schemas.transport.rabbit_connection import (
    BROKER_ERRORS,
    Session,
    cancelled_by_nobody_else,
)
from schemas.transport.sealing import Box

log = structlog.get_logger(__name__)

_SETTLE_TIMEOUT_S = 10.0
"""How long settling may wait until it is written; after that it still is, once the broker reads."""


class ReplyAddress:
    """A reply queue that Jobs held here are answered to, and what is about to leave for it."""

    __slots__ = ("deliveries", "name", "pending", "publish_frame", "sealed")

    def __init__(self, name: str, publish_frame: bytes) -> None:
        self.name = name
        self.publish_frame = publish_frame
        self.deliveries: set[RabbitDelivery] = set()
        self.pending: list[ReplyMessage] = []
        self.sealed: list[SealedReply] = []


class Outbox:
    """Everything that leaves for reply queues over one session.

    Attributes:
        returned: Frames that came back because their reader is gone.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._addresses: dict[str, ReplyAddress] = {}
        self._unflushed: list[ReplyAddress] = []
        self._loop = asyncio.get_running_loop()
        self.returned = 0

    def join(self, delivery: RabbitDelivery, reply_queue: str) -> ReplyAddress:
        address = self._addresses.get(reply_queue)
        if address is None:
            frame = self.session.poster.address("", reply_queue, mandatory=True)
            address = self._addresses[reply_queue] = ReplyAddress(reply_queue, frame)
        address.deliveries.add(delivery)
        return address

    def leave(self, delivery: RabbitDelivery) -> None:
        address = delivery.address
        address.deliveries.discard(delivery)
        if not address.deliveries and self._addresses.get(address.name) is address:
            del self._addresses[address.name]

    def put(self, address: ReplyAddress, message: ReplyMessage) -> None:
        if not address.pending and not address.sealed:
            self._call_at(address)
        address.pending.append(message)

    def put_sealed(self, address: ReplyAddress, message: ReplyMessage, box: Box) -> None:
        """As `put`, for the owner of the Job only."""
        try:
            frame = encode_frame((message,))
        except ValueError:
            _tell_unencodable(message)
            return
        if not address.pending and not address.sealed:
            self._call_at(address)
        job_id = message.job_id
        address.sealed.append(SealedReply(job_id, box.close(frame, job_id.encode())))

    def _call_at(self, address: ReplyAddress) -> None:
        if not self._unflushed:
            self._loop.call_soon(self.flush)
        self._unflushed.append(address)

    def flush(self) -> None:
        """Write what was put in since the last turn, one frame per reply queue."""
        if not self._unflushed:
            return
        make = self.session.poster.message
        addresses, self._unflushed = self._unflushed, []
        parts = []
        for address in addresses:
            messages, address.pending = address.pending, []
            sealed, address.sealed = address.sealed, []
            try:
                frame = encode_frame(messages, sealed)
            except ValueError:
                frame = encode_frame(_encodable(messages), sealed)
            parts.append(make(address.publish_frame, frame))
        self.session.write(b"".join(parts))

    def on_returned(self, reply_queue: str) -> None:
        """A frame came back: the queue is gone, and with it everybody who read it."""
        self.returned += 1
        address = self._addresses.get(reply_queue)
        for delivery in () if address is None else address.deliveries:
            if not delivery.unread:
                log.info(
                    "reply.returned",
                    job_id=delivery.job.job_id,
                    request_id=delivery.job.request_id,
                )
                delivery.lose()

    def lose(self) -> None:
        """The session is lost: no reply can be relied on any more."""
        for address in self._addresses.values():
            for delivery in address.deliveries:
                delivery.lose()


def _encodable(messages: list[ReplyMessage]) -> list[ReplyMessage]:
    """Those that can be encoded: a lone surrogate cannot, in whichever text it came up.

    The reader finds the gap in that Job's sequence; the other Jobs of the frame are not harmed.
    """
    kept = []
    for message in messages:
        try:
            encode_frame((message,))
        except ValueError:
            _tell_unencodable(message)
        else:
            kept.append(message)
    return kept


def _tell_unencodable(message: ReplyMessage) -> None:
    log.error("reply.unencodable", job_id=message.job_id, seq=message.seq)


class RabbitDelivery:
    """See `schemas.transport.base.Delivery`.

    Args:
        box: What its replies are closed with; None where anybody may read them.
        release: Told just before the Job is settled.
        set_aside: Puts a message into the dead-letter queue, with a reason.
    """

    def __init__(
        self,
        job: Job,
        message: AbstractIncomingMessage,
        outbox: Outbox,
        box: Box | None,
        release: Callable[[RabbitDelivery], None],
        set_aside: Callable[[AbstractIncomingMessage, str], Awaitable[None]],
    ) -> None:
        self._job = job
        self._message = message
        self._outbox = outbox
        self._box = box
        self._release = release
        self._set_aside = set_aside
        self._settled = False
        self._redelivered = bool(message.redelivered)
        self._cancelled = asyncio.Event()
        self.unread = False
        self.address = outbox.join(self, message.reply_to or "")

    @property
    def job(self) -> Job:
        return self._job

    @property
    def redelivered(self) -> bool:
        return self._redelivered

    @property
    def cancelled(self) -> asyncio.Event:
        return self._cancelled

    def send(self, message: ReplyMessage) -> None:
        if self.unread:
            return
        if self._box is None:
            self._outbox.put(self.address, message)
        else:
            self._outbox.put_sealed(self.address, message, self._box)

    async def writable(self) -> None:
        session = self._outbox.session
        if session.backlog and not self._cancelled.is_set():
            waiting = [
                asyncio.ensure_future(wait) for wait in (session.writable(), self._cancelled.wait())
            ]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waiting:
                    wait.cancel()

    async def ack(self) -> None:
        if self._settle():
            await settled(self._message.ack())

    async def requeue(self) -> None:
        if self._settle():
            await settled(self._message.nack(requeue=True))

    async def dead_letter(self, reason: str) -> None:
        if self._settle():
            await self._set_aside(self._message, reason)

    def lose(self) -> None:
        """Nobody can hear this reply any more."""
        self.unread = True
        self._cancelled.set()

    def _settle(self) -> bool:
        """Whether it is this call that settles it, and settling still means something."""
        if self._settled:
            return False
        self._settled = True
        self._outbox.flush()
        self._outbox.leave(self)
        self._release(self)
        return self._outbox.session.alive


async def settled(settling: Awaitable[object]) -> None:
    """Acknowledge or give back a message, if that is still possible.

    Where its channel or connection is gone, the broker has given it to somebody else.
    """
    with contextlib.suppress(*BROKER_ERRORS), cancelled_by_nobody_else():
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            await settling
