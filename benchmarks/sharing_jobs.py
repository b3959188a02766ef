"""The batch work of `benchmarks.sharing`: prompts of random ids, answers of a fixed length."""

from __future__ import annotations

import random
import secrets
import time

import msgspec

from schemas.job import Job, TokenPrompt
from schemas.sampling import OutputLimit, SamplingParams, StopConditions

_LEAST_ID = 300  # ids below may be special tokens


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch Job asks for.

    Attributes:
        vocab_size: Its random ids are below.
    """

    prompt_tokens: int
    output_tokens: int
    vocab_size: int

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Ids that no prefix cache has seen."""
        return tuple(random.choices(range(_LEAST_ID, self.vocab_size), k=tokens))


def batch_job(model: str, shape: Shape) -> Job:
    now = time.time()
    return Job(
        job_id=secrets.token_hex(16),
        model=model,
        job_class="batch",
        prompt=TokenPrompt(prompts=(shape.prompt(shape.prompt_tokens),)),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=shape.output_tokens),
            stop=StopConditions(ignore_eos=True),
        ),
        created_at=now,
        deadline=now + 3600,
        queue_deadline=now + 3600,
    )
