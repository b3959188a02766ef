"""The typed body of Chat Completions; messages, tools and the form of the answer have own files.

Everything here can be judged without knowing the model; what depends on it is checked when the
request is normalised. Fields that have no effect are not declared: extra fields are ignored.

Source: Chat Completions, section 2 (request fields).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ingress.dialects.chat_messages import ChatMessage
from ingress.dialects.chat_tools import (
    Choice,
    FunctionDefinition,
    LegacyChoice,
    NamedTool,
    ToolDefinition,
)
from ingress.dialects.effort import DOCUMENTED, RANK
from ingress.dialects.response_format import Pattern, ResponseFormat
from ingress.dialects.sampling_fields import (
    Biases,
    Choices,
    MinP,
    Penalty,
    PositiveInteger,
    RepetitionPenalty,
    Seed,
    StopStrings,
    TopK,
    TopLogprobs,
    TopP,
)
from ingress.dialects.validation import Entries, Flag, WireModel, bad_value, check_depth
from schemas.job import Effort

# --- Options -------------------------------------------------------------------------------------


class StreamOptions(WireModel):
    """Options of a stream."""

    include_usage: Flag = False


def _effort(value: Any) -> Any:
    if value not in RANK:
        raise bad_value(DOCUMENTED)
    return value


AnyEffort: TypeAlias = Annotated[Effort, BeforeValidator(_effort)]


class ReasoningOptions(WireModel):
    """The second of the three spellings of a reasoning effort.

    Attributes:
        enabled: A switch that some clients send in place of an effort. Anything but true and false
            has no effect.
    """

    effort: AnyEffort | None = None
    enabled: Any = None


class Thinking(WireModel):
    """The third of the three spellings, as a switch."""

    type: Literal["enabled", "adaptive", "disabled"]


class ChatRequest(WireModel):
    """A request for a chat completion."""

    model: str
    messages: Annotated[Entries[ChatMessage], Field(min_length=1)]

    max_tokens: PositiveInteger | None = None
    max_completion_tokens: PositiveInteger | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    logit_bias: Biases | None = None
    stop: StopStrings | None = None
    n: Choices | None = None
    logprobs: Flag = False
    top_logprobs: TopLogprobs | None = None

    stream: Flag = False
    stream_options: StreamOptions | None = None

    tools: Entries[ToolDefinition] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    functions: Entries[FunctionDefinition] | None = None
    function_call: LegacyChoice | None = None
    response_format: ResponseFormat | None = None
    regex: Pattern | None = None

    reasoning_effort: AnyEffort | None = None
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
