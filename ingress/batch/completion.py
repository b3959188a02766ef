"""Drives a Generation to its end where nobody reads a stream: time limits, and no socket.

The twin of `ingress.answer`, which has a client to watch. It knows neither a batch nor a dialect.
"""

from __future__ import annotations

import asyncio

from ingress.batch.endings import cancelled
from ingress.dialects.base import Encoder
from ingress.generation import Generation
from schemas.delta import Accepted, Completed, Delta
from schemas.errors import ServingError


async def complete(generation: Generation, encoder: Encoder) -> None:
    """Run a Generation and feed the encoder until its body is whole. Closes it in any case.

    Raises:
        ServingError: It will not be whole.
    """
    timing = _Timing(generation)
    carrying = asyncio.create_task(_carry(generation, encoder))
    timing.watch(carrying)
    try:
        await asyncio.wait({carrying})
        if timing.error is not None:
            raise timing.error
        carrying.result()
    finally:
        timing.stop()
        await cancelled(carrying)
        await asyncio.shield(generation.close())


async def _carry(generation: Generation, encoder: Encoder) -> None:
    await generation.start()
    feed = encoder.feed
    last: Delta = Accepted("", 0)
    while type(last) is not Completed:
        deltas = await generation.receive()
        for delta in deltas:
            feed(delta)
        last = deltas[-1]


class _Timing:
    """Applies the limits of a Generation.

    Attributes:
        error: What a limit has ended it with.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.error: ServingError | None = None

    def watch(self, task: asyncio.Task[None]) -> None:
        """End this task when a limit says so."""
        self._task = task
        self._generation.on_phase = self._set
        self._generation.on_limit = self._set
        self._set()

    def stop(self) -> None:
        """No limit applies any more."""
        self._task = None
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        """Wait for the limit that is the nearest now."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._timer = self._loop.call_at(self._generation.due_at(), self._due)

    def _due(self) -> None:
        assert self._task is not None
        try:
            self._generation.on_due()
        except ServingError as error:
            self.error = error
            self._task.cancel()
            self._task = None
        self._set()
