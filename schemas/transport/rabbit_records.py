"""The queue of usage records over RabbitMQ, on a connection that is there for other things.

Must not know what is in a body. The queue is declared by whoever first puts something into it or
takes something out: so nothing is lost before the first batcher is there, and a deployment that
keeps no records has none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelPreconditionFailed

from schemas.transport import topology
from schemas.transport.base import Keep, RecordsNotTaken
from schemas.transport.rabbit_connection import (
    BROKER_ERRORS,
    BrokerConnection,
    Session,
    cancelled_by_nobody_else,
    wire_channel,
)
from schemas.transport.rabbit_publisher import Publisher, Refused, TooLarge, Unconfirmed, Unroutable

log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 10.0
_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.5
_GROUP: Final = 32
"""Messages, of hundreds of records each, that are kept at once."""


class RabbitRecordQueue:
    """See `schemas.transport.base.RecordQueue`.

    Args:
        connection: Whose sessions are used.
        publisher: That of the present session.
    """

    def __init__(self, connection: BrokerConnection, publisher: Callable[[], Publisher]) -> None:
        self._connection = connection
        self._publisher = publisher
        self._declared_on: Session | None = None

    async def put(self, body: bytes) -> None:
        session = await self._connection.session_within(_WAIT_S)
        if session is None:
            raise RecordsNotTaken("no broker")
        if session.tap.blocked:
            raise RecordsNotTaken("broker blocked")
        try:
            if self._declared_on is not session:
                with cancelled_by_nobody_else():
                    async with asyncio.timeout(_TIMEOUT_S):
                        channel, _ = await _declare(session)
                        await channel.close()
                self._declared_on = session
            await self._publish(topology.USAGE_EXCHANGE, body)
        except Unroutable:
            self._declared_on = None  # somebody has deleted the queue
            raise RecordsNotTaken("no queue") from None
        except (Refused, TooLarge, Unconfirmed, *BROKER_ERRORS) as error:
            raise RecordsNotTaken(type(error).__name__) from None

    async def take(self, keep: Keep) -> None:
        while True:
            session = await self._connection.session_within(_WAIT_S)
            if session is None:
                continue
            try:
                with cancelled_by_nobody_else():
                    await self._take_from(session, keep)
            except (Unroutable, Refused, TooLarge, Unconfirmed, *BROKER_ERRORS) as error:
                log.warning("usage.not_taken", reason=str(error) or type(error).__name__)
            await asyncio.sleep(_PAUSE_S)

    async def _take_from(self, session: Session, keep: Keep) -> None:
        """Take what comes, until the broker ends that.

        Raises:
            ConnectionError: It has.
        """
        async with asyncio.timeout(_TIMEOUT_S):
            channel, queue = await _declare(session)
            await channel.set_qos(prefetch_count=_GROUP)
        # What is not acknowledged when this ends comes again, here or elsewhere.
        try:
            waiting: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()
            channel.close_callbacks.add(lambda *_: waiting.put_nowait(None))
            consumers = (await wire_channel(channel)).on_consumer_cancel_callbacks
            consumers.add(lambda *_: waiting.put_nowait(None))
            await queue.consume(waiting.put)
            while True:
                group = [await waiting.get()]
                while not waiting.empty():
                    group.append(waiting.get_nowait())
                messages = [message for message in group if message is not None]
                if len(messages) < len(group):
                    raise ConnectionError("the queue of usage records is gone")
                await self._keep(messages, keep)
        finally:
            with contextlib.suppress(*BROKER_ERRORS):
                await channel.close()

    async def _keep(self, messages: list[AbstractIncomingMessage], keep: Keep) -> None:
        senseless = await keep([message.body for message in messages])
        for number, reason in senseless.items():
            log.error("usage.senseless", reason=reason)
            await self._publish(topology.DEAD_EXCHANGE, messages[number].body, reason)
        await messages[-1].ack(multiple=True)

    async def _publish(self, exchange: str, body: bytes, reason: str | None = None) -> None:
        await self._publisher().publish(
            exchange,
            "",
            body,
            timeout_s=_TIMEOUT_S,
            headers={} if reason is None else {topology.REASON_HEADER: reason},
            lane="records",
        )


async def _declare(session: Session) -> tuple[AbstractChannel, AbstractQueue]:
    """The queue, and the open channel on which it was declared."""
    try:
        return await _declare_as_it_should_be(session)
    except ChannelPreconditionFailed:
        log.warning("queue.declared_otherwise", queue=topology.USAGE_QUEUE)
        channel = await session.channel(confirms=False, vital=False)
        queue = await channel.declare_queue(topology.USAGE_QUEUE, passive=True)
        await queue.bind(topology.USAGE_EXCHANGE)
        return channel, queue


async def _declare_as_it_should_be(session: Session) -> tuple[AbstractChannel, AbstractQueue]:
    channel = await session.channel(confirms=False, vital=False)
    dead = await channel.declare_queue(
        topology.DEAD_QUEUE, durable=True, arguments=topology.dead_queue_arguments()
    )
    await dead.bind(topology.DEAD_EXCHANGE)
    queue = await channel.declare_queue(
        topology.USAGE_QUEUE, durable=True, arguments=topology.usage_queue_arguments()
    )
    await queue.bind(topology.USAGE_EXCHANGE)
    return channel, queue
