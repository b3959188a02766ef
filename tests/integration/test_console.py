"""Who may look at the console, what it is made of, and what its moments tell."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from starlette.requests import Request

from ingress.console.door import Door
from tests.fixtures.requests import request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, until

KEY = "console-key-of-the-test"
PATHS = ("/console", "/console/events", "/console/static/app.js")


@asynccontextmanager
async def client(stack: Stack, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=10, **options) as http:
        yield http


async def status(http: httpx.AsyncClient, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.stream("GET", path, headers=named) as response:
        return response.status_code


async def moment(http: httpx.AsyncClient) -> dict[str, Any]:
    """The present, as a new watcher is told."""
    async with http.stream("GET", "/console/events") as response:
        assert response.status_code == 200
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == "moment":
                found: dict[str, Any] = orjson.loads(line[6:])
                return found
    raise AssertionError("no moment came")


async def test_without_a_key_only_this_machine_may_look() -> None:
    async with memory_stack() as stack, client(stack) as http:
        for path in PATHS:
            assert await status(http, path) == 200
            assert (await http.head(path)).status_code == 200
        assert await status(http, "/console", host="localhost:8000") == 200
        assert await status(http, "/console", host="[::1]:8000") == 200
        # A name of somebody else that leads here, a proxy, and another site's page.
        for headers in (
            {"host": "rebound.example"},
            {"host": "127.0.0.1.example"},
            {"x_forwarded_for": "203.0.113.9"},
            {"forwarded": "for=203.0.113.9"},
            {"via": "1.1 proxy"},
        ):
            assert await status(http, "/console", **headers) == 404
            assert await status(http, "/console/events", **headers) == 404
        assert await status(http, "/console/events", sec_fetch_site="cross-site") == 404
        link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
        assert await status(http, "/console", **link) == 200


async def test_where_others_can_come_there_is_nothing_without_a_key() -> None:
    async with (
        memory_stack(host="0.0.0.0", api_keys=("k",)) as stack,
        client(stack) as http,
    ):
        for path in (*PATHS, "/console/login"):
            response = await http.get(path)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"
    async with memory_stack(public_url="https://llm.example.com") as stack, client(stack) as http:
        assert await status(http, "/console") == 404


async def test_an_old_proxy_is_not_a_person_on_this_machine() -> None:
    async with memory_stack() as stack:
        host, _, port = stack.url[7:].partition(":")
        for version, answer in (("1.0", b"404"), ("1.1", b"200")):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /console HTTP/{version}\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == answer
            writer.close()
            await writer.wait_closed()


async def test_the_key_lets_in_and_nothing_else() -> None:
    async with memory_stack(console_key=KEY, api_keys=("k-client",)) as stack:
        async with client(stack) as http:
            assert "Console key" in (await http.get("/console")).text
            assert await status(http, "/console/events") == 401
            for wrong in ("Bearer k-client", f"Bearer {KEY}x", "Bearer", KEY):
                assert await status(http, "/console/events", authorization=wrong) == 401
            assert await status(http, "/console/events", authorization=f"Bearer {KEY}") == 200
            # Each is answered alike, and a wrong key gives nothing.
            refused = await http.post("/console/login", data={"key": "k-client"})
            assert (refused.status_code, refused.headers["location"]) == (303, "../console?wrong")
            assert "set-cookie" not in refused.headers
            other_site = await http.post(
                "/console/login", data={"key": KEY}, headers={"sec-fetch-site": "cross-site"}
            )
            assert other_site.status_code == 404
            large = await http.post("/console/login", content=b"key=" + b"k" * 5000)
            assert large.status_code == 413
            let_in = await http.post("/console/login", data={"key": KEY})
            assert let_in.headers["location"] == "../console"
            cookie = let_in.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert "Secure" not in cookie
            assert await status(http, "/console/events") == 200
        async with client(stack, headers={"x-forwarded-proto": "https"}) as http:
            secure = (await http.post("/console/login", data={"key": KEY})).headers["set-cookie"]
            assert secure.startswith("__Host-")
            assert "Secure" in secure


@pytest.mark.parametrize(
    "forge",
    [
        lambda name, value: f"{name}=",
        lambda name, value: f"{name}={value[:-1]}{'0' if value[-1] != '0' else '1'}",
        lambda name, value: f"{name}=9{value}",
        lambda name, value: f"{name}=٣{value}",
        lambda name, value: f"{name}={value.partition('.')[2]}",
        lambda name, value: f"{name}x={value}",
    ],
)
async def test_a_cookie_that_was_made_up_lets_nobody_in(forge: Any) -> None:
    async with memory_stack(console_key=KEY) as stack, client(stack) as http:
        await http.post("/console/login", data={"key": KEY})
        ((name, value),) = http.cookies.items()
        http.cookies.clear()
        forged = forge(name, value).encode()
        async with http.stream("GET", "/console/events", headers=[("cookie", forged)]) as response:
            assert response.status_code == 401


async def test_a_cookie_expires() -> None:
    async with memory_stack(console_key=KEY) as stack, client(stack) as http:
        await http.post("/console/login", data={"key": KEY})
        cookies = dict(http.cookies)
        now = time.time()
        early = Door(KEY, clock=lambda: now)
        late = Door(KEY, clock=lambda: now + 13 * 3600)
        other = Door("another-key-of-some-length", clock=lambda: now)
        request = asked_with(stack, cookies)
        assert early.admits(request)
        assert not late.admits(request)
        assert not other.admits(request)


def asked_with(stack: Stack, cookies: dict[str, str]) -> Request:
    text = "; ".join(f"{name}={value}" for name, value in cookies.items())
    return Request(
        {
            "type": "http",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(b"host", stack.url[7:].encode()), (b"cookie", text.encode())],
        }
    )


async def test_the_page_runs_and_asks_nothing_but_its_own_host() -> None:
    async with memory_stack() as stack, client(stack) as http:
        page = await http.get("/console")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://", page.text
        )
        for name in re.findall(r'(?:src|href)="(console/static/[^"]+)"', page.text):
            asset = await http.get(f"/{name}")
            assert asset.status_code == 200
            again = await http.get(f"/{name}", headers={"if-none-match": asset.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for name in ("..%2f..%2fsettings.py", "nothing.js", "index.html.bak"):
            assert (await http.get(f"/console/static/{name}")).status_code == 404


async def test_a_moment_tells_how_the_service_stands() -> None:
    async with memory_stack(api_keys=("k",)) as stack, client(stack) as http:
        http.headers["authorization"] = "Bearer k"
        await http.post("/v1/chat/completions", json=request_body("chat", "[[say:one two]]"))
        await http.post("/v1/messages", json=request_body("messages", "[[fail:start]]"))
        await http.post("/v1/chat/completions", json={"model": MODEL})
        await http.post("/v1/responses", json={}, headers={"authorization": "Bearer unknown"})
        await http.get("/v1/nothing")
        del http.headers["authorization"]
        now = await moment(http)
        (model,) = now["models"]
        assert (model["id"], model["state"], model["slots"]) == (MODEL, "serving", 256)
        assert now["keys_needed"]
        assert now["requests"] == []
        (worker,) = now["workers"]
        assert (worker["id"], worker["state"], worker["live"]) == ("worker-1", "well", 0)
        assert now["batches"] is None
        errors = {one["code"]: (one["status"], one["count"]) for one in now["errors"]}
        assert errors == {
            "generation_failed": (500, 1),
            "schema_validation_failed": (400, 1),
            "invalid_api_key": (401, 1),
            "not_found": (404, 1),
        }
        failed = next(one for one in now["errors"] if one["code"] == "generation_failed")
        assert failed["last"][0]["model"] == MODEL
        assert failed["last"][0]["dialect"] == "messages"


async def test_who_watches_holds_up_no_end() -> None:
    async with memory_stack(grace_s=60.0) as stack, client(stack) as http:
        async with http.stream("GET", "/console/events") as response:
            body = response.aiter_raw()
            await anext(body)
            stack.pods[0].server.end()
            async with asyncio.timeout(5):
                async for _ in body:
                    pass
        await until(lambda: stack.pods[0].serving.done())
