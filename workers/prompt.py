"""From a Job to its prompt, and to the tokens that may follow it.

There is one way for generating and for counting, so a count is what generating will report. Must
not know what the prompt is wanted for.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from schemas.errors import ContextLengthExceeded, ContextOverflow
from schemas.job import ChatPrompt, Job
from schemas.sampling import OutputLimit
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


def fit_output_limit(limit: OutputLimit, prompt_tokens: int, context_length: int) -> int:
    """Tokens that may be generated after a prompt of this length.

    Raises:
        ContextLengthExceeded: The prompt, or the prompt and a limit that may not be lowered, do
            not fit the window.
    """
    room = context_length - prompt_tokens
    if limit.max_tokens <= room:
        return min(limit.max_tokens + limit.headroom, room)
    if limit.fallback_tokens is not None and room > 0:
        return min(limit.fallback_tokens, room)
    raise ContextLengthExceeded(
        ContextOverflow(
            prompt_tokens=prompt_tokens,
            output_tokens=limit.max_tokens if limit.fallback_tokens is None else 0,
            context_length=context_length,
        )
    )
