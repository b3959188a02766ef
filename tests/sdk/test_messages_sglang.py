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


@pytest.mark.rule("messages.billing-header", "messages.input-includes-cached")
async def test_a_line_that_differs_per_request_does_not_defeat_the_cache(
    sglang_engine: SglangEngine,
) -> None:
    fixed = "Instructions that never change, item by item. " * 12
    line = "x-anthropic-billing-header: cc_version=9.9.9; cc_entrypoint=cli; cch={};"
    async with (
        memory_stack(sglang_engine) as stack,
        anthropic.AsyncAnthropic(base_url=stack.url, api_key="any", max_retries=0) as client,
    ):

        async def used(mark: str, *, streamed: bool, text: str = "Roll.") -> anthropic.types.Usage:
            fields: Any = {
                "model": sglang_engine.card.id,
                "max_tokens": 2,
                "system": [
                    {"type": "text", "text": line.format(mark)},
                    {"type": "text", "text": fixed},
                ],
                "messages": [{"role": "user", "content": text}],
            }
            counted = await client.messages.count_tokens(
                **{name: value for name, value in fields.items() if name != "max_tokens"}
            )
            if streamed:
                async with client.messages.stream(**fields) as stream:
                    usage = (await stream.get_final_message()).usage
            else:
                usage = (await client.messages.create(**fields)).usage
            assert usage.input_tokens == counted.input_tokens
            return usage

        first = await used("aa11", streamed=False)
        for mark, streamed in (("bb22", False), ("cc33", True)):
            later = await used(mark, streamed=streamed)
            assert later.input_tokens == first.input_tokens
            assert later.cache_read_input_tokens == first.input_tokens - 1
        # What the user says is the user's own.
        quoted = await used("dd44", streamed=False, text=line.format("dd44"))
        assert quoted.input_tokens > first.input_tokens + 20
