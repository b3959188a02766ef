"""`headrace keys …`: give keys to accounts of a database, and take them back.

A key is shown once, when it is made: on stdout, so that a script can take it.
"""

from __future__ import annotations

import time
from typing import Final

import click

from ingress.accounts.administration import LONGEST_OVERLAP_S, Administration, IssuedKey
from ingress.accounts.command_line import (
    PAGE,
    Duration,
    administer,
    database_option,
    json_option,
    moment,
    print_json,
    print_table,
)
from ingress.accounts.keys import key_id_in
from ingress.accounts.store import MAX_ACTIVE_KEYS, KeyRecord
from ingress.accounts.wire import LONGEST_LABEL, issued_object, key_object

key_titles: Final = ("key", "account", "label", "state", "created", "expires")

_expiry = click.option(
    "--expires-in",
    type=Duration(),
    help="After which it is not valid any more, such as 12h or 90d. Default: never.",
)


@click.group()
def keys() -> None:
    """Make, list, revoke and rotate the keys of accounts.

    Works on the database, whether or not a service runs. Services that run see a change within two
    seconds. Of a key only a digest is kept: it is shown when it is made, and never again.
    """


@keys.command(epilog=f"An account may have {MAX_ACTIVE_KEYS} active keys.")
@database_option
@click.argument("account_id", metavar="ACCOUNT")
@click.option("--label", default="", help="To know it again by.")
@_expiry
@json_option
def create(
    database: str, account_id: str, label: str, expires_in: float | None, as_json: bool
) -> None:
    """Make a key of ACCOUNT and print it, this once.

    An account is made by: headrace accounts create.
    """
    if len(label) > LONGEST_LABEL:
        raise click.BadParameter(f"{LONGEST_LABEL} characters at most", param_hint="--label")
    issued = administer(
        database,
        lambda admin: admin.create_key(account_id, label=label, expires_at=_at(expires_in)),
    )
    _print(issued, as_json=as_json)


@keys.command("list")
@database_option
@click.option("--account", "account_id", help="Only the keys of this account.")
@click.option("--all", "every", is_flag=True, help="Also those that are not valid any more.")
@json_option
def list_keys(database: str, account_id: str | None, every: bool, as_json: bool) -> None:
    """List keys: their names, never the keys themselves."""

    async def work(admin: Administration) -> list[KeyRecord]:
        found: list[KeyRecord] = []
        more = True
        while more:
            page = await admin.keys(
                limit=PAGE, account_id=account_id, after=found[-1].key_id if found else None
            )
            found += page.items
            more = page.more
        return found

    now = time.time()
    found = [key for key in administer(database, work) if every or key.active(now)]
    if as_json:
        print_json([key_object(key, now) for key in found])
    else:
        print_table(key_titles, map(key_row, found))


@keys.command()
@database_option
@click.argument("key_id", metavar="KEY")
@json_option
def revoke(database: str, key_id: str, as_json: bool) -> None:
    """Have a key not be valid any more. KEY is its name, such as key_9aF3xK2b, or the key."""
    record = administer(database, lambda admin: admin.revoke_key(_named(key_id)))
    if as_json:
        print_json(key_object(record, time.time()))
    else:
        click.echo(f"{record.key_id} of {record.account_id} is revoked.", err=True)


@keys.command()
@database_option
@click.argument("key_id", metavar="KEY")
@click.option(
    "--overlap",
    type=Duration(),
    default="0",
    help="For which the old key is valid beside the new one, such as 30m or 1d. Default: 0.",
)
@_expiry
@json_option
def rotate(
    database: str, key_id: str, overlap: float, expires_in: float | None, as_json: bool
) -> None:
    """Make a new key instead of KEY, with its account and label, and print it, this once."""
    if overlap > LONGEST_OVERLAP_S:
        raise click.BadParameter("90 days at most", param_hint="--overlap")
    issued = administer(
        database,
        lambda admin: admin.rotate_key(
            _named(key_id), overlap_s=overlap, expires_at=_at(expires_in)
        ),
    )
    _print(issued, as_json=as_json)


def key_row(key: KeyRecord) -> tuple[str, ...]:
    """The cells of a key under `key_titles`."""
    state = "active" if key.active(time.time()) else "revoked" if key.revoked_at else "expired"
    return (
        key.key_id,
        key.account_id,
        key.label,
        state,
        moment(key.created_at),
        moment(key.expires_at) or "never",
    )


def _named(key_id: str) -> str:
    """The name of a key; of one that was given itself, such as one that was found somewhere.

    Raises:
        click.BadParameter: It is not.
    """
    if (named := key_id_in(key_id)) is not None:
        return named
    if not key_id.startswith("key_"):
        raise click.BadParameter(
            "it is the name of a key, such as key_9aF3xK2b; see headrace keys list",
            param_hint="KEY",
        )
    return key_id


def _at(seconds: float | None) -> float | None:
    return None if seconds is None else time.time() + seconds


def _print(issued: IssuedKey, *, as_json: bool) -> None:
    if as_json:
        print_json(issued_object(issued, time.time()))
        return
    record = issued.record
    until = f", valid until {moment(record.expires_at)}" if record.expires_at else ""
    click.echo(
        f"{record.key_id} of {record.account_id}{until}. This is the only time the key is shown:",
        err=True,
    )
    click.echo(issued.text)
