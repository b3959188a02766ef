"""The console as an operator sees it: what happens to the service is on the page in a moment."""

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from ingress.config import Config
from tests.browser.looking import asking, console
from tests.fixtures.batches import add_batch, openai_line, run_batcher
from tests.fixtures.browser import opened_page
from tests.fixtures.stack import MODEL, memory_stack, until
from workers.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "console-key-of-the-test"
LIMITED = Config.model_validate(
    {
        "accounts": [
            {
                "id": "intern",
                "name": "Summer project",
                "keys": [{"key": "intern-key"}],
                "limits": {"requests_per_minute": 2},
            }
        ]
    }
)

_POD = {"pod": "p", "release": "1", "connected": True, "blocked": False, "shutting_down": False}
_QUEUE = {"model": "m", "job_class": "interactive", "count": 2}
_WELL = {
    "at": 100,
    "pods": [_POD],
    "models": [{"id": "m", "state": "serving"}],
    "batches_away": False,
    **{name: [] for name in ("gone", "workers", "queues", "accounts", "errors")},
}


def cells(page: Page, table: str, row: str) -> Locator:
    return page.locator(f"#{table} tbody tr", has_text=row).locator("td")


async def test_a_request_is_seen_while_it_runs_but_nothing_of_what_is_said(
    browser: Browser,
) -> None:
    async with memory_stack(api_keys=("k-secret-key",)) as stack:
        pod = stack.pods[0]
        async with (
            console(browser, pod) as page,
            asking(pod, "a secret [[say:hush hush hush]] [[hang:3]]", key="k-secret-key"),
        ):
            row = page.locator("#requests tbody tr")
            await expect(row).to_have_count(1)
            await expect(row).to_contain_text("decode")
            await expect(row.locator("td").nth(5)).to_have_text("3")  # tokens so far
            await expect(row).to_contain_text("worker-1")
            await expect(cells(page, "workers", "worker-1").nth(3)).to_contain_text("1 of 256")
            await expect(page.locator("#headline")).to_have_text(
                "All well: 1 model served, 1 request under way"
            )
            request_id = await row.locator("td").first.inner_text()
            assert request_id.startswith("req_")
            shown = await page.content()
            async with (
                httpx.AsyncClient() as client,
                client.stream("GET", f"{pod.url}/console/events") as events,
            ):
                async for told in events.aiter_text():
                    shown += told
                    if "event: moment" in told:
                        break
            assert request_id in shown
            for secret in ("secret", "hush", "k-secret-key"):
                assert secret not in shown
        async with console(browser, pod) as page:
            await expect(page.locator("#requests")).to_contain_text("Nothing is under way.")
            await expect(cells(page, "errors", "client_closed_request").nth(1)).to_have_text("1")


async def test_a_worker_that_is_gone_is_seen(browser: Browser) -> None:
    async with memory_stack() as stack, console(browser, stack.pods[0]) as page:
        await expect(page.locator("#headline")).to_contain_text("All well")
        await stack.consumers[0].drain(0)
        await expect(page.locator("#attention")).to_contain_text(
            re.compile(f"(No worker serves|All workers of) {MODEL}")
        )
        await expect(page.locator("#headline")).to_have_text("1 thing needs attention")
        await expect(page.locator("#said")).to_contain_text(MODEL)


async def test_a_queue_that_fills_is_seen(browser: Browser) -> None:
    async with memory_stack(ScriptedEngine(served_id=MODEL, slots=1)) as stack:
        pod = stack.pods[0]
        async with console(browser, pod) as page, asking(pod, "[[hang:1]]", times=4):
            live = page.locator("#queues tbody tr", has_text="live").locator("td")
            await expect(live.nth(2)).to_have_text("3")
            await expect(live.nth(3)).to_have_text(re.compile(r"^\d+(\.\d)? m?s$"))
            await expect(page.locator("#plot-waiting .big")).to_have_text("3")
            waiting = page.locator("#requests tbody tr", has_text="queued")
            await expect(waiting).to_have_count(3)
            await page.get_by_role("searchbox").fill("worker-1")
            await expect(page.locator("#requests tbody tr")).to_have_count(1)


async def test_an_account_that_reaches_a_limit_is_seen(browser: Browser) -> None:
    async with memory_stack(config=LIMITED) as stack:
        pod = stack.pods[0]
        async with (
            console(browser, pod) as page,
            asking(pod, "hello", times=3, key="intern-key"),
        ):
            row = page.locator("#accounts tbody tr")
            await expect(row).to_contain_text("Summer project")
            await expect(row).to_contain_text("requests 2 of 2 per minute")
            await expect(row.locator("td").last).to_have_text("1")
            await expect(page.locator("#attention")).to_contain_text(
                "Account Summer project has used up its requests."
            )
            errors = cells(page, "errors", "rate_limit_exceeded")
            await expect(errors.nth(0)).to_contain_text("HTTP 429")
            seen = errors.nth(3).locator("span")
            await expect(seen).to_have_text(re.compile("^req_[0-9a-f]{12}$"))
            await expect(seen).to_have_attribute("title", re.compile("chat · intern$"))


async def test_tokens_and_the_progress_of_a_batch_are_seen(
    browser: Browser, tmp_path: Path
) -> None:
    async with memory_stack(files=tmp_path) as stack:
        services = stack.services
        assert services.store is not None
        assert services.blobs is not None
        lines = [openai_line(f"line-{at}", "[[say:yes]]") for at in range(3)]
        lines += [openai_line("last", "[[hang:2]]")]
        batch = await add_batch(services.store, services.blobs, lines)
        async with console(browser, stack.pods[0]) as page, run_batcher(services):
            row = page.locator("#batches tbody tr", has_text=batch.batch_id)
            await expect(row).to_contain_text("in progress")
            await expect(row).to_contain_text("3 of 4")
            await expect(page.locator("#requests tbody tr")).to_contain_text("chat, batch")
            await expect(page.locator("#plot-tokens .line").first).to_be_attached()


# What is wrong, by how the moment differs from one in which all is well.
WRONG = [
    ({"pods": [{**_POD, "connected": False}]}, "The broker cannot be reached."),
    ({"pods": [{**_POD, "blocked": True}]}, "The broker takes nothing."),
    ({"gone": [{"worker": "w-1", "how": "lost", "at": 90}]}, "Worker w-1 was lost."),
    ({"workers": [{"id": "w-1", "state": "silent", "heard_s": 9}]}, "Worker w-1 is silent."),
    ({"queues": [{**_QUEUE, "oldest_s": 6}]}, "2 requests wait for m."),
    ({"errors": [{"code": "c", "status": 500, "count": 1, "last": [{"at": 99}]}]}, "1 answer c"),
    ({"batches_away": True}, "The store of batches cannot be reached."),
    ({"pods": [_POD, {**_POD, "release": "2"}]}, "Pods of 2 releases run side by side."),
]
RIGHT = [
    {},
    {"gone": [{"worker": "w-1", "how": "left", "at": 90}]},
    {"queues": [{**_QUEUE, "oldest_s": 4}]},
    {"queues": [{**_QUEUE, "oldest_s": 4000, "job_class": "batch"}]},
    {"errors": [{"code": "c", "status": 400, "count": 1, "last": [{"at": 99}]}]},
]


async def test_what_is_worth_a_look(browser: Browser) -> None:
    async with memory_stack() as stack, console(browser, stack.pods[0]) as page:
        found = await page.evaluate(
            """async (moments) => {
                const { attention } = await import("/console/static/attention.js");
                return moments.map((moment) => attention(moment).map((one) => one.what));
            }""",
            [{**_WELL, **change} for change in (*(change for change, _ in WRONG), *RIGHT)],
        )
        for (_, what), told in zip(WRONG, found, strict=False):
            assert len(told) == 1
            assert told[0].startswith(what)
        assert found[len(WRONG) :] == [[] for _ in RIGHT]


async def test_a_lost_connection_is_said_and_made_again(browser: Browser) -> None:
    async with memory_stack() as stack:
        pod = stack.pods[0]
        async with console(browser, pod) as page:
            stack.services.begin_shutdown()
            await expect(page.locator("#link")).to_have_text("Connection lost")
            await expect(page.locator("#lost")).to_contain_text("What you see is old")
            stack.services.admission.shutting_down = False
            await expect(page.locator("#link")).to_have_text("Live")
            await expect(page.locator("#lost")).to_be_hidden()


async def test_nothing_is_looked_up_when_the_last_watcher_has_left(browser: Browser) -> None:
    async with memory_stack() as stack:
        watch = stack.services.watch
        assert watch is not None
        assert watch.idle
        watch.linger_s = 0.0
        async with console(browser, stack.pods[0]):
            assert not watch.idle
        await until(lambda: watch.idle)
        assert not stack.services.answers


async def test_the_key_opens_the_door(browser: Browser) -> None:
    async with memory_stack(console_key=KEY) as stack:
        url = f"{stack.url}/console"
        async with opened_page(browser, url) as page:
            await page.get_by_label("Console key").fill("another-key-entirely")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_have_text("That is not the key.")
            await page.get_by_label("Console key").fill(KEY)
            await page.keyboard.press("Enter")
            await expect(page.locator("#link")).to_have_text("Live")
            (cookie,) = await page.context.cookies()
            assert cookie["httpOnly"]
            assert cookie["sameSite"] == "Strict"
            assert KEY not in cookie["value"]
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_label("Console key")).to_be_visible()
            assert await page.context.cookies() == []
