"""`headrace accounts` and `headrace keys`, on a database file."""

from __future__ import annotations

import json  # noqa: TID251 - as a script would read it
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ingress.accounts.account_commands import accounts
from ingress.accounts.key_commands import keys
from ingress.accounts.keys import key_id_in


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'headrace.db'}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One in which nothing is changed any more: it has one account."""
    url = f"sqlite:///{tmp_path_factory.mktemp('accounts') / 'headrace.db'}"
    told(accounts, url, "create", "is-there")
    return url


def call(command: click.Command, database: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"HEADRACE_DATABASE": database})


def told(command: click.Command, database: str, *arguments: str) -> Any:
    """What a script reads."""
    result = call(command, database, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(command: click.Command, database: str, *arguments: str) -> str:
    result = call(command, database, *arguments)
    assert result.exit_code in (1, 2)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result.stderr


@pytest.mark.rule("accounts.commands")
def test_an_account_from_beginning_to_end(database: str) -> None:
    made = told(
        accounts,
        database,
        *("create", "team-a", "--name", "Team [red]A", "--models", "one,two"),
        *("--alias", "fast=one", "--always-zdr", "--profile", "official", "--priorities=-5:0"),
        *("--concurrency", "4", "--budget", "500", "--budget-period", "day"),
    )
    terms = {
        "id": "team-a",
        "object": "account",
        "name": "Team [red]A",
        "disabled": False,
        "models": ["one", "two"],
        "aliases": {"fast": "one"},
        "always_zdr": True,
        "profile": "official",
        "priorities": [-5, 0],
        "limits": {
            "concurrency": 4,
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "budget": {"cents": 500, "period": "day"},
        },
    }
    assert made == {**terms, "created_at": made["created_at"]}
    assert abs(made["created_at"] - time.time()) < 60
    assert told(accounts, database, "show", "team-a") == made
    changed = told(
        accounts,
        database,
        *("set", "team-a", "--models", "all", "--no-aliases", "--no-always-zdr"),
        *("--profile", "default", "--priorities", "none", "--concurrency", "none"),
        *("--tokens-per-minute", "9000"),
    )
    limits = {**terms["limits"], "concurrency": None, "tokens_per_minute": 9000}  # type: ignore[dict-item]
    others: dict[str, Any] = {"models": None, "aliases": {}, "always_zdr": False, "profile": None}
    assert changed == {**made, **others, "priorities": None, "limits": limits}
    assert told(accounts, database, "disable", "team-a")["disabled"]
    assert told(accounts, database, "list") == [{**changed, "disabled": True}]
    assert not told(accounts, database, "enable", "team-a")["disabled"]
    table = call(accounts, database, "list").stdout
    assert "Team [red]A" in table
    assert "9000 tokens/min, 500 cents/day" in table
    assert call(accounts, database, "delete", "team-a").exit_code == 1  # nobody said yes
    assert call(accounts, database, "delete", "team-a", "--yes").exit_code == 0
    assert told(accounts, database, "list") == []
    assert "no other can have it" in refused(accounts, database, "create", "team-a")


@pytest.mark.rule("accounts.commands", "accounts.keys-shown-once")
def test_a_key_from_beginning_to_end(database: str) -> None:
    told(accounts, database, "create", "a")
    result = call(keys, database, "create", "a", "--label", "laptop")
    text = result.stdout.strip()
    name = key_id_in(text)
    assert name is not None
    assert name in result.stderr
    assert text not in result.stderr
    rotated = told(keys, database, "rotate", name, "--overlap", "1h")
    assert key_id_in(rotated["key"]) == rotated["id"]
    assert (rotated["account_id"], rotated["label"]) == ("a", "laptop")
    listed = {key["id"]: key for key in told(keys, database, "list")}
    assert set(listed) == {name, rotated["id"]}
    assert abs(listed[name]["expires_at"] - time.time() - 3600) < 60
    assert listed[rotated["id"]]["expires_at"] is None
    assert all("key" not in key for key in listed.values())
    assert told(keys, database, "revoke", rotated["key"])["revoked_at"]  # one that was found
    assert [key["id"] for key in told(keys, database, "list")] == [name]
    at_once = told(keys, database, "rotate", name, "--expires-in", "30d")
    assert abs(at_once["expires_at"] - time.time() - 30 * 86_400) < 60
    states = {key["id"]: key["active"] for key in told(keys, database, "list", "--all")}
    assert states == {name: False, rotated["id"]: False, at_once["id"]: True}
    assert told(keys, database, "list", "--account", "b") == []
    shown = call(accounts, database, "show", "a").stdout
    assert at_once["id"] in shown
    assert at_once["key"] not in shown


@pytest.mark.rule("accounts.commands")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["accounts", "create", "Team A"], "id"),
        (["accounts", "create", "a", "--models", "x", "--alias", "y=z"], "aliases.y"),
        (["accounts", "create", "a", "--alias", "y"], "NAME=MODEL"),
        (["accounts", "create", "a", "--alias", "y=a", "--alias", "y=b"], "twice"),
        (["accounts", "create", "a", "--priorities", "5:1"], "priorities"),
        (["accounts", "create", "a", "--priorities", "5"], "LOWEST:HIGHEST"),
        (["accounts", "create", "a", "--concurrency", "0"], "concurrency"),
        (["accounts", "create", "a", "--concurrency", "few"], "whole number"),
        (["accounts", "create", "a", "--budget-period", "day"], "--budget"),
        (["accounts", "create", "is-there"], "no other can have it"),
        (["accounts", "set", "is-there"], "--help"),
        (["accounts", "set", "is-there", "--models", "x", "--alias", "y=z"], "aliases.y"),
        (["accounts", "set", "nobody", "--name", "x"], "no such account"),
        (["accounts", "show", "nobody"], "no such account"),
        (["accounts", "delete", "nobody", "--yes"], "no such account"),
        (["keys", "create", "nobody"], "no such account"),
        (["keys", "create", "is-there", "--label", "x" * 65], "64"),
        (["keys", "create", "is-there", "--expires-in", "soon"], "90m"),
        (["keys", "create", "is-there", "--expires-in", "0"], "past"),
        (["keys", "revoke", "key_nobody"], "no such key"),
        (["keys", "revoke", "laptop"], "headrace keys list"),
        (["keys", "rotate", "key_nobody"], "no such key"),
        (["keys", "rotate", "key_nobody", "--overlap", "91d"], "90 days"),
    ],
)
def test_what_cannot_be_done_is_told(shared: str, arguments: list[str], words: str) -> None:
    command = {"accounts": accounts, "keys": keys}[arguments[0]]
    assert words in refused(command, shared, *arguments[1:])


def test_a_database_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    for url in ("mysql://host/x", "sqlite://", f"sqlite:///{tmp_path}/a/headrace.db"):
        (tmp_path / "a").touch()
        assert "Error" in refused(accounts, url, "list")
        assert "Error" in refused(keys, url, "create", "a")
