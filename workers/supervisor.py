"""Keep one child process running, and leave nothing of it behind.

An engine can take its whole process down: SGLang kills the process that embeds it when its
scheduler dies, and a killed process leaves its own children (scheduler, detokenizer) holding the
GPU. So a worker runs as the child of this small parent, which starts it again when it dies, and
makes sure that every process it started is gone before that.

The parent becomes the reaper of all its descendants (`PR_SET_CHILD_SUBREAPER`), so none of them can
escape to init, whatever sessions and groups they make for themselves; and the child is killed by
the kernel when the parent dies (`PR_SET_PDEATHSIG`). Both are Linux's; elsewhere the child's
process group and a last look through its descendants have to do.

Must not know what it supervises.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import psutil
import structlog

USAGE_ERROR = 2
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.2
_MAX_DELAY_S = 30.0
_KILL_TIMEOUT_S = 30.0

log = structlog.get_logger(__name__)


def supervise(
    command: Sequence[str],
    *,
    name: str,
    ready_option: str | None = None,
    grace_s: float = 60.0,
    first_delay_s: float = 1.0,
    healthy_after_s: float = 60.0,
    max_quick_failures: int = 5,
) -> int:
    """Run `command` until it ends well or is asked to stop, starting it again when it fails.

    It blocks, and it takes over this process's signal handlers, so it belongs in the main thread of
    a process that does nothing else.

    Args:
        command: argv of the child.
        name: What the log calls it.
        ready_option: Given to the child with the descriptor for `tell_ready`; None for a child that
            cannot tell. One that has told was well, however short its life: it is started again
            after the first pause each time, and never given up.
        grace_s: How long the child has, after a signal was passed on, before all of it is killed.
        first_delay_s: Pause before the first restart; doubled at each quick failure, to 30 s.
        healthy_after_s: A child that lived this long has started well: its failure begins the count
            of quick failures anew.
        max_quick_failures: Quick failures in a row, before it ever served, after which it gives up.

    Returns:
        The exit status for this process: the child's own when it ended by itself with 0 or with a
        usage error (2), or was asked to stop; else its last one, after giving up.
        Death by signal N is 128 + N, as a shell has it.
    """
    _adopt_descendants()
    stop = _StopRequest(grace_s)
    quick_failures = 0
    with stop.handling_signals():
        while True:
            started = time.monotonic()
            status, served = _run_once(command, stop, ready_option)
            lived_s = time.monotonic() - started
            if stop.requested or status in (0, USAGE_ERROR):
                return status
            if served:
                quick_failures = 0
            else:
                quick_failures = 1 if lived_s >= healthy_after_s else quick_failures + 1
            if quick_failures >= max_quick_failures:
                log.error(
                    "supervisor.gave_up",
                    name=name,
                    status=status,
                    failures=quick_failures,
                    reason="it keeps failing soon after its start; its own last lines say why",
                )
                return status
            delay_s = min(first_delay_s * 2 ** max(0, quick_failures - 1), _MAX_DELAY_S)
            log.warning(
                "supervisor.restarting",
                name=name,
                status=status,
                served=served,
                lived_s=round(lived_s, 1),
                delay_s=delay_s,
            )
            if stop.wait(delay_s):
                return status


def tell_ready(descriptor: int | None) -> None:
    """Tell the supervisor, if there is one, that this process has begun to serve."""
    if descriptor is not None:
        with suppress(OSError):  # a supervisor that is gone needs no telling
            os.write(descriptor, b"r")
            os.close(descriptor)


def end_now(status: int) -> NoReturn:
    """End this process at once: what is left of a broken engine may never end by itself.

    Threads are not waited for, and children are left to the supervisor.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with_parent() -> None:
    """Have the kernel kill this process when the process that started it ends (Linux only)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _StopRequest:
    """Whether we were asked to stop, and how; passes it on to the child and times its grace.

    It signals by pid, not with `Popen.send_signal`, which would collect a child that has ended;
    only `_kill_all` does that, so the pid is never somebody else's.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._undelivered: int | None = None
        self._kill_at: float | None = None

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self._kill_at is not None

    @property
    def overdue(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    @contextmanager
    def passed_on_to(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        self._child = child
        if (number := self._undelivered) is not None:  # it came while there was no child
            self._undelivered = None
            os.kill(child.pid, number)
        try:
            yield
        finally:
            self._child = None

    def wait(self, seconds: float) -> bool:
        """Sleep; True as soon as a stop is requested."""
        until = time.monotonic() + seconds
        while not self.requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return self.requested

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
        if self._child is None:
            self._undelivered = number
        else:  # every time: many programs stop at once when they are told a second time
            os.kill(self._child.pid, number)


def _run_once(
    command: Sequence[str], stop: _StopRequest, ready_option: str | None
) -> tuple[int, bool]:
    """Run the child to its end, or to the end of its grace time, and clear away what it left.

    Returns:
        Its exit status, and whether it has told that it serves.
    """
    ready, told = os.pipe()
    os.set_blocking(ready, False)
    if ready_option is not None:
        command = [*command, ready_option, str(told)]
    try:
        child = subprocess.Popen(
            command,
            start_new_session=True,
            pass_fds=(told,),
            preexec_fn=_child_setup(os.getpid()),
        )
        try:
            with stop.passed_on_to(child):
                while not stop.overdue and not _ended(child):
                    time.sleep(_POLL_S)
        finally:
            _kill_all(child)
        status = child.wait()
        served = False
        with suppress(BlockingIOError):
            served = bool(os.read(ready, 1))
    finally:
        os.close(ready)
        os.close(told)
    return status if status >= 0 else 128 - status, served


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended; collects adopted orphans that have."""
    while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if ended.si_pid == child.pid:
            return True
        os.waitpid(ended.si_pid, 0)
    return False


def _child_setup(parent: int) -> Callable[[], None]:
    def setup() -> None:
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return setup


def _adopt_descendants() -> None:
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's group and every descendant, until none is left.

    A killed process hands its children to us, and one caught in the middle of a fork may have a
    child that the last look missed; so it looks again until there is nothing to see.
    """
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    give_up_at = time.monotonic() + _KILL_TIMEOUT_S
    while left := psutil.Process().children(recursive=True):
        if time.monotonic() >= give_up_at:  # stuck in the kernel; waiting longer frees nothing
            log.error("supervisor.cannot_kill", pids=[process.pid for process in left])
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
