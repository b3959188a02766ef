"""`headrace worker`: one engine, taking Jobs from the broker."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click
import structlog
import uvloop
from prometheus_client import start_http_server

from schemas import telemetry
from schemas.blobs.base import BlobStore
from schemas.blobs.directory import DirectoryStore
from schemas.model_card import served_id
from schemas.options import AmqpUrl, blobs_option, log_level_option, option, supervise_option
from schemas.transport.rabbit import BrokerUnreachable, RabbitJobSource
from workers.compose import build_consumer, build_engine, new_worker_id
from workers.metrics import WorkerMetrics
from workers.options import engine_options
from workers.settings import WorkerSettings
from workers.supervisor import supervise

log = structlog.get_logger()


@click.command()
@option(
    "--model",
    env="MODEL",
    required=True,
    help="Directory or hub id of the model (upstream: the name that server knows).",
)
@option(
    "--amqp-url",
    env="AMQP_URL",
    type=AmqpUrl(),
    required=True,
    help="The broker, such as amqp://user:password@host:5672/vhost.",
)
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
@log_level_option()
@supervise_option("its engine")
def worker(
    amqp_url: str,
    blobs: DirectoryStore | None,
    public_id: str | None,
    reasoning_parser: str | None,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str,
    supervised: bool,
    **values: Any,
) -> None:
    """Run one engine and serve Jobs from the broker until SIGTERM."""
    telemetry.configure_logging(log_level)
    if supervised:
        arguments = sys.argv[2:] if sys.argv[1:2] == ["worker"] else sys.argv[1:]
        command = [sys.executable, "-m", "workers", *arguments, "--no-supervise"]
        sys.exit(supervise(command, name="worker", grace_s=values["grace_s"] + 10))
    if values["engine"] == "upstream" and not values["upstream_url"]:
        raise click.UsageError("--engine upstream needs --upstream-url")
    settings = WorkerSettings(
        served_id=public_id or served_id(values["model"]),
        reasoning_format=reasoning_parser,
        **values,
    )
    try:
        uvloop.run(serve(settings, amqp_url, blobs, metrics=(metrics_host, metrics_port)))
    except BrokerUnreachable as error:
        raise click.ClickException(str(error)) from None


async def serve(
    settings: WorkerSettings,
    amqp_url: str,
    blobs: BlobStore | None,
    *,
    metrics: tuple[str, int | None],
) -> None:
    """Load the model, connect, serve until SIGTERM or SIGINT."""
    instruments = WorkerMetrics()
    host, port = metrics
    if port is not None:
        start_http_server(port, addr=host, registry=instruments.registry)
    engine = build_engine(settings)
    await engine.start()
    worker_id = new_worker_id()
    source = await RabbitJobSource.connect(
        amqp_url, model=settings.served_id, slots=engine.slots, name=worker_id, blobs=blobs
    )
    consumer = build_consumer(settings, engine, source, worker_id=worker_id, metrics=instruments)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # After the engine has started: SGLang installs handlers of its own while it does.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(consumer.run())
    stopping = asyncio.create_task(stop.wait())
    log.info(telemetry.WORKER_READY, worker=worker_id, model=settings.served_id)
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await consumer.drain(settings.grace_s)
        await serving
    finally:
        stopping.cancel()
        await source.close()
        await engine.stop()


if __name__ == "__main__":
    worker()
