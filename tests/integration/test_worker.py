"""A worker's side of a Job's life: draining, poison, log probabilities, choices."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from schemas.delta import TokenLogprob
from schemas.transport.memory import MemoryTransport
from tests.fixtures.stack import MODEL, Stack, memory_stack, ready, run_worker, serve_pod, until
from workers.engines.base import EngineChunk, EngineRequest
from workers.engines.scripted import ScriptedEngine, Step, Text, script_from_markers

CHAT = "/v1/chat/completions"


async def ask(stack: Stack, content: str, **more: object) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}
    async with httpx.AsyncClient(base_url=stack.url, timeout=20) as http:
        return await http.post(CHAT, json=body)


@asynccontextmanager
async def two_workers(memory: MemoryTransport) -> AsyncIterator[Stack]:
    """One pod; the second worker joins when the first drains."""
    engines = [ScriptedEngine(served_id=MODEL) for _ in range(2)]
    async with AsyncExitStack() as exits:
        stack = Stack(engine=engines[0])
        dispatcher = memory.dispatcher()
        exits.push_async_callback(dispatcher.close)
        for number, engine in enumerate(engines, start=1):
            source = memory.job_source(model=MODEL, slots=8)
            exits.push_async_callback(source.close)
            worker = run_worker(engine, source, name=f"worker-{number}")
            stack.consumers.append(await exits.enter_async_context(worker))
        stack.pods.append(await exits.enter_async_context(serve_pod(dispatcher, model=MODEL)))
        await ready(stack.services, workers=2)
        yield stack


async def test_draining_finishes_or_hands_back() -> None:
    async with two_workers(MemoryTransport()) as stack:
        short = [asyncio.create_task(ask(stack, "[[k=5 gap=20]]")) for _ in range(8)]
        # No token before half a second: nothing of these answers is out when the worker goes.
        late = [asyncio.create_task(ask(stack, "[[k=2 gap=1 ttft=500]]")) for _ in range(4)]
        await until(lambda: stack.services.admission.in_flight == 12)
        await until(lambda: all(a._generation.phase != "queued" for a in stack.services.answers))
        await stack.consumers[0].drain(0.2)
        for answer in await asyncio.gather(*short, *late):
            assert answer.status_code == 200, answer.text
        assert await stack.engine.running() == 0


async def test_a_job_that_breaks_the_worker_is_set_aside_and_told() -> None:
    def script(request: EngineRequest) -> Iterable[Step]:
        if "poison" in request.job.prompt.messages[0].text:  # type: ignore[union-attr]
            raise ZeroDivisionError("a secret of the prompt")
        return script_from_markers(request)

    engine = ScriptedEngine(served_id=MODEL, script=script)
    async with memory_stack(engine) as stack:
        for stream in (False, True):
            answer = await ask(stack, "poison", stream=stream)
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "generation_failed"
            assert "secret" not in answer.text
            assert "ZeroDivision" not in answer.text
        assert (await ask(stack, "[[say:fine]]")).status_code == 200


class LogprobEngine(ScriptedEngine):
    """Gives each token a log probability whose token text is the token's own."""

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        async for chunk in super().generate(request):
            entry = TokenLogprob(1, chunk.text, chunk.text.encode(), -0.5)
            yield EngineChunk(
                text=chunk.text,
                token_ids=chunk.token_ids,
                output_tokens=chunk.output_tokens,
                logprobs=(entry,) if chunk.token_ids else (),
                finish=chunk.finish,
            )


@pytest.mark.parametrize("stop", [None, ["STOP"], ["word-9"]])
async def test_logprobs_cover_the_answer_and_nothing_else(stop: list[str] | None) -> None:
    pieces = ["<think>", "hidden ", "</think>", "one", " two", " wo", "rd", " end"]
    engine = LogprobEngine(served_id=MODEL, script=lambda _: [Text(piece) for piece in pieces])
    async with memory_stack(engine) as stack:
        answer = await ask(stack, "x", logprobs=True, stop=stop, reasoning_effort="high")
        choice = answer.json()["choices"][0]
        assert choice["message"]["content"] == "one two word end"
        assert choice["message"]["reasoning_content"] == "hidden"
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert tokens == ["one", " two", " wo", "rd", " end"]
        usage = answer.json()["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["completion_tokens_details"]["reasoning_tokens"] in (2, 3)


class ManyTokens(ScriptedEngine):
    """Yields each text as a chunk of several tokens, one per word, as speculation does."""

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        async for chunk in super().generate(request):
            tokens = re.findall(r"\s*\S+", chunk.text)
            yield EngineChunk(
                text=chunk.text,
                output_tokens=len(tokens),
                logprobs=tuple(TokenLogprob(1, text, text.encode(), -0.5) for text in tokens),
                finish=chunk.finish,
            )


@pytest.mark.parametrize(
    ("pieces", "stop", "tokens"),
    [
        (["one two STOP three four"], " STOP", ["one", " two"]),
        (["one two STOP three"], "STOP", ["one", " two", " STOP"]),  # its space is answer
        (["one ST", "OP two", " three"], " STOP", ["one"]),
        (["one ST", "AND"], " STOP", ["one", " ST", "AND"]),
        (["one ST"], " STOP", ["one", " ST"]),
        (["one two", " three four"], " two three", ["one"]),
        (["STOP one"], "STOP", []),
    ],
)
async def test_logprobs_end_where_the_text_does(
    pieces: list[str], stop: str, tokens: list[str]
) -> None:
    engine = ManyTokens(served_id=MODEL, script=lambda _: [Text(piece) for piece in pieces])
    async with memory_stack(engine) as stack:
        choice = (await ask(stack, "x", logprobs=True, stop=stop)).json()["choices"][0]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == tokens


async def test_reasoning_that_is_off_is_not_shown_or_counted_as_such() -> None:
    pieces = ["<think>", "hidden ", "</think>", "\n\n", "Pick B."]
    engine = ScriptedEngine(served_id=MODEL, script=lambda _: [Text(piece) for piece in pieces])
    async with memory_stack(engine) as stack:
        for stream in (False, True):
            answer = await ask(stack, "x", reasoning_effort="none", stream=stream)
            assert "hidden" not in answer.text
            assert "think" not in answer.text
            assert "Pick B." in answer.text
            assert '"completion_tokens":5' in answer.text
            assert '"reasoning_tokens":0' in answer.text
