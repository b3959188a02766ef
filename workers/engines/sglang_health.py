"""Notices that SGLang can generate no more, before its own way of telling: killing the worker.

A process that ended is noticed at once, as the kernel tells of it. A hang is what nothing else can
explain: requests are inside, yet for a while no output has come, the scheduler has made no step
that it told of, and no process of SGLang has used a processor. Long steps and compilers use one. Or
the scheduler has generated tokens all the while and none has come: then the detokenizer hangs. A
scheduler that spins without end is left to SGLang's own watchdog.

Source: `sglang.srt.managers.load_snapshot`, `sglang.srt.utils.watchdog`, version 0.5.23.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import psutil
import structlog

log = structlog.get_logger()

HANG_S: Final = 60.0

LAST_WORDS_S: Final = 60.0
"""How long the worker may take to tell everybody and end, before it is made to."""

_POLL_S: Final = 0.2
_LOOKS: Final = 10
"""How often a hang is looked for within its time."""

_BUSY: Final = 0.2
"""Share of one processor, used by all processes together, from which on they are at work."""


class Failure:
    """That SGLang has failed, once it has. The worker then ends, by itself or by force.

    Args:
        end: Ends this process and its children.
    """

    def __init__(self, end: Callable[[], object], *, last_words_s: float = LAST_WORDS_S) -> None:
        self._timer = threading.Timer(last_words_s, end)
        self._timer.daemon = True
        self._told = asyncio.Event()
        self._reason = ""

    @property
    def told(self) -> bool:
        return self._told.is_set()

    def tell(self, reason: str) -> None:
        """Only the first reason counts. Must be called in the event loop."""
        if self.told:
            return
        log.error("engine.failed", reason=reason)
        self._reason = reason
        self._told.set()
        self._timer.start()

    async def wait(self) -> str:
        """Wait for it; the reason."""
        await self._told.wait()
        return self._reason

    def close(self) -> None:
        """It is being stopped in order: no force is needed any more."""
        self._timer.cancel()


class Health:
    """Watches SGLang's processes from the worker.

    Args:
        manager: SGLang's tokenizer manager.
        pids: Of all of SGLang's processes.
        hang_s: How long nothing may happen while there are requests.
    """

    def __init__(
        self, failure: Failure, manager: Any, pids: Sequence[int], *, hang_s: float
    ) -> None:
        self._failure = failure
        self._manager = manager
        self._pids = tuple(pids)
        self._interval_s = hang_s / _LOOKS
        self._descriptors: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for pid in self._pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._failure.tell(_ENDED)
                continue
            except (AttributeError, OSError):  # not on this system
                self._tasks.append(asyncio.create_task(self._poll(pid)))
                continue
            self._descriptors.append(descriptor)
            loop.add_reader(descriptor, self._ended, descriptor)
        self._tasks.append(asyncio.create_task(self._look_for_hangs()))

    async def stop(self) -> None:
        while self._descriptors:
            self._ended(self._descriptors[-1], tell=False)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _ended(self, descriptor: int, *, tell: bool = True) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._descriptors.remove(descriptor)
        os.close(descriptor)
        if tell:
            self._failure.tell(_ENDED)

    async def _poll(self, pid: int) -> None:
        while _lives(pid):  # noqa: ASYNC110 - without a descriptor there is nothing to wait for
            await asyncio.sleep(_POLL_S)
        self._failure.tell(_ENDED)

    async def _look_for_hangs(self) -> None:
        """Count looks, not seconds: clocks go on while this process itself stands still."""
        silence = _Silence(self._manager.last_receive_tstamp)
        while not silence.too_long:
            await asyncio.sleep(self._interval_s)
            received = self._manager.last_receive_tstamp
            if received != silence.since or not self._has_requests():
                silence = _Silence(received)
                continue
            used_s = await asyncio.to_thread(self._used_s)
            busy = used_s - silence.used_s > _BUSY * self._interval_s
            silence.look(self._manager.load_snapshot_reader.read_all(), busy=busy)
            silence.used_s = used_s
        self._failure.tell("it hangs")

    def _has_requests(self) -> bool:
        return any(state.dispatched for state in self._manager.rid_to_state.values())

    def _used_s(self) -> float:
        """Processor time of SGLang's processes and of what they have started."""
        used = 0.0
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = each.cpu_times()
                        used += times.user + times.system
        return used


class _Silence:
    """What has been seen since the last output.

    Attributes:
        since: Of the last output.
        used_s: Processor time at the last look.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.used_s = 0.0
        self._looks = 0
        self._still = 0
        self._told: list[float] = []
        self._decoded: list[Any] | None = None
        self._lost = False

    @property
    def too_long(self) -> bool:
        """The scheduler stands still, or what it has generated does not arrive."""
        return self._still > _LOOKS or (self._lost and self._looks > _LOOKS)

    def look(self, loads: Sequence[Any], *, busy: bool) -> None:
        """Take note of what each scheduler told last, and whether processors are used."""
        told = [load.timestamp for load in loads]
        idle = not any(load.num_running_reqs + load.num_waiting_reqs for load in loads)
        stands = told == self._told or idle
        self._still = self._still + 1 if stands and not busy else 0
        self._looks += 1
        if told != self._told and self._told:
            decoded = [load.decode_moments for load in loads]
            self._lost |= self._decoded not in (None, decoded)
            self._decoded = decoded
        self._told = told


def _lives(pid: int) -> bool:
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE


_ENDED: Final = "a process of it has ended"
