"""Our client held against a packaged load tool, AIPerf: the same load, and what each says of it.

What the two say of the engine itself is the difference of the clients. AIPerf looks into every
event while it measures, so its own time is in its figures: it must not say less than ours does.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from statistics import median

import msgspec
import uvloop
from rich.table import Table

from benchmarks.load import Connection, Samples, ask
from benchmarks.peers.base import Site, Unavailable
from benchmarks.processes import Target

_TOKENS, _GAP_MS, _STREAMS, _REPLIES = 64, 20, 32, 6
_TIMEOUT_S = 180


class _Metric(msgspec.Struct):
    p50: float


class _Report(msgspec.Struct):
    time_to_first_token: _Metric
    inter_token_latency: _Metric
    request_latency: _Metric


def compare(targets: list[Target], site: Site) -> Table:
    """What both say of each.

    Raises:
        BadReply: A reply was wrong.
        Unavailable: AIPerf is not to be had here.
    """
    out = Table(title=f"{_STREAMS} streams, a token every {_GAP_MS} ms: p50, ms")
    for column in ("", "client", "TTFT", "between tokens", "whole reply"):
        out.add_column(column, justify="left" if column in ("", "client") else "right")
    for target in targets:
        ours = uvloop.run(_ours(target))
        for client, figures in (("ours", ours), ("aiperf", _aiperf(target, site))):
            out.add_row(target.name, client, *(f"{figure:.1f}" for figure in figures))
    return out


async def _ours(target: Target) -> tuple[float, float, float]:
    asked = ask(target.model, tokens=_TOKENS, gap_ms=_GAP_MS, key=target.key)
    samples, took_s = Samples(), list[float]()

    async def run() -> None:
        connection = await Connection.open(target.port, samples)
        for _ in range(_REPLIES):
            begun = time.monotonic()
            await connection.run(asked)
            took_s.append(time.monotonic() - begun)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_STREAMS):
            group.create_task(run())
    ttft, whole = median(samples.ttft_s), median(took_s)
    return ttft * 1000, (whole - ttft) / (_TOKENS - 1) * 1000, whole * 1000


def _aiperf(target: Target, site: Site) -> tuple[float, float, float]:
    program = site.installed(".venv-load", "aiperf")
    place = site.place / f"aiperf-{target.name}"
    place.mkdir(exist_ok=True)
    prompts = place / "prompts.jsonl"
    prompts.write_bytes(
        msgspec.json.encode({"text": f"[[k={_TOKENS} gap={_GAP_MS} ttft=0]]"}) + b"\n"
    )
    command = [
        *(program, "profile", "--model", target.model, "--url", f"http://127.0.0.1:{target.port}"),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", str(_STREAMS)),
        *("--request-count", str(_STREAMS * _REPLIES), "--workers-max", "2"),
        *("--input-file", str(prompts), "--custom-dataset-type", "single_turn"),
        *("--tokenizer", str(_tokenizer()), "--use-server-token-count"),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--artifact-dir", str(place)),
    ]
    if target.key is not None:
        command += ["--api-key", target.key]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    report = place / "profile_export_aiperf.json"
    if done.returncode or not report.exists():
        raise Unavailable(done.stdout[-500:].decode(errors="replace"))
    said = msgspec.json.decode(report.read_bytes(), type=_Report)
    return (
        said.time_to_first_token.p50,
        said.inter_token_latency.p50,
        said.request_latency.p50,
    )


def _tokenizer() -> Path:
    """Some tokenizer of this machine: it wants one, though the server counts."""
    try:
        from tests.tiny_model import cached

        return cached()
    except ImportError as error:
        raise Unavailable(f"no tokenizer: {error}") from None
