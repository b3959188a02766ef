"""`headrace worker`: one engine, taking Jobs from the broker."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any, Final

import click
import structlog
import uvloop
from prometheus_client import start_http_server

from schemas import telemetry
from schemas.blobs.base import BlobStore
from schemas.model_card import served_id
from schemas.options import (
    READY_OPTION,
    Logs,
    amqp_option,
    blobs_option,
    log_options,
    option,
    supervise_option,
)
from schemas.process_metrics import ProcessMetrics
from schemas.tracing.tracing import Tracing, traced
from schemas.transport.base import SourceBroken
from schemas.transport.rabbit import BrokerUnreachable, RabbitJobSource, SourceSettings
from workers.compose import build_consumer, build_engine, new_worker_id
from workers.consumer import Consumer, EngineLost
from workers.metrics import WorkerMetrics
from workers.options import engine_options
from workers.settings import WorkerSettings
from workers.supervisor import end_now, supervise, tell_ready

_CLOSE_S: Final = 5.0
"""Time to say the last words when the engine is lost."""

log = structlog.get_logger()


@click.command()
@option(
    "--model",
    env="MODEL",
    required=True,
    help="Directory or hub id of the model (upstream: the name that server knows).",
)
@amqp_option
@blobs_option()
@engine_options
@option(
    "--grace",
    "grace_s",
    env="GRACE",
    type=click.FloatRange(min=0),
    default=30.0,
    help="Seconds that running requests may go on after SIGTERM.",
)
@option(
    "--metrics-port",
    env="METRICS_PORT",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics there.",
)
@option(
    "--metrics-host",
    env="METRICS_HOST",
    default="127.0.0.1",
    help="Address for --metrics-port; they tell model names and load to whoever reaches it.",
)
@log_options()
@supervise_option("its engine")
def worker(
    amqp_url: str,
    blobs: BlobStore | None,
    public_id: str | None,
    reasoning_parser: str | None,
    metrics_port: int | None,
    metrics_host: str,
    logs: Logs,
    supervised: bool,
    ready_fd: int | None,
    **values: Any,
) -> None:
    """Run one engine and serve Jobs from the broker until SIGTERM."""
    logs.configure()
    if supervised:
        arguments = sys.argv[2:] if sys.argv[1:2] == ["worker"] else sys.argv[1:]
        command = [sys.executable, "-m", "workers", *arguments, "--no-supervise"]
        grace_s = values["grace_s"] + 10
        sys.exit(supervise(command, name="worker", ready_option=READY_OPTION, grace_s=grace_s))
    if values["engine"] == "upstream" and not values["upstream_url"]:
        raise click.UsageError("--engine upstream needs --upstream-url")
    settings = WorkerSettings(
        served_id=public_id or served_id(values["model"]),
        reasoning_format=reasoning_parser,
        **values,
    )
    try:
        with traced("worker") as tracing:
            uvloop.run(
                serve(
                    settings,
                    amqp_url,
                    blobs,
                    metrics=(metrics_host, metrics_port),
                    ready_fd=ready_fd,
                    tracing=tracing,
                )
            )
    except (BrokerUnreachable, SourceBroken) as error:
        raise click.ClickException(str(error)) from None


async def serve(
    settings: WorkerSettings,
    amqp_url: str,
    blobs: BlobStore | None,
    *,
    metrics: tuple[str, int | None],
    ready_fd: int | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Load the model, connect, serve until SIGTERM or SIGINT.

    A lost engine ends the whole process, so that it is started again.
    """
    instruments = WorkerMetrics()
    host, port = metrics
    if port is not None:
        start_http_server(port, addr=host, registry=instruments.registry)
    engine = build_engine(settings)
    await engine.start()
    worker_id = new_worker_id()
    process = ProcessMetrics(instruments.registry)
    source = await RabbitJobSource.connect(
        amqp_url,
        model=settings.served_id,
        slots=engine.slots,
        settings=SourceSettings(
            batch_floor=settings.batch_floor, zero_retention=not settings.keeping
        ),
        name=worker_id,
        blobs=blobs,
    )
    consumer = build_consumer(
        settings, engine, source, worker_id=worker_id, metrics=instruments, tracing=tracing
    )
    process.watch(source)
    signals = Signals()  # after the engine's start: SGLang installs handlers while it does
    log.info(telemetry.WORKER_READY, worker=worker_id, model=settings.served_id)
    try:
        tell_ready(ready_fd)
        async with process.measuring():
            await run_until_told(consumer, signals, settings.grace_s)
    except EngineLost:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await source.close()
        if tracing is not None:
            tracing.close()  # what was lost is what somebody will want to see
        end_now(EngineLost.status)
    finally:
        await source.close()
        await engine.stop()


class Signals:
    """SIGTERM and SIGINT: the first asks to leave, the second to hurry."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurry if self.leave.is_set() else self.leave).set()


async def run_until_told(consumer: Consumer, signals: Signals, grace_s: float) -> None:
    """Serve until a signal, then drain; a second one ends the grace time.

    Raises:
        EngineLost: The engine died or hangs.
    """
    serving = asyncio.create_task(consumer.run())
    leaving, hurrying = (
        asyncio.create_task(event.wait()) for event in (signals.leave, signals.hurry)
    )
    try:
        await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
        draining = asyncio.create_task(consumer.drain(grace_s))
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await consumer.drain(0)
        await draining
        await serving
    finally:
        leaving.cancel()
        hurrying.cancel()


if __name__ == "__main__":
    worker()
