"""What `headrace accounts` and `headrace keys` share: the way to the store, and to the terminal.

They work on the database itself, so they need no service that runs; those that do see the change
within a second or two. Imports no database library until there is something to do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ingress.accounts.administration import Administration
from schemas.errors import ServingError
from schemas.options import option

if TYPE_CHECKING:
    from ingress.stores.sql import SqlStore

T = TypeVar("T")

PAGE: Final = 500

_WIDTH: Final = 120
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

database_option = option(
    "--database",
    env="DATABASE",
    required=True,
    help="Where accounts are: postgresql://user:password@host/name, or "
    "sqlite:////path/to/file.db; of `headrace up` that is headrace.db below its --data.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


class Duration(click.ParamType[float]):
    """Seconds, or such as 90m, 12h and 30d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"(\d{1,9})([smhd]?)", str(value))
        if found is None:
            self.fail("it is a number of seconds, or such as 90m, 12h and 30d", param, ctx)
        return float(int(found[1]) * _UNITS_S[found[2] or "s"])


def administer(url: str, work: Callable[[Administration], Awaitable[T]]) -> T:
    """What `work` makes of the accounts of a database.

    Raises:
        click.ClickException: It cannot be done; the text says why.
    """

    def on_accounts(store: SqlStore) -> Awaitable[T]:
        from ingress.stores.sql_accounts import SqlAccounts

        return work(Administration(SqlAccounts(store.database)))

    return on_store(url, on_accounts)


def on_store(url: str, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    """What `work` makes of a database.

    Raises:
        click.ClickException: As `administer`.
    """
    from ingress.stores.base import StoreUnavailable
    from ingress.stores.database import BadDatabaseUrl
    from ingress.stores.schema import SchemaMismatch
    from ingress.stores.sql import SqlStore

    async def run() -> T:
        store = await SqlStore.open(url)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except BadDatabaseUrl as error:
        raise click.BadParameter(str(error), param_hint="--database") from None
    except SchemaMismatch as error:
        raise click.ClickException(str(error)) from None
    except StoreUnavailable as error:
        raise click.ClickException(f"{error.message} {error.diagnostic}") from None
    except ServingError as error:
        raise click.ClickException(error.message) from None


def print_json(value: Any) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On stdout. Nothing in it is markup, and nothing is cut short."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _print(table)


def print_fields(fields: Mapping[str, str]) -> None:
    """One thing, a field in each line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(Text(name), Text(value))
    _print(table)


def moment(seconds: float | None) -> str:
    """To the minute, in UTC; empty for none."""
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}Z"


def _print(table: Table) -> None:
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(table)
