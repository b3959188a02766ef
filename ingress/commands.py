"""`headrace ingress` and `headrace batcher`, and the options that `headrace up` shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import structlog
import uvloop
from schemas.transport.rabbit import RabbitDispatcher

from ingress.app import build_app, build_services
from ingress.config import ConfigError
from ingress.server import Server
from ingress.settings import IngressSettings, TimeLimits
from schemas import telemetry
from schemas.model_card import served_id

log = structlog.get_logger()

_F = TypeVar("_F", bound=Callable[..., Any])

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def option(*names: str, env: str, **kwargs: Any) -> Callable[[_F], _F]:
    """A click option with its environment twin."""
    return click.option(*names, envvar=f"HEADRACE_{env}", show_envvar=True, **kwargs)


def ingress_options(command: _F) -> _F:
    """The options of everything that serves HTTP."""
    for decorate in reversed(
        (
            option(
                "--host",
                env="HOST",
                default="127.0.0.1",
                show_default=True,
                help="Address to listen on.",
            ),
            option(
                "--port",
                env="PORT",
                type=click.IntRange(0, 65535),
                default=8000,
                show_default=True,
                help="Port to listen on; 0 takes a free one.",
            ),
            option(
                "--api-key",
                "api_keys",
                env="API_KEY",
                multiple=True,
                help="Accepted key; may be repeated. Without any, no authentication.",
            ),
            option(
                "--profile",
                env="PROFILE",
                type=click.Choice(["wafer", "official"]),
                default="wafer",
                show_default=True,
                help="What to follow where the documented API and the official clients differ.",
            ),
            option(
                "--config",
                env="CONFIG",
                type=click.Path(dir_okay=False, path_type=Path),
                help="headrace.yaml: models, keys, profile.",
            ),
            option(
                "--queue-wait",
                "queue_wait_s",
                env="QUEUE_WAIT",
                type=float,
                default=60.0,
                show_default=True,
                help="Seconds a request may wait for a free worker.",
            ),
            option(
                "--grace",
                "grace_s",
                env="GRACE",
                type=float,
                default=30.0,
                show_default=True,
                help="Seconds that running answers may go on after SIGTERM.",
            ),
            option(
                "--max-concurrent",
                env="MAX_CONCURRENT",
                type=click.IntRange(min=1),
                default=4096,
                show_default=True,
                help="Requests in flight in this process.",
            ),
            option(
                "--log-level",
                env="LOG_LEVEL",
                default="info",
                show_default=True,
                type=click.Choice(["debug", "info", "warning", "error"]),
                help="Least level of log lines.",
            ),
        )
    ):
        command = decorate(command)
    return command


def ingress_settings(values: dict[str, Any]) -> IngressSettings:
    """Settings from parsed options; those it does not know stay in `values`."""
    limits = TimeLimits(queue_wait_s=values.pop("queue_wait_s"))
    names = ("host", "port", "api_keys", "profile", "config", "grace_s", "max_concurrent")
    return IngressSettings(limits=limits, **{name: values.pop(name) for name in names})


def warn_if_open(settings: IngressSettings, *, authenticated: bool) -> None:
    """Refuse to serve the world without keys; say so on loopback.

    Raises:
        click.UsageError: No key, and not bound to loopback.
    """
    if authenticated:
        return
    if settings.host not in _LOOPBACK:
        raise click.UsageError(
            f"--host {settings.host} is reachable from outside; give at least one --api-key."
        )
    log.warning("auth.disabled", host=settings.host, hint="anyone on this machine may use it")


@click.command()
@option("--model", env="MODEL", help="Known model, served while no worker has told of itself yet.")
@option(
    "--amqp-url",
    env="AMQP_URL",
    required=True,
    help="The broker, such as amqp://user:password@host:5672/vhost.",
)
@option("--engine", env="ENGINE", hidden=True, help="Ignored: workers choose their engine.")
@option("--upstream-url", env="UPSTREAM_URL", hidden=True, help="Ignored: see `headrace worker`.")
@ingress_options
def ingress(
    model: str | None,
    amqp_url: str,
    engine: str | None,
    upstream_url: str | None,
    log_level: str,
    **values: Any,
) -> None:
    """Serve HTTP; any number of these share the work."""
    del engine, upstream_url
    telemetry.configure_logging(log_level)
    settings = ingress_settings(values)
    settings = settings.model_copy(update={"model": served_id(model) if model else None})
    uvloop.run(_serve(settings, amqp_url))


async def _serve(settings: IngressSettings, amqp_url: str) -> None:
    dispatcher = await RabbitDispatcher.connect(amqp_url, name="ingress")
    try:
        services = build_services(settings, dispatcher)
        warn_if_open(settings, authenticated=services.authenticator.required)
        await Server(build_app(services), services, on_ready=_say_where).serve()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    finally:
        await dispatcher.close()


async def _say_where(url: str) -> None:
    log.info("ingress.listening", url=url)


@click.command()
def batcher() -> None:
    """Run batch jobs (not there yet)."""
    raise click.ClickException("Batch jobs are not part of this version; nothing was started.")


def run(coroutine: Any) -> None:
    """Run a server's coroutine on the fast loop; Ctrl-C is an ordinary end."""
    try:
        uvloop.run(coroutine)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(130) from None
