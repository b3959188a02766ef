"""The machine: ports, files that may be open, memory between processes, and GPUs."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
import socket
from pathlib import Path
from typing import Final

import aiohttp

from ingress.doctor.finding import Finding, fail, ok, warn

_TIMEOUT = aiohttp.ClientTimeout(total=3)
_SPARE_FILES: Final = 256
"""For the broker, the database, blobs and uploads."""

_LEAST_SHM: Final = 1 << 30
_NVIDIA: Final = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


async def port_finding(host: str, port: int, path: str, sign: str) -> Finding:
    """Whether a port can be listened on, or one of ours listens there already.

    Args:
        host: Address to listen on.
        port: There.
        path: What one of ours answers there.
        sign: What is in its answer.
    """
    place = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            if await _is_ours(port, path, sign):
                return ok("port", f"{place} is taken by a Headrace that runs")
            advice = "End what listens there, or choose another port."
            return fail("port", f"{place} is taken by something else", advice)
        return fail("port", f"{place} cannot be listened on: {error.strerror}", "Choose another.")
    return ok("port", f"{place} is free")


async def _is_ours(port: int, path: str, sign: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return sign in await answer.text()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return False


def open_files_finding(connections: int) -> Finding:
    """Whether this process may hold so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ok("open files", f"{soft} may be open, {needed} are needed at most")
    return warn(
        "open files",
        f"{soft} may be open; {connections} clients at once need {needed}",
        f"Raise it (ulimit -n {needed}, LimitNOFILE=, ulimits: in compose; the system allows "
        f"{hard}), or lower --max-concurrent.",
    )


def shared_memory_finding(place: Path = Path("/dev/shm")) -> Finding:
    """Whether SGLang's processes have room to speak through."""
    advice = "docker run --shm-size 8g; shm_size in compose; an emptyDir of medium Memory."
    try:
        room = shutil.disk_usage(place).total
    except OSError as error:
        return warn("shared memory", f"there is no {place}: {error.strerror}", advice)
    text = f"{place} has {room / (1 << 30):.1f} GiB"
    if room < _LEAST_SHM:
        return warn("shared memory", f"{text}; SGLang with several GPUs needs more", advice)
    return ok("shared memory", text)


async def gpu_memory() -> tuple[int, ...]:
    """Bytes of each NVIDIA GPU; none where there is none, or its driver cannot be asked."""
    try:
        asked = await asyncio.create_subprocess_exec(
            *_NVIDIA, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(20):
            printed, _ = await asked.communicate()
    except (OSError, TimeoutError):
        return ()
    lines = printed.decode(errors="replace").split()
    return tuple(int(line) << 20 for line in lines if line.isdigit())
