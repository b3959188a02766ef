"""Which of the processes behind one port a process is: what a parent gives each, and hears of it.

A parent (`ingress.processes`) tells by the option `PLACE_OPTION`, the child (`ingress.siblings`)
by a pipe, through which it shows that it is well. Both must be able to import this: it imports
nothing of what they are about.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

PLACE_OPTION: Final = "--place"

SIGN_EVERY_S: Final = 1.0
"""Between two signs of life."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is given.

    Attributes:
        number: Of the process, from 1.
        of: How many there are.
        directory: Where each can be asked by the others.
        sockets: Descriptors of what it is to listen on; they are bound, and its own.
        life: Descriptor of the pipe to the parent.
    """

    number: int
    of: int
    directory: str
    sockets: tuple[int, ...]
    life: int

    def written(self) -> str:
        """As the value of the option."""
        return msgspec.json.encode(self).decode()

    def door(self, number: int) -> Path:
        """The Unix socket where a process can be asked. One that has been up has left it there."""
        return Path(self.directory) / str(number)

    def listeners(self) -> list[socket.socket]:
        """What it is to listen on. Call it once: they are closed by who closes these."""
        return [socket.socket(fileno=descriptor) for descriptor in self.sockets]

    @asynccontextmanager
    async def living(self, orphaned: Callable[[], object]) -> AsyncIterator[None]:
        """Show the parent that this process serves, again and again while the block runs.

        Args:
            orphaned: Called once, if there is no parent any more.
        """
        os.set_blocking(self.life, False)
        showing = asyncio.create_task(self._show(orphaned))
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def _show(self, orphaned: Callable[[], object]) -> None:
        while True:
            try:
                os.write(self.life, b".")
            except BlockingIOError:
                pass  # it does not read just now, and has enough of them
            except OSError:
                orphaned()
                return
            await asyncio.sleep(SIGN_EVERY_S)


class PlaceType(click.ParamType[Place]):
    """A place as `Place.written` has it."""

    name = "place"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        try:
            return msgspec.json.decode(value, type=Place)
        except msgspec.DecodeError:
            self.fail("it is for processes that were started by another one", param, ctx)
