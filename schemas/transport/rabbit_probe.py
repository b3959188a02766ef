"""Tries out what the program will ask of a broker, under names of its own, and removes it again.

For `headrace doctor`; no Job is touched. It follows what `topology` and the connection need:
quorum queues, confirms, messages of a size, and no alarm that stops publishers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any, Final, Literal, TypeAlias

import aio_pika
import msgspec
from aio_pika.exceptions import AuthenticationError, ChannelPreconditionFailed
from aiormq.exceptions import ChannelAccessRefused, ProbableAuthenticationError
from yarl import URL

from schemas.transport import topology
from schemas.transport.rabbit_connection import BROKER_ERRORS, parse_urls

Trouble: TypeAlias = Literal[
    "unreachable", "credentials", "permissions", "topology", "quorum", "blocked", "message_size"
]

_CONNECT_S: Final = 5.0
_CLEAN_S: Final = 5.0
_PREFIX: Final = "headrace.doctor"


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as far as it went.

    Attributes:
        place: Host and port.
        product: Such as `RabbitMQ`; "" if it could not be asked.
        version: "" as well.
        trouble: The first thing that it would not do; None if there was none.
        reason: Of that, in words.
        round_trip_s: Of one confirmed message.
    """

    place: str
    product: str = ""
    version: str = ""
    trouble: Trouble | None = None
    reason: str = ""
    round_trip_s: float = 0.0


class _Refused(Exception):
    def __init__(self, trouble: Trouble, reason: str) -> None:
        self.trouble: Trouble = trouble
        self.reason = reason


async def probe(urls: str, *, message_bytes: int, step_s: float) -> list[Probed]:
    """Try every node of a broker.

    Args:
        urls: As `parse_urls` takes them.
        message_bytes: Of the largest message that it must take.
        step_s: How long each thing may take.
    """
    return [await _probe(url, message_bytes, step_s) for url in parse_urls(urls)]


async def _probe(url: URL, message_bytes: int, step_s: float) -> Probed:
    place = f"{url.host}:{url.port}"
    try:
        connection = await aio_pika.connect(
            url, timeout=_CONNECT_S, client_properties={"connection_name": _PREFIX}
        )
    except (AuthenticationError, ProbableAuthenticationError):
        return Probed(place=place, trouble="credentials", reason="it refuses the credentials")
    except BROKER_ERRORS as error:
        # The broker closes without a word for a virtual host that is not there or not ours.
        vhost = "" if url.path in ("", "/") else f", or has no virtual host {url.path[1:]!r} for us"
        reason = f"it cannot be reached{vhost} ({type(error).__name__})"
        return Probed(place=place, trouble="unreachable", reason=reason)
    found = Probed(place=place)
    try:
        transport = connection.transport
        assert transport is not None
        told: dict[str, Any] = transport.connection.server_properties
        found = Probed(
            place=place, product=_text(told.get("product")), version=_text(told.get("version"))
        )
        took_s = await _try_out(connection, message_bytes, step_s)
        return msgspec.structs.replace(found, round_trip_s=took_s)
    except _Refused as refused:
        return msgspec.structs.replace(found, trouble=refused.trouble, reason=refused.reason)
    except BROKER_ERRORS as error:
        reason = f"the connection was lost ({type(error).__name__})"
        return msgspec.structs.replace(found, trouble="unreachable", reason=reason)
    finally:
        with contextlib.suppress(*BROKER_ERRORS):
            async with asyncio.timeout(_CONNECT_S):
                await connection.close()


async def _try_out(
    connection: aio_pika.abc.AbstractConnection, message_bytes: int, step_s: float
) -> float:
    """All that is asked of the broker; returns how long a confirmed message took.

    Raises:
        _Refused: It would not do one of the things.
    """
    await _declare(connection, step_s)
    name = f"{_PREFIX}.{secrets.token_hex(8)}"
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-expires": 60_000}
    channel = await connection.channel()
    try:
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
    except ChannelAccessRefused:
        raise _Refused("permissions", "its user may not declare queues called headrace.…") from None
    except BROKER_ERRORS as error:
        reason = f"it makes no quorum queue ({type(error).__name__})"
        raise _Refused("quorum", reason) from None
    try:
        began = asyncio.get_running_loop().time()
        await _publish(channel, name, b"?", step_s)
        took_s = asyncio.get_running_loop().time() - began
        async with asyncio.timeout(step_s):
            await queue.get(no_ack=True)
        # To nobody: it is refused for its size before anybody asks where it should go.
        large = bytes(message_bytes)
        await _publish(await connection.channel(), f"{name}.nobody", large, step_s)
        return took_s
    except ChannelAccessRefused:
        raise _Refused("permissions", "its user may not write and read headrace.…") from None
    finally:
        with contextlib.suppress(*BROKER_ERRORS):
            async with asyncio.timeout(_CLEAN_S):
                await (await connection.channel()).queue_delete(name)


async def _declare(connection: aio_pika.abc.AbstractConnection, step_s: float) -> None:
    channel = await connection.channel()
    for name, kind in topology.EXCHANGES:
        try:
            await channel.declare_exchange(name, kind, durable=True, timeout=step_s)
        except ChannelAccessRefused:
            reason = f"its user may not declare the exchange {name}"
            raise _Refused("permissions", reason) from None
        except ChannelPreconditionFailed:
            reason = f"there is an exchange {name} that is not ours"
            raise _Refused("topology", reason) from None


async def _publish(
    channel: aio_pika.abc.AbstractChannel, key: str, body: bytes, step_s: float
) -> None:
    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.NOT_PERSISTENT)
    try:
        await channel.default_exchange.publish(message, key, mandatory=False, timeout=step_s)
    except TimeoutError:
        reason = "it takes no messages: an alarm about memory or disk is on"
        raise _Refused("blocked", reason) from None
    except ChannelPreconditionFailed:
        reason = f"it takes no message of {len(body) / (1 << 20):.0f} MiB"
        raise _Refused("message_size", reason) from None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
