"""How a stream of every dialect begins, breathes and breaks.

The engine stops at gates or goes wrong where a test says, so that it is certain what a client has
seen by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest

from tests.fixtures.answers import CONVERSATIONS, read_stream
from tests.fixtures.player import LIMIT, Player, call, request_to_play
from tests.fixtures.requests import answered_text, path_of, request_body
from tests.fixtures.stack import MODEL, Stack, TimeLimits, memory_stack, sse_data, until
from workers.engines.scripted import End, Gate, Pause, ScriptedEngine, Step, Text, Trouble

PROFILES = ("wafer", "official")
BOTH = pytest.mark.parametrize("profile", PROFILES)


async def check_serving(http: httpx.AsyncClient, dialect: str) -> None:
    response = await http.post(path_of(dialect), json=request_body(dialect))
    assert answered_text(dialect, response.json()) == "fine"


# --- Failures ------------------------------------------------------------------------------------

OPENING = call("stock", '{"symbol":"')[: -len("}\n</tool_call>")]

# What has been written before it goes wrong, and the kinds of parts that a client has seen of it.
STATES: Mapping[str, tuple[tuple[str, ...], list[str]]] = {
    "before the first token": ((), []),
    "within the first marker": (("<tool_c",), []),
    "in reasoning": (("Hm", ", so"), ["reasoning"]),
    "after reasoning": (("Hm.</think>\n\n",), ["reasoning"]),
    "in the text": (("Hm.</think>one", " two"), ["reasoning", "text"]),
    "before a call's arguments": (('</think><tool_call>{"name":"stock",',), ["call"]),
    "in a call's arguments": (("</think>", OPENING, "K"), ["call"]),
    "after a call's arguments": (("</think>", call("stock", "{}")), ["call"]),
    "in the second call": (
        ("</think>Ok.", call("stock", "{}"), OPENING),
        ["text", "call", "call"],
    ),
}

# What goes wrong, and the code it is told by; Responses has words of its own.
TROUBLES: Mapping[str, tuple[Step, str]] = {
    "the engine fails": (Trouble("fail"), "generation_failed"),
    "the engine gives up": (End("abort"), "generation_failed"),
    "the engine ends for a reason unheard of": (End("eaten"), "generation_failed"),
    "the engine falls silent, and the next one too": (Trouble("hang"), "generation_timeout"),
}

SUCCESS = (b"[DONE]", b'"finish_reason":"', b"message_stop", b'"stop_reason":"')


def play(player: Player, profile: Any, **limits: float) -> Any:
    """A service whose model plays what `player` has."""
    engine = ScriptedEngine(served_id=MODEL, script=player)
    return memory_stack(engine, profile=profile, limits=TimeLimits(**limits))


@BOTH
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.rule("chat.stream-failure", "messages.failed-stream", "responses.failed")
async def test_a_failure_at_any_point_is_told_once_and_as_nothing_else(
    profile: str, trouble: str
) -> None:
    player = Player()
    step, code = TROUBLES[trouble]
    async with (
        play(player, profile, commit_after_accept_s=0, stall_s=0.1, first_token_s=0.1) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):

        async def check(dialect: str, state: str, parts: Sequence[str]) -> None:
            body = request_to_play(dialect, think=True)
            response = await http.post(path_of(dialect), json={**body, "stream": True})
            assert response.status_code == 200
            answer = read_stream(dialect, response.content)
            assert answer.failed, state
            assert answer.end in (code, "server_error"), state
            assert (answer.end == "server_error") == (dialect == "responses")
            hidden = dialect == "responses" and profile == "wafer"
            assert answer.parts == [p for p in parts if not (hidden and p == "reasoning")], state
            for sign in SUCCESS:
                assert sign not in response.content, state

        for state, (written, parts) in STATES.items():
            # The pause lets the opening records leave, so that it is a stream that fails.
            player.steps = [Pause(0.02), *map(Text, written), step]
            await asyncio.gather(*(check(dialect, state, parts) for dialect in CONVERSATIONS))
        for dialect in CONVERSATIONS:
            await check_serving(http, dialect)
        assert await stack.engine.running() == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_process_that_stood_still_reads_before_it_gives_up(stream: bool) -> None:
    """A limit passes for a worker that is silent, not for one that nobody had listened to."""
    pauses = asyncio.Event()

    def steps() -> Iterator[Step]:
        pauses.set()
        yield Pause(0.1)
        yield Text("Hm.</think>one two")
        yield End("stop")

    player = Player()
    player.steps = steps()
    async with (
        play(player, "wafer", first_token_s=0.3) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        body = {**request_to_play("chat", think=True), "stream": stream}
        asking = asyncio.create_task(http.post(path_of("chat"), json=body))
        await asyncio.wait_for(pauses.wait(), 20)
        time.sleep(0.6)  # noqa: ASYNC251 - the process stands still
        response = await asking
        assert response.status_code == 200
        assert b"two" in response.content
        assert b"error" not in response.content


async def test_a_stream_that_is_given_up_in_the_moment_it_was_to_begin() -> None:
    """Its status line has not left, so the failure is one of HTTP."""
    gate = asyncio.Event()
    player = Player()
    player.steps = [Gate(gate)]
    async with (
        play(player, "wafer", commit_after_accept_s=0.5) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        body = {**request_to_play("chat"), "stream": True}
        asking = asyncio.create_task(http.post(path_of("chat"), json=body))
        answers = stack.pods[0].services.answers
        await until(lambda: any(answer._generation.accepted_at for answer in answers))
        (answer,) = answers
        loop, begins_at = asyncio.get_running_loop(), answer._commit_at()
        # Both are due when the loop goes on, first this one and then the beginning.
        loop.call_at(begins_at - 0.01, time.sleep, 0.015)
        loop.call_at(begins_at - 0.001, answer.shut_down)
        response = await asking
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "server_shutting_down"
        assert response.headers["x-request-id"]


@BOTH
@pytest.mark.parametrize("state", ["in the text", "in a call's arguments"])
@pytest.mark.rule("chat.stream-failure", "messages.failed-stream", "responses.failed")
async def test_official_clients_see_a_failure_as_one(profile: str, state: str) -> None:
    player = Player()
    player.steps = [*map(Text, STATES[state][0]), Trouble("fail")]
    async with play(player, profile) as stack:
        chat = request_to_play("chat", think=True)
        messages = request_to_play("messages", think=True)
        responses = request_to_play("responses", think=True)
        async with openai.AsyncOpenAI(base_url=stack.v1, api_key="k", max_retries=0) as client:
            with pytest.raises(openai.APIError) as raised:
                async with client.chat.completions.stream(**chat) as chunks:
                    await chunks.until_done()
            assert raised.value.code == "generation_failed"
            seen = [e async for e in await client.responses.create(**responses, stream=True)]
            assert seen[-1].type == "response.failed"
            with pytest.raises(RuntimeError):
                async with client.responses.stream(**responses) as events:
                    await events.get_final_response()
            for create, body in (
                (client.chat.completions.create, chat),
                (client.responses.create, responses),
            ):
                with pytest.raises(openai.InternalServerError):
                    await create(**body)
        async with anthropic.AsyncAnthropic(
            base_url=stack.url, api_key="k", max_retries=0
        ) as claude:
            with pytest.raises(anthropic.APIStatusError):
                async with claude.messages.stream(**messages) as blocks:
                    await blocks.get_final_message()
            with pytest.raises(anthropic.InternalServerError):
                await claude.messages.create(**messages)


# --- Silence -------------------------------------------------------------------------------------


def silences(body: bytes) -> int:
    """How many signs of life there are."""
    return body.count(b": keep-alive\n\n") + body.count(b"event: ping\n")


@BOTH
@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.rule("responses.keep-alive", "messages.keep-alive", "messages.official-ping")
async def test_a_silence_is_broken_by_the_clock_wherever_it_comes(
    profile: str, dialect: str
) -> None:
    """Before the first token, within each kind of part, and while nothing of it is shown."""
    player = Player()
    written = ("Hm", "</think>", "one", call("stock", "{}"), "<tool_", "call", ">", OPENING[12:])
    async with (
        play(player, profile, commit_after_accept_s=0, keep_alive_s=0.03) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        gates = [asyncio.Event() for _ in written]
        player.steps = [
            step
            for gate, text in zip(gates, written, strict=True)
            for step in (Gate(gate), Text(text))
        ]
        body = {**request_to_play(dialect, think=True), "stream": True}
        received = b""
        async with http.stream("POST", path_of(dialect), json=body) as response:
            assert response.status_code == 200
            chunks = response.aiter_raw()
            for gate in gates:
                before = silences(received)
                while silences(received) < before + 2:
                    received += await anext(chunks)
                gate.set()
            async for chunk in chunks:
                received += chunk
        answer = read_stream(dialect, received)
        assert (answer.text, answer.end) == ("one", "calls")
        assert len(answer.calls) == 2


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.rule("responses.keep-alive", "messages.keep-alive")
async def test_a_silence_is_broken_while_the_model_works_unseen(dialect: str) -> None:
    """Reasoning that was not asked for is no sign of life to the client."""
    player, done = Player(), asyncio.Event()

    def thinks() -> Iterator[Step]:
        yield Text("<think>")
        while not done.is_set():
            yield from (Text("hm "), Pause(0.005))
        yield Text("</think>So.")

    player.steps = thinks()
    body = {**request_to_play(dialect), "stream": True}
    received = b""
    async with (
        play(player, "wafer", commit_after_accept_s=0, keep_alive_s=0.05) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        http.stream("POST", path_of(dialect), json=body) as response,
    ):
        async for chunk in response.aiter_raw():
            received += chunk
            if silences(received) >= 3:
                done.set()
    assert read_stream(dialect, received).text == "So."


@pytest.mark.parametrize("dialect", CONVERSATIONS)
async def test_a_stream_begins_while_its_request_still_waits_for_a_worker(dialect: str) -> None:
    player, gate = Player(), asyncio.Event()
    player.steps = [Gate(gate), Text("first")]
    engine = ScriptedEngine(served_id=MODEL, script=player, slots=1)
    limits = TimeLimits(commit_s=0.05, keep_alive_s=0.05)
    async with (
        memory_stack(engine, limits=limits) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        body = request_to_play(dialect)
        first = asyncio.create_task(http.post(path_of(dialect), json=body))
        await until(engine_runs(stack, 1))
        second = {**request_body(dialect), "stream": True}
        received = b""
        async with http.stream("POST", path_of(dialect), json=second) as response:
            assert response.status_code == 200
            async for chunk in response.aiter_raw():
                received += chunk
                if silences(received) >= 2:
                    gate.set()
        assert read_stream(dialect, received).text == "fine"
        assert answered_text(dialect, (await first).json()) == "first"


def engine_runs(stack: Stack, count: int) -> Any:
    async def runs() -> bool:
        return await stack.engine.running() == count

    return runs


# --- Pace ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.rule("chat.stream")
async def test_what_is_written_arrives_before_any_more_is(profile: str, dialect: str) -> None:
    """So nothing on the way waits for more, and nothing compresses."""
    player = Player()
    pieces = ("one", " two", call("stock", '{"symbol":"')[: -len("}\n</tool_call>")], 'KO"', "}}")
    shown = ("one", " two", '{\\"symbol\\":\\"', 'KO\\"', "}")
    gates = [asyncio.Event() for _ in pieces]
    player.steps = [
        step for gate, text in zip(gates, pieces, strict=True) for step in (Gate(gate), Text(text))
    ]
    body = {**request_to_play(dialect), "stream": True}
    headers = {"accept-encoding": "gzip, br, zstd, deflate"}
    async with (
        play(player, profile, commit_after_accept_s=0.05) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        http.stream("POST", path_of(dialect), json=body, headers=headers) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        chunks, received = response.aiter_raw(), b""
        for gate, piece in zip(gates, shown, strict=True):
            gate.set()
            while f'"{piece}"'.encode() not in received:
                received += await anext(chunks)
        async for chunk in chunks:
            received += chunk
    assert read_stream(dialect, received).calls == [("stock", '{"symbol":"KO"}')]


@pytest.mark.parametrize("dialect", CONVERSATIONS)
async def test_a_reader_that_takes_nothing_halts_the_engine(dialect: str) -> None:
    """All that lies between engine and socket has an end, whatever the engine would offer."""
    player, offered = Player(), 0

    def writes() -> Iterator[Step]:
        nonlocal offered
        for _ in range(200_000):
            offered += 1000
            yield Text("x" * 1000)

    player.steps = writes()
    body = orjson.dumps({**request_to_play(dialect), "stream": True, LIMIT[dialect]: 1_000_000})
    request = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % (
        path_of(dialect).encode(),
        len(body),
    )
    async with (
        play(player, "wafer", write_s=0.5) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        host, port = stack.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(request + b"content-type: application/json\r\n\r\n" + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # it reads no more
        neighbours = [http.post(path_of(d), json=request_body(d)) for d in CONVERSATIONS * 7]
        for response in await asyncio.gather(*neighbours):
            assert response.status_code == 200
        await until(lambda: stack.services.admission.in_flight == 0, timeout_s=5)
        await until(engine_runs(stack, 0))
        writer.transport.abort()
    assert offered < 10_000_000


# --- Lines ---------------------------------------------------------------------------------------

ODD = "a\u2028b\u2029c\x85d\re\r\nf\x0b\x0c\x1c\x1d\x1e\x00"


@BOTH
async def test_what_a_response_echoes_cannot_end_a_line(profile: str) -> None:
    body = request_body("responses", stream=True, instructions=ODD, user=ODD, metadata={ODD: ODD})
    body["tools"] = [
        {
            "type": "function",
            "name": "f",
            "description": ODD,
            "parameters": {"type": "object", "title": ODD},
        },
        {
            "type": "custom",
            "name": "g",
            "format": {"type": "grammar", "syntax": "lark", "definition": ODD},
        },
    ]
    async with (
        memory_stack(profile=profile) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        response = await http.post(path_of("responses"), json=body)
        assert response.status_code == 200, response.text
        assert read_stream("responses", response.content).text == "fine"
        created = orjson.loads(sse_data(response.content)[0])["response"]
        assert (created["instructions"], created["metadata"]) == (ODD, {ODD: ODD})
        assert created["tools"][0]["description"] == ODD
