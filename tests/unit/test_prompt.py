"""Where a conversation is rendered: long ones off the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart, ToolCall, ToolSpec
from schemas.sampling import OutputLimit, SamplingParams
from workers.engines.scripted import ScriptedTokenizer
from workers.prompt import render

LONG = "x" * 40_000
HI = Message(role="user", parts=(TextPart(text="Hi."),))
CALL = ToolCall(id="1", name="write", arguments=f'{{"text":"{LONG}"}}')


class Watched(ScriptedTokenizer):
    """Remembers the thread it rendered in."""

    thread = 0

    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        self.thread = threading.get_ident()
        return super().render_chat(job)


@pytest.mark.parametrize(
    ("fields", "off_the_loop"),
    [
        ({}, False),
        ({"messages": (Message(role="user", parts=(TextPart(text=LONG),)),)}, True),
        ({"messages": (HI, Message(role="assistant", reasoning=LONG), HI)}, True),
        ({"messages": (HI, Message(role="assistant", tool_calls=(CALL,)), HI)}, True),
        ({"tools": (ToolSpec(name="f", description=LONG),)}, True),
        ({"tools": (ToolSpec(name="f", parameters={"description": LONG}),)}, True),
    ],
)
async def test_long_conversations_do_not_hold_up_the_loop(
    fields: dict[str, Any], off_the_loop: bool
) -> None:
    tokenizer = Watched()
    job = Job(
        job_id="j",
        model="m",
        prompt=ChatPrompt(**{"messages": (HI,), **fields}),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1)),
        created_at=0,
        deadline=0,
        queue_deadline=0,
    )
    assert await render(tokenizer, job) == ScriptedTokenizer().render_chat(job)
    assert (tokenizer.thread != threading.get_ident()) == off_the_loop
