"""What tests of the console have in common: a page on a service that shows its moments quickly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from playwright.async_api import Browser, Page, expect

from tests.fixtures.browser import opened_page
from tests.fixtures.stack import MODEL, Pod


@asynccontextmanager
async def console(
    browser: Browser, pod: Pod, *, view: str = "", every_s: float = 0.1, **options: Any
) -> AsyncIterator[Page]:
    """The console of a pod, once it is live; it must have asked nobody but that pod."""
    watch = pod.services.watch
    assert watch is not None
    watch.every_s = every_s
    asked: set[str] = set()
    async with opened_page(browser, "about:blank", **options) as page:
        page.on("request", lambda request: asked.add(request.url))
        await page.goto(f"{pod.url}/console{view}")
        await expect(page.locator("#link")).to_have_text("Live")
        yield page
    assert {url for url in asked if not url.startswith(f"{pod.url}/")} == set()


@asynccontextmanager
async def asking(
    pod: Pod, text: str, *, times: int = 1, key: str | None = None, **body: Any
) -> AsyncIterator[None]:
    """While this lasts, so many requests are under way, or have ended."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = {"model": MODEL, "messages": [{"role": "user", "content": text}], **body}
    async with httpx.AsyncClient(base_url=pod.url, headers=headers, timeout=60) as client:

        async def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json=request)

        tasks = [asyncio.create_task(ask()) for _ in range(times)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
