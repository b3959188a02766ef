"""Who may come in: from outside nobody without a key, and nobody else where there are keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import structlog
from click.testing import CliRunner, Result

from ingress.accounts.account_commands import accounts
from ingress.accounts.key_commands import keys
from ingress.commands import ingress_options, ingress_settings, require_closed
from ingress.embedded import check_door
from ingress.options import data_directory
from ingress.settings import IngressSettings
from ingress.stores.sql import SqlStore
from schemas.transport.memory import MemoryTransport
from tests.fixtures.ports import free_port
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import memory_stack, serve_pod, until

CHAT = "/v1/chat/completions"


def administer(command: click.Command, *arguments: str, directory: Path) -> str:
    """As an operator does, beside the service."""
    database = f"sqlite:///{directory / 'headrace.db'}"
    result = CliRunner().invoke(command, [*arguments, "--database", database])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.rule("accounts.loopback")
async def test_whoever_is_in_the_store_counts(tmp_path: Path) -> None:
    outside, inside = IngressSettings(host="0.0.0.0"), IngressSettings()
    with data_directory(tmp_path) as data:
        with structlog.testing.capture_logs() as lines:
            with pytest.raises(click.UsageError, match="headrace accounts create"):
                await check_door(outside, data)
            await check_door(inside, data)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
            "auth.disabled"
        ]
        await asyncio.to_thread(administer, accounts, "create", "a", directory=tmp_path)
        with structlog.testing.capture_logs() as lines:
            await check_door(outside, data)
            await check_door(inside, data)
        assert [line for line in lines if line["log_level"] == "warning"] == []


@pytest.mark.rule("accounts.loopback", "accounts.revocation")
async def test_a_service_that_runs_sees_what_the_command_line_does(tmp_path: Path) -> None:
    async with (
        memory_stack(files=tmp_path) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):

        async def status(key: str | None) -> int:
            headers = {"x-api-key": key} if key else {}
            return (await http.post(CHAT, json=request_body("chat"), headers=headers)).status_code

        async def becomes(expected: int, key: str | None) -> None:
            async def is_so() -> bool:
                return await status(key) == expected

            await until(is_so, timeout_s=3)

        async def do(command: click.Command, *arguments: str) -> str:
            return await asyncio.to_thread(administer, command, *arguments, directory=tmp_path)

        assert await status(None) == 200
        await do(accounts, "create", "a")
        await becomes(401, None)
        key = await do(keys, "create", "a")
        await becomes(200, key)
        await do(accounts, "disable", "a")
        await becomes(403, key)
        await do(keys, "revoke", key)
        await becomes(401, key)


@pytest.mark.rule("accounts.store-away-at-start", "accounts.never-open")
async def test_a_database_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    store = SqlStore.at(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")
    memory = MemoryTransport()
    async with (
        serve_pod(memory.dispatcher(), store=store, api_keys=("given",)) as pod,
        httpx.AsyncClient(base_url=pod.url, timeout=10) as http,
    ):
        for dialect in ALL:
            path, body = path_of(dialect), request_body(dialect)
            away = 529 if dialect == "messages" else 503
            for headers, status, code in (
                ({}, 401, "missing_api_key"),
                ({"x-api-key": "given"}, away, "model_unavailable"),  # it is let in
                ({"x-api-key": "unknown"}, away, "store_unavailable"),
                ({"authorization": "Basic x"}, 401, "invalid_api_key"),
            ):
                response = await http.post(path, json=body, headers=headers)
                assert response.status_code == status
                assert response.json()["error"]["code"] == code
                assert ("retry-after" in response.headers) == (status == away)
        # So it may listen to the outside, although it knows nobody there.
        require_closed(IngressSettings(host="0.0.0.0"), pod.services.directory)
    await store.close()


def settings_of(*arguments: str) -> Result:
    """What the options of `headrace ingress` are taken for."""

    @click.command()
    @ingress_options
    def command(logs: object, **values: Any) -> None:
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
