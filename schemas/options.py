"""What command lines on both sides have in common: options with an environment twin each.

No command lives here, and no option of one side only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from schemas.blobs.base import BlobStore, BlobStoreUnavailable
from schemas.blobs.location import open_blobs
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


def log_level_option() -> Callable[[F], F]:
    """`--log-level`."""
    return option(
        "--log-level",
        env="LOG_LEVEL",
        default="info",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Least level of log lines.",
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
