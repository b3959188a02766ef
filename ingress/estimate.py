"""About how many tokens a prompt has, without its tokenizer. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from schemas.job import Job, TokenPrompt
from schemas.message import TextPart

_ASCII_CHARS_PER_TOKEN: Final = 4
_TOKENS_PER_IMAGE: Final = 1_000
_NOT_ASCII: Final = bytes(range(128, 256))


def estimate_tokens(job: Job) -> int:
    """The tokens of all prompts of a Job.

    One token for every four ASCII characters and for every other character of the conversation and
    the tools as JSON, whose keys stand for the template's own tokens; and 1,000 for an image. Token
    ids are counted.
    """
    if isinstance(job.prompt, TokenPrompt):
        return sum(map(len, job.prompt.prompts))
    images = 0
    messages = []
    for message in job.prompt.messages:
        texts = tuple(part for part in message.parts if isinstance(part, TextPart))
        images += len(message.parts) - len(texts)
        messages.append(msgspec.structs.replace(message, parts=texts))
    data = msgspec.json.encode((messages, job.prompt.tools))
    ascii_chars = len(data.translate(None, _NOT_ASCII))
    other_chars = len(data.decode()) - ascii_chars
    return -(-ascii_chars // _ASCII_CHARS_PER_TOKEN) + other_chars + images * _TOKENS_PER_IMAGE
