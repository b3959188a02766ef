"""Reply queues, declared ahead of need so that no request waits for a declare.

One queue per request while they last; beyond that a request shares the one with the fewest, or has
one declared for it. All of them are read on one channel, through the wire's tap. They belong to the
connection and go with it.
"""

from __future__ import annotations

import secrets
from collections import deque

from aiormq.abc import AbstractChannel as WireChannel
from aiormq.abc import DeliveredMessage

from schemas.transport import topology
from schemas.transport.rabbit_connection import Session, wire_channel
from schemas.transport.rabbit_wire import DeliveryCallback

_AHEAD = 64
"""Queues declared ahead when none may be shared; below a quarter of it more are declared."""

_AT_FIRST = 8
"""Queues to begin with; the others follow, so that a pod is back soon after its broker."""


class ReplyQueue:
    """A reply queue and the Jobs whose replies it carries now."""

    __slots__ = ("job_ids", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.job_ids: set[str] = set()


class ReplyPool:
    """The reply queues of one session.

    Args:
        size: How many there are; 0: as many as it takes for none to be shared, kept for reuse.
    """

    def __init__(self, session: Session, owner: str, size: int) -> None:
        self._session = session
        self._owner = owner
        self._size = size
        self._queues: dict[str, ReplyQueue] = {}
        self._free: deque[ReplyQueue] = deque()
        self._filling = False
        self._channel: WireChannel

    async def open(self, on_frame: DeliveryCallback) -> None:
        """Declare and consume; frames go to `on_frame` with the name of their queue."""
        self._channel = await wire_channel(await self._session.channel(confirms=False))
        self._session.tap.watch_deliveries(self._channel.number, on_frame)
        for _ in range(min(self._size or _AHEAD, _AT_FIRST)):
            self._free.append(await self._declare())
        self._start_filling()

    async def lease(self, job_id: str) -> ReplyQueue:
        if self._free:
            queue = self._free.popleft()
        elif self._size:
            queue = min(self._queues.values(), key=lambda queue: len(queue.job_ids))
        else:
            queue = await self._declare()
        queue.job_ids.add(job_id)
        if not self._size and len(self._free) < _AHEAD // 4:
            self._start_filling()
        return queue

    def release(self, queue: ReplyQueue, job_id: str) -> None:
        if job_id in queue.job_ids:
            queue.job_ids.discard(job_id)
            if not queue.job_ids:
                self._free.append(queue)

    def jobs_on(self, name: str) -> set[str]:
        queue = self._queues.get(name)
        return queue.job_ids if queue is not None else set()

    def _start_filling(self) -> None:
        if not self._filling:
            self._filling = True
            self._session.start(self._fill())

    async def _fill(self) -> None:
        try:
            while len(self._queues) < self._size or (not self._size and len(self._free) < _AHEAD):
                self._free.append(await self._declare())
        finally:
            self._filling = False

    async def _declare(self) -> ReplyQueue:
        name = topology.private_queue("reply", self._owner, secrets.token_hex(8))
        await self._channel.queue_declare(
            name, exclusive=True, arguments=topology.private_queue_arguments()
        )
        await self._channel.basic_consume(name, _untapped, no_ack=True, consumer_tag=name)
        queue = self._queues[name] = ReplyQueue(name)
        return queue


async def _untapped(message: DeliveredMessage) -> None:
    raise AssertionError("deliveries of reply queues go through the tap")
