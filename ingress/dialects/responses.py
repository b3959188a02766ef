"""The Responses dialect: body -> Job, and the way back through `responses_encoder`.

It knows no other dialect, no transport and no engine.

Source: Responses, sections 1, 2, 4, 6 and 8; dialect profiles, #1, #4, #6, #7 and #14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from ingress.dialects import envelope, limit_headers, wire_json
from ingress.dialects.api import ApiDescription
from ingress.dialects.base import JobContext, Normalised, Stamp
from ingress.dialects.effort import RANK, Wish, resolve
from ingress.dialects.output_limit import output_limit
from ingress.dialects.profile import Profile
from ingress.dialects.responses_api import API, COUNT_API
from ingress.dialects.responses_conversation import conversation
from ingress.dialects.responses_encoder import ResponsesEncoder
from ingress.dialects.responses_request import (
    LOGPROBS,
    ReasoningOptions,
    ResponsesBody,
    ResponsesRequest,
    read_request,
)
from ingress.dialects.responses_tools import Offer, Tool, offer, searches
from ingress.dialects.sampling_fields import strings, top_k_within
from ingress.dialects.sampling_policy import ignored_sampling
from ingress.dialects.tools import answer_constraint, check_supported
from ingress.limits.standing import Standing
from schemas.errors import ErrorInfo, UnsupportedParameter, UnsupportedValue
from schemas.job import ChatPrompt, Effort, Job, Reasoning
from schemas.json_schema import enforceable
from schemas.model_card import Capabilities, ModelCard
from schemas.sampling import (
    Constraint,
    JsonObject,
    JsonSchema,
    SamplingParams,
    StopConditions,
)

_EFFORTS: Final[Mapping[str, Effort]] = {effort: effort for effort in RANK}


class Responses:
    """`POST /v1/responses`."""

    name: ClassVar[str] = "responses"
    path: ClassVar[str] = "/v1/responses"
    api: ClassVar[ApiDescription] = API
    count_path: ClassVar[str] = "/v1/responses/input_tokens"
    count_api: ClassVar[ApiDescription] = COUNT_API

    def parse(self, body: Any) -> ResponsesRequest:
        request = read_request(body)
        _refuse_stored_state(request.body)
        return request

    def parse_count(self, body: Any) -> ResponsesRequest:
        return self.parse(body)

    def normalise(
        self, request: ResponsesRequest, card: ModelCard, context: JobContext
    ) -> Normalised:
        body, profile = request.body, context.profile
        _check_capabilities(request, card.capabilities)
        offered = _offer(request, profile)
        if offered.tools:
            check_supported(card, "tools")
        reasoning = resolve(_reasoning_wish(body.reasoning, profile), card.capabilities.reasoning)
        constraint = answer_constraint(_constraint(request, card.capabilities), offered.choice)
        job = Job(
            job_id=context.job_id,
            request_id=context.request_id,
            model=card.id,
            prompt=ChatPrompt(
                messages=conversation(
                    body.instructions,
                    request.turns,
                    profile=profile,
                    vision=card.capabilities.vision,
                    searches=searches(request.tools),
                ),
                tools=offered.specs,
                tool_choice=offered.choice,
                reasoning=reasoning,
            ),
            sampling=_sampling(request, card, reasoning, constraint),
            created_at=context.now,
            deadline=context.deadline,
            queue_deadline=context.queue_deadline,
        )
        ignored = (*ignored_sampling(body, card, profile), *offered.ignored)
        return Normalised(job=job, ignored=ignored)

    def encoder(self, request: ResponsesRequest, job: Job, stamp: Stamp) -> ResponsesEncoder:
        return ResponsesEncoder(
            request,
            stamp,
            tools={tool.spec.name: tool for tool in request.tools if isinstance(tool, Tool)},
            top_logprobs=job.sampling.top_logprobs if job.sampling.logprobs else None,
        )

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes:
        return envelope.error_body(error, request_id)

    def error_status(self, error: ErrorInfo) -> int:
        return error.status

    def limit_headers(self, standings: Sequence[Standing]) -> Sequence[tuple[bytes, bytes]]:
        return limit_headers.openai(standings)

    def count_body(self, input_tokens: int) -> bytes:
        return wire_json.encode({"object": "response.input_tokens", "input_tokens": input_tokens})


# --- What cannot be served -----------------------------------------------------------------------


def _refuse_stored_state(body: ResponsesBody) -> None:
    """Refuses what refers to something stored: without it, another question would be answered."""
    for field in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, field) is not None:
            raise UnsupportedParameter(
                f"`{field}` is not supported: nothing is stored, so `input` must carry the whole "
                "conversation.",
                param=field,
            )


def _check_capabilities(request: ResponsesRequest, able: Capabilities) -> None:
    if request.includes(LOGPROBS) and not able.logprobs:
        raise UnsupportedValue(
            "`include` asks for log probabilities, which this model does not have.",
            param="include",
        )


def _offer(request: ResponsesRequest, profile: Profile) -> Offer:
    body = request.body
    return offer(
        request.tools,
        body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        profile=profile,
    )


# --- Reasoning, form and sampling ----------------------------------------------------------------


def _reasoning_wish(options: ReasoningOptions | None, profile: Profile) -> Wish | None:
    """An object without an effort turns reasoning off; none at all leaves it to the model.

    Source: Responses, section 6.
    """
    if options is None:
        return None
    effort = options.effort
    if effort is None:
        return "none"
    if profile.unknown_effort_is_off:
        return "none" if effort == "minimal" else _EFFORTS.get(effort, "none")
    if effort not in _EFFORTS:
        raise UnsupportedValue(
            f"`reasoning.effort` must be one of {', '.join(_EFFORTS)}.", param="reasoning.effort"
        )
    return _EFFORTS[effort]


def _constraint(request: ResponsesRequest, able: Capabilities) -> Constraint | None:
    form = request.text_format
    if form is None or form.type == "text":
        return None
    if not getattr(able, form.type):
        raise UnsupportedParameter(
            f"`text.format` of type {form.type} is not available on this model.",
            param="text.format",
        )
    if form.type == "json_object":
        return JsonObject()
    return JsonSchema(schema=enforceable(form.schema_, param="text.format.schema"))


def _sampling(
    request: ResponsesRequest,
    card: ModelCard,
    reasoning: Reasoning,
    constraint: Constraint | None,
) -> SamplingParams:
    body, honored = request.body, card.honors_sampling
    logprobs = request.includes(LOGPROBS)
    return SamplingParams(
        limit=output_limit(body.max_output_tokens, card, reasoning, retry_without=False),
        temperature=body.temperature if honored else None,
        top_p=body.top_p if honored else None,
        top_k=top_k_within(body.top_k, card),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=StopConditions(strings=strings(body.stop)),
        constraint=constraint,
        constraint_param=None if constraint is None else "text.format",
        logprobs=logprobs,
        top_logprobs=(body.top_logprobs or 0) if logprobs else 0,
    )
