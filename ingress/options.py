"""Options of the commands that keep files and batches, and what is made of them.

Must not import the database's libraries until a database is opened: `--help` needs none of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import structlog

from ingress.stores.base import StoreUnavailable
from schemas.blobs.base import BlobStore, BlobStoreUnavailable
from schemas.blobs.directory import DirectoryStore
from schemas.options import option

if TYPE_CHECKING:
    from ingress.stores.sql import SqlStore

log = structlog.get_logger()

F = TypeVar("F", bound=Callable[..., Any])


def database_option(*, required: bool = False) -> Callable[[F], F]:
    """`--database`."""
    return option(
        "--database",
        env="DATABASE",
        required=required,
        help="Records of files and batches: postgresql://user:password@host/name, or "
        "sqlite:////path/to/file.db on one machine."
        + ("" if required else " Default: none, and no files and batches."),
    )


def data_option(default: str) -> Callable[[F], F]:
    """`--data`."""
    return option(
        "--data",
        env="DATA",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Directory for files and batches. Default: {default}.",
    )


def usage_log_option() -> Callable[[F], F]:
    """`--usage-log`."""
    return option(
        "--usage-log",
        env="USAGE_LOG",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File that what each request used is appended to, as lines of JSON. Default: none.",
    )


def usage_days_option() -> Callable[[F], F]:
    """`--usage-days`."""
    return option(
        "--usage-days",
        env="USAGE_DAYS",
        type=click.IntRange(min=1),
        default=400,
        help="Days that records of usage are kept in the database.",
    )


@asynccontextmanager
async def opened_store(database: str | None) -> AsyncIterator[SqlStore | None]:
    """The store behind `--database` while the block runs.

    A PostgreSQL that cannot be reached now may be there in a moment, and whoever asks meanwhile is
    told so: it must not keep the rest of the service from starting.

    Raises:
        click.UsageError: Nothing can ever be kept there, or its tables are not as they must be.
    """
    if database is None:
        yield None
        return
    from ingress.stores.database import BadDatabaseUrl
    from ingress.stores.schema import SchemaMismatch
    from ingress.stores.sql import SqlStore

    try:
        store = await SqlStore.open(database)
    except (BadDatabaseUrl, SchemaMismatch) as error:
        raise click.UsageError(str(error)) from None
    except StoreUnavailable as error:
        if database.startswith("sqlite"):
            raise click.UsageError(f"{error.message} {error.diagnostic}") from None
        log.warning("store.unavailable", reason=error.diagnostic)
        store = SqlStore.at(database)
    try:
        yield store
    finally:
        await store.close()


class DataDirectory:
    """A directory that holds everything one process keeps: a database file, and blobs.

    Attributes:
        database: The URL of its database.
        blobs: Its blob store.
    """

    def __init__(self, root: Path, blobs: BlobStore) -> None:
        self.root = root
        self.database = f"sqlite:///{root / 'headrace.db'}"
        self.blobs = blobs


@contextmanager
def data_directory(root: Path) -> Iterator[DataDirectory]:
    """Have a directory for oneself while the block runs; it is made if it is not there.

    What lies in it are prompts and answers, so nobody else may look into it.

    Raises:
        click.UsageError: It cannot be written, or another process has it.
    """
    root = root.absolute()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(f"Nothing can be kept in {root}: {error.strerror}.") from None
    try:
        # The lock ends with its process, however that ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = DataDirectory(root, DirectoryStore.open(root / "blobs"))
    except BlockingIOError:
        os.close(lock)
        raise _unusable(f"Another process of headrace uses {root}.") from None
    except (OSError, BlobStoreUnavailable) as error:
        os.close(lock)
        raise _unusable(f"Nothing can be kept in {root}: {error}.") from None
    try:
        yield data
    finally:
        os.close(lock)


def _unusable(why: str) -> click.UsageError:
    return click.UsageError(f"{why} Name another directory with --data.")
