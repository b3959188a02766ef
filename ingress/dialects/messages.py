"""The Messages dialect: body -> Job, and the way back through `messages_encoder`.

Counting takes the same way to the same prompt, so that a count equals the later usage. It knows no
other dialect, no transport and no engine.

Source: Messages, sections 2 (request fields), 5 (thinking) and 8 (counting); dialect profiles,
#10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ingress.dialects import limit_headers, messages_errors, wire_json
from ingress.dialects.api import ApiDescription
from ingress.dialects.base import JobContext, Normalised, Stamp
from ingress.dialects.effort import Wish, resolve
from ingress.dialects.messages_api import API, COUNT_API
from ingress.dialects.messages_blocks import conversation
from ingress.dialects.messages_encoder import MessagesEncoder
from ingress.dialects.messages_request import (
    CountRequest,
    MessagesRequest,
    OutputFormat,
    PromptRequest,
)
from ingress.dialects.messages_tools import offer
from ingress.dialects.output_limit import output_limit
from ingress.dialects.sampling_fields import top_k_within
from ingress.dialects.sampling_policy import ignored_sampling
from ingress.dialects.tools import answer_constraint, check_supported
from ingress.dialects.validation import validate
from ingress.limits.standing import Standing
from schemas import json_schema
from schemas.errors import ErrorInfo, UnsupportedParameter, UnsupportedValue
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.model_card import ModelCard
from schemas.sampling import Constraint, JsonSchema, OutputLimit, SamplingParams, StopConditions

_EFFORTS: Final[dict[Any, Wish]] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


class Messages:
    """`POST /v1/messages`, and the counting of its prompts."""

    name: ClassVar[str] = "messages"
    path: ClassVar[str] = "/v1/messages"
    api: ClassVar[ApiDescription] = API
    count_path: ClassVar[str] = "/v1/messages/count_tokens"
    count_api: ClassVar[ApiDescription] = COUNT_API

    def parse(self, body: Any) -> MessagesRequest:
        return validate(MessagesRequest, body)

    def parse_count(self, body: Any) -> CountRequest:
        return validate(CountRequest, body)

    def normalise(
        self, request: MessagesRequest | CountRequest, card: ModelCard, context: JobContext
    ) -> Normalised:
        tools, choice = offer(request.tools or (), request.tool_choice, context.profile)
        if tools:
            check_supported(card, "tools")
        spoken = conversation(request.messages, request.system, vision=card.capabilities.vision)
        answer_begun = spoken.continue_last
        forced = choice.mode in ("required", "named")
        reasoning = resolve(
            "none" if forced or answer_begun else _wish(request), card.capabilities.reasoning
        )
        constraint = _constraint(request, card)
        if constraint is not None and answer_begun:
            _, param = _form(request)
            raise UnsupportedValue(
                f"`{param}` cannot be combined with a last turn of the assistant.", param=param
            )
        job = Job(
            job_id=context.job_id,
            request_id=context.request_id,
            model=card.id,
            prompt=ChatPrompt(
                messages=spoken.messages,
                tools=tools,
                tool_choice=choice,
                reasoning=reasoning,
                continue_last=answer_begun,
            ),
            sampling=_sampling(request, card, reasoning, answer_constraint(constraint, choice)),
            created_at=context.now,
            deadline=context.deadline,
            queue_deadline=context.queue_deadline,
        )
        return Normalised(job=job, ignored=ignored_sampling(request, card, context.profile))

    def encoder(self, request: MessagesRequest, job: Job, stamp: Stamp) -> MessagesEncoder:
        thinking = request.thinking
        return MessagesEncoder(
            job, stamp, omit_thinking=thinking is not None and thinking.display == "omitted"
        )

    def count_body(self, input_tokens: int) -> bytes:
        return wire_json.encode({"input_tokens": input_tokens})

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes:
        return messages_errors.error_body(error, request_id)

    def error_status(self, error: ErrorInfo) -> int:
        return messages_errors.error_status(error)

    def limit_headers(self, standings: Sequence[Standing]) -> Sequence[tuple[bytes, bytes]]:
        return limit_headers.anthropic(standings)


def _wish(request: PromptRequest) -> Wish:
    """Thinking is off unless the request turns it on, whatever the model does elsewhere."""
    if request.thinking is None or request.thinking.type == "disabled":
        return "none"
    effort = request.output_config.effort if request.output_config is not None else None
    return _EFFORTS.get(effort, "enabled") if isinstance(effort, str) else "enabled"


def _form(request: PromptRequest) -> tuple[OutputFormat | None, str]:
    """The form of the answer, and the field that has it."""
    if request.output_config is not None and request.output_config.format is not None:
        return request.output_config.format, "output_config.format"
    return request.output_format, "output_format"


def _constraint(request: PromptRequest, card: ModelCard) -> JsonSchema | None:
    form, param = _form(request)
    if form is None:
        return None
    if not card.capabilities.json_schema:
        raise UnsupportedParameter(f"`{param}` is not available on this model.", param=param)
    return JsonSchema(schema=json_schema.enforceable(form.schema_, param=f"{param}.schema"))


def _sampling(
    request: MessagesRequest | CountRequest,
    card: ModelCard,
    reasoning: Reasoning,
    constraint: Constraint | None,
) -> SamplingParams:
    if isinstance(request, CountRequest):
        return SamplingParams(limit=OutputLimit(max_tokens=1))
    return SamplingParams(
        limit=output_limit(request.max_tokens, card, reasoning, retry_without=False),
        temperature=request.temperature if card.honors_sampling else None,
        top_p=request.top_p if card.honors_sampling else None,
        top_k=top_k_within(request.top_k, card) if (request.top_k or 0) > 0 else None,
        stop=StopConditions(strings=tuple(request.stop_sequences or ())),
        constraint=constraint,
        constraint_param=None if constraint is None else _form(request)[1],
    )
