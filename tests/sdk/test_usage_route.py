"""`GET /v1/usage`, `GET /admin/v1/usage` and `headrace usage`: what accounts have used."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from click.testing import CliRunner

from ingress.__main__ import main
from ingress.stores.sql_usage import SqlUsage
from ingress.usage.report import Place, Span
from schemas.delta import Usage
from tests.contract.test_usage_stores import BEGAN, DAY, a_record
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from tests.integration.test_admin import ADMIN_KEY
from tests.integration.test_usage import neutral

KEYS = ("sk-one-one-one-one", "sk-two-two-two-two")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with memory_stack(files=tmp_path, api_keys=KEYS, admin_key=ADMIN_KEY) as stack:
        yield stack


def as_client(stack: Stack, key: str = KEYS[0]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": key})


async def report(http: httpx.AsyncClient, **query: Any) -> Any:
    response = await http.get("/v1/usage", params=query)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.rule("usage.own-account", "usage.told")
async def test_an_account_sees_what_it_was_told_and_nothing_else(stack: Stack) -> None:
    told = []
    async with as_client(stack) as http, as_client(stack, KEYS[1]) as other:
        for dialect in ALL:
            answer = await http.post(path_of(dialect), json=request_body(dialect))
            told.append(neutral(dialect, answer.json()["usage"]))
        await other.post(path_of("chat"), json=request_body("chat"))

        async def has_all() -> bool:
            return bool((await report(http))["totals"]["request_count"] == len(ALL))

        await until(has_all)
        shown = await report(http)
    totals = shown["totals"]
    assert totals["input_tokens"] == sum(usage.input_tokens for usage in told)
    assert totals["output_tokens"] == sum(usage.output_tokens for usage in told)
    assert totals["total_tokens"] == totals["input_tokens"] + totals["output_tokens"]
    (model,) = shown["models"]
    assert {**totals, "model": MODEL} == model
    assert sum(day["request_count"] for day in shown["days"]) == len(ALL)
    assert shown["object"] == "usage"


async def filled(stack: Stack) -> str:
    """Records of five days, and others'; the id of the account they are of."""
    store = stack.services.usage.store
    assert store is not None
    principal = stack.services.authenticator.authenticate([(b"x-api-key", KEYS[0].encode())])
    today = time.time() // DAY * DAY
    await store.add(
        [
            a_record(
                number,
                account=principal.account,
                began_at=today - number * DAY,
                model="a" if number % 2 else "b",
                key="one" if number < 3 else "two",
                outcome=("completed", "cancelled", "failed")[number % 3],
                usage=Usage(100, 40, 10, 5),
                microcents=1_250_000,
            )
            for number in range(5)
        ]
    )
    await store.add([a_record(99, account="theirs", began_at=today)])
    return principal.account


@pytest.mark.rule("usage.report")
async def test_a_report_is_of_a_time_and_parted_as_asked(stack: Stack) -> None:
    account = await filled(stack)
    async with as_client(stack) as http:
        month = await report(http)
        assert month["account"] == account
        assert month["totals"] == {
            "request_count": 5,
            "cancelled_count": 2,
            "failed_count": 1,
            "input_tokens": 500,
            "cache_read_tokens": 200,
            "output_tokens": 50,
            "reasoning_tokens": 25,
            "total_tokens": 550,
            "estimated_cost_cents": 6.25,
        }
        assert [model["model"] for model in month["models"]] == ["a", "b"]
        assert [model["request_count"] for model in month["models"]] == [2, 3]
        dates = [day["date"] for day in month["days"]]
        assert dates == sorted(dates)
        assert len(dates) == 5
        by_key = await report(http, group_by="key")
        assert [(key["key"], key["output_tokens"]) for key in by_key["keys"]] == [
            ("one", 30),
            ("two", 20),
        ]
        assert "days" not in by_key
        only = await report(http, model="a", key="two", group_by="day,model,key")
        assert only["totals"]["request_count"] == 1
        between = await report(http, start=dates[1], end=f"{dates[3]}T00:00:00Z")
        assert [day["date"] for day in between["days"]] == dates[1:3]
        seconds = time.time() - 1.5 * DAY
        assert 1 <= (await report(http, start=int(seconds)))["totals"]["request_count"] <= 2
        assert 1 <= (await report(http, period="1d"))["totals"]["request_count"] <= 2
        assert (await report(http, start="2020-01-01", end="2020-01-02"))["days"] == []


@pytest.mark.rule("usage.report-refused")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"period": "1y"}, "period"),
        ({"period": "7d", "start": "2026-01-01"}, "period"),
        ({"start": "yesterday"}, "start"),
        ({"end": "-1"}, "end"),
        ({"end": "999999999999"}, "end"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "end"),
        ({"group_by": "account"}, "group_by"),
        ({"group_by": ""}, "group_by"),
    ],
)
async def test_what_cannot_be_understood_is_refused(
    stack: Stack, query: dict[str, str], param: str
) -> None:
    async with as_client(stack) as http:
        response = await http.get("/v1/usage", params=query)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "unsupported_value",
        param,
    )


@pytest.mark.rule("usage.report-refused")
async def test_it_takes_a_key_and_a_database(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url) as http:
        response = await http.get("/v1/usage")
        assert (response.status_code, response.json()["error"]["code"]) == (401, "missing_api_key")
        assert (await http.post("/v1/usage")).status_code == 405
    async with memory_stack() as bare, httpx.AsyncClient(base_url=bare.url) as http:
        response = await http.get("/v1/usage")
        assert (response.status_code, response.json()["error"]["code"]) == (
            404,
            "endpoint_not_supported",
        )


async def report_of_all(stack: Stack, **query: Any) -> Any:
    async with as_client(stack, ADMIN_KEY) as http:
        response = await http.get("/admin/v1/usage", params=query)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.rule("usage.of-all")
async def test_the_operator_sees_what_every_account_has_used(stack: Stack) -> None:
    account = await filled(stack)
    month = await report_of_all(stack)
    async with as_client(stack) as http:
        mine = await report(http)
    rows = month["data"]
    assert [row["account"] for row in rows].count("theirs") == 1
    assert [(row["date"], row["account"]) for row in rows] == sorted(
        (row["date"], row["account"]) for row in rows
    )
    days = {day.pop("date"): day for day in mine["days"]}
    for row in rows:
        if row.pop("account") == account:
            assert days.pop(row.pop("date")) == row
    assert not days
    only = await report_of_all(stack, account=account)
    assert only["totals"] == mine["totals"]
    assert month["totals"]["request_count"] == 6
    (used,) = (await report_of_all(stack, group_by="account,model", key="two", model="a"))["data"]
    assert (used["account"], used["model"], used["request_count"]) == (account, "a", 1)
    assert (await report_of_all(stack, account="nobody"))["data"] == []


@pytest.mark.rule("usage.of-all")
async def test_pages_are_of_one_time_and_hold_everything_once(stack: Stack) -> None:
    await filled(stack)
    end = int(time.time()) + 9
    whole = await report_of_all(stack, group_by="account,day", end=end)
    page = await report_of_all(stack, group_by="account,day", end=end, limit=2)
    seen = page["data"]
    while page["has_more"]:
        assert len(page["data"]) == 2
        assert page["totals"] == whole["totals"]
        start, page = (
            page["start"],
            await report_of_all(stack, group_by="account,day", limit=2, page=page["next_page"]),
        )
        assert (page["start"], page["end"]) == (start, whole["end"])
        seen += page["data"]
    assert page["next_page"] is None
    assert seen == whole["data"]
    assert len(seen) == 6


def a_page(start: float, *after: str) -> str:
    return Place(Span(start=start, end=BEGAN), after).text()


@pytest.mark.rule("usage.of-all")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"period": "1y"}, "period"),
        ({"group_by": "batch"}, "group_by"),
        ({"limit": "0"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"page": "?"}, "page"),
        ({"page": "é"}, "page"),
        ({"page": "e30="}, "page"),
        ({"page": a_page(0, "2026-01-01")}, "page"),
        ({"page": a_page(0, "today", "ours")}, "page"),
        ({"page": a_page(-1e15, "2026-01-01", "ours")}, "page"),
    ],
)
async def test_what_the_operator_cannot_have_meant(
    stack: Stack, query: dict[str, str], param: str
) -> None:
    async with as_client(stack, ADMIN_KEY) as http:
        response = await http.get("/admin/v1/usage", params=query)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)


@pytest.mark.rule("usage.command")
async def test_the_operator_sees_all_as_a_table_as_csv_and_as_json(
    stack: Stack, tmp_path: Path
) -> None:
    account = await filled(stack)

    async def run(*arguments: str) -> str:
        given = ("usage", "--database", f"sqlite:///{tmp_path / 'headrace.db'}", *arguments)
        result = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert result.exit_code == 0, result.output
        return result.output

    table = await run("--by", "account", "--by", "model")
    assert account in table
    assert "theirs" in table
    assert [line.split()[:2] for line in table.splitlines()][-1] == ["total", "6"]
    rows = list(csv.DictReader(io.StringIO(await run("--by", "model", "--csv"))))
    assert [(row["model"], row["request_count"]) for row in rows] == [
        ("a", "2"),
        ("b", "3"),
        ("demo-model", "1"),
    ]
    assert rows[0]["estimated_cost_cents"] == "2.5"
    told = orjson.loads(await run("--account", account, "--key", "two", "--json"))
    assert [row["output_tokens"] for row in told] == [10, 10]
    assert orjson.loads(await run("--until", "2020-01-01", "--json")) == []


@pytest.mark.rule("usage.log-file")
async def test_the_file_has_what_the_store_has(tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"
    async with memory_stack(files=tmp_path, usage_log=log) as stack:
        async with httpx.AsyncClient(base_url=stack.url) as http:
            for dialect in ALL:
                await http.post(path_of(dialect), json=request_body(dialect))
        store = stack.services.usage.store
    assert isinstance(store, SqlUsage)
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    assert [line["dialect"] for line in lines] == list(ALL)
    assert all(line["outcome"] == "completed" and line["output_tokens"] for line in lines)
