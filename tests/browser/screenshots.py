"""Pictures of the console for its page in the documentation.

    python -m tests.browser.screenshots docs/console

A deployment is kept busy for a minute and a half, so that there is something to be seen.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.async_api import Browser, ViewportSize, expect

from tests.browser.looking import console
from tests.fixtures.browser import running_browser
from tests.fixtures.lively import LARGE, busy, lively
from tests.fixtures.stack import Pod

_BUSY_S = 90
_SIZE: Final[ViewportSize] = {"width": 1280, "height": 1060}
_QUESTION = '[[think:Oslo is asked for; the tool knows.]] [[tool:get_weather {"city": "Oslo"}]]'


async def shoot(directory: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            running_browser() as browser,
            lively(Path(scratch)) as pod,
            busy(pod, times=8, lines=300),
        ):
            for scheme in ("light", "dark"):
                await _service(browser, pod, scheme, directory / f"service-{scheme}.png")
            await _playground(browser, pod, directory / "playground.png")


async def _service(
    browser: Browser, pod: Pod, scheme: Literal["light", "dark"], path: Path
) -> None:
    async with console(browser, pod, every_s=1.0, color_scheme=scheme, viewport=_SIZE) as page:
        await asyncio.sleep(_BUSY_S if scheme == "light" else 2)
        await page.screenshot(path=path)


async def _playground(browser: Browser, pod: Pod, path: Path) -> None:
    async with console(browser, pod, view="#playground", viewport=_SIZE) as page:
        await page.get_by_label("API key").fill("search-key")
        await page.locator("label", has_text="Messages").get_by_role("radio").check(force=True)
        await page.locator("#model").select_option(LARGE)
        await page.get_by_label("Reasoning").select_option("high")
        await page.locator("summary", has_text="Tools").click()
        await page.locator("#tools-example").click()
        await page.locator("#prompt").fill(_QUESTION)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#rendering textarea")).to_be_visible()
        await page.evaluate("window.scrollTo(0, 0)")
        await page.screenshot(path=path)


def _shrink(path: Path) -> None:
    """Few colours are enough, and a small file."""
    image = Image.open(path).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/console")
    place.mkdir(parents=True, exist_ok=True)
    asyncio.run(shoot(place))
    for picture in place.glob("*.png"):
        _shrink(picture)
