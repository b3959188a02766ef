"""What callers who speak token ids are told beside the text: echo, sampled ids, the model's inside.

It takes the engine's chunks of one choice and knows neither the engine nor the transport. Jobs of
conversations need none of it.

Source: Tokenized completions, sections 2 (`echo`, `logprobs`, `return_token_ids`) and 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from schemas.delta import Delta, InternalsDelta, PromptDelta, TokensDelta
from schemas.errors import UnsupportedValue
from schemas.job import Job, TokenPrompt
from workers.engines.base import EngineChunk

_PIECE_VALUES = 512
"""Log probabilities in one Delta, alternatives included: some 30 KB."""

_MAX_STATE_VALUES = 32_768
"""Numbers in the hidden states of one choice: some 700 KB, below what breaks a reply."""


class TokenReport:
    """The report of one choice.

    Args:
        choice: Number of the choice, for its Deltas.
        echo: Text of the prompt; empty if it was not asked for.
        job: What was asked for.
    """

    def __init__(self, choice: int, echo: str, job: Job) -> None:
        self._choice = choice
        self._echo = echo
        self._ids = job.sampling.report_token_ids
        self._begun = False

    @staticmethod
    def wanted(job: Job) -> bool:
        """Whether anything was asked for."""
        sampling = job.sampling
        return (
            (isinstance(job.prompt, TokenPrompt) and job.prompt.echo)
            or sampling.prompt_logprobs_from is not None
            or sampling.report_token_ids
            or sampling.engine.hidden_states is not None
            or sampling.engine.routed_experts
        )

    def prompt(self, chunk: EngineChunk) -> Iterator[PromptDelta]:
        """What the first chunk of the choice tells of the prompt, in pieces that fit a message."""
        if self._begun:
            return
        self._begun = True
        logprobs = chunk.prompt_logprobs
        if not logprobs:
            if self._echo:
                yield PromptDelta(self._choice, self._echo)
            return
        size = max(1, _PIECE_VALUES // (1 + len(logprobs[-1].top) + len(logprobs[-1].asked)))
        for start in range(0, len(logprobs), size):
            text = "" if start else self._echo
            yield PromptDelta(self._choice, text, logprobs[start : start + size])

    def around(
        self, chunk: EngineChunk, token_ids: tuple[int, ...], parts: Sequence[Delta]
    ) -> Sequence[Delta]:
        """The Deltas of a chunk with what belongs before and after them.

        Args:
            chunk: Of the engine.
            token_ids: Those that are told with it; the chunk's own may have to wait.
            parts: What of its text is told.

        Raises:
            UnsupportedValue: What was asked for is too large for a reply.
        """
        if self._ids and token_ids:
            parts = (TokensDelta(self._choice, token_ids), *parts)
        if _size(chunk.hidden_states) > _MAX_STATE_VALUES:
            raise UnsupportedValue(
                "The hidden states of this request are too large to be returned.",
                param="return_hidden_states",
            )
        if chunk.hidden_states is not None or chunk.routed_experts is not None:
            internals = InternalsDelta(self._choice, chunk.hidden_states, chunk.routed_experts)
            parts = (*parts, internals)
        return parts


def _size(states: Any) -> int:
    return sum(map(_size, states)) if isinstance(states, list) else int(states is not None)
