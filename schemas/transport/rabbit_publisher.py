"""Publishing that ends in a plain answer: accepted, refused, or unknown.

Used where a message must not be lost in between: Jobs, and what is set aside for people to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel, HeadersType
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError, PublishError

from schemas.transport.rabbit_connection import (
    BROKER_ERRORS,
    Session,
    cancelled_by_nobody_else,
)

_USUAL: Final = "usual"
_LARGE: Final = "large"

LARGE_BYTES = 1 << 20
"""Bodies above this go one at a time over a channel of their own. A broker closes the channel on
which a message is too large for it, and with it the confirmations of everybody else's."""


class Unroutable(Exception):
    """No queue takes it. Nothing was published."""


class Refused(Exception):
    """The broker said no: the queue is full."""


class TooLarge(Exception):
    """The broker takes no message of this size."""


class Unconfirmed(Exception):
    """Whether the broker took it is unknown; it may yet turn up."""


class Publisher:
    """Publishes with confirms on one session; a channel that the broker closes is opened again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channels: dict[str, AbstractChannel] = {}
        self._opening = asyncio.Lock()
        self._large = asyncio.Lock()
        self._waiting: set[asyncio.Timeout] = set()
        session.tap.on_blocked = self._give_up_waiting

    async def open(self) -> None:
        await self._channel(_USUAL)

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        timeout_s: float,
        headers: HeadersType,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        persistent: bool = True,
        lane: str = _USUAL,
        content_type: str = "application/json",
    ) -> None:
        """Returns when the broker has taken the message.

        Messages of another `lane` go over a channel of their own: a queue that does not answer
        holds up all that is published after a message for it.

        Raises:
            Unroutable, Refused, TooLarge: It has not.
            Unconfirmed: It did not say, within `timeout_s` or before it blocked the connection.
        """
        message = aio_pika.Message(
            body,
            content_type=content_type,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            if persistent
            else aio_pika.DeliveryMode.NOT_PERSISTENT,
            correlation_id=correlation_id,
            reply_to=reply_to,
            headers=headers,
        )
        large = len(body) > LARGE_BYTES
        try:
            async with asyncio.timeout(timeout_s) as limit:
                with self._until_blocked(limit), cancelled_by_nobody_else():
                    async with self._large if large else contextlib.nullcontext():
                        channel = await self._channel(_LARGE if large else lane)
                        target = await channel.get_exchange(exchange, ensure=False)
                        await target.publish(message, routing_key, mandatory=True)
        # The library's errors carry the whole message, so none of them is chained.
        except PublishError:
            raise Unroutable from None
        except DeliveryError:
            raise Refused from None
        except ChannelPreconditionFailed as error:
            raise (TooLarge if large else Unconfirmed)(type(error).__name__) from None
        except BROKER_ERRORS as error:
            raise Unconfirmed(type(error).__name__) from None

    async def _channel(self, lane: str) -> AbstractChannel:
        async with self._opening:
            channel = self._channels.get(lane)
            if channel is None or channel.is_closed:
                channel = await self._session.channel(confirms=True, vital=False)
                self._channels[lane] = channel
            return channel

    @contextlib.contextmanager
    def _until_blocked(self, limit: asyncio.Timeout) -> Iterator[None]:
        self._waiting.add(limit)
        try:
            yield
        finally:
            self._waiting.discard(limit)

    def _give_up_waiting(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(now)
