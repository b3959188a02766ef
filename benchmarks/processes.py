"""Processes that are measured: started, looked at from outside, and ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.load import BadReply, Dialect, ask, probe

MODEL = "scripted"
START_TIMEOUT_S = 120.0

console = Console(width=None if sys.stdout.isatty() else 160)


@dataclass(frozen=True, slots=True)
class Target:
    """Something to load.

    Attributes:
        parts: Name and process of each part whose CPU time and memory count.
        model: Under which name it has the engine.
        key: What it asks for.
        dialects: Those it is measured in.
        engine: Whether the engine is one of the parts.
        hang_up: Whether it stands before the engine that tells when a request was hung up.
    """

    name: str
    port: int
    parts: tuple[tuple[str, psutil.Process], ...]
    model: str = MODEL
    key: str | None = None
    dialects: tuple[Dialect, ...] = ("chat",)
    engine: bool = False
    hang_up: bool = True

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each part, its child processes included."""
        return {name: cpu_of(members(process)) for name, process in self.parts}

    def memory(self) -> int:
        """Bytes of all parts; what processes share is divided between them."""
        return sum(memory(process) for _, process in self.parts)


def members(process: psutil.Process) -> tuple[int, ...]:
    """The pids of a process and of those below it."""
    try:
        return (process.pid, *(child.pid for child in process.children(recursive=True)))
    except psutil.Error:  # it has ended
        return (process.pid,)


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds so far of those of them that are still there.

    Unlike looking for them, this takes microseconds: it can be done while something is measured.
    """
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            # The kernel's clock of another process: to the nanosecond, where its table has ticks.
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def memory(process: psutil.Process) -> int:
    """Bytes of a process and those below it."""
    total = 0
    for pid in members(process):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


@contextmanager
def running(
    name: str,
    *command: str,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[psutil.Process]:
    """A Python module of ours as a process; see `started`."""
    with started(name, (sys.executable, "-m", *command), log=log, env=env) as process:
        yield process


@contextmanager
def started(
    name: str,
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[psutil.Process]:
    """A process, ended at exit; its output is shown if it ends by itself.

    Args:
        name: What to call it.
        command: Its argv.
        log: Where its output goes; by default nowhere that lasts.
        env: Variables beside ours.
    """
    with log.open("w+b") if log is not None else tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},  # noqa: TID251 - handed on, not read
        )
        below: list[psutil.Process] = []
        try:
            yield psutil.Process(child.pid)
        except BadReply:
            if child.poll() is not None:
                output.seek(0)
                console.print(
                    f"[red]{name} ended:[/]", output.read()[-2000:].decode(errors="replace")
                )
            raise
        finally:
            with suppress(psutil.Error):
                below = psutil.Process(child.pid).children(recursive=True)
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            for left in below:
                with suppress(psutil.Error):
                    left.kill()


@contextmanager
def broker(
    amqp_url: str | None, *, settings: str | None = None
) -> Iterator[tuple[str, psutil.Process | None]]:
    """A throwaway RabbitMQ node, or the one at `amqp_url` (whose CPU time cannot be read).

    Args:
        amqp_url: Of a broker that is there.
        settings: The node's `rabbitmq.conf`, in place of the tests' own.
    """
    if amqp_url is not None:
        yield amqp_url, None
        return
    from tests.fixtures.broker import BrokerNode

    ours = psutil.Process()
    before = set(ours.children())
    node = BrokerNode()
    try:
        if settings is not None:
            (node.directory / "rabbitmq.conf").write_text(settings)
            (node.directory / "advanced.config").write_text("[].\n")
        node.start()
        (server,) = set(ours.children()) - before
        yield node.url, server
    finally:
        node.remove()


async def wait_until_answering(
    target: Target, key: str | None = None, timeout_s: float = START_TIMEOUT_S
) -> None:
    """Ask until a reply is right.

    Raises:
        BadReply: It was still not after a long time.
    """
    single = ask(target.model, tokens=1, key=key or target.key)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await probe(target.port, single, every_s=0.01, seconds=0.01)
        except (OSError, BadReply) as error:
            if time.monotonic() > deadline or not _runs(target.parts[0][1]):
                raise BadReply(f"{target.name} does not answer: {error}") from None
            await asyncio.sleep(0.25)
        else:
            return


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
