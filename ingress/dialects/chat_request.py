"""The typed body of Chat Completions; messages, tools and the form of the answer have own files.

Everything here can be judged without knowing the model; what depends on it is checked when the
request is normalised. Fields that have no effect are not declared: extra fields are ignored.

Source: Chat Completions, section 2 (request fields).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from ingress.dialects.chat_format import Pattern, ResponseFormat
from ingress.dialects.chat_messages import ChatMessage
from ingress.dialects.chat_tools import (
    Choice,
    FunctionDefinition,
    LegacyChoice,
    NamedTool,
    ToolDefinition,
)
from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Flag,
    Integer,
    WireModel,
    bad_shape,
    bad_value,
    check_depth,
)
from schemas.job import Effort

MAX_CHOICES = 16
MAX_STOP_STRINGS = 64
MAX_TOP_LOGPROBS = 20

_TOKEN_ID_DIGITS = 10
"""Longer ones are beyond any vocabulary."""

# --- Options -------------------------------------------------------------------------------------


class StreamOptions(WireModel):
    """Options of a stream."""

    include_usage: Flag = False


class ReasoningOptions(WireModel):
    """The second of the three spellings of a reasoning effort."""

    effort: Effort | None = None


class Thinking(WireModel):
    """The third of the three spellings, as a switch."""

    type: Literal["enabled", "adaptive", "disabled"]


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise bad_shape("must be an object")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _TOKEN_ID_DIGITS):
            raise bad_value("must have token ids as keys")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise bad_shape("must have numbers as values")
        if not -100 <= bias <= 100:
            raise bad_value("must have values between -100 and 100")
        biases[int(token)] = float(bias)
    return tuple(biases.items())


StopString: TypeAlias = Annotated[str, Field(min_length=1)]
PositiveInteger: TypeAlias = Annotated[Integer, Field(ge=1)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]


def _top_k(value: int) -> int:
    if value < 1 and value != -1:
        raise bad_value("must be at least 1, or -1 for no limit")
    return value


class ChatRequest(WireModel):
    """A request for a chat completion."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    max_tokens: PositiveInteger | None = None
    max_completion_tokens: PositiveInteger | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, AfterValidator(_top_k)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: Annotated[tuple[tuple[int, float], ...], BeforeValidator(_biases)] | None = None
    stop: (
        Annotated[
            Annotated[StopString, Tag("<string>")]
            | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), Tag("<array>")],
            STRING_OR_ARRAY,
        ]
        | None
    ) = None
    n: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    stream: Flag = False
    stream_options: StreamOptions | None = None

    tools: list[ToolDefinition] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: LegacyChoice | None = None
    response_format: ResponseFormat | None = None
    regex: Pattern | None = None

    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_depth)] | None = None

    service_tier: Any = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_value("needs `logprobs` to be true", field="top_logprobs")
        return self

    @model_validator(mode="after")
    def _one_spelling_of_tools(self) -> ChatRequest:
        if self.tools and self.functions:
            raise bad_value("cannot be combined with `tools`", field="functions")
        if isinstance(self.function_call, NamedTool) and not self.functions:
            raise bad_value("names a function, but there are none", field="function_call")
        if self.functions and self.tool_choice not in (None, "auto", "none"):
            raise bad_value("needs `tools`, not `functions`", field="tool_choice")
        return self

    @property
    def legacy_calls(self) -> bool:
        """Tools are spelled as functions, and so must calls be."""
        return bool(self.functions)
