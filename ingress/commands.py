"""`headrace ingress`, and what it shares with the commands that serve beside it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import click
import structlog
import uvloop

from ingress.accounts.directory import AccountDirectory, configured
from ingress.accounts.keys import digest_of
from ingress.app import build_app, opened_services
from ingress.config import Config, ConfigError, load_config
from ingress.console.door import is_loopback
from ingress.garbage import spare_what_is_there
from ingress.idempotency.settings import IdempotencySettings
from ingress.options import database_option, opened_store, usage_log_option
from ingress.place import PLACE_OPTION, Place, PlaceType
from ingress.processes import Order, become_parent
from ingress.server import Server
from ingress.services import Services
from ingress.settings import IngressSettings, LimitSettings, TimeLimits
from ingress.siblings import Siblings
from schemas.blobs.base import BlobStore
from schemas.blobs.jobs import swept
from schemas.model_card import served_id
from schemas.options import Logs, amqp_option, blobs_option, log_options, option, stacked
from schemas.tracing.tracing import Tracing, traced
from schemas.transport.rabbit import BrokerUnreachable, DispatcherSettings, RabbitDispatcher

log = structlog.get_logger()

_LEAST_KEY = 16


def _web_url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Such as `https://llm.example.com`, without a slash at the end."""
    if value is None:
        return None
    if not value.startswith(("http://", "https://")) or any(mark in value for mark in " ?#@"):
        raise click.BadParameter("it must be like https://llm.example.com")
    return value.rstrip("/")


def _keys(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """What a header can carry; the message shows nothing of it."""
    if any(not value or len(value.split()) != 1 or value != value.strip() for value in values):
        raise click.BadParameter("a key is neither empty nor has white space in it")
    return values


def _strong_key(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and (len(value) < _LEAST_KEY or len(value.split()) != 1):
        raise click.BadParameter(f"it has at least {_LEAST_KEY} characters, and no white space")
    return value


ingress_options = stacked(
    option("--host", env="HOST", default="127.0.0.1", help="Address to listen on."),
    option(
        "--port",
        env="PORT",
        type=click.IntRange(0, 65535),
        default=8000,
        help="Port to listen on; 0 takes a free one.",
    ),
    option(
        "--api-key",
        "api_keys",
        env="API_KEY",
        multiple=True,
        callback=_keys,
        help="Accepted key, an account of its own without limits; may be repeated, in the variable "
        "with spaces between. Without any, and without accounts, no authentication.",
    ),
    option(
        "--admin-key",
        env="ADMIN_KEY",
        callback=_strong_key,
        help="Key for /admin/v1, where accounts and their keys are changed. Give it by its "
        "variable. Default: none, and nothing is there.",
    ),
    option(
        "--console-key",
        env="CONSOLE_KEY",
        callback=_strong_key,
        help="Key for /console, which shows models, workers, queues and requests. Give it by its "
        "variable. Default: none; then it is there only for people on this machine, and only if "
        "--host is a loopback address and there is no --public-url.",
    ),
    option(
        "--profile",
        env="PROFILE",
        type=click.Choice(["wafer", "official"]),
        help="What to follow where the documented API and the official clients differ. "
        "Default: what --config says, else wafer.",
    ),
    option(
        "--config",
        env="CONFIG",
        type=click.Path(dir_okay=False, path_type=Path),
        help="headrace.yaml: models, accounts, keys, profile.",
    ),
    option(
        "--public-url",
        env="PUBLIC_URL",
        callback=_web_url,
        help="Where clients reach the service, such as https://llm.example.com, for links in "
        "answers. Default: what their requests tell.",
    ),
    option(
        "--queue-wait",
        "queue_wait_s",
        env="QUEUE_WAIT",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        help="Seconds a request may wait for a free worker; then it is refused with 503.",
    ),
    option(
        "--reserve-output",
        env="RESERVE_OUTPUT",
        type=click.IntRange(min=1),
        default=1024,
        help="Output tokens that a request without a limit of its own reserves of its account's "
        "tokens per minute.",
    ),
    option(
        "--hold",
        "hold_s",
        env="HOLD",
        type=click.FloatRange(min=1),
        default=10.0,
        help="Seconds after which what a killed process had reserved of accounts' limits is free.",
    ),
    option(
        "--grace",
        "grace_s",
        env="GRACE",
        type=click.FloatRange(min=0),
        default=120.0,
        help="Seconds that running answers may go on after SIGTERM.",
    ),
    option(
        "--max-concurrent",
        env="MAX_CONCURRENT",
        type=click.IntRange(min=1),
        default=4096,
        help="Requests in flight in this process.",
    ),
    option(
        "--max-queued",
        env="MAX_QUEUED",
        type=click.IntRange(min=1),
        default=1000,
        help="Requests of one model that may wait for a worker, in this process.",
    ),
    option(
        "--max-queued-tokens",
        env="MAX_QUEUED_TOKENS",
        type=click.IntRange(min=1),
        default=8_000_000,
        help="Tokens of the prompts of those that wait, estimated.",
    ),
    option(
        "--idempotency-window",
        env="IDEMPOTENCY_WINDOW",
        type=click.FloatRange(min=1),
        default=86_400.0,
        help="Seconds for which an Idempotency-Key means the same request.",
    ),
    option(
        "--keep-answers",
        env="KEEP_ANSWERS",
        is_flag=True,
        help="Keep the answers to requests with an Idempotency-Key in the blob store for that "
        "long, to give them again.",
    ),
    option(
        "--linger",
        env="LINGER",
        type=click.FloatRange(min=0),
        default=5.0,
        help="Seconds that a request with an Idempotency-Key goes on when its client has left, "
        "for one that comes back.",
    ),
    usage_log_option(),
    log_options(),
)
"""The options of everything that serves HTTP."""


def read_config(path: Path | None) -> Config:
    """The configuration file, or what holds without one.

    Raises:
        click.UsageError: It cannot be used.
    """
    try:
        return load_config(path) if path is not None else Config()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def ingress_settings(values: dict[str, Any], *, database: bool = False) -> IngressSettings:
    """Settings from parsed options and the configuration file; checked, before anything starts.

    What it does not know stays in `values`.

    Args:
        values: By option.
        database: Whether there is one, in which there may be accounts.

    Raises:
        click.UsageError: The file cannot be used, or everybody could use the service.
    """
    limits = TimeLimits(queue_wait_s=values.pop("queue_wait_s"))
    config = read_config(values.pop("config"))
    profile = values.pop("profile") or config.profile or "wafer"
    idempotency = IdempotencySettings(
        window_s=values.pop("idempotency_window"),
        keep_answers=values.pop("keep_answers"),
        linger_s=values.pop("linger"),
    )
    if idempotency.keep_answers and not database:
        raise click.UsageError("--keep-answers needs a database, which knows when to delete them.")
    names = (
        *("host", "port", "api_keys", "admin_key", "console_key", "grace_s"),
        *("max_concurrent", "max_queued", "max_queued_tokens", "public_url", "usage_log"),
    )
    settings = IngressSettings(
        limits=limits,
        config=config,
        profile=profile,
        idempotency=idempotency,
        accounting=LimitSettings(
            output_tokens=values.pop("reserve_output"), hold_s=values.pop("hold_s")
        ),
        **{name: values.pop(name) for name in names},
    )
    directory = AccountDirectory(configured(config, settings.api_keys))
    if settings.admin_key is not None and directory.find(digest_of(settings.admin_key.encode())):
        raise click.UsageError("The admin key must not be a client's key too.")
    if settings.console_key is not None and (
        settings.console_key == settings.admin_key
        or directory.find(digest_of(settings.console_key.encode()))
    ):
        raise click.UsageError("The console's key must not be the admin key or a client's too.")
    if not database:
        require_closed(settings, directory)
    return settings


def require_closed(settings: IngressSettings, directory: AccountDirectory) -> None:
    """Check that nobody from outside may use the service without a key.

    Raises:
        click.UsageError: Everybody could.
    """
    if not directory.required and not is_loopback(settings.host):
        raise click.UsageError(
            f"--host {settings.host} can be reached from outside; give at least one --api-key, or "
            "make an account: headrace accounts create --help."
        )


def warn_if_open(settings: IngressSettings, directory: AccountDirectory) -> None:
    """Say that there is no authentication, if so."""
    if not directory.required:
        log.warning(
            "auth.disabled", host=settings.host, hint="anyone on this machine may use the service"
        )


@click.command()
@option("--model", env="MODEL", help="Known model, served while no worker has told of itself yet.")
@amqp_option
@blobs_option()
@database_option()
@option(
    "--reply-queues",
    env="REPLY_QUEUES",
    type=click.IntRange(min=0),
    default=DispatcherSettings().reply_queues,
    help="Requests that have a queue of the broker for themselves; more share some. 0: all have.",
)
@option(
    "--processes",
    env="PROCESSES",
    type=click.IntRange(min=1),
    default=1,
    help="Processes that share the port, each on a core of its own.",
)
@click.option(PLACE_OPTION, "place", type=PlaceType(), hidden=True)
@option("--engine", env="ENGINE", hidden=True, help="Ignored: workers choose their engine.")
@option("--upstream-url", env="UPSTREAM_URL", hidden=True, help="Ignored: see `headrace worker`.")
@ingress_options
def ingress(
    model: str | None,
    amqp_url: str,
    blobs: BlobStore | None,
    database: str | None,
    reply_queues: int,
    processes: int,
    place: Place | None,
    engine: str | None,
    upstream_url: str | None,
    logs: Logs,
    **values: Any,
) -> None:
    """Serve HTTP; any number of these share the work."""
    del engine, upstream_url
    logs.configure()
    settings = ingress_settings(values, database=database is not None)
    settings = settings.model_copy(update={"model": served_id(model) if model else None})
    if settings.idempotency.keep_answers and blobs is None:
        raise click.UsageError("--keep-answers needs --blobs: that is where they lie.")
    if database is None:
        _require_no_limits(settings.config)
    if place is not None:
        structlog.contextvars.bind_contextvars(process=place.number)
    elif processes > 1:
        _serve_by_several(processes, settings, logs)
    with traced("ingress") as tracing:
        run(_serve(settings, amqp_url, reply_queues, blobs, database, tracing, place))


def _serve_by_several(processes: int, settings: IngressSettings, logs: Logs) -> NoReturn:
    """Start so many processes like this one, each with a place; all options have been checked."""
    order = Order(
        command=(sys.executable, "-m", "ingress", *sys.argv[1:]),
        processes=processes,
        host=settings.host,
        port=settings.port,
        grace_s=settings.grace_s,
        log_level=logs.level,
        log_json=logs.json,
    )
    become_parent(order)


def _require_no_limits(config: Config) -> None:
    """Check that no account has limits, which nothing could hold over several processes.

    Raises:
        click.UsageError: One has.
    """
    limited = [written.id for written in config.accounts if written.account(written.id).limits.any]
    if limited:
        raise click.UsageError(
            f"The account {limited[0]!r} has limits. Several of these processes hold them together "
            "in a database: give it with --database."
        )


async def _serve(
    settings: IngressSettings,
    amqp_url: str,
    reply_queues: int,
    blobs: BlobStore | None,
    database: str | None,
    tracing: Tracing | None,
    place: Place | None,
) -> None:
    queues = DispatcherSettings(reply_queues=reply_queues)
    dispatcher = await RabbitDispatcher.connect(amqp_url, queues, "ingress", blobs=blobs)
    try:
        async with (
            opened_store(database) as store,
            swept(blobs),
            opened_services(
                settings,
                dispatcher,
                store=store,
                blobs=blobs,
                database=store.database if store else None,
                records=dispatcher.records if store else None,
                pods=dispatcher.pods,
                tracing=tracing,
            ) as services,
        ):
            require_closed(settings, services.directory)
            warn_if_open(settings, services.directory)
            await _listen(services, place)
    finally:
        await dispatcher.close()


async def _listen(services: Services, place: Place | None) -> None:
    app = build_app(services)
    if place is None:
        await Server(app, services, on_ready=_say_where).serve()
        return
    services.siblings = Siblings(place, services)
    async with services.siblings.answering(), AsyncExitStack() as life:

        def go_too() -> None:
            log.warning("ingress.orphaned")
            if not services.admission.shutting_down:  # else it would end the grace time
                server.end()

        async def say(url: str) -> None:
            await _say_where(url)
            await life.enter_async_context(place.living(orphaned=go_too))

        server = Server(app, services, on_ready=say)
        await server.serve(place.listeners())


async def _say_where(url: str) -> None:
    spare_what_is_there()
    log.info("ingress.listening", url=url)


def run(coroutine: Any) -> None:
    """Run a server's coroutine on the fast loop; Ctrl-C is an ordinary end."""
    try:
        uvloop.run(coroutine)
    except BrokerUnreachable as error:
        raise click.ClickException(str(error)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(130) from None
