"""Brings the tables of a database up to date, and says whether they are.

The revisions are in `ingress/stores/migrations/versions`. Each migration is one transaction, and
one process at a time migrates: the others wait, and find nothing left to do.

Must not import alembic before there is something to migrate: every process that opens a database
looks where its tables stand.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores.database import Database

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS: Final = Path(__file__).with_name("migrations")

_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))

_MIGRATING: Final = threading.Lock()
_LOOK_S: Final = 0.01

_ONE_MIGRATES: Final = 0x6865616472616365
"""Key of PostgreSQL's advisory lock: "headrace"."""


class SchemaMismatch(Exception):
    """The tables are not those that this program needs; the text says what to do."""


class UnknownRevision(Exception):
    """There is no such revision, or no way to it from where the database is."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tables of a database stand.

    Attributes:
        revision: None if there are none.
        newest: That this program knows.
        known: Whether this program knows `revision`.
    """

    revision: str | None
    newest: str
    known: bool


async def status(database: Database) -> Status:
    async def work(connection: AsyncConnection) -> Status:
        return await connection.run_sync(_status)

    return await database.read(work)


def require_current(found: Status) -> None:
    """Check that the tables are those that this program was made for.

    Raises:
        SchemaMismatch: They are not.
    """
    if not found.known:
        raise SchemaMismatch(_newer(found))
    if found.revision is None:
        raise SchemaMismatch("The database has no tables yet. Run: headrace database upgrade")
    if found.revision != found.newest:
        raise SchemaMismatch(
            f"The database is at revision {found.revision}, and this program needs "
            f"{found.newest}. Run: headrace database upgrade"
        )


async def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to a revision that is not older than theirs.

    Raises:
        SchemaMismatch: They are of a newer program.
        UnknownRevision: There is no such revision above theirs.
    """

    def migrate(connection: sa.Connection) -> None:
        found = _status(connection)
        if not found.known:
            raise SchemaMismatch(_newer(found))
        if found.revision != found.newest:
            from alembic import command

            command.upgrade(_config(connection), revision)

    await _migrate(database, revision, migrate)


async def downgrade(database: Database, revision: str) -> None:
    """Bring the tables back to an older revision, or `base` for none at all.

    Raises:
        SchemaMismatch: They are of a newer program.
        UnknownRevision: There is no such revision below theirs.
    """

    def migrate(connection: sa.Connection) -> None:
        found = _status(connection)
        if not found.known:
            raise SchemaMismatch(_newer(found))
        from alembic import command

        command.downgrade(_config(connection), revision)

    await _migrate(database, revision, migrate)


async def _migrate(
    database: Database, revision: str, migrate: Callable[[sa.Connection], None]
) -> None:
    if not revision.isalnum():  # alembic has a language for them, which we do not offer
        raise UnknownRevision(f"{revision!r} is no revision.")

    async def work(connection: AsyncConnection) -> None:
        if not database.is_sqlite:
            lock = sa.select(sa.func.pg_advisory_xact_lock(sa.literal(_ONE_MIGRATES)))
            await connection.execute(lock)
        await connection.run_sync(migrate)

    from alembic.util.exc import CommandError

    try:
        async with _alone():
            await database.rebuild(work)
    except CommandError as error:
        raise UnknownRevision(str(error)) from error


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Nobody else in this process migrates meanwhile, in whatever thread and on any database.

    What alembic works on is state of the process.
    """
    while not _MIGRATING.acquire(blocking=False):  # noqa: ASYNC110 - others may be other loops
        await asyncio.sleep(_LOOK_S)
    try:
        yield
    finally:
        _MIGRATING.release()


@cache
def revisions() -> tuple[str, ...]:
    """All that this program knows, in order: the name of a migration's file begins with its own."""
    files = (MIGRATIONS / "versions").glob("[0-9]*.py")
    return tuple(sorted(file.name.partition("_")[0] for file in files))


def _status(connection: sa.Connection) -> Status:
    revision: str | None = None
    if sa.inspect(connection).has_table(_VERSION.name):
        revision = connection.execute(sa.select(_VERSION.c.version_num)).scalar()
    known = revisions()
    return Status(revision=revision, newest=known[-1], known=revision is None or revision in known)


def _newer(found: Status) -> str:
    return (
        f"The database is at revision {found.revision}, which this program does not know: a newer "
        f"one has been there. This one knows revisions up to {found.newest}. Install the newer "
        "program, or let it downgrade the database."
    )


def _config(connection: sa.Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
