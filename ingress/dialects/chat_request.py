"""The typed body of Chat Completions.

Everything here can be judged without knowing the model; what depends on it is checked when the
request is normalised. Fields that have no effect are not declared: extra fields are ignored.

Source: Chat Completions, sections 2 (request fields) and 3 (messages).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Flag,
    Integer,
    WireModel,
    bad_shape,
    bad_value,
    by_field,
    check_depth,
)
from schemas.job import Effort

MAX_CHOICES = 16
MAX_STOP_STRINGS = 64
MAX_TOP_LOGPROBS = 20

_TOKEN_ID_DIGITS = 10
"""Longer ones are beyond any vocabulary."""

# --- Content parts -------------------------------------------------------------------------------


class TextContent(WireModel):
    """A piece of text."""

    text: str


class ImageUrl(WireModel):
    """Where an image is; which of the two is allowed depends on the model."""

    url: str | None = None
    file_id: str | None = None


class ImageContent(WireModel):
    """An image."""

    image_url: ImageUrl


class RefusalContent(WireModel):
    """What an assistant said instead of an answer."""

    refusal: str


InputPart: TypeAlias = Annotated[
    Annotated[TextContent, Tag("<text>")] | Annotated[ImageContent, Tag("<image_url>")],
    by_field("type", "text", "image_url"),
]

AssistantPart: TypeAlias = Annotated[
    Annotated[TextContent, Tag("<text>")]
    | Annotated[ImageContent, Tag("<image_url>")]
    | Annotated[RefusalContent, Tag("<refusal>")],
    by_field("type", "text", "image_url", "refusal"),
]

InputContent: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[InputPart], Tag("<array>")],
    STRING_OR_ARRAY,
]

AssistantContent: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[AssistantPart], Tag("<array>")],
    STRING_OR_ARRAY,
]

# --- Messages ------------------------------------------------------------------------------------


def _argument_text(value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return orjson.dumps(check_depth(value)).decode()
    if not isinstance(value, str):
        raise bad_shape("must be a string")
    return value if value.strip() else "{}"


class CalledFunction(WireModel):
    """Name and arguments of an earlier call; an object is taken for its JSON text."""

    name: str
    arguments: Annotated[str, BeforeValidator(_argument_text)] = "{}"


class CalledTool(WireModel):
    """A call that an assistant message made."""

    id: str
    type: Literal["function"] | None = None
    function: CalledFunction


class SystemMessage(WireModel):
    """Instructions, under either of their two roles."""

    role: Literal["system", "developer"]
    content: InputContent
    name: str | None = None


class UserMessage(WireModel):
    """A turn of the user."""

    role: Literal["user"]
    content: InputContent
    name: str | None = None


class AssistantMessage(WireModel):
    """A turn of the assistant, as we sent it or as the client made it up."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None
    function_call: Any = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        silent = self.content is None and self.refusal is None
        if silent and not self.tool_calls and self.function_call is None:
            raise bad_shape("is required in a message without tool calls", field="content")
        return self


class ToolMessage(WireModel):
    """The result of a call. The call itself may be missing: clients trim history."""

    role: Literal["tool"]
    content: InputContent
    tool_call_id: str
    name: str | None = None


ChatMessage: TypeAlias = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    by_field("role", "system", "developer", "user", "assistant", "tool"),
]

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


class ResponseFormat(WireModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema", "grammar", "structural_tag"]


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

    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: ResponseFormat | None = None
    regex: str | None = None

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
