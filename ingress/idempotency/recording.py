"""One answer for any number of clients: what is said is kept while it may be wanted again.

Whoever makes the answer speaks ASGI with a `Recording` as if it were one client. Those who follow
it get everything from the beginning, each at its own pace. It knows neither a dialect nor a socket.

What it keeps is bounded. Beyond the bound it forgets what all who follow have had, so that nobody
can join any more, and waits for the slowest of them, as a single client would be waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from starlette.types import Message

_LEAST_BYTES: Final = 1 << 20
"""What every recording may keep, however much all others do."""

_PIECE_BYTES: Final = 1 << 16
"""A reader who is slow but steady is seen to take something as often as that much is written."""


class Room:
    """What all recordings of a process keep together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0


class Recording:
    """The messages of one answer, as ASGI's `send` and `receive` have them.

    Args:
        max_bytes: That it keeps for those who may come, and for those who lag behind.

    Attributes:
        ended: The answer is whole.
        on_alone: Called when the last who followed has left before the end.
    """

    def __init__(self, room: Room, *, max_bytes: int) -> None:
        self.ended = False
        self.on_alone: Callable[[], object] = lambda: None
        self._room = room
        self._max_bytes = max_bytes
        self._start: Message | None = None
        self._pieces: deque[bytes] = deque()
        self._forgotten = 0  # pieces that were before them
        self._size = 0
        self._followers: set[Follower] = set()
        self._kept = True
        self._gone = asyncio.Event()
        self._taken = asyncio.Event()
        self._broken: Exception | None = None

    @property
    def whole(self) -> bool:
        """Whether it has all from the beginning."""
        return not self._forgotten

    @property
    def given_up(self) -> bool:
        """Whether its maker was told that nobody waits for it."""
        return self._gone.is_set()

    @property
    def start(self) -> Message | None:
        """Status and headers, once they are settled."""
        return self._start

    @property
    def body(self) -> Sequence[bytes]:
        """What there is of the body."""
        return tuple(self._pieces)

    # --- Its maker's side -------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Take the next message."""
        if message["type"] == "http.response.start":
            self._start = message
        else:
            piece = message.get("body", b"")
            if piece:
                self._pieces.append(piece)
                self._grow(len(piece))
            self.ended = not message.get("more_body", False)
        self._wake()
        while self._size > self._bound():
            self._taken.clear()
            self._trim()
            if self._size <= self._bound() or not self._followers:
                return
            await self._taken.wait()

    async def receive(self) -> Message:
        """Wait until nobody is there any more; the request was read before."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def give_up(self) -> None:
        """Tell whoever makes the answer that its client has left."""
        self._gone.set()

    def break_off(self, error: Exception) -> None:
        """There will be no more: who follows gets this error. Nothing if the answer is whole."""
        if not self.ended:
            self._broken = error
            self._wake()

    def close(self) -> None:
        """Nobody will join any more; what remains is for those who follow."""
        self._kept = False
        self._trim()

    # --- Their side -------------------------------------------------------------------------------

    def follow(self) -> Follower:
        """Have it from the beginning. It must be `whole`."""
        follower = Follower(self)
        self._followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """One who follows has left, or has had all."""
        if follower not in self._followers:
            return
        self._followers.remove(follower)
        self._took()
        if not self._followers and not self.ended:
            self.on_alone()

    async def next(self, follower: Follower) -> Message:
        """The next message for one who follows; waits until there is one.

        Raises:
            Exception: The answer was broken off.
        """
        while (message := self._next(follower)) is None:
            if self._broken is not None:
                raise self._broken
            follower.news.clear()
            await follower.news.wait()
        return message

    def _next(self, follower: Follower) -> Message | None:
        if not follower.started:
            if self._start is None:
                return None
            follower.started = True
            return {**self._start, "headers": list(self._start["headers"])}
        body: list[bytes] = []
        size = 0
        for piece in islice(self._pieces, follower.at - self._forgotten, None):
            if body and size + len(piece) > _PIECE_BYTES:
                break
            body.append(piece)
            size += len(piece)
        follower.at += len(body)
        last = self.ended and follower.at == self._forgotten + len(self._pieces)
        if not body and not last:
            return None
        self._took()
        return {"type": "http.response.body", "body": b"".join(body), "more_body": not last}

    def _wake(self) -> None:
        for follower in self._followers:
            follower.news.set()

    # --- What is kept -----------------------------------------------------------------------------

    def _bound(self) -> int:
        if self._room.used > self._room.max_bytes:
            return min(self._max_bytes, _LEAST_BYTES)
        return self._max_bytes

    def _took(self) -> None:
        """Somebody needs less than before."""
        self._taken.set()
        if not self._kept:
            self._trim()

    def _trim(self) -> None:
        """Forget what all who follow have had."""
        end = self._forgotten + len(self._pieces)
        needed = min((follower.at for follower in self._followers), default=end)
        while self._forgotten < needed:
            self._grow(-len(self._pieces.popleft()))
            self._forgotten += 1

    def _grow(self, size: int) -> None:
        self._size += size
        self._room.used += size


class Follower:
    """One who gets a recording.

    Attributes:
        started: It has had status and headers.
        at: The number of the piece that comes next.
        news: There is something more.
    """

    __slots__ = ("_recording", "at", "news", "started")

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.started = False
        self.at = 0
        self.news = asyncio.Event()

    async def next(self) -> Message:
        """See `Recording.next`."""
        return await self._recording.next(self)

    def leave(self) -> None:
        """It needs no more. Idempotent."""
        self._recording.leave(self)
