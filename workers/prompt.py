"""From a Job to its prompt: the one way, taken for generating and for counting alike.

So a count is what generating will report. Must not know what the prompt is wanted for.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from schemas.job import ChatPrompt, Job
from workers.engines.base import Engine, SeeingEngine, Tokenizer
from workers.render import rendered_images

_THREAD_RENDER_CHARS: Final = 32_768
"""Conversations longer than this are rendered off the event loop."""


async def render(tokenizer: Tokenizer, job: Job) -> tuple[tuple[int, ...], bool]:
    """Apply the model's chat template, without holding up the event loop.

    Returns:
        (prompt_len,) token ids, and whether the prompt ends inside an open reasoning part.

    Raises:
        RequestError: The template refuses the conversation.
    """
    assert isinstance(job.prompt, ChatPrompt), "token prompts are not rendered"
    if _chars(job.prompt) > _THREAD_RENDER_CHARS:
        return await asyncio.to_thread(tokenizer.render_chat, job)
    return tokenizer.render_chat(job)


def _chars(prompt: ChatPrompt) -> int:
    """How much there is to render, nearly: agents send more of tools and calls than of text."""
    chars = len(msgspec.json.encode(prompt.tools))
    for message in prompt.messages:
        chars += len(message.text) + len(message.reasoning or "")
        chars += sum(len(call.arguments) for call in message.tool_calls)
    return chars


async def length(engine: Engine, job: Job, prompt_ids: tuple[int, ...]) -> int | None:
    """How many tokens the engine makes of a prompt; None if that is known only once it has run.

    Raises:
        RequestError: Its images cannot be part of it.
    """
    if isinstance(engine, SeeingEngine) and rendered_images(job):
        return await asyncio.to_thread(engine.prompt_tokens, job, prompt_ids)
    return len(prompt_ids)
