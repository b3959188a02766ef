"""Log probabilities of the scripted engine: made up, but of the right shape.

Every token has -0.5, its n-th alternative -(n + 0.5), and a token that was asked about -9.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.delta import PromptLogprob, TokenLogprob, TopLogprob
from schemas.sampling import SamplingParams
from workers.engines.base import EngineRequest

_OWN = -0.5
_ASKED = -9.0


def of_output(
    tokens: Iterable[tuple[int, str]], sampling: SamplingParams
) -> tuple[TokenLogprob, ...]:
    """One per sampled token, given as its id and its text."""
    if not sampling.logprobs:
        return ()
    return tuple(
        TokenLogprob(
            token_id, text, text.encode(), _OWN, _top(token_id, text, sampling), _asked(sampling)
        )
        for token_id, text in tokens
    )


def of_prompt(request: EngineRequest) -> tuple[PromptLogprob, ...]:
    """One per prompt token from the position asked for."""
    sampling = request.job.sampling
    start = sampling.prompt_logprobs_from
    if not sampling.logprobs or start is None:
        return ()
    return tuple(
        _prompt_token(position, token_id, sampling)
        for position, token_id in enumerate(request.prompt_ids)
        if position >= start
    )


def _prompt_token(position: int, token_id: int, sampling: SamplingParams) -> PromptLogprob:
    own = _bytes(token_id)
    token = own.decode(errors="replace")
    if position == 0:
        return PromptLogprob(token_id, token, own, None)
    return PromptLogprob(
        token_id, token, own, _OWN, _top(token_id, token, sampling), _asked(sampling)
    )


def _top(token_id: int, token: str, sampling: SamplingParams) -> tuple[TopLogprob, ...]:
    own = TopLogprob(token_id, token, token.encode(), _OWN)
    others = (
        TopLogprob(65_535 - n, f"alt{n}", b"alt%d" % n, _OWN - n)
        for n in range(1, sampling.top_logprobs)
    )
    return (own, *others)[: sampling.top_logprobs]


def _asked(sampling: SamplingParams) -> tuple[TopLogprob, ...]:
    return tuple(
        TopLogprob(token_id, _bytes(token_id).decode(errors="replace"), _bytes(token_id), _ASKED)
        for token_id in sampling.logprob_token_ids
    )


def _bytes(token_id: int) -> bytes:
    return bytes((token_id,)) if token_id < 256 else b""
