"""The Chat Completions dialect: body -> Job, and the way back through `chat_encoder`.

It knows no other dialect, no transport and no engine.

Source: Chat Completions, sections 2, 4, 5, 8 and 10 to 12; dialect profiles, #8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ingress.dialects import envelope, limit_headers
from ingress.dialects.api import ApiDescription
from ingress.dialects.base import JobContext, Normalised, Stamp
from ingress.dialects.chat_api import API
from ingress.dialects.chat_encoder import ChatEncoder
from ingress.dialects.chat_messages import neutral_messages
from ingress.dialects.chat_request import ChatRequest
from ingress.dialects.chat_tools import offer, offer_legacy
from ingress.dialects.effort import DOCUMENTED, RANK, Wish, resolve
from ingress.dialects.output_limit import output_limit
from ingress.dialects.profile import Profile
from ingress.dialects.response_format import constraint
from ingress.dialects.sampling_fields import strings, top_k_within
from ingress.dialects.sampling_policy import ignored_sampling
from ingress.dialects.tools import answer_constraint, check_supported
from ingress.dialects.validation import validate
from ingress.limits.standing import Standing
from schemas.errors import ErrorInfo, UnsupportedParameter, UnsupportedValue
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import ToolChoice, ToolSpec
from schemas.model_card import ModelCard
from schemas.sampling import SamplingParams, StopConditions

_TEMPLATE_SWITCHES = ("enable_thinking", "thinking")

_TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What the worker itself says when it applies a template. A client must not: some of these would
replace the conversation, and one would run a template of the client's own."""


class Chat:
    """`POST /v1/chat/completions`."""

    name: ClassVar[str] = "chat"
    path: ClassVar[str] = "/v1/chat/completions"
    api: ClassVar[ApiDescription] = API

    def parse(self, body: Any) -> ChatRequest:
        return validate(ChatRequest, body)

    def normalise(self, request: ChatRequest, card: ModelCard, context: JobContext) -> Normalised:
        _check_capabilities(request, card)
        reasoning = resolve(_reasoning_wish(request, context.profile), card.capabilities.reasoning)
        tools, choice = _offer(request, card)
        job = Job(
            job_id=context.job_id,
            request_id=context.request_id,
            model=card.id,
            prompt=ChatPrompt(
                messages=neutral_messages(request.messages, vision=card.capabilities.vision),
                tools=tools,
                tool_choice=choice,
                reasoning=reasoning,
                template_options=_template_options(request, card),
            ),
            sampling=_sampling(request, card, reasoning, choice),
            created_at=context.now,
            deadline=context.deadline,
            queue_deadline=context.queue_deadline,
        )
        return Normalised(job=job, ignored=ignored_sampling(request, card, context.profile))

    def encoder(self, request: ChatRequest, job: Job, stamp: Stamp) -> ChatEncoder:
        options = request.stream_options
        return ChatEncoder(
            job,
            stamp,
            include_usage=options is not None and options.include_usage,
            service_tier="default" if request.service_tier is not None else None,
            custom_tools=frozenset(
                tool.custom.name for tool in request.tools or () if tool.is_custom and tool.custom
            ),
            legacy_calls=request.legacy_calls,
        )

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes:
        return envelope.error_body(error, request_id)

    def error_status(self, error: ErrorInfo) -> int:
        return error.status

    def limit_headers(self, standings: Sequence[Standing]) -> Sequence[tuple[bytes, bytes]]:
        return limit_headers.openai(standings)


# --- What the model cannot do --------------------------------------------------------------------


def _check_capabilities(request: ChatRequest, card: ModelCard) -> None:
    able = card.capabilities
    if request.n is not None and request.n > 1 and not able.n:
        raise UnsupportedValue("`n` must be 1: this model returns one choice.", param="n")
    if request.logprobs and not able.logprobs:
        raise UnsupportedValue("`logprobs` is not available on this model.", param="logprobs")
    if card.vocab_size and any(token >= card.vocab_size for token, _ in request.logit_bias or ()):
        raise UnsupportedValue(
            f"`logit_bias` must have token ids below {card.vocab_size} as keys.",
            param="logit_bias",
        )


# --- Tools ---------------------------------------------------------------------------------------


def _offer(request: ChatRequest, card: ModelCard) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    if request.legacy_calls:
        check_supported(card, "functions")
        return offer_legacy(request.functions or (), request.function_call)
    if request.tools:
        check_supported(card, "tools")
    parallel = request.parallel_tool_calls is not False
    return offer(request.tools or (), request.tool_choice, parallel=parallel)


# --- Reasoning -----------------------------------------------------------------------------------


def _reasoning_wish(request: ChatRequest, profile: Profile) -> Wish | None:
    """The wish of the first spelling that is present.

    Source: Chat Completions, section 11 (precedence).
    """
    spelled = (
        ("reasoning_effort", request.reasoning_effort),
        ("reasoning.effort", request.reasoning.effort if request.reasoning else None),
    )
    for param, effort in spelled:
        if effort == "minimal" and not profile.minimal_effort:
            raise UnsupportedValue(f"`{param}` {DOCUMENTED}.", param=param)
    for _, effort in spelled:
        if effort is not None:
            return effort
    if request.reasoning is not None and isinstance(request.reasoning.enabled, bool):
        return "enabled" if request.reasoning.enabled else "none"
    if request.thinking is not None:
        return "none" if request.thinking.type == "disabled" else "enabled"
    return _template_wish(request.chat_template_kwargs or {})


def _template_wish(options: dict[str, Any]) -> Wish | None:
    """The wish in the variables that chat templates have for it; off wins."""
    switches = [options.get(name) for name in _TEMPLATE_SWITCHES]
    if any(switch is False for switch in switches):
        return "none"
    for effort in RANK:
        if options.get("reasoning_effort") == effort:
            return effort
    return "enabled" if any(switch is True for switch in switches) else None


def _template_options(request: ChatRequest, card: ModelCard) -> dict[str, Any]:
    options = dict(request.chat_template_kwargs or {})
    for name in options:
        if name in _TEMPLATE_ARGUMENTS:
            param = f"chat_template_kwargs.{name}"
            raise UnsupportedParameter(f"`{param}` cannot be set.", param=param)
    if card.capabilities.reasoning and _template_wish(options) is not None:
        # They took part in choosing the effort, and may have been overruled.
        for name in (*_TEMPLATE_SWITCHES, "reasoning_effort"):
            options.pop(name, None)
    return options


# --- Sampling ------------------------------------------------------------------------------------


def _sampling(
    request: ChatRequest, card: ModelCard, reasoning: Reasoning, choice: ToolChoice
) -> SamplingParams:
    formed = constraint(request.response_format, request.regex, card.capabilities)
    wanted = answer_constraint(formed, choice)
    requested = request.max_tokens
    if requested is None:
        requested = request.max_completion_tokens
    honored = card.honors_sampling
    return SamplingParams(
        limit=output_limit(requested, card, reasoning, retry_without=True),
        n=request.n or 1,
        temperature=request.temperature if honored else None,
        top_p=request.top_p if honored else None,
        presence_penalty=request.presence_penalty if honored else None,
        frequency_penalty=request.frequency_penalty if honored else None,
        top_k=top_k_within(request.top_k, card),
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        logit_bias=request.logit_bias or (),
        stop=StopConditions(strings=strings(request.stop)),
        constraint=wanted,
        constraint_param=_constraint_param(request) if wanted is not None else None,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs or 0,
    )


def _constraint_param(request: ChatRequest) -> str:
    return "response_format" if request.regex is None else "regex"
