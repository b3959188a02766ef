"""`headrace worker`: one engine, taking Jobs from the broker."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click
import structlog
import uvloop
import yaml
from prometheus_client import start_http_server

from schemas import telemetry
from schemas.model_card import served_id
from schemas.transport.rabbit import BrokerUnreachable, RabbitJobSource, parse_url
from workers.compose import build_consumer, build_engine, new_worker_id
from workers.metrics import WorkerMetrics
from workers.settings import WorkerSettings
from workers.supervisor import supervise

log = structlog.get_logger()


def parse_engine_args(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """`name=value` pairs, values read as YAML scalars or lists."""
    args: dict[str, Any] = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator:
            raise click.BadParameter(f"{value!r} is not of the form name=value")
        args[name.strip().replace("-", "_")] = yaml.safe_load(text)
    return args


def check_amqp_url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A URL that can be a broker's."""
    try:
        if value is not None:
            parse_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command()
@click.option(
    "--model",
    required=True,
    envvar="HEADRACE_MODEL",
    show_envvar=True,
    help="Directory or hub id of the model (upstream: the name that server knows).",
)
@click.option(
    "--served-id",
    envvar="HEADRACE_SERVED_ID",
    show_envvar=True,
    help="Public id of the model. Default: the last part of a path, else --model.",
)
@click.option(
    "--engine",
    type=click.Choice(["sglang", "upstream", "scripted"]),
    default="sglang",
    show_default=True,
    envvar="HEADRACE_ENGINE",
    show_envvar=True,
    help="What generates tokens. `scripted` is for tests and load.",
)
@click.option(
    "--amqp-url",
    callback=check_amqp_url,
    required=True,
    envvar="HEADRACE_AMQP_URL",
    show_envvar=True,
    help="The broker, such as amqp://user:password@host:5672/vhost.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    envvar="HEADRACE_CONCURRENCY",
    show_envvar=True,
    help="Requests run at once; more wait in the queue.",
)
@click.option(
    "--engine-arg",
    "engine_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_engine_args,
    envvar="HEADRACE_ENGINE_ARGS",
    show_envvar=True,
    help="Any field of SGLang's ServerArgs. May be repeated.",
)
@click.option(
    "--upstream-url",
    envvar="HEADRACE_UPSTREAM_URL",
    show_envvar=True,
    help="Base URL of an OpenAI-compatible server, such as http://host:8001/v1.",
)
@click.option(
    "--upstream-api-key",
    envvar="HEADRACE_UPSTREAM_API_KEY",
    show_envvar=True,
    help="Key for that server.",
)
@click.option(
    "--reasoning-parser",
    envvar="HEADRACE_REASONING_PARSER",
    show_envvar=True,
    help="How the model marks its reasoning, by SGLang's names. Default: by template.",
)
@click.option(
    "--grace",
    "grace_s",
    type=float,
    default=30.0,
    show_default=True,
    envvar="HEADRACE_GRACE",
    show_envvar=True,
    help="Seconds that running requests may go on after SIGTERM.",
)
@click.option(
    "--metrics-port",
    type=int,
    envvar="HEADRACE_METRICS_PORT",
    show_envvar=True,
    help="Serve Prometheus metrics on this port.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    envvar="HEADRACE_METRICS_HOST",
    show_envvar=True,
    help="Address for --metrics-port; they tell model names and load to whoever reaches it.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    envvar="HEADRACE_LOG_LEVEL",
    show_envvar=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
)
@click.option(
    "--supervise/--no-supervise",
    "supervised",
    default=True,
    show_default=True,
    help="Run in a child process that is started again when its engine dies.",
)
def worker(
    amqp_url: str,
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
        command = [sys.executable, "-m", "ingress", *sys.argv[1:], "--no-supervise"]
        sys.exit(supervise(command, name="worker", grace_s=values["grace_s"] + 10))
    values["served_id"] = values["served_id"] or served_id(values["model"])
    if values["engine"] == "upstream" and not values["upstream_url"]:
        raise click.UsageError("--engine upstream needs --upstream-url")
    settings = WorkerSettings(reasoning_format=reasoning_parser, **values)
    try:
        uvloop.run(serve(settings, amqp_url, metrics=(metrics_host, metrics_port)))
    except BrokerUnreachable as error:
        raise click.ClickException(str(error)) from None


async def serve(
    settings: WorkerSettings, amqp_url: str, *, metrics: tuple[str, int | None]
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
        amqp_url, model=settings.served_id, slots=engine.slots, name=worker_id
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
