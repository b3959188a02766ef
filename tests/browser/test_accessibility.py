"""Nobody is kept out: axe-core finds nothing to complain of on any view, in light and in dark."""

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.browser.looking import console
from tests.fixtures.browser import opened_page
from tests.fixtures.lively import busy, lively
from tests.fixtures.stack import memory_stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def check(page: Page, *rules: str) -> None:
    """All rules, or these; nothing else depends on whether it is light or dark than contrasts."""
    options = {"resultTypes": ["violations"]}
    results = await Axe().run(page, options={**options, "runOnly": rules} if rules else options)
    found = [
        (one["id"], one["impact"], [node["html"][:120] for node in one["nodes"][:3]])
        for one in results.response["violations"]
    ]
    assert found == []


async def test_the_service_and_the_playground(browser: Browser, tmp_path: Path) -> None:
    async with (
        lively(tmp_path) as pod,
        busy(pod),
        console(browser, pod, color_scheme="light") as page,
    ):
        await expect(page.locator("#attention li").first).to_be_visible()
        await expect(page.locator("#requests tbody tr").first).to_be_visible()
        await expect(page.locator("#batches tbody tr").first).to_be_visible()
        await check(page)
        await page.emulate_media(color_scheme="dark")
        await check(page, "color-contrast")
        # Narrow, nothing is wider than the page.
        await page.set_viewport_size({"width": 380, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 380
        await page.goto(f"{pod.url}/console#playground")
        await page.get_by_label("API key").fill("search-key")
        for part in ("Tools", "Structured output"):
            await page.locator("summary", has_text=part).click()
        await page.locator("#tools-example").click()
        await page.locator("#prompt").fill('[[tool:get_weather {"city": "Oslo"}]]')
        await page.locator("#send").click()
        await expect(page.locator("#rendering textarea")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 380
        await check(page)
        await page.emulate_media(color_scheme="light")
        await check(page, "color-contrast")


async def test_the_door(browser: Browser) -> None:
    async with (
        memory_stack(console_key="console-key-of-the-test") as stack,
        opened_page(browser, f"{stack.url}/console?wrong") as page,
    ):
        await check(page)
