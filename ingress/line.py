"""The line to a client: what the connection below the app offers beyond the app's own interface.

An app sends and receives by waiting, through every layer that wraps `send`. For the bulk of a
stream that is most of the cost. So the connection puts a `Line` into the scope, on which a piece of
an answer that has begun is written at once, and which tells by a call that the client has left.
Nobody has to use it; an answer that is recorded, or sent without chunks, cannot.

Knows nothing of what is asked or answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from starlette.types import Message, Scope, Send

EXTENSION: Final = "headrace.line"


class Line(Protocol):
    """One request's."""

    @property
    def writable(self) -> bool:
        """Whether a piece of the body can be written now, without waiting for the reader."""
        ...

    def write(self, piece: bytes) -> None:
        """Write a piece of the body; only where it is `writable`, and while no `send` is waiting.

        What is written lies in the transport's buffer, and makes the line not `writable` once that
        is too much.
        """
        ...

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Call `on_gone` when the client leaves, or now if it has. Its request has been read."""
        ...

    def unwatch(self) -> None:
        """Call nobody any more."""
        ...


class Sender:
    """The `send` of a response that goes straight to its client.

    Attributes:
        line: To the client; None where the server offers none.
        begun: Something was sent.
    """

    __slots__ = ("_send", "begun", "line")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.line: Line | None = scope.get("extensions", {}).get(EXTENSION)
        self.begun = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """As of ASGI."""
        self.begun = True
        return self._send(message)
