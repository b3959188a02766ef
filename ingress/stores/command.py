"""`headrace database`: the tables of a database, up, down, and where they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from ingress.stores import schema
from ingress.stores.base import StoreUnavailable
from ingress.stores.database import BadDatabaseUrl, Database, open_database
from ingress.stores.schema import SchemaMismatch, Status, UnknownRevision
from schemas.options import option

T = TypeVar("T")

_url = option(
    "--database",
    "url",
    env="DATABASE",
    required=True,
    help="sqlite:///path/to/file or postgresql://user:password@host/name.",
)


@click.group()
def database() -> None:
    """Bring the tables of a database up to date, or back.

    An SQLite database is brought up to date by whoever opens it. For PostgreSQL do it yourself,
    before newer programs start.
    """


@database.command()
@_url
@click.argument("revision", default="head")
def upgrade(url: str, revision: str) -> None:
    """Make the tables, or change them to those of a newer REVISION. Default: the newest."""

    async def work(found: Database) -> Status:
        await schema.upgrade(found, revision)
        return await schema.status(found)

    _say(_run(url, work))


@database.command()
@_url
@click.argument("revision")
def downgrade(url: str, revision: str) -> None:
    """Change the tables back to those of an older REVISION; `base` removes them.

    What the older tables have no place for is lost. Stop every newer program before.
    """

    async def work(found: Database) -> Status:
        await schema.downgrade(found, revision)
        return await schema.status(found)

    _say(_run(url, work))


@database.command()
@_url
def status(url: str) -> None:
    """Say at which revision the tables are; fails if it is not the one this program needs."""

    async def work(found: Database) -> Status:
        at = await schema.status(found)
        if at.known:
            _say(at)
        schema.require_current(at)
        return at

    _run(url, work)


def _say(at: Status) -> None:
    if at.revision == at.newest:
        click.echo(f"The database is at revision {at.revision}, the newest.")
    elif at.revision is None:
        click.echo(f"The database has no tables. The newest revision is {at.newest}.")
    else:
        click.echo(f"The database is at revision {at.revision}. The newest is {at.newest}.")


def _run(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    async def run() -> T:
        found = open_database(url)
        try:
            return await work(found)
        finally:
            await found.close()

    try:
        return asyncio.run(run())
    except BadDatabaseUrl as error:
        raise click.BadParameter(str(error), param_hint="--database") from error
    except StoreUnavailable as error:
        raise click.ClickException(f"{error.message} {error.diagnostic}") from error
    except (SchemaMismatch, UnknownRevision) as error:
        raise click.ClickException(str(error)) from error
