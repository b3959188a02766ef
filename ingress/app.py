"""Composition root of the ingress: settings and a dispatcher to an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.types import ASGIApp

from ingress.accounts.directory import AccountDirectory, configured
from ingress.accounts.store import AccountStore
from ingress.catalog import Catalog
from ingress.console.events import watching
from ingress.console.status import Process
from ingress.errors import ErrorResponses
from ingress.idempotency.store import IdempotencyStore
from ingress.limits.ledger import MemoryLedger
from ingress.limits.ledger_limiter import LedgerLimiter
from ingress.limits.window import Window
from ingress.media import Media
from ingress.metrics import IngressMetrics
from ingress.request_id import RequestIdMiddleware
from ingress.routes.admin import admin_routes
from ingress.routes.batches import batch_routes
from ingress.routes.console import console_routes
from ingress.routes.documentation import documentation_routes
from ingress.routes.files import file_routes
from ingress.routes.health import health_routes
from ingress.routes.inference import Shortcut, inference_endpoints, inference_routes
from ingress.routes.message_batches import message_batch_routes
from ingress.routes.models import model_routes
from ingress.routes.usage import usage_routes
from ingress.services import Services
from ingress.settings import IngressSettings
from ingress.state_metrics import show_state
from ingress.stores.base import BatchStore
from ingress.usage.metering import Metering
from ingress.usage.store import UsageStore
from schemas.blobs.base import BlobStore
from schemas.tracing.tracing import Tracing
from schemas.transport.base import Dispatcher, RecordQueue
from schemas.transport.pods import Pods

if TYPE_CHECKING:
    from ingress.stores.database import Database


def build_services(
    settings: IngressSettings,
    dispatcher: Dispatcher,
    *,
    media: Media | None = None,
    store: BatchStore | None = None,
    blobs: BlobStore | None = None,
    accounts: AccountStore | None = None,
    idempotency: IdempotencyStore | None = None,
    pods: Pods | None = None,
    metrics: IngressMetrics | None = None,
    tracing: Tracing | None = None,
) -> Services:
    """Everything a request needs; `media` and `metrics` are made unless they are given.

    Without `store` and `blobs` there are no files and batches, without `accounts` only the
    configuration's, and without `idempotency` a key is known to this process alone.
    """
    return Services(
        settings=settings,
        dispatcher=dispatcher,
        catalog=Catalog(
            dispatcher,
            configured=settings.config.models,
            known_ids=[settings.model] if settings.model else [],
        ),
        directory=AccountDirectory(configured(settings.config, settings.api_keys), accounts),
        accounts=accounts,
        metrics=metrics or IngressMetrics(),
        media=media or Media(settings.media),
        store=store,
        blobs=blobs,
        idempotency=idempotency,
        pods=pods,
        tracing=tracing,
    )


@asynccontextmanager
async def opened_services(
    settings: IngressSettings,
    dispatcher: Dispatcher,
    *,
    media: Media | None = None,
    store: BatchStore | None = None,
    blobs: BlobStore | None = None,
    database: Database | None = None,
    records: RecordQueue | None = None,
    pods: Pods | None = None,
    process: Process = "ingress",
    metrics: IngressMetrics | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Services]:
    """Everything a request needs, and what goes on beside requests while the block runs.

    In `database` are accounts, what they use, and records of usage; it stays the caller's. Records
    come there by way of `records`, where others keep what is in it. `pods` are the processes that
    this one tells how it stands, as what it is.
    """
    services = build_services(
        settings,
        dispatcher,
        media=media,
        store=store,
        blobs=blobs,
        accounts=account_store(database),
        idempotency=_idempotency_store(database),
        pods=pods,
        metrics=metrics,
        tracing=tracing,
    )
    show_state(services)
    services.limiter = limiter = _limiter(settings, services.metrics, database)
    services.usage = Metering.open(
        services.metrics.usage,
        store=_usage_store(database),
        queue=records,
        log=settings.usage_log,
    )
    try:
        async with (
            services.directory.following(),
            services.keyed_requests.upkeep(),
            watching(services, process),
            services.metrics.process.measuring(),
        ):
            yield services
    finally:
        await services.settled()
        await limiter.close()
        await services.usage.close()


def account_store(database: Database | None) -> AccountStore | None:
    """The accounts of a database."""
    if database is None:
        return None
    from ingress.stores.sql_accounts import SqlAccounts

    return SqlAccounts(database)


def _idempotency_store(database: Database | None) -> IdempotencyStore | None:
    if database is None:
        return None
    from ingress.stores.sql_idempotency import SqlIdempotency

    return SqlIdempotency(database)


def _limiter(
    settings: IngressSettings, metrics: IngressMetrics, database: Database | None
) -> LedgerLimiter:
    """What holds the limits of accounts: with all processes on `database`, or in this one."""
    accounting = settings.accounting
    hold_s, window = accounting.hold_s, Window(length_s=accounting.window_s)
    if database is None:
        return LedgerLimiter(MemoryLedger(hold_s=hold_s, window=window), accounting, metrics)
    from ingress.stores.postgres_ledger import PostgresLedger
    from ingress.stores.sqlite_ledger import SqliteLedger

    of_kind = SqliteLedger if database.is_sqlite else PostgresLedger
    ledger = of_kind(database, hold_s=hold_s, window=window)
    return LedgerLimiter(
        ledger,
        accounting,
        metrics,
        gather_s=accounting.gather_s,
        tell_within_s=accounting.tell_within_s,
        pocket_s=accounting.pocket_s,
    )


def _usage_store(database: Database | None) -> UsageStore | None:
    if database is None:
        return None
    from ingress.stores.sql_usage import SqlUsage

    return SqlUsage(database)


def build_app(services: Services) -> ASGIApp:
    """The ASGI app over these services."""
    # The framework's own description is left out: it cannot know what the dialects take.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    errors = ErrorResponses(services.activity)
    errors.install(app)
    endpoints = inference_endpoints(services, errors)
    app.include_router(inference_routes(endpoints))
    app.include_router(model_routes(services))
    app.include_router(usage_routes(services))
    app.include_router(file_routes(services))
    app.include_router(batch_routes(services))
    app.include_router(message_batch_routes(services))
    app.include_router(admin_routes(services))
    app.include_router(console_routes(services))
    app.include_router(health_routes(services))
    app.include_router(documentation_routes(version("headrace")))
    # Outermost, so that even a crash of the app below answers with an id.
    identified = RequestIdMiddleware(Shortcut(app, endpoints))
    if services.tracing is None:
        return identified
    from ingress.tracing import TracedApp

    return TracedApp(identified, services.tracing)
