"""Several ingress processes behind one port: the small parent that starts and watches them.

    python -m ingress.processes ORDER

Each process listens on a socket of its own at the same address (`SO_REUSEPORT`), and the kernel
spreads connections evenly over those that listen: with one socket for all, whoever is awake takes
what is there, and few processes get most (docs/performance.md). A process listens when it can
serve, and one that is gone gets nothing; what others carry goes on.

- The first process goes ahead. Where it cannot start, none can, and this ends with its status: what
  is wrong is told once. The others start when it serves.
- One that ends unasked is started again, after a pause that grows while it fails to start. One that
  shows no sign of life for a minute is killed first.
- SIGTERM and SIGINT are passed on, so that each drains as a single one does; so is a second one.
- The children outlive a parent that is killed: they drain (`ingress.place`).

Must not know what they serve, and imports little: it stays for as long as they do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
import structlog

from ingress.place import PLACE_OPTION, Place
from schemas.telemetry import configure_logging

log = structlog.get_logger(__name__)

Address: TypeAlias = tuple[Any, ...]

_CANNOT_START: Final = 3
"""The status of a server that cannot listen; uvicorn's."""

_LONGEST_PAUSE_S: Final = 30.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent is to do.

    Attributes:
        command: argv of a process, but for its place.
        processes: How many.
        host: Address that they listen on.
        port: There; 0 for a free one.
        grace_s: How long they may go on after the first signal.
        last_words_s: After that: by then a process has told its clients that it ends.
        pause_s: Before one that has ended is started again; more while it fails to start.
        silence_s: How long one that serves may show no sign of life.
        log_level: As of `configure_logging`.
        log_json: As of `configure_logging`.
    """

    command: tuple[str, ...]
    processes: int
    host: str
    port: int
    grace_s: float
    last_words_s: float = 10.0
    pause_s: float = 1.0
    silence_s: float = 60.0
    log_level: str = "info"
    log_json: bool | None = None


def become_parent(order: Order) -> NoReturn:
    """Make this very process the parent; all that it has imported and opened goes."""
    sys.stdout.flush()
    sys.stderr.flush()
    written = msgspec.json.encode(order).decode()
    os.execv(sys.executable, [sys.executable, "-m", __name__, written])


class Port:
    """The address that all of them share.

    Args:
        host: Its name, or the address itself.
        port: 0 for a free one.

    Raises:
        OSError: Nobody can listen there, or somebody does.
    """

    def __init__(self, host: str, port: int) -> None:
        self._addresses: list[tuple[int, Address]] = []
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, (name, _, *rest) in dict.fromkeys(found):
            # Another service of this user could share it, and each would get what is the other's.
            with _bound(family, (name, port, *rest), shared=False) as alone:
                port = alone.getsockname()[1]
            self._addresses.append((family, (name, port, *rest)))

    def sockets(self) -> Sequence[socket.socket]:
        """One for each address, bound; they listen when they are told to.

        Raises:
            OSError: Somebody has taken it meanwhile.
        """
        return [_bound(family, address, shared=True) for family, address in self._addresses]


def _bound(family: int, address: Address, *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


class Processes:
    """All of them, from the first start to the last end.

    Args:
        order: What is to be done.
        port: Where they listen.
        directory: Where each can be asked by the others; empty.
    """

    def __init__(self, order: Order, port: Port, directory: str) -> None:
        self._order = order
        self._port = port
        self._directory = directory
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._serving: set[int] = set()
        self._first_serves = asyncio.Event()  # or never will
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Keep them until a signal comes, or none can start; then until the last has ended.

        Returns:
            The exit status for this process: the highest of those that were asked to stop. Death by
            signal N is 128 + N, as a shell has it.
        """
        loop = asyncio.get_running_loop()
        for stopping in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stopping, self._stop, stopping)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(1))
            await self._first_serves.wait()
            for number in range(2, self._order.processes + 1):
                group.create_task(self._keep(number))
        return self._status

    def _stop(self, number: int) -> None:
        """Pass a signal on. Every one: a second one ends their grace time."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._first_serves.set()
            left_s = self._order.grace_s + self._order.last_words_s
            asyncio.get_running_loop().call_later(left_s, self._send, signal.SIGKILL)
        self._send(number)

    def _send(self, number: int) -> None:
        for process in self._running.values():
            _signal(process, number)

    async def _keep(self, number: int) -> None:
        """One of them, again and again."""
        pause_s = self._order.pause_s
        while not self._stopping.is_set():
            began_at = time.monotonic()
            status, served = await self._run(number)
            if self._stopping.is_set():
                self._status = max(self._status, status)
                return
            if not served and not self._serving:
                # As a single one would end; whoever started it knows how to go on.
                self._status = status
                self._stop(signal.SIGTERM)
                return
            pause_s = self._order.pause_s if served else min(pause_s * 2, _LONGEST_PAUSE_S)
            log.warning(
                "ingress.process_ended",
                process=number,
                status=status,
                served=served,
                lived_s=round(time.monotonic() - began_at, 1),
                pause_s=pause_s,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _run(self, number: int) -> tuple[int, bool]:
        """One process, from its start to its end.

        Returns:
            Its exit status, and whether it has served.
        """
        try:
            process, heard = await self._start(number)
        except OSError as error:
            log.error("ingress.process_not_started", process=number, reason=error.strerror)
            return _CANNOT_START, False
        self._running[number] = process
        if self._stopping.is_set():
            _signal(process, signal.SIGTERM)
        served = await self._hear(number, heard)
        status = await process.wait()
        del self._running[number]
        self._serving.discard(number)
        return (status if status >= 0 else 128 - status), served

    async def _start(self, number: int) -> tuple[asyncio.subprocess.Process, int]:
        """Start one, and give the descriptor at which it is heard."""
        heard, life = os.pipe()
        sockets: Sequence[socket.socket] = ()
        try:
            sockets = self._port.sockets()
            place = Place(
                number=number,
                of=self._order.processes,
                directory=self._directory,
                sockets=tuple(listening.fileno() for listening in sockets),
                life=life,
            )
            process = await asyncio.create_subprocess_exec(
                *(*self._order.command, PLACE_OPTION, place.written()),
                pass_fds=(*place.sockets, life),
                start_new_session=True,  # so that Ctrl-C on a terminal comes from here, and once
            )
        except OSError:
            os.close(heard)
            raise
        finally:
            # What it listens on and speaks through must end with it.
            os.close(life)
            for listening in sockets:
                listening.close()
        return process, heard

    async def _hear(self, number: int, descriptor: int) -> bool:
        """Wait until one speaks no more, and see that it ends then.

        Returns:
            Whether it has served.
        """
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            while True:
                patience_s = self._order.silence_s if number in self._serving else None
                async with asyncio.timeout(patience_s):
                    if not await reader.read(1024):
                        return number in self._serving
                self._serving.add(number)
                self._first_serves.set()
        except TimeoutError:
            log.error("ingress.process_hangs", process=number, silent_s=self._order.silence_s)
            _signal(self._running[number], signal.SIGKILL)
            return True
        finally:
            pipe.close()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """By its pid: its own `send_signal` would collect one that has just ended, and its status."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def main() -> NoReturn:
    """Do what the order on the command line says."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    configure_logging(order.log_level, json=order.log_json)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
            port = Port(order.host, order.port)
            status = asyncio.run(Processes(order, port, directory).run())
    except OSError as error:
        log.error("ingress.cannot_start", host=order.host, port=order.port, reason=error.strerror)
        status = _CANNOT_START
    sys.exit(status)


if __name__ == "__main__":
    main()
