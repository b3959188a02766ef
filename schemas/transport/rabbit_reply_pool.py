"""Reply queues, declared ahead of need so that no request waits for a declare.

One queue per request while no more requests run than there are queues. Beyond that they share, and
share as few queues as they can: what leaves a worker at once for one queue is one message, so many
streams on one queue cost the broker a third of what they cost on many. All queues are read on one
channel, through the wire's tap. They belong to the connection and go with it.
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


_MOST_SHARING = 256
"""Replies on one queue, while another one has room: a queue is one process of the broker."""


class ReplyQueue:
    """A reply queue and the Jobs whose replies it carries now."""

    __slots__ = ("job_ids", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.job_ids: set[str] = set()


class Leases:
    """Which queue carries whose reply. Pure.

    Args:
        size: As many requests have a queue of their own; 0: all.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._queues: dict[str, ReplyQueue] = {}
        self._free: deque[ReplyQueue] = deque()
        self._leased = 0

    def __len__(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    @property
    def free(self) -> int:
        """How many of them carry nothing."""
        return len(self._free)

    @property
    def taken(self) -> int:
        """How many replies they carry."""
        return self._leased

    def add(self, queue: ReplyQueue) -> None:
        """Another queue, for whoever comes next."""
        self._queues[queue.name] = queue
        self._free.append(queue)

    def take(self, job_id: str) -> ReplyQueue | None:
        """A queue for a reply; None if none is left and none may be shared."""
        queue = self._choose()
        if queue is not None:
            self._leased += job_id not in queue.job_ids
            queue.job_ids.add(job_id)
        return queue

    def _choose(self) -> ReplyQueue | None:
        if self._free and not 0 < self._size <= self._leased:
            return self._free.popleft()
        if not self._size:
            return None
        queues = self._queues.values()
        shared = [queue for queue in queues if 0 < len(queue.job_ids) < _MOST_SHARING]
        if shared:
            return max(shared, key=_load)
        return self._free.popleft() if self._free else min(queues, key=_load)

    def release(self, queue: ReplyQueue, job_id: str) -> None:
        """The reply is over."""
        if job_id in queue.job_ids:
            queue.job_ids.discard(job_id)
            self._leased -= 1
            if not queue.job_ids:
                self._free.append(queue)

    def jobs_on(self, name: str) -> set[str]:
        queue = self._queues.get(name)
        return queue.job_ids if queue is not None else set()


def _load(queue: ReplyQueue) -> int:
    return len(queue.job_ids)


class ReplyPool:
    """The reply queues of one session.

    Args:
        size: How many there are; 0: as many as it takes for none to be shared, kept for reuse.
    """

    def __init__(self, session: Session, owner: str, size: int) -> None:
        self._session = session
        self._owner = owner
        self._size = size
        self._leases = Leases(size)
        self._filling = False
        self._channel: WireChannel

    async def open(self, on_frame: DeliveryCallback) -> None:
        """Declare and consume; frames go to `on_frame` with the name of their queue."""
        self._channel = await wire_channel(await self._session.channel(confirms=False))
        self._session.tap.watch_deliveries(self._channel.number, on_frame)
        for _ in range(min(self._size or _AHEAD, _AT_FIRST)):
            self._leases.add(await self._declare())
        self._start_filling()

    async def lease(self, job_id: str) -> ReplyQueue:
        while (queue := self._leases.take(job_id)) is None:
            self._leases.add(await self._declare())
        if not self._size and self._leases.free < _AHEAD // 4:
            self._start_filling()
        return queue

    def release(self, queue: ReplyQueue, job_id: str) -> None:
        self._leases.release(queue, job_id)

    def jobs_on(self, name: str) -> set[str]:
        return self._leases.jobs_on(name)

    def _start_filling(self) -> None:
        if not self._filling:
            self._filling = True
            self._session.start(self._fill())

    async def _fill(self) -> None:
        try:
            while len(self._leases) < self._size or (not self._size and self._leases.free < _AHEAD):
                self._leases.add(await self._declare())
        finally:
            self._filling = False

    async def _declare(self) -> ReplyQueue:
        name = topology.private_queue("reply", self._owner, secrets.token_hex(8))
        await self._channel.queue_declare(
            name, exclusive=True, arguments=topology.private_queue_arguments()
        )
        await self._channel.basic_consume(name, _untapped, no_ack=True, consumer_tag=name)
        return ReplyQueue(name)


async def _untapped(message: DeliveredMessage) -> None:
    raise AssertionError("deliveries of reply queues go through the tap")
