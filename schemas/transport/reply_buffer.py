"""What has arrived of one reply and has not been read yet: bounded, so that a reader who has
stopped reading costs a known amount of memory and nobody else anything.

Knows nothing of how messages travel; both transports use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from schemas.delta import ReplyMessage
from schemas.errors import ServiceError
from schemas.transport.base import ReplySuspended

_MOST_AT_ONCE: Final = 256
"""Messages; a reader who has fallen behind catches up in steps that keep nobody else waiting."""


class ReplyBuffer:
    """The reader's end of one reply.

    Args:
        max_bytes: More unread bytes than this suspend the reply.
    """

    __slots__ = ("_arrived", "_bytes", "_error", "_max_bytes", "_messages")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: list[ReplyMessage] = []
        self._bytes = 0
        self._error: ServiceError | None = None
        self._arrived = asyncio.Event()

    def put(self, message: ReplyMessage, size: int) -> bool:
        """Add a message of about `size` bytes.

        Returns:
            False when this suspended the reply: it was too much.
        """
        if self._error is not None:
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
        self._arrived.set()
        return True

    def fail(self, error: ServiceError) -> None:
        """Nothing more can arrive. What has arrived can still be read, then `error` is raised."""
        if self._error is None:
            self._error = error
            self._arrived.set()

    @property
    def broken(self) -> bool:
        return self._error is not None

    def renew(self) -> None:
        """A further attempt was sent: messages can arrive again. Those unread remain."""
        self._error = None
        if not self._messages:
            self._arrived.clear()

    async def take(self) -> Sequence[ReplyMessage]:
        """What is there, or much of it; waits for something.

        Raises:
            ServiceError: Nothing is left and nothing more can arrive.
        """
        await self._arrived.wait()
        if self._messages:
            messages = self._messages
            self._messages = rest = messages[_MOST_AT_ONCE:]
            if rest:
                self._bytes = self._bytes * len(rest) // len(messages)
                return messages[:_MOST_AT_ONCE]
            self._bytes = 0
            if self._error is None:
                self._arrived.clear()
            return messages
        assert self._error is not None
        raise self._error
