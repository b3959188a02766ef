"""A model's job queues at its worker: put in place, and Jobs pushed from them.

What the broker takes away, a queue or a channel, is put in place again while the session lives.
Must not know what is in a message, nor how many Jobs the worker has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import structlog
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelPreconditionFailed

from schemas.transport import topology
from schemas.transport.rabbit_connection import (
    BROKER_ERRORS,
    Session,
    cancelled_by_nobody_else,
    wire_channel,
)
from schemas.transport.rabbit_delivery import settled
from schemas.transport.topology import QueueKind, is_transient

log = structlog.get_logger(__name__)

_CALL_TIMEOUT_S: Final = 10.0
"""How long the broker may take to declare a queue and begin to deliver from it."""

OnJob: TypeAlias = Callable[[AbstractIncomingMessage], Awaitable[None]]
"""Takes the message of a Job; it is settled later."""


class JobQueues:
    """The queues of one model, and which of them push to this worker.

    Args:
        model: Whose queues they are.
        prefetch: How many unsettled Jobs of each kind the broker pushes.
        on_job: Takes what is pushed.
        max_queued_jobs: See `topology.job_queue_arguments`.
        poll_s: How often it is tried again to consume from a queue that was taken away.
        restore_s: How long that may be impossible before the session is given up.
    """

    def __init__(
        self,
        model: str,
        prefetch: Mapping[QueueKind, int],
        on_job: OnJob,
        *,
        max_queued_jobs: int,
        poll_s: float,
        restore_s: float,
    ) -> None:
        self._model = model
        self._prefetch = prefetch
        self._on_job = on_job
        self._max_queued_jobs = max_queued_jobs
        self._poll_s = poll_s
        self._restore_s = restore_s
        self._ended = False
        self._consumers: dict[QueueKind, tuple[Session, AbstractQueue, str]] = {}

    def __len__(self) -> int:
        """How many of them push now."""
        return len(self._consumers)

    def pushes(self, kind: QueueKind) -> bool:
        """Whether one does."""
        return kind in self._consumers

    def lose(self) -> None:
        """The session is lost, and every consumer with it."""
        self._consumers.clear()

    async def end(self) -> None:
        """Have nothing more pushed."""
        self._ended = True
        consumers, self._consumers = self._consumers, {}
        for session, queue, tag in consumers.values():
            if session.alive:
                await settled(queue.cancel(tag))

    async def declare(self, session: Session, kind: QueueKind) -> str:
        """Put a queue in place; returns its name."""
        name = topology.job_queue(self._model, kind)
        channel = await session.channel(confirms=False, vital=False)
        try:
            queue = await channel.declare_queue(
                name,
                durable=True,
                arguments=topology.job_queue_arguments(kind, self._max_queued_jobs),
            )
        except ChannelPreconditionFailed:
            # It was declared with other arguments, most likely another limit. Serving from it beats
            # not serving; to change it, an operator deletes the queue while it is empty.
            log.warning("queue.declared_otherwise", queue=name)
            channel = await session.channel(confirms=False, vital=False)
            queue = await channel.declare_queue(name, passive=True)
        await queue.bind(topology.JOBS_EXCHANGE, name)
        await channel.close()
        return name

    async def push(self, session: Session, kind: QueueKind) -> None:
        """Have Jobs pushed; if the broker ends that but not the session, do it again.

        A new channel each time: Deliveries of the old one may still have to be settled there.
        """
        channel = await session.channel(confirms=False, vital=False)
        await channel.set_qos(prefetch_count=self._prefetch[kind])
        queue = await channel.get_queue(topology.job_queue(self._model, kind), ensure=False)
        ended = False

        def resume(*_: object) -> None:
            nonlocal ended
            ended = True
            consumer = self._consumers.get(kind)
            if consumer is not None and consumer[1] is queue:
                del self._consumers[kind]
                if session.alive:
                    log.warning("jobs.consumer_lost", model=self._model, queue=kind)
                    session.start(self.resume(session, kind))

        channel.close_callbacks.add(resume)
        (await wire_channel(channel)).on_consumer_cancel_callbacks.add(resume)
        tag = await queue.consume(self._on_job)
        if ended:
            raise ConnectionError("the consumer was cancelled as soon as it was there")
        self._consumers[kind] = (session, queue, tag)

    async def resume(self, session: Session, kind: QueueKind) -> None:
        """Declare and consume until that has worked; give the session up if it cannot be done."""
        gives_up_at = asyncio.get_running_loop().time() + self._restore_s
        while not self._ended:
            try:
                with cancelled_by_nobody_else():
                    async with asyncio.timeout(_CALL_TIMEOUT_S):
                        await self.declare(session, kind)
                        await self.push(session, kind)
                return
            except BROKER_ERRORS as error:
                # A queue that is being deleted is there to be declared, and then is not.
                if not session.alive:
                    return
                log.warning("jobs.not_resumed", model=self._model, reason=str(error))
                if not is_transient(kind) and asyncio.get_running_loop().time() > gives_up_at:
                    session.fail(f"no consumer of {kind} Jobs can be put in place")
                    return
                await asyncio.sleep(self._poll_s)
