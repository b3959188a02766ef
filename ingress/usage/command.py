"""`headrace usage`: what was used, as a table, or for other programs.

It reads the database itself, so it needs no service that runs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from ingress.accounts.command_line import json_option, on_store, print_json, print_table
from ingress.usage.report import figures_of, moment_of, total_of
from ingress.usage.store import GROUPS, Group, Selection, UsageSum
from schemas.options import option

_TITLES: Final = {
    "request_count": "requests",
    "cancelled_count": "cancelled",
    "failed_count": "failed",
    "input_tokens": "input",
    "cache_read_tokens": "cached",
    "output_tokens": "output",
    "estimated_cost_cents": "cents",
}
"""Of the figures that a table has room for."""


class _Moment(click.ParamType[float]):
    """A date in UTC, a time in RFC 3339, or Unix seconds."""

    name = "date"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        moment = value if isinstance(value, float) else moment_of(str(value))
        if moment is None:
            self.fail("it is a date such as 2026-09-01, a time in RFC 3339, or Unix seconds")
        return moment


@click.command()
@option(
    "--database",
    env="DATABASE",
    required=True,
    help="Where records are kept: postgresql://user:password@host/name, or "
    "sqlite:////path/to/file.db; of `headrace up` that is headrace.db below its --data.",
)
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(GROUPS),
    default=("day",),
    show_default=True,
    help="What sums are parted by; may be repeated.",
)
@click.option("--since", type=_Moment(), help="From this date (UTC) or moment on. Default: all.")
@click.option("--until", type=_Moment(), help="Before this date (UTC) or moment.")
@click.option("--account", help="Only of this account.")
@click.option("--key", help="Only of this key, by its name.")
@click.option("--model", help="Only of this model.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def usage(
    database: str,
    by: tuple[Group, ...],
    since: float | None,
    until: float | None,
    account: str | None,
    key: str | None,
    model: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Sum up what requests have used, by day, model, account or key.

    Days are those of UTC. Costs are estimates, by the prices that the catalogue had at the time.
    """
    if as_csv and as_json:
        raise click.UsageError("Choose one of --csv and --json.")
    by = tuple(dict.fromkeys(by))
    which = Selection(start=since, end=until, account=account, key=key, model=model)
    sums = on_store(database, lambda store: _sums(store, which, by))
    rows = [_row(used, by) for used in sums]
    total = _row(total_of(sums), by)
    if as_json:
        print_json(rows)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(total)
        writer.writerows(row.values() for row in rows)
    else:
        rows.append({**total, **dict.fromkeys(by, ""), by[0]: "total"})
        shown = (*by, *_TITLES)
        print_table(
            (*by, *_TITLES.values()), [[_cell(row[name]) for name in shown] for row in rows]
        )


async def _sums(store: Any, which: Selection, by: Sequence[Group]) -> Sequence[UsageSum]:
    from ingress.stores.sql_usage import SqlUsage

    return await SqlUsage(store.database).sums(which, by)


def _row(used: UsageSum, by: Sequence[Group]) -> dict[str, Any]:
    return {**{group: getattr(used, group) for group in by}, **figures_of(used)}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
