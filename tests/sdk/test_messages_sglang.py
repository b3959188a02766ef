"""Messages on the real engine: what only a real template, tokenizer and grammar can show."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.stack import memory_stack
from workers.engines.sglang import SglangEngine

pytestmark = SESSION_LOOP

DICE: Any = {
    "name": "roll",
    "input_schema": {
        "type": "object",
        "properties": {"sides": {"type": "integer", "enum": [6, 20]}},
        "required": ["sides"],
        "additionalProperties": False,
    },
}


@pytest.mark.rule("messages.prefill", "messages.tool-choice", "messages.count-body")
async def test_a_begun_answer_and_a_forced_call(sglang_engine: SglangEngine) -> None:
    model = sglang_engine.card.id
    user: Any = {"role": "user", "content": "Roll."}
    begun: Any = {"role": "assistant", "content": "Sure"}
    async with (
        memory_stack(sglang_engine) as stack,
        anthropic.AsyncAnthropic(base_url=stack.url, api_key="any", max_retries=0) as client,
    ):

        async def count(*turns: Any) -> int:
            return (await client.messages.count_tokens(model=model, messages=turns)).input_tokens

        answer = await client.messages.create(model=model, max_tokens=4, messages=[user, begun])
        assert answer.usage.input_tokens == await count(user, begun)
        assert answer.usage.output_tokens > 0
        # The begun answer stands open: it costs what its text costs, and no turn's end.
        longer = {**begun, "content": "Sure Sure"}
        assert 0 < await count(user, longer) - await count(user, begun) <= len(" Sure")
        assert await count(user, begun) < await count(user, begun, user)

        async with client.messages.stream(
            model=model,
            max_tokens=64,
            messages=[user, begun],
            tools=[DICE],
            tool_choice={"type": "tool", "name": "roll", "disable_parallel_tool_use": True},
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as stream:
            called = await stream.get_final_message()
        assert called.stop_reason == "tool_use"
        (call,) = called.content
        assert call.type == "tool_use"
        assert call.input in ({"sides": 6}, {"sides": 20})
