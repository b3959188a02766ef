"""The Chat Completions dialect: body -> Job, and the way back through `chat_encoder`.

It knows no other dialect, no transport and no engine.

Source: Chat Completions, sections 2 to 5 and 11; dialect profiles, #8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from ingress.dialects import envelope
from ingress.dialects.base import JobContext, Normalised, Stamp
from ingress.dialects.chat_encoder import ChatEncoder
from ingress.dialects.chat_request import (
    AssistantMessage,
    AssistantPart,
    ChatMessage,
    ChatRequest,
    ImageContent,
    InputPart,
    TextContent,
    ToolMessage,
)
from ingress.dialects.effort import Wish, resolve
from ingress.dialects.output_limit import output_limit
from ingress.dialects.profile import Profile
from ingress.dialects.sampling_policy import ignored_sampling
from ingress.dialects.validation import validate
from schemas.errors import (
    ErrorInfo,
    SchemaValidationFailed,
    UnsupportedParameter,
    UnsupportedValue,
)
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import Message, Part, TextPart, ToolCall
from schemas.model_card import ModelCard
from schemas.sampling import SamplingParams, StopConditions

Content: TypeAlias = str | Sequence[InputPart] | Sequence[AssistantPart] | None

_NO_TOP_K_LIMIT = 2**30
"""Above any vocabulary, and within the 32-bit integers engines use."""

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

    def parse(self, body: Any) -> ChatRequest:
        return validate(ChatRequest, body)

    def normalise(self, request: ChatRequest, card: ModelCard, context: JobContext) -> Normalised:
        _refuse_unserved(request, card)
        _check_capabilities(request, card)
        reasoning = resolve(_reasoning_wish(request, context.profile), card.capabilities.reasoning)
        job = Job(
            job_id=context.job_id,
            request_id=context.request_id,
            model=card.id,
            prompt=ChatPrompt(
                messages=tuple(_message(message) for message in request.messages),
                reasoning=reasoning,
                template_options=_template_options(request, card),
            ),
            sampling=_sampling(request, card, reasoning),
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
        )

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes:
        return envelope.error_body(error, request_id)

    def error_status(self, error: ErrorInfo) -> int:
        return error.status


# --- What the model cannot do --------------------------------------------------------------------


def _refuse_unserved(request: ChatRequest, card: ModelCard) -> None:
    """Refuses the documented features that this version does not serve."""
    unserved = {
        "tools": request.tools,
        "functions": request.functions,
        "function_call": request.function_call not in (None, "none", "auto"),
        "response_format": request.response_format and request.response_format.type != "text",
        "regex": request.regex is not None,
    }
    for field, used in unserved.items():
        if used:
            raise _unserved(field)
    if isinstance(request.tool_choice, str | dict):
        if request.tool_choice not in ("none", "auto"):
            raise UnsupportedValue(
                "`tool_choice` asks for a tool that is not in `tools`.", param="tool_choice"
            )
    elif request.tool_choice is not None:
        raise SchemaValidationFailed(
            "`tool_choice` must be a string or an object.", param="tool_choice"
        )
    for index, message in enumerate(request.messages):
        if isinstance(message, AssistantMessage) and message.function_call is not None:
            raise _unserved(f"messages[{index}].function_call")
        if not card.capabilities.vision or isinstance(message.content, str | None):
            continue
        for position, part in enumerate(message.content):
            if isinstance(part, ImageContent):
                raise _unserved(f"messages[{index}].content[{position}].image_url")


def _unserved(field: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"This deployment does not support `{field}` yet.", param=field)


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
            raise UnsupportedValue(
                f"`{param}` must be one of 'none', 'low', 'medium', 'high', 'xhigh' or 'max'.",
                param=param,
            )
    for _, effort in spelled:
        if effort is not None:
            return effort
    if request.thinking is not None:
        return "none" if request.thinking.type == "disabled" else "enabled"
    match (request.chat_template_kwargs or {}).get("enable_thinking"):
        case True:
            return "enabled"
        case False:
            return "none"
    return None


def _template_options(request: ChatRequest, card: ModelCard) -> dict[str, Any]:
    options = dict(request.chat_template_kwargs or {})
    for name in options:
        if name in _TEMPLATE_ARGUMENTS:
            param = f"chat_template_kwargs.{name}"
            raise UnsupportedParameter(f"`{param}` cannot be set.", param=param)
    if card.capabilities.reasoning and isinstance(options.get("enable_thinking"), bool):
        # It took part in choosing the effort, and may have been overruled.
        del options["enable_thinking"]
    return options


# --- Sampling ------------------------------------------------------------------------------------


def _sampling(request: ChatRequest, card: ModelCard, reasoning: Reasoning) -> SamplingParams:
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
        top_k=_top_k(request.top_k, card),
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        logit_bias=request.logit_bias or (),
        stop=StopConditions(strings=_stop_strings(request.stop)),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs or 0,
    )


def _top_k(top_k: int | None, card: ModelCard) -> int | None:
    return None if top_k is None else min(top_k, card.vocab_size or _NO_TOP_K_LIMIT)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


# --- Messages ------------------------------------------------------------------------------------


def _message(message: ChatMessage) -> Message:
    match message:
        case AssistantMessage():
            content = message.refusal if message.content is None else message.content
            return Message(
                role="assistant",
                parts=_parts(content),
                reasoning=message.reasoning_content or None,
                tool_calls=tuple(
                    ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                    for call in message.tool_calls or ()
                ),
                name=message.name,
            )
        case ToolMessage():
            return Message(
                role="tool",
                parts=_parts(message.content),
                tool_call_id=message.tool_call_id,
                name=message.name,
            )
        case _:
            return Message(
                role="system" if message.role == "developer" else message.role,
                parts=_parts(message.content),
                name=message.name,
            )


def _parts(content: Content) -> tuple[Part, ...]:
    """One text part, or none if there is no text.

    Images are left out: models without vision get the request without them.
    """
    text = content if isinstance(content, str) else "".join(map(_text, content or ()))
    return (TextPart(text=text),) if text else ()


def _text(part: InputPart | AssistantPart) -> str:
    if isinstance(part, TextContent):
        return part.text
    return "" if isinstance(part, ImageContent) else part.refusal
