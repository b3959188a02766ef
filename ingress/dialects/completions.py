"""The text completions dialect: prompts of token ids -> Job, and back by `completions_encoder`.

It knows no other dialect, no transport and no engine. The sampling policy of conversations does not
apply: whoever sends token ids means what they say, and what they do not say has the documented
default and not the model's.

Source: Tokenized completions, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NoReturn

from ingress.dialects import envelope, limit_headers, response_format
from ingress.dialects.api import ApiDescription
from ingress.dialects.base import JobContext, Normalised, Stamp
from ingress.dialects.completions_api import API
from ingress.dialects.completions_encoder import CompletionEncoder
from ingress.dialects.completions_request import CompletionRequest
from ingress.dialects.sampling_fields import strings, top_k_within
from ingress.dialects.validation import validate
from ingress.limits.standing import Standing
from schemas import json_schema
from schemas.errors import (
    ContextLengthExceeded,
    ContextOverflow,
    EndpointNotSupported,
    ErrorInfo,
    InvalidPrompt,
    UnsupportedParameter,
    UnsupportedValue,
)
from schemas.job import Job, TokenPrompt
from schemas.model_card import ModelCard
from schemas.sampling import (
    Constraint,
    Ebnf,
    EngineOptions,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
    StructuralTag,
)

MAX_PROMPT_LOGPROBS: Final = 32_768
"""Log probabilities of prompt tokens in one answer, their alternatives included."""


class Completions:
    """`POST /v1/completions`."""

    name: ClassVar[str] = "completions"
    path: ClassVar[str] = "/v1/completions"
    api: ClassVar[ApiDescription] = API

    def parse(self, body: object) -> CompletionRequest:
        return validate(CompletionRequest, body)

    def normalise(
        self, request: CompletionRequest, card: ModelCard, context: JobContext
    ) -> Normalised:
        if not card.capabilities.completions:
            raise EndpointNotSupported(
                "This model has no text completions; use /v1/chat/completions.", param="model"
            )
        _check_priority(request.priority, context.priorities)
        _check_prompts(request, card)
        _check_token_ids(request, card)
        _check_capabilities(request, card)
        job = Job(
            job_id=context.job_id,
            request_id=context.request_id,
            model=card.id,
            prompt=TokenPrompt(prompts=request.prompt, echo=request.echo),
            sampling=_sampling(request, card),
            created_at=context.now,
            deadline=context.deadline,
            queue_deadline=context.queue_deadline,
        )
        return Normalised(job=job)

    def encoder(self, request: CompletionRequest, job: Job, stamp: Stamp) -> CompletionEncoder:
        return CompletionEncoder(request, job, stamp)

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes:
        return envelope.error_body(error, request_id)

    def error_status(self, error: ErrorInfo) -> int:
        return error.status

    def limit_headers(self, standings: Sequence[Standing]) -> Sequence[tuple[bytes, bytes]]:
        return limit_headers.openai(standings)


# --- What the model cannot do --------------------------------------------------------------------


def _check_prompts(request: CompletionRequest, card: ModelCard) -> None:
    for index, prompt in enumerate(request.prompt):
        if card.vocab_size and max(prompt) >= card.vocab_size:
            where = f"prompt[{index}]" if len(request.prompt) > 1 else "prompt"
            raise InvalidPrompt(
                f"`{where}` must have token ids below {card.vocab_size}.", param=where
            )
        if len(prompt) >= card.context_length:
            raise ContextLengthExceeded(
                ContextOverflow(
                    prompt_tokens=len(prompt), output_tokens=0, context_length=card.context_length
                )
            )


def _check_token_ids(request: CompletionRequest, card: ModelCard) -> None:
    if not card.vocab_size:
        return
    for param, token_ids in (
        ("stop_token_ids", request.stop_token_ids),
        ("token_ids_logprob", request.token_ids_logprob),
        ("logit_bias", [token_id for token_id, _ in request.logit_bias or ()]),
    ):
        if token_ids and max(token_ids) >= card.vocab_size:
            raise UnsupportedValue(
                f"`{param}` must have token ids below {card.vocab_size}.", param=param
            )


def _check_capabilities(request: CompletionRequest, card: ModelCard) -> None:
    able, access = card.capabilities, card.capabilities.engine
    if request.n is not None and request.n > 1 and not able.n:
        raise UnsupportedValue("`n` must be 1: this model returns one choice.", param="n")
    if request.custom_logit_processor is not None and not access.logit_processors:
        _not_open("custom_logit_processor")
    if request.return_hidden_states and request.return_hidden_states not in access.hidden_states:
        _not_open("return_hidden_states")
    if request.return_routed_experts and not access.routed_experts:
        _not_open("return_routed_experts")
    if request.lora_path is not None and request.lora_path not in access.adapters:
        raise UnsupportedValue(
            "`lora_path` must be the name of an adapter that is served with this model.",
            param="lora_path",
        )
    asks_logprobs = request.logprobs is not None or request.native_logprobs
    if asks_logprobs and not able.logprobs:
        field = "logprobs" if request.logprobs is not None else "return_logprob"
        raise UnsupportedValue(f"`{field}` is not available on this model.", param=field)


def _not_open(field: str) -> NoReturn:
    raise UnsupportedParameter(
        f"`{field}` is not enabled on this deployment for this model.", param=field
    )


# --- Sampling ------------------------------------------------------------------------------------


def _sampling(request: CompletionRequest, card: ModelCard) -> SamplingParams:
    limit = min(request.token_limit, card.context_length)
    if card.max_output_tokens is not None:
        limit = min(limit, card.max_output_tokens)
    return SamplingParams(
        # Lowered to what is left of the window beside a prompt.
        limit=OutputLimit(
            max_tokens=limit,
            fallback_tokens=limit,
            min_tokens=min(request.min_tokens or 0, limit),
        ),
        n=request.n or 1,
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=top_k_within(-1 if request.top_k is None else request.top_k, card),
        min_p=_or(request.min_p, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        seed=request.seed,
        logit_bias=request.logit_bias or (),
        stop=StopConditions(
            strings=strings(request.stop),
            patterns=strings(request.stop_regex),
            token_ids=tuple(request.stop_token_ids or ()),
            ignore_eos=request.ignore_eos,
            include_in_text=request.no_stop_trim,
        ),
        constraint=_constraint(request, card),
        constraint_param=next(iter(request.constraints), None),
        logprobs=request.logprobs is not None or request.native_logprobs,
        top_logprobs=max(
            request.logprobs or 0, (request.top_logprobs_num or 0) * request.native_logprobs
        ),
        logprob_token_ids=tuple(request.token_ids_logprob or ()) if request.native_logprobs else (),
        prompt_logprobs_from=_prompt_logprobs_from(request),
        report_token_ids=request.return_token_ids or _counts_on(request),
        skip_special_tokens=request.skip_special_tokens is not False,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        engine=EngineOptions(
            label=request.rid or "",
            adapter=request.lora_path,
            priority=_priority(request.priority, card),
            logit_processor=request.custom_logit_processor,
            custom_params=request.custom_params or {},
            hidden_states=request.return_hidden_states,
            routed_experts=request.return_routed_experts,
        ),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_priority(priority: int | None, allowed: tuple[int, int] | None) -> None:
    if priority is None or allowed is None:
        return
    lowest, highest = allowed
    if not lowest <= priority <= highest:
        raise UnsupportedValue(
            f"`priority` must be from {lowest} to {highest} for this account.", param="priority"
        )


def _priority(priority: int | None, card: ModelCard) -> int | None:
    lowest, highest = card.capabilities.engine.priorities
    if priority is None or lowest == highest:
        return None
    return max(lowest, min(priority, highest))


def _counts_on(request: CompletionRequest) -> bool:
    """Whether every record tells the usage so far."""
    options = request.stream_options
    return request.stream and options is not None and options.continuous_usage_stats


def _prompt_logprobs_from(request: CompletionRequest) -> int | None:
    start = request.native_start
    if request.echo and request.logprobs is not None:
        start = 0
    if start is None:
        return None
    positions = sum(max(len(prompt) - start, 0) for prompt in request.prompt) * (request.n or 1)
    each = 1 + max(request.logprobs or 0, request.top_logprobs_num or 0)
    each += len(request.token_ids_logprob or ())
    if positions * each > MAX_PROMPT_LOGPROBS:
        raise UnsupportedValue(
            f"At most {MAX_PROMPT_LOGPROBS} log probabilities of prompt tokens can be returned, "
            "alternatives included.",
            param="logprobs" if request.native_start is None else "logprob_start_len",
        )
    return start


def _constraint(request: CompletionRequest, card: ModelCard) -> Constraint | None:
    able = card.capabilities
    if request.ebnf is not None:
        _require("ebnf", able.grammar)
        return Ebnf(grammar=request.ebnf)
    if request.regex is not None:
        _require("regex", able.regex)
        return Regex(pattern=request.regex)
    if request.json_schema is not None:
        _require("json_schema", able.json_schema)
        schema = json_schema.enforceable(request.json_schema, param="json_schema")
        return JsonSchema(schema=schema)
    if request.structural_tag is not None:
        _require("structural_tag", able.grammar)
        return StructuralTag(spec=request.structural_tag.spec)
    return response_format.constraint(request.response_format, None, able)


def _require(field: str, able: bool) -> None:
    if not able:
        raise UnsupportedParameter(f"`{field}` is not available on this model.", param=field)
