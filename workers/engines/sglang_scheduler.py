"""What runs inside SGLang's scheduler process: a bound on its memory, and seeds on a CPU.

What continues requests there is in `sglang_continuation`.

SGLang remembers every grammar that it ever compiled. Here it forgets the oldest ones.

SGLang honours `sampling_seed` in its deterministic mode only, whose kernels need a GPU; elsewhere a
seed is accepted and forgotten. On a CPU these hooks make it count: the random number behind a token
depends on the seed and the token's position alone, so a request repeats, and one continued after a
cut goes on as it would have.

The hooks use SGLang's own registry. On a GPU seeds need none: there
`enable_deterministic_inference` makes them count.

Source: `sglang.srt.constrained.base_grammar_backend`, `sglang.srt.sampling.sampling_batch_info`,
`sglang.srt.layers.sampler`, version 0.5.23.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any, Final

from workers.engines.sglang_continuation import continue_requests

MOST_GRAMMARS: Final = 512
MOST_GRAMMAR_BYTES: Final = 512 << 20

_NO_SEED: Final = -1


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    """SGLang's scheduler process with the hooks in place."""
    import torch
    from sglang.srt.managers.scheduler import run_scheduler_process as run

    _bound_grammars()
    continue_requests()
    if not torch.cuda.is_available():
        _honour_seeds()
    run(*args, **kwargs)


def _bound_grammars() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend.set_cache",
        forget_grammars,
        HookType.AFTER,
    )


def forget_grammars(_: None, backend: Any, *args: Any, **kwargs: Any) -> None:
    """Keep what a grammar backend remembers within bounds, the newest of it."""
    while len(backend.cache) > MOST_GRAMMARS:
        del backend.cache[next(iter(backend.cache))]
    # The backend may stand around another one that waits for the end of reasoning.
    compiler = getattr(getattr(backend, "grammar_backend", backend), "grammar_compiler", None)
    if compiler is not None and compiler.get_cache_size_bytes() > MOST_GRAMMAR_BYTES:
        compiler.clear_cache()


def _honour_seeds() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    sampler = "sglang.srt.layers.sampler"
    HookRegistry.register(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        _collect_seeds,
        HookType.AFTER,
    )
    HookRegistry.register(f"{sampler}.multinomial_with_seed", _draw, HookType.REPLACE)
    HookRegistry.register(
        f"{sampler}.top_k_top_p_min_p_sampling_from_probs_torch", _sample, HookType.AROUND
    )


def _collect_seeds(info: Any, _: type, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Give the batch one seed per request, (batch,) int64."""
    import torch

    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    info.sampling_seed = torch.tensor(
        [_NO_SEED if seed is None else seed for seed in seeds], dtype=torch.int64
    )


def _draw(logprobs: Any, seeds: Any, positions: Any) -> Any:
    """Draw one index per row of (batch, vocab) log weights; returns (batch, 1) indices."""
    import torch

    sums = logprobs.double().exp().cumsum(dim=-1)
    drawn = [
        random.random() if seed == _NO_SEED else _uniform(seed, position)
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    targets = torch.tensor(drawn, dtype=sums.dtype).unsqueeze(1) * sums[:, -1:]
    # `right`: an index whose weight is zero adds nothing to the sums and is never drawn.
    return torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[-1] - 1)


def _uniform(seed: int, position: int) -> float:
    """A number from [0, 1) that looks random and depends on nothing else."""
    text = f"{seed}:{position}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _sample(
    sample: Callable[..., Any],
    probs: Any,
    top_ks: Any,
    top_ps: Any,
    min_ps: Any,
    need_min_p_sampling: bool,
    seeds: Any,
    positions: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Draw from (batch, vocab) probabilities, narrowed by top-k, top-p and min-p.

    SGLang draws in the order of probabilities here and in that of ids where no request of a batch
    is narrowed, so that a seed would mean something else with other neighbours. And it refuses
    min-p together with seeds.
    """
    if seeds is None or kwargs.get("return_filtered_probs"):
        return sample(
            probs, top_ks, top_ps, min_ps, need_min_p_sampling, seeds, positions, *args, **kwargs
        )
    import torch

    ordered, ids = probs.sort(dim=-1, descending=True)
    ranks = torch.arange(ordered.shape[-1]).view(1, -1)
    before = ordered.cumsum(dim=-1) - ordered
    tops = top_ps.view(-1, 1)
    left_out = (ranks >= top_ks.view(-1, 1)) | ((before > tops) & (tops < 1))
    if need_min_p_sampling:
        left_out |= ordered < ordered[:, :1] * min_ps.view(-1, 1)
    kept = torch.zeros_like(probs).scatter_(-1, ids, ordered.masked_fill(left_out, 0.0))
    return _draw(kept.log(), seeds, positions).view(-1).to(torch.int32)
