"""`headrace accounts …`: make, look at, change and delete the accounts of a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from pydantic import ValidationError

from ingress.accounts.administration import Administration
from ingress.accounts.command_line import (
    PAGE,
    administer,
    database_option,
    json_option,
    moment,
    print_fields,
    print_json,
    print_table,
)
from ingress.accounts.key_commands import key_row, key_titles
from ingress.accounts.store import AccountRecord, KeyRecord
from ingress.accounts.wire import CreateAccount, account_object, mistake
from schemas.options import stacked

T = TypeVar("T")


class _Or(click.ParamType[Any]):
    """A number, or the word for no such thing."""

    def __init__(self, word: str) -> None:
        self.name = f"integer|{word}"
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == self._word:
            return _CLEARED
        if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
            self.fail(f"it is a whole number, or {self._word}", param, ctx)
        return int(value)


_CLEARED: Final = object()
"""Given, to have none; unlike None, which is not given."""


class _Pair(click.ParamType[Any]):
    """NAME=MODEL."""

    name = "name=model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, model = str(value).partition("=")
        if not (name and equals and model):
            self.fail("it is written NAME=MODEL", param, ctx)
        return name, model


class _Range(click.ParamType[Any]):
    """LOWEST:HIGHEST, or none."""

    name = "low:high|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "none":
            return _CLEARED
        try:
            lowest, highest = map(int, str(value).split(":"))
        except ValueError:
            self.fail("it is written LOWEST:HIGHEST, such as -10:0, or none", param, ctx)
        return [lowest, highest]


_terms = stacked(
    click.option("--name", help="For people."),
    click.option(
        "--models",
        help="The only models it may use, with commas between; all for every one.",
    ),
    click.option(
        "--alias",
        "aliases",
        type=_Pair(),
        multiple=True,
        help="Its own name for a model; may be repeated. Those given replace those that were.",
    ),
    click.option("--no-aliases", is_flag=True, help="It has none."),
    click.option(
        "--always-zdr/--no-always-zdr",
        "always_zdr",
        default=None,
        help="Whether zero data retention is required for all that it asks.",
    ),
    click.option(
        "--profile",
        type=click.Choice(["wafer", "official", "default"]),
        help="Its dialect profile; default for that of the deployment.",
    ),
    click.option(
        "--priorities",
        type=_Range(),
        help="The `priority` that its requests may ask for; none leaves that to the model.",
    ),
    click.option("--concurrency", type=_Or("none"), help="Requests in flight."),
    click.option("--requests-per-minute", type=_Or("none"), help="Requests in any 60 seconds."),
    click.option(
        "--tokens-per-minute",
        type=_Or("none"),
        help="Tokens of prompts and answers in any 60 seconds.",
    ),
    click.option("--budget", type=_Or("none"), help="Cents that it may spend in a period."),
    click.option(
        "--budget-period",
        type=click.Choice(["day", "month", "total"]),
        help="Of --budget; they begin at midnight UTC. Default: month.",
    ),
)


@click.group()
def accounts() -> None:
    """Make and change accounts: what their keys may do, and how much of it.

    Works on the database, whether or not a service runs. Services that run see a change within two
    seconds. A new account needs a key: headrace keys create ACCOUNT.
    """


@accounts.command()
@database_option
@click.argument("account_id", metavar="[ID]", required=False)
@_terms
@json_option
def create(database: str, account_id: str | None, as_json: bool, **written: Any) -> None:
    """Make an account. Without terms it may use every model without limits.

    ID has lower-case letters, digits, dots, hyphens and underscores; one is made up if it is left
    out.
    """
    terms = _written(written)
    if account_id is not None:
        terms["id"] = account_id
    wanted = _checked(lambda: CreateAccount.model_validate(terms))
    record = administer(database, lambda admin: admin.create_account(wanted, wanted.id))
    _print(record, (), as_json=as_json)


@accounts.command("list")
@database_option
@json_option
def list_accounts(database: str, as_json: bool) -> None:
    """List all accounts of the database. Those of a configuration file are not there."""
    found = administer(database, _all_accounts)
    if as_json:
        print_json(list(map(account_object, found)))
        return
    print_table(
        ("id", "name", "state", "models", "limits", "created"),
        [
            (
                record.account.account_id,
                record.account.name,
                "disabled" if record.account.disabled else "enabled",
                _models(record),
                ", ".join(_limits(record)),
                moment(record.created_at),
            )
            for record in found
        ],
    )


@accounts.command()
@database_option
@click.argument("account_id", metavar="ID")
@json_option
def show(database: str, account_id: str, as_json: bool) -> None:
    """Show one account and its keys."""

    async def work(admin: Administration) -> tuple[AccountRecord, Sequence[KeyRecord]]:
        record = await admin.account(account_id)
        return record, (await admin.keys(limit=PAGE, account_id=account_id)).items

    _print(*administer(database, work), as_json=as_json)


@accounts.command("set")
@database_option
@click.argument("account_id", metavar="ID")
@_terms
@json_option
def set_terms(database: str, account_id: str, as_json: bool, **written: Any) -> None:
    """Change the terms that are given; the others stay."""
    terms = _written(written)
    if not terms:
        raise click.UsageError("Say what to change; see --help.")
    _change(database, account_id, terms, as_json=as_json)


@accounts.command()
@database_option
@click.argument("account_id", metavar="ID")
@json_option
def disable(database: str, account_id: str, as_json: bool) -> None:
    """Refuse all requests of an account; its keys stay."""
    _change(database, account_id, {"disabled": True}, as_json=as_json)


@accounts.command()
@database_option
@click.argument("account_id", metavar="ID")
@json_option
def enable(database: str, account_id: str, as_json: bool) -> None:
    """Undo `disable`."""
    _change(database, account_id, {"disabled": False}, as_json=as_json)


@accounts.command()
@database_option
@click.argument("account_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(database: str, account_id: str, yes: bool) -> None:
    """Delete an account, its keys and its files. Its id is never given again.

    Lines of its batches that have not run are refused. Its records of usage stay.
    """
    if not yes:
        click.confirm(f"Delete {account_id}, its keys and its files?", abort=True, err=True)
    administer(database, lambda admin: admin.delete_account(account_id))
    click.echo(f"Deleted {account_id}.", err=True)


def _change(database: str, account_id: str, terms: dict[str, Any], *, as_json: bool) -> None:
    record = _checked(
        lambda: administer(database, lambda admin: admin.change_account(account_id, terms))
    )
    _print(record, (), as_json=as_json)


async def _all_accounts(admin: Administration) -> list[AccountRecord]:
    found: list[AccountRecord] = []
    more = True
    while more:
        page = await admin.accounts(
            limit=PAGE, after=found[-1].account.account_id if found else None
        )
        found += page.items
        more = page.more
    return found


def _written(values: dict[str, Any]) -> dict[str, Any]:
    """The terms that were given, as `AccountTerms` has them."""
    terms: dict[str, Any] = {
        name: values[name] for name in ("name", "always_zdr") if values[name] is not None
    }
    if (models := values["models"]) is not None:
        terms["models"] = None if models == "all" else [name.strip() for name in models.split(",")]
    if values["aliases"] or values["no_aliases"]:
        if values["aliases"] and values["no_aliases"]:
            raise click.UsageError("--alias and --no-aliases exclude each other.")
        terms["aliases"] = dict(values["aliases"])
        if len(terms["aliases"]) < len(values["aliases"]):
            raise click.UsageError("An alias is given twice.")
    if (profile := values["profile"]) is not None:
        terms["profile"] = None if profile == "default" else profile
    if (priorities := values["priorities"]) is not None:
        terms["priorities"] = _or_none(priorities)
    limits: dict[str, Any] = {
        name: _or_none(values[name])
        for name in ("concurrency", "requests_per_minute", "tokens_per_minute")
        if values[name] is not None
    }
    budget, period = values["budget"], values["budget_period"]
    if period is not None and (budget is None or budget is _CLEARED):
        raise click.UsageError("--budget-period goes with --budget.")
    if budget is not None:
        cents = _or_none(budget)
        limits["budget"] = None if cents is None else {"cents": cents, "period": period or "month"}
    if limits:
        terms["limits"] = limits
    return terms


def _or_none(value: Any) -> Any:
    return None if value is _CLEARED else value


def _checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except ValidationError as error:
        raise click.UsageError(str(mistake(error))) from None


def _print(record: AccountRecord, keys: Sequence[KeyRecord], *, as_json: bool) -> None:
    if as_json:
        print_json(account_object(record))
        return
    account = record.account
    ranks = account.priorities
    print_fields(
        {
            "id": account.account_id,
            "name": account.name,
            "state": "disabled" if account.disabled else "enabled",
            "models": _models(record),
            "aliases": ", ".join(f"{name}={model}" for name, model in account.aliases.items())
            or "none",
            "zero data retention": "always" if account.always_zdr else "on request",
            "profile": account.profile or "the deployment's",
            "priorities": f"{ranks[0]} to {ranks[1]}" if ranks else "as the model allows",
            "limits": ", ".join(_limits(record)) or "none",
            "created": moment(record.created_at),
        }
    )
    if keys:
        click.echo()
        print_table(key_titles, map(key_row, keys))


def _models(record: AccountRecord) -> str:
    models = record.account.models
    return "all" if models is None else ", ".join(models) or "none"


def _limits(record: AccountRecord) -> list[str]:
    limits = record.account.limits
    told = []
    if limits.concurrency is not None:
        told.append(f"{limits.concurrency} at once")
    if limits.requests_per_minute is not None:
        told.append(f"{limits.requests_per_minute} requests/min")
    if limits.tokens_per_minute is not None:
        told.append(f"{limits.tokens_per_minute} tokens/min")
    if limits.budget is not None:
        told.append(f"{limits.budget.cents} cents/{limits.budget.period}")
    return told
