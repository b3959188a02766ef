"""What runs inside SGLang's scheduler process so that a request goes on after another's output.

SGLang resumes requests of its own: one that had to make room for others keeps the ids it has
generated and, when there is room again, is computed anew from its prompt and those ids. A request
that continues another engine's is given the other's ids before it enters the queue, and from then
on is nothing but a request that is resumed: token limits, stop conditions and lengths count them.

Two things are lost on the way, for SGLang's own requests as well, and are made good here: the state
of a grammar is advanced over the ids, and penalties are counted over them.

Source: `sglang.srt.managers.schedule_batch`, `sglang.srt.constrained.grammar_manager`,
`sglang.srt.sampling.penaltylib`, version 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

PREFIX_KEY: Final = "headrace_prefix_ids"
"""Where the ids travel among a request's custom parameters; callers cannot set it."""


def continue_requests() -> None:
    """Register the hooks; in the scheduler process, before SGLang applies them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.constrained.grammar_manager.GrammarManager"
    HookRegistry.register(f"{manager}.process_req_with_grammar", _take_in, HookType.AROUND)
    HookRegistry.register(f"{manager}.get_ready_grammar_requests", _advance_ready, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        _count_penalties,
        HookType.AFTER,
    )


def _take_in(process: Callable[..., bool], manager: Any, request: Any) -> bool:
    """Take a new request in, just before it is queued or waits for its grammar."""
    if prefix := _take_prefix(request.sampling_params):
        _resume(request, prefix)
    compiles = process(manager, request)
    if not compiles:
        _advance(request)
    return compiles


def _advance_ready(requests: Sequence[Any], *args: Any, **kwargs: Any) -> None:
    """These have waited for their grammar and are queued next."""
    for request in requests:
        _advance(request)


def _take_prefix(sampling: Any) -> list[int]:
    params = sampling.custom_params
    if not isinstance(params, dict) or PREFIX_KEY not in params:
        return []
    sampling.custom_params = {key: params[key] for key in params if key != PREFIX_KEY} or None
    prefix: list[int] = params[PREFIX_KEY]
    return prefix


def _resume(request: Any, prefix: list[int]) -> None:
    """Make a new request look as if it had generated the prefix and told of it."""
    count = len(prefix)
    request.output_ids.extend(prefix)
    request.send_token_offset = count
    if request.return_logprob:
        request.logprob_start_len = -1  # or it would report those of the prefix
        logprob = request.logprob
        for entries in (
            logprob.output_token_logprobs_val,
            logprob.output_token_logprobs_idx,
            logprob.output_top_logprobs_val,
            logprob.output_top_logprobs_idx,
            logprob.output_token_ids_logprobs_val,
            logprob.output_token_ids_logprobs_idx,
        ):
            entries.extend([None] * count)  # one per output token; these are never sent
        request.send_output_token_logprobs_offset = count
    images = request.multimodal_inputs
    if images is not None and images.mrope_positions is not None:
        from sglang.srt.managers.mm_utils import extend_mrope_positions_for_retracted_request

        images.mrope_positions = extend_mrope_positions_for_retracted_request(
            images.mrope_positions, count
        )


def _advance(request: Any) -> None:
    """Bring a request's grammar to where its output ends."""
    if request.grammar is None or request.to_finish is not None or request.finished():
        return
    try:
        for token_id in request.output_ids:
            request.grammar.accept_token(token_id)
    except ValueError:
        request.set_finish_with_abort(
            "The output does not follow the grammar.",
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "InternalServerError",
        )


def _count_penalties(info: Any, _: type, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Count what requests have generated before the batch they are prefilled in.

    Afterwards SGLang counts by itself, before each step the last token that it has seen. With
    overlapped steps that is the one before the last, and at first the last one of the prompt.
    """
    orchestrator = info.penalizer_orchestrator
    if not orchestrator.is_required or not batch.forward_mode or not batch.forward_mode.is_extend():
        return
    for row, request in enumerate(batch.reqs):
        if not request.output_ids:
            continue
        counted = list(request.output_ids)
        if batch.enable_overlap:
            counted = [request.origin_input_ids[-1], *counted[:-1]]
        for penalizer in orchestrator.penalizers.values():
            if penalizer.is_prepared():
                _count(penalizer, row, counted)


def _count(penalizer: Any, row: int, counted: list[int]) -> None:
    """What the penalizer would have done for one row of its batch, id by id."""
    import torch
    from sglang.srt.sampling import penaltylib

    ids = torch.tensor(counted, dtype=torch.int64, device=penalizer.orchestrator.device)
    match penalizer:
        case penaltylib.BatchedFrequencyPenalizer():
            penalties = penalizer.frequency_penalties[row].expand(len(counted))
            penalizer.cumulated_frequency_penalties[row].scatter_add_(0, ids, penalties)
        case penaltylib.BatchedPresencePenalizer():
            penalizer.cumulated_presence_penalties[row, ids] = penalizer.presence_penalties[row]
        case penaltylib.BatchedRepetitionPenalizer():
            penalizer.cumulated_repetition_penalties[row, ids] = penalizer.repetition_penalties[row]
        case penaltylib.BatchedMinNewTokensPenalizer():
            penalizer.len_output_tokens[row] += len(counted)
