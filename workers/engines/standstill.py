"""Notices that a start stands still: for minutes no process of it has done anything.

How long an engine may take to start nobody can say: models are fetched, read and compiled. But
whoever does that uses a processor, moves bytes or takes memory. A start in which nothing of this
happens waits for something that will not come, as a process does that was forked while another
thread held a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple

import psutil

LIMIT_S: Final = 120.0

_LOOKS: Final = 8
"""How often is looked within the limit."""

_BUSY: Final = 0.02
"""Share of one processor from which on processes are at work; looking takes less."""

_MOVED_BYTES: Final = 1 << 20
"""Read, written, or of memory; looking reads less."""


class Work(NamedTuple):
    """What processes have done so far.

    Attributes:
        pids: Theirs.
        cpu_s: Processor time.
        bytes_moved: Read and written, where the system tells.
        bytes_held: Memory.
    """

    pids: frozenset[int]
    cpu_s: float
    bytes_moved: int
    bytes_held: int

    def differs(self, before: Work, seconds: float) -> bool:
        """Whether anything was done in the time since `before`."""
        return (
            self.pids != before.pids
            or self.cpu_s - before.cpu_s > _BUSY * seconds
            or self.bytes_moved - before.bytes_moved > _MOVED_BYTES
            or abs(self.bytes_held - before.bytes_held) > _MOVED_BYTES
        )


def work_of(process: psutil.Process) -> Work:
    """Of a process and everything below it."""
    pids, cpu_s, moved, held = set(), 0.0, 0, 0
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            pids.add(member.pid)
            cpu_s += times.user + times.system
            held += member.memory_info().rss
            if hasattr(member, "io_counters"):
                with contextlib.suppress(psutil.AccessDenied):
                    moved += _moved(member)
    return Work(frozenset(pids), cpu_s, moved, held)


def _moved(process: psutil.Process) -> int:
    """What was mapped counts when it is fetched from the disk, all else when it is called for."""
    io = process.io_counters()
    called_for: int = getattr(io, "read_chars", 0) + getattr(io, "write_chars", 0)
    return called_for + int(io.read_bytes)


async def until_standstill(process: psutil.Process, limit_s: float = LIMIT_S) -> None:
    """Return when a process and everything below it have done nothing for so long."""
    interval_s = limit_s / _LOOKS
    before, idle = work_of(process), 0
    while idle < _LOOKS:
        await asyncio.sleep(interval_s)
        now = work_of(process)
        idle = 0 if now.differs(before, interval_s) else idle + 1
        before = now
