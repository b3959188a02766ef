"""Batch work beside live requests: what live ones notice of it, and what of the engine it gets.

One run on one machine: a broker, an ingress, a worker with a real SGLang engine, and here both the
clients of live requests (over HTTP) and the owner of saturating batch work. In each round take
turns, in short phases, so that whatever else the machine does falls on all of them alike:

    direct    the engine driven directly, every slot busy        tokens per second
    batch     batch work alone, over the broker                  tokens per second, to direct
    idle      live requests alone                                TTFT
    share X   live requests with saturating batch work behind    TTFT, to idle; tokens per second

`share X` is a worker's `--batch-share`. TTFT is from the request's last byte to the first text.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median

import aiohttp
import click
import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.load import BadReply, percentile
from benchmarks.processes import broker, running
from benchmarks.sharing_jobs import Shape, batch_job
from ingress.generation import Generation
from ingress.settings import TimeLimits
from schemas.delta import Completed
from schemas.telemetry import configure_logging
from schemas.transport.rabbit import RabbitDispatcher
from tests.fixtures.ports import free_port

MODEL = "bench"
_START_TIMEOUT_S = 300.0
_SETTLE_S = 1.5
"""After a change: slots fill or become empty, and the calm after live requests is over."""

console = Console(width=None if sys.stdout.isatty() else 100)


class Worker:
    """The worker process, and what it is told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    async def ask(self, command: str) -> str:
        self._stdin.write(f"{command}\n".encode())
        return await self.answer()

    async def end(self) -> None:
        self._stdin.close()  # it ends by itself then
        try:
            async with asyncio.timeout(30):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def answer(self) -> str:
        """The next one.

        Raises:
            BadReply: The worker has ended.
        """
        while line := await self._stdout.readline():
            if line.startswith(b"answer "):
                return line[7:].decode().strip()
        raise BadReply("the worker has ended")


class BatchLoad:
    """Keeps twice as many batch Jobs out as the worker has slots.

    Attributes:
        tokens: That have come back so far.
    """

    def __init__(self, dispatcher: RabbitDispatcher, slots: int, shape: Shape) -> None:
        self._dispatcher = dispatcher
        self._window = 2 * slots
        self._shape = shape
        self.tokens = 0

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        owners = [asyncio.create_task(self._keep_out_one()) for _ in range(self._window)]
        await asyncio.sleep(_SETTLE_S)
        try:
            yield
            for owner in owners:
                if owner.done():
                    owner.result()
        finally:
            for owner in owners:
                owner.cancel()
            await asyncio.gather(*owners, return_exceptions=True)
            await asyncio.sleep(_SETTLE_S)

    async def _keep_out_one(self) -> None:
        limits = TimeLimits(queue_wait_s=3600, first_token_s=600)
        while True:
            generation = Generation(self._dispatcher, batch_job(MODEL, self._shape), limits)
            try:
                await generation.start()
                told, ended = 0, False
                while not ended:
                    ended = isinstance((await generation.receive())[-1], Completed)
                    tokens = generation.usage.output_tokens
                    self.tokens += tokens - told
                    told = tokens
                if told != self._shape.output_tokens:
                    raise BadReply(f"a batch Job has {told} tokens")
            finally:
                await generation.close()


class LiveLoad:
    """Requests at random times, as many as come; none waits for another."""

    def __init__(self, url: str, shape: Shape, every_s: float) -> None:
        self._url = url
        self._shape = shape
        self._every_s = every_s

    async def run(self, session: aiohttp.ClientSession, seconds: float) -> list[float]:
        """TTFT of each request of so many seconds."""
        ends_at = time.monotonic() + seconds
        asked: list[asyncio.Task[float]] = []
        while (wait_s := random.expovariate(1 / self._every_s)) + time.monotonic() < ends_at:
            await asyncio.sleep(wait_s)
            asked.append(asyncio.create_task(self._ask(session)))
        return list(await asyncio.gather(*asked))

    async def _ask(self, session: aiohttp.ClientSession) -> float:
        body = {
            "model": MODEL,
            "stream": True,
            "prompt": self._shape.prompt(self._shape.prompt_tokens),
            "max_tokens": self._shape.output_tokens,
        }
        begun = time.monotonic()
        first: float | None = None
        seen = b""
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            async for piece in response.content.iter_any():
                seen = seen[-16:] + piece
                if first is None and b'"text"' in seen:
                    first = time.monotonic() - begun
        if first is None or b"[DONE]" not in seen:
            raise BadReply("a live request has failed")
        return first


class Measured:
    """What the phases have shown, by phase."""

    def __init__(self) -> None:
        self.rates: defaultdict[str, list[float]] = defaultdict(list)
        self.ttft_s: defaultdict[str, list[float]] = defaultdict(list)
        self.yields: defaultdict[str, int] = defaultdict(int)

    def table(self, title: str) -> Table:
        out = Table(title=title)
        out.add_column("", no_wrap=True)
        for column in ("TTFT p50", "p95", "p95 to idle", "requests", "yields"):
            out.add_column(column, justify="right")
        out.add_column("batch tokens/s", justify="right")
        out.add_column("to direct", justify="right")
        direct = median(self.rates["direct"])
        idle_p95 = percentile(self.ttft_s["idle"], 0.95)
        for phase in dict.fromkeys(("direct", "batch", "idle", *self.rates)):
            ttft = self.ttft_s[phase]
            p95 = percentile(ttft, 0.95) if ttft else 0.0
            rate = median(self.rates[phase]) if phase in self.rates else None
            out.add_row(
                phase,
                f"{percentile(ttft, 0.5) * 1000:.1f} ms" if ttft else "",
                f"{p95 * 1000:.1f} ms" if ttft else "",
                f"{p95 / idle_p95:.2f}" if ttft else "",
                str(len(ttft)) if ttft else "",
                str(self.yields[phase]) if phase in self.yields else "",
                f"{rate:.0f}" if rate is not None else "",
                f"{rate / direct:.2f}" if rate is not None else "",
            )
        return out


async def measure(
    worker: Worker,
    url: str,
    amqp_url: str,
    *,
    slots: int,
    shapes: tuple[Shape, Shape],
    shares: Sequence[float],
    rounds: int,
    seconds: float,
    live_every_s: float,
) -> Measured:
    batch_shape, live_shape = shapes
    dispatcher = await RabbitDispatcher.connect(amqp_url, name="bench")
    batch = BatchLoad(dispatcher, slots, batch_shape)
    live = LiveLoad(url, live_shape, live_every_s)
    seen = Measured()
    async with aiohttp.ClientSession() as session:
        await _until_ready(session, url)
        await live.run(session, 5 * live_every_s)
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            seen.rates["direct"].append(float(await worker.ask(f"direct {seconds}")))
            async with batch.on():
                begun, before = time.monotonic(), batch.tokens
                await asyncio.sleep(seconds)
                rate = (batch.tokens - before) / (time.monotonic() - begun)
                seen.rates["batch"].append(rate)
            seen.ttft_s["idle"] += await live.run(session, seconds)
            for share in shares:
                phase = f"share {share:g}"
                await worker.ask(f"share {share}")
                async with batch.on():
                    yielded = int(await worker.ask("yielded"))
                    begun, before = time.monotonic(), batch.tokens
                    seen.ttft_s[phase] += await live.run(session, seconds)
                    rate = (batch.tokens - before) / (time.monotonic() - begun)
                    seen.rates[phase].append(rate)
                    seen.yields[phase] += int(await worker.ask("yielded")) - yielded
    await dispatcher.close()
    return seen


async def _until_ready(session: aiohttp.ClientSession, url: str) -> None:
    """Raises: TimeoutError if it does not become ready."""
    async with asyncio.timeout(_START_TIMEOUT_S):
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _worker(arguments: Sequence[str]) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.sharing_worker", *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    worker = Worker(process)
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await worker.answer()
        yield worker
    finally:
        await worker.end()


def _tiny_model() -> str:
    from tests import tiny_model

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # noqa: TID251 - too small to share its work out
    return str(tiny_model.cached())


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="Default: the tests' tiny model.")
@click.option("--vocab-size", default=4000, help="Random ids of prompts are below.")
@click.option("--slots", default=8, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Of each phase.")
@click.option("--share", "shares", type=float, multiple=True, default=(1.0, 0.5, 0.25, 0.0))
@click.option("--live-every", "live_every_s", default=0.5, show_default=True)
@click.option("--batch-tokens", nargs=2, default=(64, 200), show_default=True, help="In, out.")
@click.option("--live-tokens", nargs=2, default=(256, 32), show_default=True, help="In, out.")
@click.option("--engine-arg", "engine_args", multiple=True, metavar="NAME=VALUE")
@click.option("--amqp-url", help="Default: a throwaway RabbitMQ node.")
def main(
    model: Path | None,
    vocab_size: int,
    slots: int,
    rounds: int,
    seconds: float,
    shares: tuple[float, ...],
    live_every_s: float,
    batch_tokens: tuple[int, int],
    live_tokens: tuple[int, int],
    engine_args: tuple[str, ...],
    amqp_url: str | None,
) -> None:
    """Measure live TTFT beside batch work, and batch throughput, in one interleaved run."""
    configure_logging("warning")
    shapes = tuple(
        Shape(prompt_tokens=given, output_tokens=wanted, vocab_size=vocab_size)
        for given, wanted in (batch_tokens, live_tokens)
    )
    directory = str(model) if model else _tiny_model()
    port = free_port()
    with broker(amqp_url) as (url, _):
        arguments = ["--model", directory, "--served-id", MODEL, "--amqp-url", url]
        arguments += ["--slots", str(slots), "--shape", msgspec.json.encode(shapes[0]).decode()]
        for argument in engine_args:
            arguments += ["--engine-arg", argument]

        async def run() -> Measured:
            async with _worker(arguments) as worker:
                return await measure(
                    worker,
                    f"http://127.0.0.1:{port}",
                    url,
                    slots=slots,
                    shapes=(shapes[0], shapes[1]),
                    shares=shares,
                    rounds=rounds,
                    seconds=seconds,
                    live_every_s=live_every_s,
                )

        ingress = ("ingress", "ingress", "--amqp-url", url, "--host", "127.0.0.1")
        with running("ingress", *ingress, "--port", str(port), "--log-level", "warning"):
            seen = uvloop.run(run())
    console.print(seen.table(f"{slots} slots, a live request every {live_every_s:g} s on average"))


if __name__ == "__main__":
    main()
