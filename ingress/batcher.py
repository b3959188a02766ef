"""`headrace batcher`: runs batches of the store over the broker, beside any number of others.

It serves no HTTP but its metrics. A broker or a database that is not there is waited for, at the
start as later.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click
import structlog
from prometheus_client import start_http_server

from ingress.app import opened_services
from ingress.batch.batcher import Batcher, drained
from ingress.batch.metrics import BatcherMetrics
from ingress.batch.settings import BatcherSettings
from ingress.commands import read_config, run
from ingress.dialects.profile import ProfileName
from ingress.metrics import IngressMetrics
from ingress.options import (
    database_option,
    opened_store,
    usage_days_option,
    usage_log_option,
)
from ingress.settings import IngressSettings
from ingress.usage.keeper import Keeper, keeping
from schemas.blobs.base import BlobStore
from schemas.blobs.jobs import swept
from schemas.options import Logs, amqp_option, blobs_option, log_options, option
from schemas.transport.rabbit import BrokerUnreachable, RabbitDispatcher

log = structlog.get_logger()

_DEFAULTS = BatcherSettings()


@click.command()
@amqp_option
@database_option(required=True)
@blobs_option(required=True)
@option(
    "--config",
    env="CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="headrace.yaml, the same as the ingress's: models and profile.",
)
@option(
    "--profile",
    env="PROFILE",
    type=click.Choice(["wafer", "official"]),
    help="As of the ingress. Default: what --config says, else wafer.",
)
@option(
    "--window",
    env="BATCH_WINDOW",
    type=click.IntRange(min=1),
    help="Lines of one model in flight. Default: twice the slots of its workers, up to "
    f"{_DEFAULTS.max_window}.",
)
@option(
    "--max-batches",
    env="MAX_BATCHES",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_batches,
    help="Batches that this process runs at the same time.",
)
@option(
    "--lease",
    "lease_s",
    env="BATCH_LEASE",
    type=click.FloatRange(min=0.5),
    default=_DEFAULTS.lease_s,
    help="Seconds after which another batcher takes on a batch whose batcher was killed.",
)
@option(
    "--grace",
    "grace_s",
    env="GRACE",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.grace_s,
    help="Seconds that running lines may go on after SIGTERM.",
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
@usage_log_option()
@usage_days_option()
@log_options()
def batcher(
    amqp_url: str,
    database: str,
    blobs: BlobStore,
    config: Path | None,
    profile: ProfileName | None,
    metrics_port: int | None,
    metrics_host: str,
    usage_log: Path | None,
    logs: Logs,
    **values: Any,
) -> None:
    """Run batches: their lines become Jobs below live traffic, their results files.

    Any number of these share the work; each batch is run by one of them at a time.
    """
    logs.configure()
    metrics = IngressMetrics()
    deployment = read_config(config)
    settings = IngressSettings(
        config=deployment,
        profile=profile or deployment.profile or "wafer",
        usage_log=usage_log,
    )
    if metrics_port is not None:
        start_http_server(metrics_port, addr=metrics_host, registry=metrics.registry)
    run(_serve(settings, BatcherSettings(**values), metrics, amqp_url, database, blobs))


async def _serve(
    settings: IngressSettings,
    batcher_settings: BatcherSettings,
    metrics: IngressMetrics,
    amqp_url: str,
    database: str,
    blobs: BlobStore,
) -> None:
    signals = _Signals()
    async with opened_store(database) as store, swept(blobs):
        dispatcher = await signals.unless_told(_connected(amqp_url, blobs))
        if dispatcher is None:
            return
        try:
            async with opened_services(
                settings,
                dispatcher,
                store=store,
                blobs=blobs,
                database=store.database if store else None,
                pods=dispatcher.pods,
                process="batcher",
                metrics=metrics,
            ) as services:
                batcher = Batcher(services, batcher_settings, BatcherMetrics(metrics.registry))
                assert services.usage.store is not None
                keeper = Keeper(dispatcher.records, services.usage.store, metrics.usage)
                async with keeping(keeper):
                    log.info("batcher.ready")
                    await _run_until_told(batcher, signals, batcher_settings.grace_s)
        finally:
            await dispatcher.close()


async def _connected(amqp_url: str, blobs: BlobStore) -> RabbitDispatcher:
    """A connection to the broker, however long it is away."""
    while True:
        try:
            return await RabbitDispatcher.connect(amqp_url, name="batcher", blobs=blobs)
        except BrokerUnreachable as error:
            log.warning("broker.unreachable", reason=str(error))


class _Signals:
    """SIGTERM and SIGINT: the first asks to leave, the second to hurry."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurry if self.leave.is_set() else self.leave).set()

    async def unless_told(self, coroutine: Any) -> Any:
        """What the coroutine returns; None if a signal came first."""
        working = asyncio.create_task(coroutine)
        leaving = asyncio.create_task(self.leave.wait())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)


async def _run_until_told(batcher: Batcher, signals: _Signals, grace_s: float) -> None:
    running = asyncio.create_task(batcher.run())
    leaving, hurrying = (
        asyncio.create_task(event.wait()) for event in (signals.leave, signals.hurry)
    )
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        log.info("batcher.draining", batches=batcher.batches, grace_s=grace_s)
        batcher.stop()
        await asyncio.wait(
            {running, hurrying}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        await drained(batcher, running)
    finally:
        for task in (running, leaving, hurrying):
            task.cancel()
        await asyncio.gather(running, leaving, hurrying, return_exceptions=True)
