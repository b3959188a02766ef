"""From a Job to its prompt: the one way, taken for generating and for counting alike.

So a count is what generating will report. Must not know what the prompt is wanted for.
"""

from __future__ import annotations

import asyncio
from typing import Final

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
    if sum(len(message.text) for message in job.prompt.messages) > _THREAD_RENDER_CHARS:
        return await asyncio.to_thread(tokenizer.render_chat, job)
    return tokenizer.render_chat(job)


async def length(engine: Engine, job: Job, prompt_ids: tuple[int, ...]) -> int | None:
    """How many tokens the engine makes of a prompt; None if that is known only once it has run.

    Raises:
        RequestError: Its images cannot be part of it.
    """
    if isinstance(engine, SeeingEngine) and rendered_images(job):
        return await asyncio.to_thread(engine.prompt_tokens, job, prompt_ids)
    return len(prompt_ids)
