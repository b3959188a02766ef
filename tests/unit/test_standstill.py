"""Real processes that work, move bytes, or do nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from workers.engines.standstill import until_standstill

# Long enough for a share of a processor to be told apart on a machine that is full.
LIMIT_S = 0.8

WORK = {
    "counts": "while True: pass",
    "writes": """
import os
with open(os.devnull, "wb", buffering=0) as nowhere:
    while True:
        nowhere.write(bytes(1 << 22))
        time.sleep(0.01)
""",
    "lets another one work": """
import subprocess
subprocess.run([sys.executable, "-c", "while True: pass"])
""",
}


@contextmanager
def running(code: str) -> Iterator[psutil.Process]:
    """A process that has begun to do so, and is killed with what it started."""
    begun = "import sys, time\nprint('begun', flush=True)\n"
    child = subprocess.Popen([sys.executable, "-c", begun + code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    process = psutil.Process(child.pid)
    try:
        child.stdout.readline()
        yield process
    finally:
        for member in (*process.children(recursive=True), process):
            member.kill()
        child.communicate()


async def test_a_process_that_does_nothing_is_noticed() -> None:
    with running("time.sleep(60)") as process:
        async with asyncio.timeout(20):
            await until_standstill(process, LIMIT_S)


@pytest.mark.parametrize("what", WORK)
async def test_one_that_does_something_is_not(what: str) -> None:
    with running(WORK[what]) as process, pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * LIMIT_S):
            await until_standstill(process, LIMIT_S)
