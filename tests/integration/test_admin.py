"""The admin API: accounts and keys over HTTP, and who may come there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.accounts.keys import digest_of, key_id_in
from ingress.config import Config
from ingress.stores.sql import SqlStore
from tests.fixtures.requests import request_body
from tests.fixtures.stack import Stack, memory_stack

ADMIN_KEY = "an-admin-key-of-some-length"
ACCOUNTS = "/admin/v1/accounts"
KEYS = "/admin/v1/keys"
USAGE = "/admin/v1/usage"
CHAT = "/v1/chat/completions"
CONFIG = Config.model_validate({"accounts": [{"id": "of-the-file", "keys": [{"key": "file-key"}]}]})
PATHS = (ACCOUNTS, f"{ACCOUNTS}/a", KEYS, f"{KEYS}/key_a", f"{KEYS}/key_a/rotate", USAGE)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(files=tmp_path, admin_key=ADMIN_KEY, config=CONFIG) as stack:
        yield stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=10) as client:
        yield client


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    assert found["code"] == code
    assert found["request_id"] == response.headers["x-request-id"]
    return found


async def ask(stack: Stack, key: str) -> int:
    """What a client with a key is answered."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
        headers = {"x-api-key": key}
        return (await client.post(CHAT, json=request_body("chat"), headers=headers)).status_code


@pytest.mark.rule("admin.accounts")
async def test_an_account_from_beginning_to_end(http: httpx.AsyncClient) -> None:
    terms = {
        "name": "Team A",
        "disabled": False,
        "models": ["one"],
        "aliases": {"fast": "one"},
        "always_zdr": True,
        "profile": "official",
        "priorities": [0, 5],
        "limits": {
            "concurrency": 2,
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "budget": {"cents": 5, "period": "total"},
        },
    }
    made = (await http.post(ACCOUNTS, json={"id": "team-a", **terms})).json()
    assert made == {"id": "team-a", "object": "account", "created_at": made["created_at"], **terms}
    other = (await http.post(ACCOUNTS, json={})).json()
    assert other["id"].startswith("acct_")
    assert other["models"] is None
    assert (await http.get(f"{ACCOUNTS}/team-a")).json() == made
    changed = await http.patch(f"{ACCOUNTS}/team-a", json={"limits": {"concurrency": None}})
    assert changed.json()["limits"] == {**terms["limits"], "concurrency": None}  # type: ignore[dict-item]
    changed = await http.patch(f"{ACCOUNTS}/team-a", json={"models": None, "limits": None})
    assert (changed.json()["models"], changed.json()["aliases"]) == (None, {"fast": "one"})
    assert not any(changed.json()["limits"].values())
    listed = (await http.get(ACCOUNTS)).json()
    assert [account["id"] for account in listed["data"]] == [other["id"], "team-a"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    page = (await http.get(ACCOUNTS, params={"limit": 1})).json()
    assert (page["last_id"], page["has_more"]) == (other["id"], True)
    page = (await http.get(ACCOUNTS, params={"limit": 1, "after": page["last_id"]})).json()
    assert (page["first_id"], page["has_more"]) == ("team-a", False)
    deleted = await http.delete(f"{ACCOUNTS}/team-a")
    assert deleted.json() == {"id": "team-a", "object": "account", "deleted": True}
    error(await http.get(f"{ACCOUNTS}/team-a"), 404, "account_not_found")
    error(await http.post(ACCOUNTS, json={"id": "team-a"}), 400, "account_exists")


@pytest.mark.rule("admin.keys", "accounts.keys-shown-once", "accounts.keys-rotate")
async def test_a_key_from_beginning_to_end(stack: Stack, http: httpx.AsyncClient) -> None:
    await http.post(ACCOUNTS, json={"id": "a"})
    response = await http.post(KEYS, json={"account_id": "a", "label": "laptop"})
    assert response.headers["cache-control"] == "no-store"
    made = response.json()
    text = made.pop("key")
    assert made["id"] == key_id_in(text)
    assert made == {
        "id": made["id"],
        "object": "api_key",
        "account_id": "a",
        "label": "laptop",
        "active": True,
        "created_at": made["created_at"],
        "expires_at": None,
        "revoked_at": None,
    }
    assert (await http.get(f"{KEYS}/{made['id']}")).json() == made  # without the key
    assert await ask(stack, text) == 200  # in this process at once
    rotated = (await http.post(f"{KEYS}/{made['id']}/rotate", json={"overlap_s": 60})).json()
    assert [await ask(stack, key) for key in (text, rotated["key"])] == [200, 200]
    last = (await http.post(f"{KEYS}/{rotated['id']}/rotate")).json()
    assert [await ask(stack, key) for key in (rotated["key"], last["key"])] == [401, 200]
    gone = await http.delete(f"{KEYS}/{last['id']}")
    assert not gone.json()["active"]
    assert await ask(stack, last["key"]) == 401
    listed = (await http.get(KEYS, params={"account_id": "a"})).json()["data"]
    assert {key["id"] for key in listed} == {made["id"], rotated["id"], last["id"]}
    assert not [key for key in listed if "key" in key]
    error(await http.post(f"{KEYS}/{last['id']}/rotate"), 400, "key_not_active")
    expiring = {"account_id": "a", "expires_at": int(time.time()) + 3600}
    assert (await http.post(KEYS, json=expiring)).json()["expires_at"] == expiring["expires_at"]
    await http.delete(f"{ACCOUNTS}/a")
    assert await ask(stack, text) == 401


BAD: list[tuple[str, str, Any, int, str, str | None]] = [
    ("POST", ACCOUNTS, {"id": "Not An Id"}, 400, "unsupported_value", "id"),
    ("POST", ACCOUNTS, {"id": "of-the-file"}, 400, "account_exists", "id"),
    ("POST", ACCOUNTS, {"id": "0" * 24}, 400, "unsupported_value", "id"),
    ("POST", ACCOUNTS, {"modles": []}, 400, "unsupported_parameter", "modles"),
    ("POST", ACCOUNTS, {"models": "one"}, 400, "schema_validation_failed", "models"),
    ("POST", ACCOUNTS, {"models": [1]}, 400, "schema_validation_failed", "models[0]"),
    ("POST", ACCOUNTS, {"always_zdr": "yes"}, 400, "schema_validation_failed", "always_zdr"),
    ("POST", ACCOUNTS, {"profile": "none"}, 400, "unsupported_value", "profile"),
    ("POST", ACCOUNTS, {"priorities": [5, 1]}, 400, "unsupported_value", "priorities"),
    (
        *("POST", ACCOUNTS, {"limits": {"concurrency": 0}}),
        *(400, "unsupported_value", "limits.concurrency"),
    ),
    (
        *("POST", ACCOUNTS, {"models": ["a"], "aliases": {"x": "b"}}),
        *(400, "unsupported_value", "aliases.x"),
    ),
    ("POST", ACCOUNTS, [], 400, "invalid_json_request", None),
    ("PATCH", f"{ACCOUNTS}/there", [], 400, "invalid_json_request", None),
    ("PATCH", f"{ACCOUNTS}/there", {"id": "other"}, 400, "unsupported_parameter", "id"),
    ("PATCH", f"{ACCOUNTS}/there", {"limits": 5}, 400, "schema_validation_failed", "limits"),
    ("PATCH", f"{ACCOUNTS}/nobody", {}, 404, "account_not_found", "id"),
    ("PATCH", f"{ACCOUNTS}/of-the-file", {}, 404, "account_not_found", "id"),
    ("DELETE", f"{ACCOUNTS}/%00%ff", None, 404, "account_not_found", "id"),
    ("GET", f"{ACCOUNTS}?limit=0", None, 400, "unsupported_value", "limit"),
    ("POST", KEYS, {}, 400, "schema_validation_failed", "account_id"),
    ("POST", KEYS, {"account_id": "nobody"}, 404, "account_not_found", "account_id"),
    (
        "POST",
        KEYS,
        {"account_id": "there", "label": "x" * 65},
        400,
        "unsupported_value",
        "label",
    ),
    (
        *("POST", KEYS, {"account_id": "there", "expires_at": 5}),
        *(400, "unsupported_value", "expires_at"),
    ),
    (
        *("POST", KEYS, {"account_id": "there", "expires_at": "soon"}),
        *(400, "schema_validation_failed", "expires_at"),
    ),
    ("GET", f"{KEYS}/key_nobody", None, 404, "key_not_found", "id"),
    ("DELETE", f"{KEYS}/key_nobody", None, 404, "key_not_found", "id"),
    ("POST", f"{KEYS}/key_nobody/rotate", {}, 404, "key_not_found", "id"),
    (
        *("POST", f"{KEYS}/key_nobody/rotate", {"overlap_s": -1}),
        *(400, "unsupported_value", "overlap_s"),
    ),
    ("GET", f"{KEYS}?after=key_nobody", None, 404, "key_not_found", "after"),
    ("PUT", ACCOUNTS, {}, 405, "method_not_allowed", None),
]


@pytest.mark.rule("admin.errors")
async def test_what_cannot_be_done_is_told(served: httpx.AsyncClient) -> None:
    before = (await served.get(ACCOUNTS)).json()
    for method, path, body, status, code, param in BAD:
        sent = {} if body is None else {"json": body}
        found = error(await served.request(method, path, **sent), status, code)
        assert found["param"] == param, (path, body)
        assert "pydantic" not in found["message"].lower()
    assert (await served.get(ACCOUNTS)).json() == before


@pytest.fixture
async def served(stack: Stack, http: httpx.AsyncClient) -> httpx.AsyncClient:
    await http.post(ACCOUNTS, json={"id": "there"})
    return http


@pytest.mark.rule("accounts.keys-limit")
async def test_so_many_keys_and_no_more(served: httpx.AsyncClient) -> None:
    made = [await served.post(KEYS, json={"account_id": "there"}) for _ in range(25)]
    assert {response.status_code for response in made} == {200}
    error(await served.post(KEYS, json={"account_id": "there"}), 400, "key_limit_exceeded")
    rotate = f"{KEYS}/{made[0].json()['id']}/rotate"
    error(await served.post(rotate, json={"overlap_s": 5}), 400, "key_limit_exceeded")
    assert (await served.post(rotate, json={})).status_code == 200


@pytest.mark.rule("admin.key")
async def test_only_the_admin_key_opens_it(stack: Stack, served: httpx.AsyncClient) -> None:
    client_key = (await served.post(KEYS, json={"account_id": "there"})).json()["key"]
    bad: list[list[tuple[bytes, bytes]]] = [
        [(b"x-api-key", client_key.encode())],
        [(b"x-api-key", b"file-key")],
        [(b"x-api-key", ADMIN_KEY.upper().encode())],
        [(b"x-api-key", b"\xff")],
        [(b"x-api-key", b"")],
        [(b"authorization", f"Basic {ADMIN_KEY}".encode())],
        [(b"x-api-key", ADMIN_KEY.encode()), (b"authorization", f"Bearer {client_key}".encode())],
    ]
    with structlog.testing.capture_logs() as lines:
        async with httpx.AsyncClient(base_url=stack.url, timeout=10) as http:
            for path in PATHS:
                method = "POST" if path.endswith("rotate") else "GET"
                for headers in bad:
                    response = await http.request(method, path, headers=headers)
                    found = error(response, 401, "invalid_api_key")
                    assert found["message"] == "The API key is not valid."
                response = await http.request(method, f"{path}?key={ADMIN_KEY}")
                error(response, 401, "missing_api_key")
            good = {"x-api-key": ADMIN_KEY}
            assert (await http.get(ACCOUNTS, headers=good)).status_code == 200
            # It is no client's key either.
            response = await http.post(CHAT, json=request_body("chat"), headers=good)
            error(response, 401, "invalid_api_key")
    for secret in (client_key, client_key[12:], ADMIN_KEY, digest_of(client_key.encode()).hex()):
        assert secret not in repr(lines)


@pytest.mark.rule("admin.key")
async def test_without_an_admin_key_there_is_nothing(tmp_path: Path) -> None:
    async with (
        memory_stack(files=tmp_path, worker=False, api_keys=("good-key",)) as stack,
        httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": "good-key"}) as http,
    ):
        elsewhere = (await http.get("/admin/nothing/here")).json()["error"]
        for path in PATHS:
            for method in ("GET", "POST", "PATCH", "DELETE", "PUT"):
                found = error(await http.request(method, path), 404, "not_found")
                assert found["message"] == elsewhere["message"]


async def test_without_a_database_no_accounts_can_be_kept() -> None:
    async with (
        memory_stack(worker=False, admin_key=ADMIN_KEY) as stack,
        httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": ADMIN_KEY}) as http,
    ):
        for path in (ACCOUNTS, KEYS):
            error(await http.get(path), 404, "endpoint_not_supported")
            error(await http.post(path, json={"id": "a"}), 404, "endpoint_not_supported")
        error(await http.get(USAGE), 404, "endpoint_not_supported")


@pytest.mark.rule("admin.log")
async def test_what_was_changed_is_logged_and_no_key(
    stack: Stack, served: httpx.AsyncClient
) -> None:
    with structlog.testing.capture_logs() as lines:
        made = (await served.post(KEYS, json={"account_id": "there"})).json()
        rotated = (await served.post(f"{KEYS}/{made['id']}/rotate")).json()
        await served.delete(f"{KEYS}/{rotated['id']}")
        await served.patch(f"{ACCOUNTS}/there", json={"disabled": True})
        await served.delete(f"{ACCOUNTS}/there")
    assert [line["event"] for line in lines if line["event"].startswith("admin.")] == [
        *("admin.key.created", "admin.key.rotated", "admin.key.revoked"),
        *("admin.account.changed", "admin.account.deleted"),
    ]
    for key in (made["key"], rotated["key"]):
        assert key[12:] not in repr(lines)


async def test_a_database_that_fails_is_told(stack: Stack, http: httpx.AsyncClient) -> None:
    async def spoil(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("DROP TABLE api_keys")

    assert isinstance(stack.services.store, SqlStore)
    await stack.services.store.database.write(spoil)
    found = error(await http.get(KEYS), 503, "store_unavailable")
    assert "api_keys" not in found["message"]
