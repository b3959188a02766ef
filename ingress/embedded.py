"""`headrace up`: ingress and worker in one process; the only file that sees both sides.

Without a broker the two halves talk over the memory transport; with `--amqp-url` they use it like
everybody else, so that further workers may join.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click
import structlog
from rich.console import Console

from ingress.accounts.directory import AccountDirectory, configured
from ingress.app import account_store, build_app, opened_services
from ingress.batch.batcher import batching
from ingress.batch.metrics import BatcherMetrics
from ingress.batch.settings import BatcherSettings
from ingress.commands import (
    ingress_options,
    ingress_settings,
    require_closed,
    run,
    warn_if_open,
)
from ingress.garbage import spare_what_is_there
from ingress.options import (
    DataDirectory,
    data_directory,
    data_option,
    opened_store,
    usage_days_option,
)
from ingress.server import Server
from ingress.services import Services
from ingress.settings import IngressSettings, data_dir
from schemas.model_card import served_id
from schemas.options import READY_OPTION, AmqpUrl, Logs, option, supervise_option
from schemas.tracing.tracing import Tracing, traced
from schemas.transport.base import Dispatcher, JobSource
from schemas.transport.memory import MemoryTransport
from schemas.transport.rabbit import RabbitDispatcher, RabbitJobSource, SourceSettings
from workers.compose import build_consumer, build_engine, new_worker_id
from workers.consumer import EngineLost
from workers.metrics import WorkerMetrics
from workers.options import engine_options
from workers.settings import WorkerSettings, cache_dir
from workers.supervisor import end_now, supervise, tell_ready
from workers.trial_model import TRIAL_MODEL_ID, TrialModelError, prepare

log = structlog.get_logger()

_QUESTION = "What is the capital of France?"


@click.command()
@option(
    "--model",
    env="MODEL",
    help="Directory or hub id of the model; for --engine upstream the name that server knows. "
    "Default: a small real model for trying out.",
)
@option(
    "--amqp-url",
    env="AMQP_URL",
    type=AmqpUrl(),
    help="A broker to share with other processes. Default: none is needed.",
)
@data_option("a place among the user's data, such as ~/.local/share/headrace")
@click.option(
    "--batch/--no-batch",
    "keeps_batches",
    default=True,
    show_default=True,
    help="Whether there are files and batches. Without, nothing is stored.",
)
@engine_options
@ingress_options
@usage_days_option()
@supervise_option("the engine")
def up(
    model: str | None,
    public_id: str | None,
    reasoning_parser: str | None,
    amqp_url: str | None,
    data: Path | None,
    keeps_batches: bool,
    usage_days: int,
    supervised: bool,
    ready_fd: int | None,
    logs: Logs,
    **values: Any,
) -> None:
    """Run everything in one process: HTTP, queue and engine.

    Without --model a small real model is prepared once and answers on the CPU.
    """
    logs.configure()
    settings = ingress_settings(values, database=keeps_batches)
    if values["engine"] == "upstream" and not (values["upstream_url"] and model):
        raise click.UsageError("--engine upstream needs --upstream-url and --model")
    if supervised:
        command = [sys.executable, "-m", "ingress", *sys.argv[1:], "--no-supervise"]
        grace_s = settings.grace_s + 15
        sys.exit(supervise(command, name="headrace", ready_option=READY_OPTION, grace_s=grace_s))
    console = Console(stderr=True)
    if model is None:
        model = "scripted" if values["engine"] == "scripted" else trial_model(console)
        public_id = public_id or (TRIAL_MODEL_ID if values["engine"] == "sglang" else model)
    worker = WorkerSettings(
        model=model,
        served_id=public_id or served_id(model),
        reasoning_format=reasoning_parser,
        grace_s=settings.grace_s,
        **values,
    )
    settings = settings.model_copy(update={"model": worker.served_id, "usage_days": usage_days})
    with ExitStack() as exits:
        kept = exits.enter_context(data_directory(data or data_dir())) if keeps_batches else None
        tracing = exits.enter_context(traced("up"))
        run(serve(settings, worker, amqp_url, kept, console, ready_fd=ready_fd, tracing=tracing))


def trial_model(console: Console) -> str:
    """The directory of the trial model, prepared if need be.

    Raises:
        click.UsageError: It cannot be prepared.
    """
    try:
        return str(prepare(cache_dir(), console=console))
    except TrialModelError as error:
        # Trying again would not help, so the supervisor must not: a usage error is final.
        raise click.UsageError(str(error)) from None


async def serve(
    settings: IngressSettings,
    worker: WorkerSettings,
    amqp_url: str | None,
    data: DataDirectory | None,
    console: Console,
    *,
    ready_fd: int | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Load the model, then serve until SIGTERM or SIGINT.

    A lost engine ends the whole process, so that the supervisor starts it again. Its answers may go
    on with other workers for the grace time, if there is a broker where others may be. Without
    `data` there are no files and batches.
    """
    await check_door(settings, data)
    async with working(settings, worker, data, console, amqp_url=amqp_url, tracing=tracing) as (
        services,
        consuming,
    ):

        async def say(url: str) -> None:
            while not services.catalog.ready():  # noqa: ASYNC110 - once, at start
                await asyncio.sleep(0.01)
            spare_what_is_there()
            tell_ready(ready_fd)
            _print_invitation(console, url, worker.served_id, services.authenticator.required)

        server = Server(build_app(services), services, on_ready=say)

        def stop(_: asyncio.Task[None]) -> None:
            server.end(0 if amqp_url is None else settings.grace_s)

        consuming.add_done_callback(stop)
        await server.serve()


async def check_door(settings: IngressSettings, data: DataDirectory | None) -> None:
    """See who may use the service, before much is loaded.

    Raises:
        click.UsageError: Everybody could.
    """
    async with opened_store(data.database if data else None) as store:
        accounts = account_store(store.database if store else None)
        directory = AccountDirectory(configured(settings.config, settings.api_keys), accounts)
        async with directory.following():
            require_closed(settings, directory)
            warn_if_open(settings, directory)


@asynccontextmanager
async def working(
    settings: IngressSettings,
    worker: WorkerSettings,
    data: DataDirectory | None,
    console: Console,
    *,
    amqp_url: str | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[tuple[Services, asyncio.Task[None]]]:
    """Everything but HTTP: the model is loaded, answers, and runs the batches of `data`.

    The task ends before the block does if the engine is lost; then the process ends with the block.
    """
    engine = build_engine(worker)
    with console.status(f"Loading {worker.served_id} (this can take a minute) …"):
        await engine.start()
    worker_id = new_worker_id()
    try:
        async with (
            opened_store(data.database if data else None) as store,
            _transport(amqp_url, worker, worker_id) as (dispatcher, source),
            opened_services(
                settings,
                dispatcher,
                store=store,
                blobs=data.blobs if data else None,
                database=store.database if store else None,
                pods=dispatcher.pods if isinstance(dispatcher, RabbitDispatcher) else None,
                tracing=tracing,
            ) as services,
        ):
            consumer = build_consumer(
                worker,
                engine,
                source,
                worker_id=worker_id,
                metrics=WorkerMetrics(services.metrics.registry),
                tracing=tracing,
            )
            consuming = asyncio.create_task(consumer.run())
            try:
                async with _batching(services, alone=amqp_url is None):
                    yield services, consuming
            finally:
                await consumer.drain(0)
                try:
                    await consuming
                except EngineLost:
                    end_now(EngineLost.status)
    finally:
        await engine.stop()


@asynccontextmanager
async def _batching(services: Services, *, alone: bool) -> AsyncIterator[None]:
    """A batcher, if there is something to keep batches in.

    `alone`, there are no models but ours, and nobody waits for others to tell of theirs.
    """
    if services.store is None:
        yield
        return
    settings = BatcherSettings(usage_days=services.settings.usage_days)
    if alone:
        settings = settings.model_copy(update={"presence_s": 0.0})
    async with batching(services, settings, BatcherMetrics(services.metrics.registry)):
        yield


@asynccontextmanager
async def _transport(
    amqp_url: str | None, worker: WorkerSettings, worker_id: str
) -> AsyncIterator[tuple[Dispatcher, JobSource]]:
    dispatcher: Dispatcher
    source: JobSource
    if amqp_url is None:
        memory = MemoryTransport()
        dispatcher = memory.dispatcher()
        source = memory.job_source(
            model=worker.served_id, slots=worker.concurrency, batch_floor=worker.batch_floor
        )
    else:
        dispatcher = await RabbitDispatcher.connect(amqp_url, name="ingress")
        source = await RabbitJobSource.connect(
            amqp_url,
            model=worker.served_id,
            slots=worker.concurrency,
            settings=SourceSettings(batch_floor=worker.batch_floor),
            name=worker_id,
        )
    try:
        yield dispatcher, source
    finally:
        await source.close()
        await dispatcher.close()


def _print_invitation(console: Console, url: str, model: str, authenticated: bool) -> None:
    key = ' -H "Authorization: Bearer $HEADRACE_API_KEY"' if authenticated else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{_QUESTION}"}}]}}'
    lines = (
        "",
        f"Headrace serves {model} at {url}/v1",
        "",
        "Try it:",
        f"  curl -sS {url}/v1/chat/completions{key} -H 'Content-Type: application/json'"
        f" -d '{body}'",
        "",
        f"See what it does, and try more: {url}/console",
        "",
        "Ctrl-C stops everything.",
    )
    for line in lines:
        # Plain and unwrapped, so that the command can be pasted.
        console.print(line, markup=False, highlight=False, soft_wrap=True)
