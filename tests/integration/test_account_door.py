"""Who may come in: from outside nobody without a key, and nobody else where there are keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from ingress.accounts.account_commands import accounts
from ingress.accounts.key_commands import keys
from ingress.commands import ingress_options, ingress_settings
from tests.fixtures.ports import free_port
from tests.fixtures.processes import headrace, wait_ready
from tests.fixtures.stack import until

OUTSIDE = ("--host", "0.0.0.0")
UP = ("up", "--engine", "scripted", "--served-id", "demo-model", "--no-supervise")


def administer(command: click.Command, *arguments: str, data: Path) -> str:
    database = f"sqlite:///{data / 'headrace.db'}"
    result = CliRunner().invoke(command, [*arguments, "--database", database])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.rule("accounts.loopback", "accounts.revocation")
async def test_accounts_of_the_store_close_the_door(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"http://127.0.0.1:{(port := free_port())}"
    command = (*UP, "--port", str(port), "--data", str(data))
    # Nobody is known, so nobody from outside may come.
    async with headrace(*command, *OUTSIDE, log=tmp_path / "first.log") as process:
        async with asyncio.timeout(30):
            assert await process.process.wait() == 2
        assert "headrace accounts create" in process.output()
        assert "Traceback" not in process.output()
    await asyncio.to_thread(administer, accounts, "create", "a", data=data)
    key = await asyncio.to_thread(administer, keys, "create", "a", data=data)
    async with (
        headrace(*command, *OUTSIDE, log=tmp_path / "second.log") as process,
        httpx.AsyncClient(base_url=url, timeout=10) as http,
    ):
        await wait_ready(url, process, timeout_s=30)
        assert "auth.disabled" not in process.output()

        async def status(key: str | None) -> int:
            headers = {"x-api-key": key} if key else {}
            return (await http.get("/v1/files", headers=headers)).status_code

        assert [await status(None), await status("unknown"), await status(key)] == [401, 401, 200]
        name = key[3:11]
        await asyncio.to_thread(administer, keys, "revoke", f"key_{name}", data=data)

        async def is_refused() -> bool:
            return await status(key) == 401

        await until(is_refused, timeout_s=2)
        assert key not in process.output()


def settings_of(*arguments: str) -> Result:
    """What the options of `headrace ingress` are taken for."""

    @click.command()
    @ingress_options
    def command(log_level: str, **values: Any) -> None:
        ingress_settings(values)

    return CliRunner().invoke(command, arguments)


@pytest.mark.rule("accounts.loopback")
def test_without_a_database_that_is_known_at_once(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    for text, opens in (
        ("", False),
        ("accounts: [{id: a, keys: [{key: k}]}]", True),
        ("accounts: [{id: a}]", True),  # nobody can come in yet, but nobody else can either
        ("api_keys: [k]", True),
    ):
        file.write_text(text)
        for host in ("0.0.0.0", "::", "10.1.2.3"):
            result = settings_of("--host", host, "--config", str(file))
            assert (result.exit_code, "--api-key" in result.output) == (
                0 if opens else 2,
                not opens,
            )
        assert settings_of("--config", str(file)).exit_code == 0


@pytest.mark.rule("admin.key")
@pytest.mark.parametrize(
    ("option", "key", "words"),
    [
        ("--admin-key", "too-short", "16 characters"),
        ("--admin-key", "space in the middle", "white space"),
        ("--admin-key", "sk-a-client-key-is-no-admin-key", "client's key"),
        ("--api-key", "", "empty"),
        ("--api-key", "sk space", "white space"),
    ],
)
def test_keys_that_cannot_be_are_refused_without_showing_them(
    option: str, key: str, words: str
) -> None:
    result = settings_of("--api-key", "sk-a-client-key-is-no-admin-key", option, key)
    assert result.exit_code == 2
    assert words in result.output
    assert not key or key not in result.output
