"""A service for clients in other processes, in either dialect profile, and how they are run.

Not part of `make test`: these clients are installed by `make test-clients`, which see. Nothing here
reaches any host but this one: the clients' homes are empty directories, and their proxies lead
nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.transport.memory import MemoryTransport
from tests.fixtures.stack import MODEL, Pod, run_worker, serve_pod, until
from workers.engines.scripted import CAPABILITIES, ScriptedEngine

HERE = Path(__file__).parent
NODE = HERE / "node_modules" / ".bin"
VISION_MODEL = "demo-vision-model"
SEEING = msgspec.structs.replace(CAPABILITIES, vision=True)


@dataclass
class Service:
    """A running Headrace with two models, and the place where a client may write."""

    profile: str
    url: str
    home: Path
    pod: Pod = field(repr=False)


@pytest.fixture(params=["wafer", "official"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    memory = MemoryTransport()
    engines = [
        ScriptedEngine(served_id=MODEL),
        ScriptedEngine(served_id=VISION_MODEL, capabilities=SEEING),
    ]
    async with AsyncExitStack() as exits:
        dispatcher = memory.dispatcher()
        exits.push_async_callback(dispatcher.close)
        for engine in engines:
            source = memory.job_source(model=engine.card.id, slots=engine.slots)
            exits.push_async_callback(source.close)
            await exits.enter_async_context(run_worker(engine, source, name=engine.card.id))
        pod = await exits.enter_async_context(serve_pod(dispatcher, profile=request.param))
        await until(lambda: len(pod.services.dispatcher.workers()) == len(engines))
        yield Service(request.param, pod.url, tmp_path, pod)


async def run_client(
    service: Service, command: Sequence[str | Path], *, env: dict[str, str] | None = None
) -> str:
    """Run a program to its end; returns what it printed.

    Fails the test when it does not end well within two minutes.
    """
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=service.home,
        env={
            "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(service.home),
            "NO_PROXY": "127.0.0.1",
            "HTTPS_PROXY": "http://127.0.0.1:9",  # the discard port: nothing listens there
            **(env or {}),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    told = out.decode(errors="replace")
    assert process.returncode == 0, f"{told[-3000:]}\n{err.decode(errors='replace')[-3000:]}"
    return told


async def run_script(service: Service, interpreter: Path | str, *arguments: str | Path) -> Any:
    """Run one of the scripts beside this file; returns the JSON object in its last line."""
    told = await run_client(service, [interpreter, *arguments])
    return json.loads(told.strip().splitlines()[-1])


def node() -> Path:
    """The Node.js that comes with the clients."""
    return _installed(NODE / "node")


def python(environment: str) -> Path:
    """The Python of one of the clients' environments."""
    root = Path(os.environ.get("HEADRACE_CLIENTS", HERE.parents[1]))
    return _installed(root / environment / "bin" / "python")


def _installed(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path.name} of the clients is not installed: run `make test-clients`")
    return path
