"""What command lines on both sides have in common: options with an environment twin each.

No command lives here, and no option of one side only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import click

from schemas.blobs.base import BlobStore, BlobStoreUnavailable
from schemas.blobs.location import open_blobs
from schemas.telemetry import configure_logging
from schemas.transport.rabbit import parse_urls

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, env: str, **kwargs: Any) -> Callable[[F], F]:
    """A click option with its environment twin, `HEADRACE_` and `env`."""
    if "default" in kwargs:
        kwargs.setdefault("show_default", True)
    return click.option(*names, envvar=f"HEADRACE_{env}", show_envvar=True, **kwargs)


def stacked(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator; they are listed in this order."""

    def decorate(command: F) -> F:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


class AmqpUrl(click.ParamType[str]):
    """A URL that can be a broker's, or several after commas: the nodes of one cluster."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_urls(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


amqp_option: Final = option(
    "--amqp-url",
    env="AMQP_URL",
    type=AmqpUrl(),
    required=True,
    help="The broker, such as amqp://user:password@host:5672/vhost; amqps:// for TLS. Of a cluster "
    "the URLs of its nodes, with commas between. Give it by its variable.",
)
"""`--amqp-url` of what does nothing without a broker."""


class BlobPlace(click.ParamType[BlobStore]):
    """A directory or a bucket that can keep blobs; a directory is made if it is not there."""

    name = "location"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> BlobStore:
        if not isinstance(value, str):
            store: BlobStore = value
            return store
        try:
            return open_blobs(value)
        except (BlobStoreUnavailable, ValueError) as error:
            self.fail(str(error), param, ctx)


def blobs_option(*, required: bool = False) -> Callable[[F], F]:
    """`--blobs`, on both sides of the broker."""
    return option(
        "--blobs",
        env="BLOBS",
        type=BlobPlace(),
        required=required,
        help="Directory or bucket (s3://BUCKET/PREFIX?endpoint=URL) for files, batches, and "
        "requests above 256 KiB, shared by all ingresses, batchers and workers."
        + ("" if required else " Default: none, and the broker must take large requests."),
    )


class Logs(NamedTuple):
    """What is written into the log, and how.

    Attributes:
        level: Least level of its lines.
        form: `json`, `text`, or `auto`: text on a terminal.
        sample: Of lines about what went well one in so many is written.
    """

    level: str
    form: str
    sample: int

    @property
    def json(self) -> bool | None:
        """As `configure_logging` takes it."""
        return None if self.form == "auto" else self.form == "json"

    def configure(self) -> None:
        """Log like that from now on."""
        configure_logging(self.level, json=self.json, sample=self.sample)


def log_options() -> Callable[[F], F]:
    """`--log-level` and more about the log; the command is given them together as `logs`."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_logs(*args: Any, **kwargs: Any) -> Any:
            logs = Logs(*(kwargs.pop(f"log_{field}") for field in Logs._fields))
            return command(*args, logs=logs, **kwargs)

        return _log_options(cast(F, with_logs))

    return decorate


_log_options: Final = stacked(
    option(
        "--log-level",
        env="LOG_LEVEL",
        default="info",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Least level of log lines.",
    ),
    option(
        "--log-format",
        "log_form",
        env="LOG_FORMAT",
        default="auto",
        type=click.Choice(["auto", "json", "text"]),
        help="Of log lines; auto is text on a terminal, else JSON.",
    ),
    option(
        "--log-sample",
        env="LOG_SAMPLE",
        default=1,
        type=click.IntRange(min=1),
        help="Of the lines about requests that went well write one in so many; of all others, "
        "every one.",
    ),
)


READY_OPTION: Final = "--ready-fd"
"""How a supervisor tells its child where to say that it serves."""


def supervise_option(what: str) -> Callable[[F], F]:
    """`--supervise`, on by default, and what the supervised child is told."""
    return stacked(
        click.option(
            "--supervise/--no-supervise",
            "supervised",
            default=True,
            show_default=True,
            help=f"Run in a child process that is started again when {what} dies.",
        ),
        click.option(READY_OPTION, "ready_fd", type=int, hidden=True),
    )
