"""What has arrived of one reply and has not been read yet: bounded, so that a reader who has
stopped reading costs a known amount of memory and nobody else anything.

Knows nothing of how messages travel; both transports use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from schemas.delta import ReplyMessage
from schemas.errors import ServiceError
from schemas.transport.base import ReplySuspended

_MOST_AT_ONCE: Final = 256
"""Messages; a reader who has fallen behind catches up in steps that keep nobody else waiting."""


class ReplyBuffer:
    """The reader's end of one reply; there is one reader.

    Args:
        max_bytes: More unread bytes than this suspend the reply.

    Attributes:
        listener: See `schemas.transport.base.Reply.listen`.
    """

    __slots__ = ("_bytes", "_error", "_max_bytes", "_messages", "_waiting", "listener")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: list[ReplyMessage] = []
        self._bytes = 0
        self._error: ServiceError | None = None
        self._waiting: asyncio.Future[None] | None = None  # the reader; it has read everything
        self.listener: Callable[[ReplyMessage], bool] | None = None

    def put(self, message: ReplyMessage, size: int) -> bool:
        """Add a message of about `size` bytes.

        Returns:
            False when this suspended the reply: it was too much.
        """
        if self._error is not None:
            return True
        if self._waiting is not None and self.listener is not None and self.listener(message):
            return True
        self._bytes += size
        if self._bytes > self._max_bytes:
            self.fail(
                ReplySuspended(
                    "The reply was not read fast enough.",
                    diagnostic=f"reply buffer overrun: more than {self._max_bytes} unread bytes",
                )
            )
            return False
        self._messages.append(message)
        self._wake()
        return True

    def fail(self, error: ServiceError) -> None:
        """Nothing more can arrive. What has arrived can still be read, then `error` is raised."""
        if self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            if not self._waiting.done():  # it may have been cancelled
                self._waiting.set_result(None)
            self._waiting = None

    @property
    def broken(self) -> bool:
        return self._error is not None

    def renew(self) -> None:
        """A further attempt was sent: messages can arrive again. Those unread remain."""
        self._error = None

    async def take(self) -> Sequence[ReplyMessage]:
        """What is there, or much of it; waits for something.

        Raises:
            ServiceError: Nothing is left and nothing more can arrive.
        """
        while not self._messages and self._error is None:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self._messages:
            messages = self._messages
            self._messages = rest = messages[_MOST_AT_ONCE:]
            if rest:
                self._bytes = self._bytes * len(rest) // len(messages)
                return messages[:_MOST_AT_ONCE]
            self._bytes = 0
            return messages
        assert self._error is not None
        raise self._error
