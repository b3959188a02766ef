"""How many lines are in flight: a window per model, shared by all batches of the process.

Who waits for a place gets it in turn. Since a batch waits with one line at a time, batches of the
same model advance side by side, however long they are; and since a model has a window of its own,
none waits for another's workers. Must not know what a line is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class _Lane:
    """The window of one model."""

    __slots__ = ("lines", "size", "waiting")

    def __init__(self) -> None:
        self.lines = 0
        self.size = 0
        self.waiting: deque[Place] = deque()


class Place:
    """The right to have one line in flight."""

    __slots__ = ("_window", "given", "model", "size")

    def __init__(self, window: Window, model: str, size: int) -> None:
        self._window = window
        self.model = model
        self.size = size
        self.given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Give it back. Called once."""
        self._window.leave(self)


class Window:
    """The windows of all models.

    Args:
        limit: How many lines of a model may be in flight now.
        max_bytes: How large they may be together; one line may in any case.
    """

    def __init__(self, limit: Callable[[str], int], *, max_bytes: int) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._lanes: dict[str, _Lane] = {}

    def __len__(self) -> int:
        return sum(lane.lines for lane in self._lanes.values())

    async def enter(self, model: str, size: int) -> Place | None:
        """A place for a line of `size` bytes, as soon as there is one.

        Returns None if there will be none for now: the limit of the model is zero.
        """
        lane = self._lanes.setdefault(model, _Lane())
        place = Place(self, model, size)
        lane.waiting.append(place)
        self._serve(model, lane)
        try:
            return place if await place.given else None
        except asyncio.CancelledError:
            if place in lane.waiting:
                lane.waiting.remove(place)
            elif not place.given.cancelled() and place.given.result():
                place.leave()
            raise

    def leave(self, place: Place) -> None:
        lane = self._lanes[place.model]
        lane.lines -= 1
        lane.size -= place.size
        self._serve(place.model, lane)

    def refresh(self) -> None:
        """The limits may have changed."""
        for model, lane in self._lanes.items():
            self._serve(model, lane)

    def _serve(self, model: str, lane: _Lane) -> None:
        while lane.waiting:
            place, limit = lane.waiting[0], self._limit(model)
            full = lane.lines and lane.size + place.size > self._max_bytes
            if limit and (lane.lines >= limit or full):
                return
            lane.waiting.popleft()
            if place.given.done():  # given up at this very moment
                continue
            if limit:
                lane.lines += 1
                lane.size += place.size
            place.given.set_result(limit > 0)
