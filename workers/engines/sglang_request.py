"""An `EngineRequest` in SGLang's terms.

What SGLang would refuse is refused here first, by our own rules: its refusals are plain text, and
a few bad values (a stop id outside the vocabulary) would end its scheduler and with it the worker.
Knows SGLang's parameter names but imports nothing of it.

Source: `sglang.srt.sampling.sampling_params.SamplingParams` and `GenerateReqInput`, version 0.5.23.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from schemas.errors import (
    ContextLengthExceeded,
    ContextOverflow,
    GenerationFailed,
    InvalidPrompt,
    UnsupportedParameter,
    UnsupportedValue,
)
from schemas.job import ChatPrompt, Job
from schemas.model_card import EngineAccess
from schemas.sampling import (
    Constraint,
    Ebnf,
    EngineOptions,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
)
from workers.engines.base import EngineRequest
from workers.engines.sglang_continuation import PREFIX_KEY

MAX_STOP_STRINGS: Final = 32
_SEED_MASK: Final = (1 << 63) - 1


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is checked against.

    Attributes:
        max_prompt_tokens: Longest prompt the scheduler takes, a little below the window.
        sampling_defaults: The model's own, from its generation config. SGLang applies them in its
            HTTP layer only.
        deterministic: SGLang's deterministic mode is on. It gives every request without a seed the
            same one, and its scheduler ends at `min_p`.
        access: What of the engine's own options callers may use.
        shows_special: Conversations need special tokens in their output text, because the model
            marks reasoning or tool calls with them.
        batch_rank: Added to the rank of batch work, which puts it behind every live request; None
            where SGLang does not schedule by rank.
    """

    context_length: int
    max_prompt_tokens: int
    vocab_size: int
    sampling_defaults: Mapping[str, Any] = {}
    deterministic: bool = False
    shows_special: bool = False
    access: EngineAccess = EngineAccess()
    batch_rank: int | None = None


def check(request: EngineRequest, facts: ModelFacts) -> None:
    """Refuse what SGLang cannot run.

    Raises:
        ContextLengthExceeded: Prompt and output do not fit.
        InvalidPrompt: There is no prompt, or a token id outside the vocabulary in it.
        UnsupportedValue: Another token id outside the vocabulary.
        UnsupportedParameter: An option that this engine was not started with.
        GenerationFailed: What it is to continue is not this model's.
    """
    check_length(len(request.prompt_ids), request.max_tokens, facts)
    if not request.prompt_ids:
        raise InvalidPrompt("The prompt is empty.", param="prompt")
    sampling = request.job.sampling
    if not _in_vocabulary(request.prompt_ids, facts):
        raise InvalidPrompt(_vocabulary_text(facts), param="prompt")
    if not _in_vocabulary(request.prefix_ids, facts):
        raise GenerationFailed(
            "The model failed to answer.", diagnostic="continued ids are outside the vocabulary"
        )
    for param, token_ids in (
        ("stop_token_ids", sampling.stop.token_ids),
        ("logit_bias", tuple(token_id for token_id, _ in sampling.logit_bias)),
        ("token_ids_logprob", sampling.logprob_token_ids),
    ):
        if not _in_vocabulary(token_ids, facts):
            raise UnsupportedValue(_vocabulary_text(facts), param=param)
    _check_options(sampling.engine, facts.access)
    if facts.deterministic and sampling.min_p:
        raise UnsupportedValue("This model does not support min_p.", param="min_p")


def check_length(prompt_tokens: int, max_tokens: int, facts: ModelFacts) -> None:
    """Refuse what does not fit.

    Raises:
        ContextLengthExceeded: Prompt and output do not.
    """
    if prompt_tokens > facts.max_prompt_tokens or prompt_tokens + max_tokens > facts.context_length:
        raise ContextLengthExceeded(
            ContextOverflow(
                prompt_tokens=prompt_tokens,
                output_tokens=max_tokens,
                context_length=facts.context_length,
            )
        )


def arguments(request: EngineRequest, facts: ModelFacts) -> dict[str, Any]:
    """Keyword arguments for `Engine.async_generate`, all but `rid` and `stream`."""
    sampling = request.job.sampling
    given: dict[str, Any] = {
        "input_ids": list(request.prompt_ids),
        "sampling_params": _sampling_params(request, facts),
    }
    if sampling.logprobs:
        # A choice that goes on after a prefix has told of its prompt before.
        start = sampling.prompt_logprobs_from if not request.prefix_ids else None
        given["return_logprob"] = True
        given["top_logprobs_num"] = sampling.top_logprobs
        given["token_ids_logprob"] = list(sampling.logprob_token_ids) or None
        # SGLang has none for the position it begins at, so it begins one before.
        given["logprob_start_len"] = -1 if start is None else max(start - 1, 0)
    options = sampling.engine
    if options.logit_processor is not None:
        given["custom_logit_processor"] = options.logit_processor
    if options.adapter is not None:
        given["lora_path"] = options.adapter
    if facts.batch_rank is not None and request.job.job_class == "batch":
        given["priority"] = facts.batch_rank + (options.priority or 0)
    elif options.priority is not None:
        given["priority"] = options.priority
    if options.hidden_states is not None:
        given["return_hidden_states"] = "last" if options.hidden_states == "last" else True
    if options.routed_experts:
        given["return_routed_experts"] = True
    return given


def shows_special(job: Job, facts: ModelFacts) -> bool:
    """Whether special tokens are part of this Job's output text."""
    if not job.sampling.skip_special_tokens:
        return True
    return facts.shows_special and isinstance(job.prompt, ChatPrompt)


def _sampling_params(request: EngineRequest, facts: ModelFacts) -> dict[str, Any]:
    sampling = request.job.sampling
    params = {**facts.sampling_defaults, **_given(sampling)}
    if facts.deterministic:
        params.pop("min_p", None)
    if (top_k := params.get("top_k")) is not None and top_k < 1:
        params["top_k"] = -1  # 0 is how generation configs say "off"
    params["max_new_tokens"] = request.max_tokens
    # Beside a constraint that wants its end, a minimum would leave no token at all.
    least = sampling.limit.min_tokens if request.constraint is None else 0
    params["min_new_tokens"] = min(least, request.max_tokens)
    params["ignore_eos"] = sampling.stop.ignore_eos
    params["skip_special_tokens"] = not shows_special(request.job, facts)
    params["spaces_between_special_tokens"] = sampling.spaces_between_special_tokens
    if request.stop_strings:
        # SGLang takes no more; the parser finds the others.
        params["stop"] = list(request.stop_strings[:MAX_STOP_STRINGS])
        params["no_stop_trim"] = True  # they are looked for again after parsing
    if sampling.stop.include_in_text:
        params["no_stop_trim"] = True
    if sampling.stop.token_ids:
        params["stop_token_ids"] = list(sampling.stop.token_ids)
    if sampling.logit_bias:
        params["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    if sampling.seed is not None:
        params["sampling_seed"] = (sampling.seed + request.choice % sampling.n) & _SEED_MASK
    elif facts.deterministic:
        params["sampling_seed"] = secrets.randbits(63)
    if custom := _custom_params(request):
        params["custom_params"] = custom
    if request.constraint is not None:
        name, value = grammar(request.constraint)
        params[name] = value
    return params


def _custom_params(request: EngineRequest) -> dict[str, Any]:
    """The caller's own, and the ids to go on after; see `sglang_continuation`."""
    custom = {**request.job.sampling.engine.custom_params}
    custom.pop(PREFIX_KEY, None)
    if request.prefix_ids:
        custom[PREFIX_KEY] = list(request.prefix_ids)
    return custom


def _given(sampling: SamplingParams) -> dict[str, float | int]:
    """The values the caller set; None leaves the model's default in place."""
    values = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    return {name: value for name, value in values.items() if value is not None}


def grammar(constraint: Constraint) -> tuple[str, str]:
    """The name of SGLang's parameter for a constraint, and its value."""
    match constraint:
        case JsonSchema(schema=schema):
            return "json_schema", msgspec.json.encode(schema).decode()
        case JsonObject():
            return "json_schema", '{"type":"object"}'
        case Regex(pattern=pattern):
            return "regex", pattern
        case Ebnf(grammar=grammar):
            return "ebnf", grammar
        case StructuralTag(spec=spec):
            return "structural_tag", msgspec.json.encode(spec).decode()
        case _:
            assert_never(constraint)


def _in_vocabulary(token_ids: Sequence[int], facts: ModelFacts) -> bool:
    return not token_ids or (min(token_ids) >= 0 and max(token_ids) < facts.vocab_size)


def _vocabulary_text(facts: ModelFacts) -> str:
    return f"Token ids must be between 0 and {facts.vocab_size - 1}."


def _check_options(options: EngineOptions, access: EngineAccess) -> None:
    closed = {
        "custom_logit_processor": options.logit_processor is not None
        and not access.logit_processors,
        "return_hidden_states": options.hidden_states is not None
        and options.hidden_states not in access.hidden_states,
        "return_routed_experts": options.routed_experts and not access.routed_experts,
        "lora_path": options.adapter is not None and options.adapter not in access.adapters,
    }
    for param, refused in closed.items():
        if refused:
            raise UnsupportedParameter(f"This model does not offer `{param}`.", param=param)
