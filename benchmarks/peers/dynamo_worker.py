"""The scripted engine as a worker of Dynamo's; runs in Dynamo's environment, knows nothing of ours.

It obeys `[[k=64 gap=10 phase=3]]` and `[[hang:1]]` as `benchmarks.engine` does, and all streams
that are due at one instant are woken in one turn.

    python dynamo_worker.py NAME DIRECTORY-OF-A-MODEL
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop

# It is installed elsewhere, where this runs.
from dynamo.common.utils.runtime import create_runtime  # type: ignore[import-not-found]
from dynamo.llm import (  # type: ignore[import-not-found]
    ModelInput,
    ModelType,
    WorkerType,
    register_model,
)

_MARKS = re.compile(r"\[\[((?:\w+=\w+ ?)+)\]\]")
_HANG = re.compile(r"\[\[hang:(\d+)\]\]")
_ticks: dict[float, asyncio.Future[None]] = {}


async def _until(due: float) -> None:
    """Wait together with whoever is due at the same instant."""
    due = round(due, 4)  # one instant, by whichever sum it was found
    tick = _ticks.get(due)
    if tick is None:
        loop = asyncio.get_running_loop()
        tick = _ticks[due] = loop.create_future()
        loop.call_at(due, lambda: _ticks.pop(due).set_result(None))
    await asyncio.shield(tick)


def _chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


async def generate(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
    """Play what the last message asks for."""
    said = str(request["messages"][-1]["content"])
    found = _MARKS.findall(said)
    marks = dict(pair.split("=") for pair in found[-1].split()) if found else {}
    tokens, gap_s = int(marks.get("k", 64)), int(marks.get("gap", 0)) / 1000
    phase_s = int(marks.get("phase", 0)) / 1000
    hang = _HANG.search(said)
    due = 0.0
    if gap_s:
        due = (round((time.monotonic() - phase_s) / gap_s) + 1) * gap_s + phase_s
    for number in range(tokens):
        if hang and number == int(hang.group(1)):
            await asyncio.sleep(600)
        if gap_s:
            await _until(due + number * gap_s)
        if context.is_stopped():
            return
        yield _chunk({"role": "assistant", "content": f"tok{number} "})
    yield _chunk({}, "stop")


async def main() -> None:
    """Serve until the process is ended."""
    runtime, _ = create_runtime("file", "tcp")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    await register_model(
        ModelInput.Text,
        ModelType.Chat,
        endpoint,
        sys.argv[2],
        sys.argv[1],
        worker_type=WorkerType.Aggregated,
    )
    await endpoint.serve_endpoint(generate, graceful_shutdown=False)


if __name__ == "__main__":
    uvloop.run(main())
