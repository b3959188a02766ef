"""A worker for `benchmarks.sharing` that can also drive its engine directly.

It serves Jobs from the broker as any worker. Lines on its standard input change what it does:
`direct SECONDS` drives the engine with the same requests and nothing in between, and answers with
tokens per second; `share X` sets what batch work may have beside live requests.
"""

from __future__ import annotations

import asyncio
import sys
import time

import click
import msgspec
import uvloop

from benchmarks.sharing_jobs import Shape, batch_job
from schemas import telemetry
from schemas.job import TokenPrompt
from schemas.transport.rabbit import RabbitJobSource
from workers.compose import build_consumer, build_engine
from workers.engines.base import Engine, EngineRequest
from workers.metrics import WorkerMetrics
from workers.options import parse_engine_args
from workers.settings import WorkerSettings
from workers.sharing import Shares


class Direct:
    """Keeps every slot of an engine busy, with no worker around it."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        self._engine = engine
        self._shape = shape
        self._tokens = 0

    async def measure(self, seconds: float) -> float:
        """Tokens per second, after a moment in which the slots fill."""
        slots = [asyncio.create_task(self._keep_busy()) for _ in range(self._engine.slots)]
        await asyncio.sleep(1)
        begun, before = time.monotonic(), self._tokens
        await asyncio.sleep(seconds)
        rate = (self._tokens - before) / (time.monotonic() - begun)
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)
        return rate

    async def _keep_busy(self) -> None:
        while True:
            job = batch_job(self._engine.card.id, self._shape)
            assert isinstance(job.prompt, TokenPrompt)
            request = EngineRequest(
                engine_request_id=job.job_id,
                job=job,
                prompt_ids=job.prompt.prompts[0],
                max_tokens=self._shape.output_tokens,
            )
            async for chunk in self._engine.generate(request):
                self._tokens += chunk.output_tokens


async def serve(settings: WorkerSettings, amqp_url: str, shape: Shape) -> None:
    engine = build_engine(settings)
    await engine.start()
    source = await RabbitJobSource.connect(
        amqp_url, model=settings.served_id, slots=engine.slots, name="bench"
    )
    metrics = WorkerMetrics()
    consumer = build_consumer(settings, engine, source, worker_id="bench", metrics=metrics)
    consuming = asyncio.create_task(consumer.run())
    direct = Direct(engine, shape)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _say("ready")
    while line := await lines.readline():
        command, _, value = line.decode().strip().partition(" ")
        match command:
            case "direct":
                _say(f"{await direct.measure(float(value))}")
            case "share":
                shares = Shares.of(engine.slots, share=float(value), floor=settings.batch_floor)
                consumer.sharing.shares = shares
                _say("set")
            case "yielded":
                _say(str(consumer.sharing.yielded))
    await consumer.drain(0)
    await consuming
    await source.close()
    await engine.stop()


def _say(answer: str) -> None:
    print(f"answer {answer}", flush=True)


@click.command()
@click.option("--model", required=True)
@click.option("--served-id", required=True)
@click.option("--amqp-url", required=True)
@click.option("--slots", type=int, required=True)
@click.option("--shape", required=True, help="A Shape as JSON.")
@click.option("--engine-arg", "engine_args", multiple=True, callback=parse_engine_args)
def main(
    model: str,
    served_id: str,
    amqp_url: str,
    slots: int,
    shape: str,
    engine_args: dict[str, object],
) -> None:
    telemetry.configure_logging("warning")
    settings = WorkerSettings(
        model=model, served_id=served_id, concurrency=slots, engine_args=engine_args
    )
    uvloop.run(serve(settings, amqp_url, msgspec.json.decode(shape, type=Shape)))


if __name__ == "__main__":
    main()
