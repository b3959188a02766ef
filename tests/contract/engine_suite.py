"""What every engine must do, whatever generates its tokens.

A test class derives from `EngineSuite` and gives an `engine` fixture and its `long` request. Where
the engine tells the ids it samples, the class derives from `ContinuationSuite`, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from schemas.job import Job, TokenPrompt
from schemas.sampling import OutputLimit, SamplingParams
from workers.engines.base import Engine, EngineChunk, EngineRequest

PROMPT = (300, 301, 302, 303)


def request(
    engine_request_id: str = "r",
    *,
    max_tokens: int = 8,
    prompt_ids: tuple[int, ...] = PROMPT,
    stop_strings: tuple[str, ...] = (),
    reasoning_open: bool = False,
    choice: int = 0,
    min_tokens: int = 0,
    **sampling: Any,
) -> EngineRequest:
    """One choice of a request for text; `sampling` are fields of `SamplingParams`."""
    job = Job(
        job_id=engine_request_id,
        model="m",
        prompt=TokenPrompt(prompts=(prompt_ids,)),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=max_tokens, min_tokens=min_tokens), **sampling
        ),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )
    return EngineRequest(
        engine_request_id=engine_request_id,
        job=job,
        choice=choice,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        stop_strings=stop_strings,
        reasoning_open=reasoning_open,
        constraint=sampling.get("constraint"),
    )


async def run(engine: Engine, what: EngineRequest) -> list[EngineChunk]:
    """All chunks of a request."""
    return [chunk async for chunk in engine.generate(what)]


def text_of(chunks: list[EngineChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def ids_of(chunks: list[EngineChunk]) -> tuple[int, ...]:
    return tuple(token_id for chunk in chunks for token_id in chunk.token_ids)


def ending(chunks: list[EngineChunk]) -> tuple[str, str | int | None]:
    """Finish reason and match; fails unless the last chunk, and only that, has a finish."""
    assert [chunk for chunk in chunks if chunk.finish is not None] == chunks[-1:]
    finish = chunks[-1].finish
    assert finish is not None
    return finish.reason, finish.matched


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 20) -> None:
    """Wait until a condition holds; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.005)


async def until_running(engine: Engine, count: int) -> None:
    """Wait until the engine itself counts this many requests."""

    async def reached() -> bool:
        return await engine.running() == count

    await until(reached)


class Consumer:
    """Runs a request in a task of its own and shows how far it is."""

    def __init__(self, engine: Engine, what: EngineRequest) -> None:
        self.chunks: list[EngineChunk] = []
        self.task = asyncio.create_task(self._consume(engine, what))

    async def _consume(self, engine: Engine, what: EngineRequest) -> None:
        async with aclosing(engine.generate(what)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                self.chunks.append(chunk)

    async def until_tokens(self, count: int) -> None:
        async def reached() -> bool:
            assert not self.task.done(), "the request ended before it was meant to"
            return sum(chunk.output_tokens for chunk in self.chunks) >= count

        await until(reached)

    async def end(self) -> list[EngineChunk]:
        """Wait for the end; its chunks."""
        async with asyncio.timeout(20):
            await self.task
        return self.chunks


class EngineSuite:
    """The behaviours common to all engines."""

    def long(self, engine_request_id: str = "long") -> EngineRequest:
        """A request that goes on for seconds unless it is stopped."""
        raise NotImplementedError

    async def test_a_choice_ends_with_one_finish(self, engine: Engine) -> None:
        chunks = await run(engine, request())
        assert ending(chunks)[0] in ("stop", "length")
        assert text_of(chunks)

    async def test_token_ids_are_what_is_counted(self, engine: Engine) -> None:
        chunks = await run(engine, request())
        assert all(chunk.output_tokens == len(chunk.token_ids) for chunk in chunks)
        assert chunks[-1].input_tokens in (len(PROMPT), None)

    async def test_an_abort_in_mid_stream_ends_the_choice(self, engine: Engine) -> None:
        consumer = Consumer(engine, self.long())
        await consumer.until_tokens(3)
        await engine.abort("long")
        assert ending(await consumer.end()) == ("abort", None)
        await until_running(engine, 0)

    async def test_closing_the_iterator_frees_the_slot(self, engine: Engine) -> None:
        async with aclosing(engine.generate(self.long())) as chunks:  # type: ignore[type-var]
            assert await anext(aiter(chunks))
            assert await engine.running() == 1
        await until_running(engine, 0)

    async def test_cancelling_the_consumer_frees_the_slot(self, engine: Engine) -> None:
        consumer = Consumer(engine, self.long())
        await consumer.until_tokens(3)
        consumer.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer.task
        await until_running(engine, 0)

    async def test_cancelling_before_the_first_chunk_frees_the_slot(self, engine: Engine) -> None:
        consumer = Consumer(engine, self.long())
        await until_running(engine, 1)
        consumer.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer.task
        await until_running(engine, 0)

    async def test_aborting_what_it_does_not_know_is_nothing(self, engine: Engine) -> None:
        consumer = Consumer(engine, self.long())
        await consumer.until_tokens(1)
        await engine.abort("nobody")
        await engine.abort("lon")
        seen = len(consumer.chunks)
        await consumer.until_tokens(seen + 3)
        await engine.abort("long")
        await consumer.end()

    async def test_an_abort_takes_no_other_with_it(self, engine: Engine) -> None:
        one, ten = (Consumer(engine, self.long(name)) for name in ("job.1", "job.10"))
        await one.until_tokens(1)
        await ten.until_tokens(1)
        await engine.abort("job.1")
        assert ending(await one.end()) == ("abort", None)
        seen = sum(chunk.output_tokens for chunk in ten.chunks)
        await ten.until_tokens(seen + 3)
        await engine.abort("job.10")
        await ten.end()

    async def test_an_id_is_free_again_after_its_end(self, engine: Engine) -> None:
        for _ in range(2):
            consumer = Consumer(engine, self.long())
            await consumer.until_tokens(1)
            await engine.abort("long")
            await consumer.end()
            await until_running(engine, 0)
        assert ending(await run(engine, request("long")))[0] in ("stop", "length")

    async def test_the_card_tells_the_window(self, engine: Engine) -> None:
        assert engine.card.context_length > 0
        assert engine.slots > 0

    async def test_a_healthy_engine_has_not_failed(self, engine: Engine) -> None:
        failed = asyncio.create_task(engine.failed())
        await run(engine, request())
        assert not failed.done()
        failed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failed


class ContinuationSuite:
    """What an engine that tells its ids must do, so that another can go on after them."""

    @pytest.mark.parametrize("stop_strings", [(), (" STOP",)])
    async def test_a_choice_goes_on_after_any_prefix(
        self, engine: Engine, stop_strings: tuple[str, ...]
    ) -> None:
        what = request(temperature=0, stop_strings=stop_strings)
        whole = await run(engine, what)
        ids = ids_of(whole)
        assert len(ids) > 3
        rests = [
            msgspec.structs.replace(what, engine_request_id=f"r.{cut}", prefix_ids=ids[:cut])
            for cut in range(1, len(ids) + 1)
        ]
        afters = await asyncio.gather(*(run(engine, rest) for rest in rests))
        for cut, (rest, after) in enumerate(zip(rests, afters, strict=True), start=1):
            before = list(engine.replay(rest))
            assert ids_of(before) == ids[:cut]
            assert ids_of(after) == ids[cut:]
            assert text_of(before) + text_of(after) == text_of(whole)
            assert ending(after) == ending(whole)
            assert not any(chunk.replayed or chunk.prompt_logprobs for chunk in after)

    async def test_a_replay_tells_each_id_apart(self, engine: Engine) -> None:
        what = request(temperature=0, max_tokens=24, logprobs=True)
        ids = ids_of(await run(engine, what))
        rest = msgspec.structs.replace(what, prefix_ids=ids)
        whole = list(engine.replay(rest))
        assert [chunk.token_ids for chunk in whole] == [(token_id,) for token_id in ids]
        assert all(chunk.replayed and chunk.output_tokens == 1 for chunk in whole)
        assert not any(chunk.logprobs or chunk.finish for chunk in whole)
        for start in range(len(ids) + 1):
            assert list(engine.replay(rest, start)) == whole[start:]

    async def test_a_prefix_that_fills_the_limit_ends_at_once(self, engine: Engine) -> None:
        what = request(temperature=0, max_tokens=3)
        ids = ids_of(await run(engine, what))
        assert len(ids) == 3
        (last,) = await run(engine, msgspec.structs.replace(what, prefix_ids=ids))
        assert (last.text, last.token_ids, last.output_tokens) == ("", (), 0)
        assert last.finish is not None
        assert last.finish.reason == "length"
