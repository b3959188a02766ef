"""Pods over RabbitMQ: a question to all on the control exchange, answers to whoever asked.

Each process has one private queue for both. Must not know what is in an answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
import structlog
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

from schemas.transport import topology
from schemas.transport.rabbit_connection import Session

log = structlog.get_logger(__name__)

_VERSION: Final = 1

_HEARD_S: Final = 5.0
"""Whoever has not answered for so long is not shown any more. Questions come every second."""


class _Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    version: int = _VERSION
    reply_to: str


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    version: int = _VERSION
    who: str
    body: bytes


_Message: TypeAlias = _Question | _Answer

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Message)


class RabbitPods:
    """See `schemas.transport.pods.Pods`.

    Args:
        name: Of the connection, for the broker's tools.
        session: Gives the present one, if it is up.
    """

    def __init__(self, name: str, session: Callable[[], Session | None]) -> None:
        self._name = name
        self._session = session
        self._who = secrets.token_hex(8)
        self._queue = ""
        self._tell: Callable[[], bytes] | None = None
        self._heard: dict[str, tuple[bytes, float]] = {}

    async def open(self, channel: AbstractChannel, control: AbstractExchange) -> None:
        """Put queue and consumer in place on a new session."""
        queue = await channel.declare_queue(
            topology.private_queue("control", self._name, secrets.token_hex(8)),
            exclusive=True,
            arguments=topology.private_queue_arguments(),
        )
        # Answers go by the same exchange: whoever may ask may answer, with no further permission.
        await queue.bind(control, topology.CONTROL_PODS)
        await queue.bind(control, queue.name)
        self._queue = queue.name
        await queue.consume(self._on_message, no_ack=True)

    def answer_with(self, tell: Callable[[], bytes]) -> None:
        self._tell = tell

    def ask(self) -> None:
        self._post(topology.CONTROL_PODS, _Question(reply_to=self._queue))

    def heard(self) -> Mapping[str, bytes]:
        oldest = asyncio.get_running_loop().time() - _HEARD_S
        self._heard = {who: told for who, told in self._heard.items() if told[1] >= oldest}
        return {who: body for who, (body, _) in self._heard.items()}

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        try:
            heard = _decoder.decode(message.body)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("pods.undecodable", reason=type(error).__name__)
            return
        if heard.version != _VERSION:
            return  # of another release, which speaks with its own
        if isinstance(heard, _Answer):
            self._heard[heard.who] = (heard.body, asyncio.get_running_loop().time())
        elif heard.reply_to != self._queue and self._tell is not None:
            self._post(heard.reply_to, _Answer(who=self._who, body=self._tell()))

    def _post(self, routing_key: str, message: _Message) -> None:
        session = self._session()
        if session is not None and not session.tap.blocked:
            session.post(topology.CONTROL_EXCHANGE, routing_key, _encoder.encode(message))
