"""Requests that are sent again under an `Idempotency-Key`, to one process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import orjson
import pytest
from structlog.testing import capture_logs

from ingress.config import Config, ModelConfig
from ingress.idempotency.settings import IdempotencySettings
from schemas.telemetry import REQUEST_COMPLETED
from schemas.usage_record import UsageRecord
from tests.fixtures.broker import Proxy
from tests.fixtures.faults import Cut
from tests.fixtures.raw_client import RawClient, request_bytes
from tests.fixtures.requests import ALL, answered_text, path_of, request_body
from tests.fixtures.stack import (
    MODEL,
    Stack,
    TimeLimits,
    memory_stack,
    sse_data,
    until,
)
from workers.engines.base import EngineRequest
from workers.engines.scripted import ScriptedEngine, Step, Text, Trouble

WORDS = ("one ", "two ", "three ", "four")
KEY = {"Idempotency-Key": "6f1f2c54-8f1e-4f36-9d0c-1f4b3f0a7d11"}
KEY_LINE = f"idempotency-key: {KEY['Idempotency-Key']}\r\n"


class Runs(Cut):
    """Counts how often it is played."""

    runs = 0

    def __call__(self, request: EngineRequest) -> Iterator[Step]:
        self.runs += 1
        yield from super().__call__(request)


@asynccontextmanager
async def playing(
    script: Callable[[EngineRequest], Iterator[Step]],
    *,
    files: Path | None = None,
    limits: TimeLimits | None = None,
    **idempotency: Any,
) -> AsyncIterator[tuple[Stack, httpx.AsyncClient]]:
    """A pod whose model plays a script, and a client of it."""
    async with (
        memory_stack(
            ScriptedEngine(served_id=MODEL, script=script),
            files=files,
            idempotency=IdempotencySettings(**idempotency),
            limits=limits or TimeLimits(),
        ) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=10) as http,
    ):
        yield stack, http


async def clients(stack: Stack, number: int) -> None:
    """Wait until so many follow one running answer, which is under way too."""
    await until(lambda: len(stack.services.answers) == number + 1)


def ask(
    http: httpx.AsyncClient, dialect: str = "chat", text: str = "Go.", /, **changes: Any
) -> Any:
    headers = changes.pop("headers", KEY)
    body = request_body(dialect, text, **changes)
    return asyncio.create_task(http.post(path_of(dialect), json=body, headers=headers))


# --- While it runs --------------------------------------------------------------------------------


@pytest.mark.rule("idempotency.joins", "idempotency.free")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ALL)
async def test_who_comes_again_joins(dialect: str, stream: bool) -> None:
    script = Runs(WORDS, 2)
    async with playing(script) as (stack, http):
        with capture_logs() as lines:
            asking = [ask(http, dialect, stream=stream)]
            await script.reached.wait()
            asking += [ask(http, dialect, stream=stream) for _ in range(2)]
            await clients(stack, 3)
            script.gate.set()
            first, *others = [await asked for asked in asking]
            await until(lambda: not stack.services.answers)
        assert first.status_code == 200
        assert "x-headrace-replayed" not in first.headers
        for other in others:
            assert other.content == first.content
            assert other.headers["content-type"] == first.headers["content-type"]
            assert other.headers["x-headrace-replayed"] == "true"
    assert script.runs == 1
    if not stream:
        assert answered_text(dialect, first.json()) == "".join(WORDS)
    told = {line["request_id"]: line for line in lines if line["event"] == REQUEST_COMPLETED}
    assert len(told) == 3
    mine = first.headers["x-request-id"]
    for other in others:
        line = told[other.headers["x-request-id"]]
        assert (line["idempotent"], line["first_request_id"]) == ("joined", mine)
        assert (line["status"], line["outcome"]) == (200, "completed")


@pytest.mark.rule("idempotency.leaving")
@pytest.mark.parametrize("leaves", [0, 1])
async def test_one_that_leaves_ends_nothing(leaves: int) -> None:
    script = Runs(WORDS, 2)
    async with playing(script, linger_s=0) as (stack, _):
        asked = request_bytes("chat", request_body("chat", "Go.", stream=True), headers=KEY_LINE)
        raw = [RawClient(stack.url), RawClient(stack.url)]
        for client in raw:
            await client.send(asked)
            await client.read_until(b"two")
        raw[leaves].close()
        await clients(stack, 1)
        script.gate.set()
        rest = await raw[1 - leaves].read_until(b"[DONE]")
        assert b"three" in rest
        raw[1 - leaves].close()
        assert script.runs == 1


@pytest.mark.rule("idempotency.left-alone", "idempotency.failures")
async def test_when_all_have_left() -> None:
    script = Runs(WORDS, 2)
    async with playing(script, linger_s=0.05) as (stack, http):
        with capture_logs() as lines:
            for times in (1, 2):
                asked = ask(http)
                await until(lambda: script.arrivals == times)  # noqa: B023
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                await until(lambda: not stack.services.answers)
                assert await stack.engine.running() == 0
        assert script.runs == 2
        ended = [line for line in lines if line["event"] == REQUEST_COMPLETED]
        assert [line["status"] for line in ended] == [499, 499]
        script.gate.set()
        assert (await ask(http, "chat", "Something else.")).status_code == 200


@pytest.mark.rule("idempotency.retries")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ALL)
async def test_an_official_client_that_is_cut_off(dialect: str, stream: bool) -> None:
    script = Runs(WORDS, 0)
    async with playing(script, linger_s=30) as (stack, _):
        proxy = Proxy(stack.url)
        await proxy.open()
        url = f"http://127.0.0.1:{urlsplit(proxy.url).port}"
        client: Any
        if dialect == "messages":
            client = anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=2)
            api = client.messages
        else:
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=2)
            api = {
                "chat": client.chat.completions,
                "responses": client.responses,
                "completions": client.completions,
            }[dialect]
        body = request_body(dialect, "Go.", stream=stream)
        asking = asyncio.create_task(api.create(**body, extra_headers=KEY))
        await script.reached.wait()
        proxy.cut()
        await until(lambda: len(stack.services.answers) == 1)
        await clients(stack, 1)
        script.gate.set()
        answer = await asking
        if stream:
            events = [event.to_dict() async for event in answer]
            told = orjson.dumps(events).decode()
            assert all(word in told for word in WORDS)
        else:
            assert answered_text(dialect, answer.to_dict()) == "".join(WORDS)
        assert script.runs == 1
        await client.close()
        await proxy.close()


# --- When it has ended ----------------------------------------------------------------------------


@pytest.mark.rule("idempotency.ended", "idempotency.free", "idempotency.same-json")
async def test_a_moment_later() -> None:
    script = Runs(WORDS)
    async with playing(script) as (stack, http):
        first = await ask(http, stream=True)
        with capture_logs() as lines:
            second = await ask(http, stream=True)
            body = orjson.dumps(
                dict(reversed(request_body("chat", "Go.", stream=True).items())),
                option=orjson.OPT_INDENT_2,
            )
            headers = {**KEY, "content-type": "application/json"}
            third = await http.post(path_of("chat"), content=body, headers=headers)
            await until(lambda: not stack.services.answers)
        assert first.content == second.content == third.content
        assert sse_data(first.content)[-1] == b"[DONE]"
    told = [line["idempotent"] for line in lines if "idempotent" in line]
    assert told == ["replayed", "replayed"]
    assert script.runs == 1


@pytest.mark.rule("idempotency.again", "idempotency.reused")
@pytest.mark.parametrize("dialect", ALL)
async def test_another_request_under_the_same_key(dialect: str) -> None:
    script = Runs(WORDS)
    elsewhere = "completions" if dialect != "completions" else "chat"
    async with playing(script, linger_s=0) as (stack, http):
        assert (await ask(http, dialect)).status_code == 200
        await until(lambda: not stack.services.keyed_requests.held)
        assert (await ask(http, dialect)).status_code == 200
        assert script.runs == 2
        await until(lambda: not stack.services.keyed_requests.held)
        for refused in (
            await ask(http, dialect, "Something else."),
            await ask(http, elsewhere),
        ):
            assert refused.status_code == 409
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == (
                "idempotency_key_reused",
                "invalid_request_error",
            )
            assert refused.headers["x-should-retry"] == "false"
        anthropic_shape = "type" in (await ask(http, dialect, "Other.")).json()
        assert anthropic_shape == (dialect == "messages")
    assert script.runs == 2


async def test_the_official_clients_give_up_on_a_reused_key() -> None:
    script = Runs(WORDS, 2)
    async with playing(script) as (stack, http):
        asked = ask(http)
        await script.reached.wait()
        async with openai.AsyncOpenAI(base_url=stack.v1, api_key="k", max_retries=2) as client:
            with pytest.raises(openai.ConflictError) as raised:
                other = request_body("chat", "Something else.")
                await client.chat.completions.create(**other, extra_headers=KEY)
        request = raised.value.response.request
        assert request.headers["x-stainless-retry-count"] == "0"
        script.gate.set()
        await asked


@pytest.mark.rule("idempotency.failures")
@pytest.mark.parametrize("words", [0, 2])
async def test_a_failure_frees_the_key(words: int) -> None:
    runs = 0

    def script(request: EngineRequest) -> Iterator[Step]:
        nonlocal runs
        runs += 1
        for number, word in enumerate(WORDS):
            if runs < 3 and number == words:
                yield Trouble("fail")
            yield Text(word)

    async with playing(script, linger_s=30) as (stack, http):
        for text in ("Go.", "Something else."):
            failed = await ask(http, "chat", text, stream=True)
            assert b"generation_failed" in failed.content
            assert failed.status_code == (500 if words == 0 else 200)
            await until(lambda: not stack.services.keyed_requests.held)
        refused = await ask(http, "chat", "Third.", temperature=99)
        assert refused.status_code == 400
        answered = await ask(http, "chat", "Third.", stream=True)
        assert b"four" in answered.content
    assert runs == 3


@pytest.mark.rule("idempotency.failures")
async def test_who_waited_for_one_that_was_refused_has_its_own_turn() -> None:
    async with playing(Runs(WORDS), linger_s=30) as (stack, http):
        stack.services.admission.shutting_down = True
        refused = await asyncio.gather(*(ask(http) for _ in range(3)))
        assert [response.status_code for response in refused] == [503] * 3
        assert len({response.json()["error"]["request_id"] for response in refused}) == 3
        stack.services.admission.shutting_down = False
        assert (await ask(http)).status_code == 200


# --- Whose, and what of it is kept ----------------------------------------------------------------


@pytest.mark.rule("idempotency.accounts")
async def test_accounts_have_keys_of_their_own() -> None:
    script = Runs(WORDS)
    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with (
        memory_stack(engine, api_keys=("one", "two")) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        for key, text in (("one", "Go."), ("two", "Go."), ("two", "Go.")):
            headers = {**KEY, "Authorization": f"Bearer {key}"}
            assert (await ask(http, "chat", text, headers=headers)).status_code == 200
    assert script.runs == 2


@pytest.mark.rule("idempotency.key")
@pytest.mark.parametrize("keys", [[""], ["x" * 256], ["a\tb"], ["\xe9"], ["one", "two"]], ids=repr)
async def test_what_is_no_key(keys: list[str]) -> None:
    async with playing(Runs(WORDS)) as (_, http):
        headers = [(b"idempotency-key", key.encode("latin-1")) for key in keys]
        for dialect in ALL:
            refused = await ask(http, dialect, headers=headers)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_value", "Idempotency-Key")
        longest = {"Idempotency-Key": "~" * 255}
        assert (await ask(http, headers=longest)).status_code == 200


@pytest.mark.rule("idempotency.zdr")
async def test_without_retention_a_key_has_no_effect(tmp_path: Path) -> None:
    script = Runs(WORDS)
    model = ModelConfig(id=MODEL, zdr_supported=True)
    async with (
        memory_stack(
            ScriptedEngine(served_id=MODEL, script=script),
            files=tmp_path,
            config=Config(models=(model,)),
            idempotency=IdempotencySettings(keep_answers=True),
        ) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        for stream in (False, True, False):
            headers = {**KEY, "Wafer-ZDR": "required"}
            answer = await ask(http, headers=headers, stream=stream)
            assert answer.status_code == 200
            assert answer.headers["x-headrace-ignored"] == "Idempotency-Key"
        assert rows(tmp_path) == []
        assert await stack.services.blobs.list("answers") == {}  # type: ignore[union-attr]
    assert script.runs == 3


def rows(files: Path) -> list[Any]:
    with closing(sqlite3.connect(files / "headrace.db")) as database:
        return database.execute("SELECT * FROM idempotent_requests").fetchall()


def everything_in(files: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files.rglob("*") if path.is_file())


@pytest.mark.rule("idempotency.nothing-stored")
async def test_nothing_of_key_and_body_is_stored(tmp_path: Path) -> None:
    async with playing(Runs(("canary-answer",)), files=tmp_path) as (stack, http):
        assert (await ask(http, "chat", "canary-prompt")).status_code == 200
        await until(lambda: not stack.services.keyed_requests.running)
        assert len(rows(tmp_path)) == 1
    stored = everything_in(tmp_path)
    assert b"idempotent_requests" in stored
    for secret in (b"canary", KEY["Idempotency-Key"].encode()):
        assert secret not in stored


class Records:
    """Keeps records of usage."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []

    def record(self, record: UsageRecord) -> None:
        self.records.append(record)

    async def close(self) -> None: ...


@pytest.mark.rule("idempotency.free")
async def test_what_is_given_again_is_not_counted() -> None:
    script = Runs(WORDS, 2)
    async with playing(script) as (stack, http):
        records = stack.services.usage = Records()
        asking = [ask(http)]
        await script.reached.wait()
        asking.append(ask(http))
        await clients(stack, 2)
        assert stack.services.admission.in_flight == 1
        script.gate.set()
        await asyncio.gather(*asking)
        assert (await ask(http)).status_code == 200
        await until(lambda: not stack.services.answers)
        assert len(records.records) == 1
        metrics = (await http.get("/metrics")).text
        for how in ("joined", "replayed"):
            labels = f'dialect="chat",how="{how}",model="{MODEL}"'
            assert f"headrace_repeated_requests_total{{{labels}}} 1.0" in metrics


# --- Bounds and faults ----------------------------------------------------------------------------


@pytest.mark.rule("idempotency.memory")
async def test_an_answer_that_is_too_long_to_be_joined() -> None:
    words = [f"word{number} " for number in range(60)]
    script = Runs(words, 40)
    async with playing(script, answer_bytes=2000) as (stack, http):
        asking = ask(http, stream=True)
        await script.reached.wait()
        late = await ask(http, stream=True)
        assert late.status_code == 409
        assert late.json()["error"]["code"] == "idempotent_request_running"
        assert (late.headers["retry-after"], late.headers["x-should-retry"]) == ("5", "true")
        script.gate.set()
        answer = (await asking).content
        assert all(word.encode() in answer for word in words)
        await until(lambda: not stack.services.keyed_requests.held)
        assert b"word59" in (await ask(http, stream=True)).content
    assert script.runs == 2


@pytest.mark.rule("idempotency.slow")
async def test_one_who_stops_reading_is_left_behind() -> None:
    words = ["x" * 5000] * 400
    script = Runs(words, 1)
    limits = TimeLimits(write_s=0.8)
    async with playing(script, limits=limits, answer_bytes=200_000) as (stack, http):
        stuck = RawClient(stack.url, receive_bytes=4096)
        body = request_body("chat", "Go.", stream=True)
        await stuck.send(request_bytes("chat", body, headers=KEY_LINE))
        await script.reached.wait()
        reading = ask(http, stream=True)
        await clients(stack, 2)
        script.gate.set()
        assert (await reading).content.count(b"x" * 5000) == 400
        await until(lambda: not stack.services.answers)
        stuck.close()


@pytest.mark.rule("idempotency.away")
async def test_a_store_that_is_away_stops_nobody(tmp_path: Path) -> None:
    script = Runs(WORDS, 2)
    with capture_logs() as lines:
        async with playing(script, files=tmp_path, store_s=0.05, linger_s=0) as (stack, http):
            with closing(sqlite3.connect(tmp_path / "headrace.db")) as database:
                database.execute("BEGIN IMMEDIATE")  # from now on nobody can write
                asking = [ask(http)]
                await script.reached.wait()
                asking.append(ask(http))
                await clients(stack, 2)
                assert (await ask(http, "chat", "Something else.")).status_code == 409
                script.gate.set()
                assert [(await asked).status_code for asked in asking] == [200, 200]
                await until(lambda: not stack.services.keyed_requests.held)
                assert (await ask(http, "chat", "Something else.")).status_code == 200
                await until(lambda: not stack.services.keyed_requests.held)
    assert script.runs == 2
    assert "idempotency.store_unavailable" in {line["event"] for line in lines}
