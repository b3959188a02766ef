"""The playground in every dialect: streams, calls of tools, schemas, and the call as a program."""

import asyncio
import io
from collections.abc import AsyncIterator
from functools import partial

import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser.looking import console
from tests.fixtures.stack import MODEL, Stack, memory_stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "k-of-the-playground"
EVENTS = {
    "Chat": '"chat.completion.chunk"',
    "Responses": "response.output_text.delta",
    "Messages": "content_block_delta",
    "Completions": '"text_completion"',
}
TALKING = ("Chat", "Responses", "Messages")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack(api_keys=(KEY,), profile="official") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, stack: Stack) -> AsyncIterator[Page]:
    async with console(browser, stack.pods[0], view="#playground") as opened:
        await opened.get_by_label("API key").fill(KEY)
        yield opened


async def choose(page: Page, dialect: str) -> None:
    await page.locator("label", has_text=dialect).get_by_role("radio").check(force=True)


async def ask(page: Page, text: str) -> None:
    await page.locator("#prompt").fill(text)
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#answered")).to_contain_text("complete")


async def run_python(program: str) -> str:
    """What a program prints; it runs in this process, where the clients are imported already."""

    def run() -> str:
        printed = io.StringIO()
        # Its own `print`: the service writes its log to the output of the same process.
        names = {"__name__": "__main__", "print": partial(print, file=printed)}
        exec(compile(program, "playground.py", "exec"), names)
        return printed.getvalue()

    return await asyncio.to_thread(run)


async def run_curl(program: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", program, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed


@pytest.mark.parametrize("dialect", EVENTS)
async def test_an_answer_comes_as_a_stream_with_its_events_and_as_a_program(
    page: Page, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    await choose(page, dialect)
    await page.get_by_label("Output limit").fill("300")
    text = "It's “quoted” \\ $HOME `x`: [[say:one <b>two</b> three]]"
    if dialect == "Completions":  # its prompts are token ids, and those of this engine are bytes
        text = str(list(text.encode()))
    await ask(page, text)
    answer = page.locator("#rendering .turn").last
    await expect(answer.locator(".text")).to_have_text("one <b>two</b> three")
    await expect(page.locator("#raw")).to_contain_text(EVENTS[dialect])
    await expect(page.locator("#raw")).to_contain_text("HTTP 200, request req_")
    await expect(page.locator("#figures")).to_contain_text("first token")
    curl = await page.locator("#snippet").inner_text()
    assert KEY not in curl
    assert b"three" in await run_curl(curl)
    await page.locator("label", has_text="Python").get_by_role("radio").check(force=True)
    python = await page.locator("#snippet").inner_text()
    assert KEY not in python
    assert "one <b>two</b> three" in await run_python(python)
    await page.get_by_label("Stream the answer").uncheck()
    assert "three" in await run_python(await page.locator("#snippet").inner_text())


@pytest.mark.parametrize("dialect", TALKING)
async def test_a_call_of_a_tool_is_shown_and_answered(page: Page, dialect: str) -> None:
    await choose(page, dialect)
    await page.locator("summary", has_text="Tools").click()
    await page.locator("#tools-example").click()
    await ask(page, '[[tool:get_weather {"city": "Oslo"}]]')
    call = page.locator(".part.tool")
    await expect(call).to_contain_text("calls get_weather")
    await expect(call).to_contain_text('"city": "Oslo"')
    await call.get_by_label("What it answers").fill("9 degrees, rain")
    await expect(page.locator("#snippet")).to_contain_text("9 degrees, rain")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#rendering .turn").last.locator(".text")).not_to_be_empty()
    await expect(page.locator("#answered")).to_contain_text("complete")


@pytest.mark.parametrize("dialect", TALKING)
async def test_reasoning_is_set_apart_and_a_schema_is_followed(page: Page, dialect: str) -> None:
    await choose(page, dialect)
    await page.get_by_label("Reasoning").select_option("high")
    await page.locator("summary", has_text="Structured output").click()
    await page.locator("#schema-example").click()
    await ask(page, "[[think:let me see]]")
    answer = page.locator("#rendering .turn").last
    await expect(answer.locator(".reasoning")).to_have_text("let me see")
    value = orjson.loads(await answer.locator(".text").inner_text())
    assert set(value) == {"name", "year"}


async def test_an_answer_without_a_stream_is_shown_too(page: Page) -> None:
    await page.get_by_label("Stream the answer").uncheck()
    await ask(page, "[[say:all at once]]")
    await expect(page.locator("#rendering .text")).to_have_text("all at once")
    await expect(page.locator("#raw")).to_contain_text('"finish_reason": "stop"')


async def test_an_answer_can_be_stopped_and_the_keyboard_is_enough(
    page: Page, stack: Stack
) -> None:
    await page.locator("#prompt").fill("[[hang:2]]")
    await page.locator("#prompt").press("Control+Enter")
    await expect(page.locator("#rendering .text")).not_to_be_empty()
    stop = page.get_by_role("button", name="Stop")
    await stop.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#rendering [role=alert]")).to_have_text("Stopped.")
    await expect(stop).to_be_hidden()


async def test_what_is_refused_is_said(page: Page) -> None:
    await page.get_by_label("API key").fill("another")
    await page.locator("#prompt").fill("hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#rendering [role=alert]")).to_have_text("The API key is not valid.")
    await expect(page.locator("#raw")).to_contain_text('"code": "invalid_api_key"')
    await page.locator("summary", has_text="Tools").click()
    await page.locator("#tools").fill("{not json")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#ask-error")).to_contain_text("Tools")


async def test_a_stream_that_fails_is_not_taken_for_whole(page: Page) -> None:
    await page.locator("#prompt").fill("[[say:one two three]] [[fail:2]]")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#rendering [role=alert]")).not_to_be_empty()
    await expect(page.locator("#rendering .text")).to_have_text("one two")
    await expect(page.get_by_role("button", name="New conversation")).to_be_hidden()
    assert MODEL in await page.locator("#snippet").inner_text()
