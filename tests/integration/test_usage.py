"""Figures of usage: the same in a stream, in a body and in the log, and true whatever the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import msgspec
import orjson
import pytest
import structlog

from schemas.delta import ReasoningDelta, TextDelta, Usage
from tests.fixtures.answers import CONVERSATIONS, read_body, read_stream
from tests.fixtures.faults import Crew, Cut, memory_crew
from tests.fixtures.player import request_to_play
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, TimeLimits, memory_stack, sse_data, until
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.scripted import End, Gate, ScriptedEngine, Step, Text, Trouble


class Counting(ScriptedEngine):
    """An engine that yields these chunks, and so has its own figures."""

    def __init__(self, *chunks: EngineChunk) -> None:
        super().__init__(served_id=MODEL)
        self.chunks = chunks

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        for chunk in self.chunks:
            await asyncio.sleep(0)
            yield msgspec.structs.replace(
                chunk,
                deltas=tuple(
                    msgspec.structs.replace(delta, choice=request.choice) for delta in chunk.deltas
                ),
            )


def neutral(dialect: str, usage: Any) -> Usage:
    """What the dialect's figures say; all that add up are checked."""
    match dialect:
        case "chat" | "completions":
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            return Usage(
                usage["prompt_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"],
                usage["completion_tokens"],
                usage["completion_tokens_details"]["reasoning_tokens"],
            )
        case "responses":
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
            return Usage(
                usage["input_tokens"],
                usage["input_tokens_details"]["cached_tokens"],
                usage["output_tokens"],
                usage["output_tokens_details"]["reasoning_tokens"],
            )
        case _:
            assert usage["cache_creation_input_tokens"] == 0
            return Usage(
                usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]
            )


def completed(lines: Sequence[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "request.completed"]


def logged(line: Any) -> Usage:
    return Usage(*(line[field] for field in Usage.__struct_fields__))


FIGURES = [Usage(9, 4, 14, 11), Usage(338, 320, 5, 0), Usage(412, 256, 37, 0), Usage(7, 0, 2, 0)]


@pytest.mark.parametrize("figures", FIGURES)
@pytest.mark.parametrize("profile", ["wafer", "official"])
@pytest.mark.rule(
    "chat.usage", "messages.input-includes-cached", "messages.final-usage", "responses.usage"
)
async def test_the_engines_figures_are_told_everywhere(figures: Usage, profile: str) -> None:
    thought, said = figures.reasoning_tokens, figures.output_tokens - figures.reasoning_tokens
    engine = Counting(
        EngineChunk(
            deltas=(ReasoningDelta(0, "four"),) if thought else (),
            output_tokens=thought,
            reasoning_tokens=thought,
            input_tokens=figures.input_tokens,
            cached_tokens=figures.cached_tokens,
        ),
        EngineChunk(deltas=(TextDelta(0, "4"),), output_tokens=said, reasoning_tokens=thought),
        EngineChunk(finish=EngineFinish(reason="stop")),
    )
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_stack(engine, profile=profile) as stack,
            httpx.AsyncClient(base_url=stack.url) as http,
        ):
            for dialect in CONVERSATIONS:
                expected = figures
                if dialect == "messages":
                    expected = msgspec.structs.replace(expected, reasoning_tokens=0)
                    if profile == "official":
                        fresh = figures.input_tokens - figures.cached_tokens
                        expected = msgspec.structs.replace(expected, input_tokens=fresh)
                for stream in (False, True):
                    body = request_to_play(dialect, think=bool(thought)) | {"stream": stream}
                    if dialect == "chat" and stream:
                        body["stream_options"] = {"include_usage": True}
                    response = await http.post(path_of(dialect), json=body)
                    read = read_stream if stream else read_body
                    usage = read(dialect, response.content).usage
                    assert neutral(dialect, usage) == expected
                    if dialect == "messages" and stream:
                        start = orjson.loads(sse_data(response.content)[0])["message"]["usage"]
                        assert start.keys() == usage.keys()
                        begun = expected if profile == "official" else Usage()
                        begun = msgspec.structs.replace(begun, output_tokens=0)
                        assert neutral(dialect, start) == begun
    assert [logged(line) for line in completed(lines)] == [figures] * 2 * len(CONVERSATIONS)


@pytest.mark.parametrize("profile", ["wafer", "official"])
async def test_a_part_is_never_more_than_the_whole(profile: str) -> None:
    engine = Counting(
        EngineChunk(
            deltas=(ReasoningDelta(0, "four"),),
            output_tokens=3,
            reasoning_tokens=5,
            input_tokens=9,
            cached_tokens=16,
        ),
        EngineChunk(finish=EngineFinish(reason="stop")),
    )
    async with (
        memory_stack(engine, profile=profile) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        for dialect in CONVERSATIONS:
            for stream in (False, True):
                body = request_to_play(dialect, think=True) | {"stream": stream}
                if dialect == "chat" and stream:
                    body["stream_options"] = {"include_usage": True}
                response = await http.post(path_of(dialect), json=body)
                read = read_stream if stream else read_body
                usage = neutral(dialect, read(dialect, response.content).usage)
                fresh = 0 if profile == "official" and dialect == "messages" else 9
                thought = 0 if dialect == "messages" else 3
                assert usage == Usage(fresh, 9, 3, thought)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stream_options": {}},
        {"stream_options": None},
        {"stream_options": {"include_usage": False}},
        {"stream_options": {"include_usage": True}},
    ],
)
@pytest.mark.parametrize("profile", ["wafer", "official"])
@pytest.mark.rule("chat.stream-usage-last")
async def test_usage_comes_once_at_the_end_of_a_chat_stream(options: Any, profile: str) -> None:
    asked = bool((options.get("stream_options") or {}).get("include_usage"))
    async with (
        memory_stack(profile=profile) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        body = request_body("chat", stream=True, **options)
        *data, done = sse_data((await http.post(path_of("chat"), json=body)).content)
    assert done == b"[DONE]"
    chunks = [orjson.loads(chunk) for chunk in data]
    with_usage = [at for at, chunk in enumerate(chunks) if chunk.get("usage") is not None]
    assert with_usage == ([len(chunks) - 1] if asked or profile == "wafer" else [])
    if with_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


THOUGHT = ("<think>", "a", "b", "</think>", "c", "d")


def at_once(*counts: int) -> list[Step]:
    """A thought and its answer, so many tokens in each chunk."""
    steps: list[Step] = []
    start = 0
    for count in counts:
        pieces = THOUGHT[start : start + count]
        ids = tuple(range(300 + start, 300 + start + count))
        steps.append(Text("".join(pieces), ids=ids, pieces=pieces))
        start += count
    return steps


@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1, 1), (3, 3), (6,), (2, 4), (1, 5), (4, 2)])
@pytest.mark.rule("chat.reasoning-tokens")
async def test_reasoning_is_counted_however_many_tokens_come_at_once(
    counts: tuple[int, ...],
) -> None:
    steps = at_once(*counts)
    async with (
        memory_stack(ScriptedEngine(served_id=MODEL, script=lambda _: steps)) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        for dialect in ("chat", "responses"):
            for stream in (False, True):
                body = request_to_play(dialect, tools=False, think=True) | {"stream": stream}
                response = await http.post(path_of(dialect), json=body)
                answer = (read_stream if stream else read_body)(dialect, response.content)
                usage = neutral(dialect, answer.usage)
                assert answer.text == "cd"
                assert (usage.output_tokens, usage.reasoning_tokens) == (6, 4)


@pytest.mark.rule("chat.usage", "completions.usage")
async def test_choices_are_added_up_and_prompts_counted_once() -> None:
    steps = [Text("a"), Text(" b")]
    async with (
        memory_stack(ScriptedEngine(served_id=MODEL, script=lambda _: steps)) as stack,
        httpx.AsyncClient(base_url=stack.url) as http,
    ):
        used = {}
        for n in (1, 3):
            for dialect in ("chat", "completions"):
                answer = await http.post(path_of(dialect), json=request_body(dialect, n=n))
                used[dialect, n] = answer.json()["usage"]
        prompts = {"prompt": [[1, 2, 3], [4, 5]], "n": 2}
        both = (
            await http.post(path_of("completions"), json=request_body("completions", **prompts))
        ).json()
    for dialect in ("chat", "completions"):
        assert used[dialect, 3]["prompt_tokens"] == used[dialect, 1]["prompt_tokens"]
        assert used[dialect, 3]["completion_tokens"] == 6
    assert (both["usage"]["prompt_tokens"], both["usage"]["completion_tokens"]) == (5, 8)


LIMITS = {"responses": "max_output_tokens"}


@pytest.mark.parametrize("dialect", ALL)
async def test_a_limit_of_one_token(dialect: str) -> None:
    async with memory_stack() as stack, httpx.AsyncClient(base_url=stack.url) as http:
        body = request_body(dialect, "[[say:one two]]", **{LIMITS.get(dialect, "max_tokens"): 1})
        answer = (await http.post(path_of(dialect), json=body)).json()
    usage = answer["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 1
    assert b"two" not in orjson.dumps(answer)


NOTHING: dict[str, list[Step]] = {
    "no token": [],
    "a token without text": [Text("", ids=(7,))],
    "a stop string at once": [Text("END of it")],
    "no token within the limit": [End("length")],
}


@pytest.mark.rule("usage.of-nothing")
@pytest.mark.parametrize("case", NOTHING)
async def test_an_answer_without_text_has_its_usage(case: str) -> None:
    engine = ScriptedEngine(served_id=MODEL, script=lambda _: NOTHING[case])
    with structlog.testing.capture_logs() as lines:
        async with memory_stack(engine) as stack, httpx.AsyncClient(base_url=stack.url) as http:
            for dialect in CONVERSATIONS:
                body = request_body(dialect)
                if "stop string" in case and dialect != "responses":  # which has no such field
                    body["stop_sequences" if dialect == "messages" else "stop"] = ["END"]
                told = []
                for stream in (False, True):
                    response = await http.post(path_of(dialect), json={**body, "stream": stream})
                    assert response.status_code == 200
                    answer = (read_stream if stream else read_body)(dialect, response.content)
                    assert not answer.failed
                    told.append((answer.text, answer.end, neutral(dialect, answer.usage)))
                assert told[0] == told[1]
                assert told[0][1] == ("length" if "limit" in case else "stop")
                assert told[0][2].input_tokens > 0
                assert told[0][2].output_tokens == sum(type(s) is Text for s in NOTHING[case])
                if dialect != "responses":
                    assert told[0][0] in ("", None)
    assert len(completed(lines)) == 2 * len(CONVERSATIONS)


# --- Aborted -------------------------------------------------------------------------------------


def story(count: int, gate: asyncio.Event) -> Iterator[Step]:
    for number in range(count):
        yield Text(f"tok{number} ")
    yield Gate(gate)
    yield Text("never read")
    yield End()


async def leave_after(http: httpx.AsyncClient, dialect: str, body: Any, last: bytes) -> None:
    async with http.stream("POST", path_of(dialect), json=body) as response:
        assert response.status_code == 200
        read = b""
        async for piece in response.aiter_bytes():
            read += piece
            if last in read:
                return


@pytest.mark.parametrize("dialect", ALL)
async def test_an_aborted_answer_is_counted_once_with_what_was_generated(dialect: str) -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(served_id=MODEL, script=lambda _: story(40, gate))
    with structlog.testing.capture_logs() as lines:
        async with memory_stack(engine) as stack, httpx.AsyncClient(base_url=stack.url) as http:
            fields = {} if dialect == "messages" else {LIMITS.get(dialect, "max_tokens"): 100}
            body = request_body(dialect, "Tell me a long story.", stream=True, **fields)
            await leave_after(http, dialect, body, b"tok39")
            await until(lambda: not stack.services.answers)
            assert stack.services.admission.in_flight == 0
            gate.set()
            whole = await http.post(path_of(dialect), json={**body, "stream": False})
            usage = neutral(dialect, whole.json()["usage"])
    line, _ = completed(lines)
    assert (line["outcome"], line["status"]) == ("cancelled", 499)
    assert line["input_tokens"] == usage.input_tokens > len("Tell me a long story.") - 1
    assert line["output_tokens"] == 40


async def test_what_was_said_counts_where_tokens_have_no_ids() -> None:
    """As with engines that are servers of their own and tell their figures at the end."""

    class Endless(Counting):
        async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
            async for chunk in super().generate(request):
                yield chunk
            await asyncio.Event().wait()

    engine = Endless(*(EngineChunk(deltas=(TextDelta(0, f"tok{at} "),)) for at in range(20)))
    with structlog.testing.capture_logs() as lines:
        async with memory_stack(engine) as stack, httpx.AsyncClient(base_url=stack.url) as http:
            await leave_after(http, "chat", request_body("chat", stream=True), b"tok19")
            await until(lambda: not stack.services.answers)
    (line,) = completed(lines)
    assert line["output_tokens"] == 20


WAYS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])


@WAYS
@pytest.mark.parametrize("dialect", ALL)
async def test_an_aborted_answer_that_had_moved_is_counted_once(dialect: str, stream: bool) -> None:
    """What the lost worker generated counts, the prompt once, and nothing of it twice."""
    texts = [f"tok{number} " for number in range(40)]
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_crew(limits=TimeLimits(last_words_s=0.02)) as crew,
            httpx.AsyncClient(base_url=crew.pod.url) as http,
        ):
            first, second = Cut(texts, 25), Cut(texts, 40)
            hand = await crew.hire(first)
            await crew.hire(second)
            fields = {LIMITS.get(dialect, "max_tokens"): 100}
            body = request_body(dialect, "Tell me a long story.", **fields)
            body["stream"] = stream
            reading = asyncio.create_task(http.post(path_of(dialect), json=body))
            await until(first.reached.is_set)
            await hand.kill()
            await until(second.reached.is_set)
            reading.cancel()
            await until(lambda: not crew.pod.services.answers, timeout_s=1)
            await until(lambda: is_idle(crew), timeout_s=1)
    (line,) = completed(lines)
    assert (line["outcome"], line["status"], line["attempt"]) == ("cancelled", 499, 2)
    assert (line["stream"], line["dialect"]) == (stream, dialect)
    assert line["output_tokens"] == 40
    prompt = len("Tell me a long story.")
    assert prompt <= line["input_tokens"] < 2 * prompt


async def is_idle(crew: Crew) -> bool:
    return await crew.running() == 0


@WAYS
@pytest.mark.parametrize("dialect", ALL)
async def test_one_that_was_aborted_before_the_first_token(dialect: str, stream: bool) -> None:
    """The prompt was read, and is counted."""
    with structlog.testing.capture_logs() as lines:
        async with memory_crew() as crew, httpx.AsyncClient(base_url=crew.pod.url) as http:
            cut = Cut(["never read"], 0)
            await crew.hire(cut)
            body = request_body(dialect, "Tell me a long story.", stream=stream)
            reading = asyncio.create_task(http.post(path_of(dialect), json=body))
            await until(cut.reached.is_set)
            reading.cancel()
            await until(lambda: not crew.pod.services.answers, timeout_s=1)
            await until(lambda: is_idle(crew), timeout_s=1)
    (line,) = completed(lines)
    assert (line["outcome"], line["status"]) == ("cancelled", 499)
    assert line["input_tokens"] >= len("Tell me a long story.")
    assert line["output_tokens"] == 0


@WAYS
@pytest.mark.parametrize("dialect", ALL)
async def test_a_failed_answer_is_counted_once_with_what_was_generated(
    dialect: str, stream: bool
) -> None:
    texts = [f"tok{number} " for number in range(40)]
    with structlog.testing.capture_logs() as lines:
        async with (
            memory_crew(limits=TimeLimits(last_words_s=0.02)) as crew,
            httpx.AsyncClient(base_url=crew.pod.url) as http,
        ):
            first = Cut(texts, 25)
            hand = await crew.hire(first)
            await crew.hire(Cut(texts, 30, (Trouble("fail"),)))
            fields = {LIMITS.get(dialect, "max_tokens"): 100}
            body = {**request_body(dialect, "Go.", **fields), "stream": stream}
            reading = asyncio.create_task(http.post(path_of(dialect), json=body))
            await until(first.reached.is_set)
            await hand.kill()
            assert (await reading).status_code == (200 if stream else 500)
            await until(lambda: not crew.pod.services.answers)
    (line,) = completed(lines)
    assert (line["outcome"], line["code"]) == ("failed", "generation_failed")
    assert (line["output_tokens"], line["attempt"]) == (30, 2)
    assert 0 < line["input_tokens"] < 2 * len("user: Go.")
