"""Batch Jobs, fetched from their queue while there is room for them.

Fetched and not pushed: so they take the slots that live Jobs leave, and none waits at a worker that
has no slot for it. Once the queue is empty the next one is pushed: an idle worker costs the broker
nothing. Must not know what is in a message.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from schemas.transport.rabbit_connection import (
    BROKER_ERRORS,
    Session,
    cancelled_by_nobody_else,
    wire_channel,
)
from schemas.transport.rabbit_job_queues import JobQueues, OnJob

log = structlog.get_logger(__name__)

_FETCHES: Final = 8
"""Batch Jobs fetched at once. A channel fetches one at a time, in a round trip to a queue that may
be replicated."""


class BatchJobs:
    """Brings batch Jobs to a worker.

    Args:
        model: Named in the log.
        slots: As many are never wanted at once.
        queues: Put their queue in place.
        on_job: Takes each.
        poll_s: How often it is tried again after the broker has ended it.
    """

    def __init__(
        self, model: str, slots: int, queues: JobQueues, on_job: OnJob, *, poll_s: float
    ) -> None:
        self._model = model
        self._fetches = min(_FETCHES, slots)
        self._queues = queues
        self._on_job = on_job
        self._poll_s = poll_s
        self._room = 0
        self._some_room, self._no_room = asyncio.Event(), asyncio.Event()
        self.make_room(slots)

    def make_room(self, jobs: int) -> None:
        """Say how many more may come now; none if that is less than one."""
        self._room = max(0, jobs)
        if self._room:
            self._some_room.set()
            self._no_room.clear()
        else:
            self._some_room.clear()
            self._no_room.set()

    async def fetch(self, session: Session) -> None:
        """Bring them for as long as the session lives."""
        while session.alive:
            try:
                with cancelled_by_nobody_else():
                    await self._fetch_from(session)
            except BROKER_ERRORS as error:
                if session.alive:
                    log.warning("jobs.batch_channel_lost", model=self._model, reason=str(error))
                    await asyncio.sleep(self._poll_s)

    async def _fetch_from(self, session: Session) -> None:
        name = await self._queues.declare(session, "batch")
        queues = []
        for _ in range(self._fetches):
            channel = await session.channel(confirms=False, vital=False)
            await channel.set_qos(prefetch_count=1)
            queues.append(await channel.get_queue(name, ensure=False))
        waiting_room = await wire_channel(queues[0].channel)
        ended = asyncio.Event()
        queues[0].channel.close_callbacks.add(lambda *_: ended.set())
        waiting_room.on_consumer_cancel_callbacks.add(lambda *_: ended.set())
        while session.alive:
            while not self._room:  # it may be gone again by the time this goes on
                await self._some_room.wait()
            gets = [queue.get(fail=False) for queue in queues[: self._room]]
            # One that fails must not lose what the others have brought.
            fetched = await asyncio.gather(*gets, return_exceptions=True)
            for message in fetched:
                if isinstance(message, AbstractIncomingMessage):
                    await self._on_job(message)
            for error in fetched:
                if isinstance(error, BaseException):
                    raise error
            if not any(fetched):
                await self._wait_for_one(queues[0], ended)

    async def _wait_for_one(self, queue: AbstractQueue, ended: asyncio.Event) -> None:
        """Have the next one of an empty queue pushed, unless its slot is taken before.

        Raises:
            ConnectionError: The broker has taken the queue or the channel away.
        """
        came = asyncio.Event()

        async def on_message(message: AbstractIncomingMessage) -> None:
            try:
                await self._on_job(message)  # also one that comes while this is called off
            finally:
                came.set()

        tag = await queue.consume(on_message)
        waits = [asyncio.ensure_future(event.wait()) for event in (came, self._no_room, ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if ended.is_set():
            raise ConnectionError("the queue of batch Jobs is gone")
        await queue.cancel(tag)  # as long as that one is not acknowledged no other comes
