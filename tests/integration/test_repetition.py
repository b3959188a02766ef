"""An answer that only repeats itself is ended, as if by its limit."""

from itertools import cycle, islice
from typing import Any

import openai
import pytest

from tests.fixtures.stack import MODEL, memory_stack
from workers.engines.scripted import ScriptedEngine, Text

LOOP = 5_000


@pytest.mark.rule("chat.finish-repetition")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeating_answer_ends_with_length(stream: bool) -> None:
    words = [Text("Well,", (1,)), *islice(cycle([Text(" no", (2,)), Text(" no", (3,))]), LOOP)]
    engine = ScriptedEngine(served_id=MODEL, script=lambda _: iter(words))
    async with (
        memory_stack(engine) as stack,
        openai.AsyncOpenAI(base_url=stack.v1, api_key="any", max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "Agree?"}]
        if stream:
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model=MODEL, messages=messages, stream=True
                )
            ]
            reason = [c.choices[0].finish_reason for c in chunks if c.choices][-1]
            usage = chunks[-1].usage
        else:
            answer = await client.chat.completions.create(model=MODEL, messages=messages)
            reason, usage = answer.choices[0].finish_reason, answer.usage
        assert reason == "length"
        assert usage is not None
        assert 2048 <= usage.completion_tokens < 2048 + 100
        assert await engine.running() == 0
