"""The typed body of Responses.

Input items and tools are read entry by entry, as their types differ; everything else is here.
Fields that have no effect are declared only if the answer echoes them.

Source: Responses, section 2 (request fields).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from pydantic import AfterValidator, Field, Tag, model_validator

from ingress.dialects.responses_items import Found, Offered, Turn, read_input
from ingress.dialects.responses_tools import Declared, Hosted, Tool, read_tools, searches
from ingress.dialects.sampling_fields import (
    MinP,
    PositiveInteger,
    RepetitionPenalty,
    Seed,
    StopStrings,
    TopK,
    TopLogprobs,
    TopP,
)
from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Entries,
    Flag,
    WireModel,
    bad_value,
    check_depth,
    validate,
)

LOGPROBS: Final = "message.output_text.logprobs"
REASONING: Final = "reasoning.encrypted_content"

Free: TypeAlias = Annotated[Any, AfterValidator(check_depth)]
"""Any JSON that travels on."""


class ReasoningOptions(WireModel):
    """How much to reason, and whether to tell.

    Attributes:
        effort: Any text here: what is not an effort depends on the profile.
    """

    effort: str | None = None
    summary: Free = None


class TextFormat(WireModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Free = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if self.type == "json_schema" and self.schema_ is None:
            raise bad_value("is required", field="schema")
        return self


class TextOptions(WireModel):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Free = None


class ResponsesBody(WireModel):
    """The body of a request for a response."""

    model: str
    input: Annotated[
        Annotated[str, Tag("<string>")]
        | Annotated[Entries[Any], AfterValidator(check_depth), Tag("<array>")],
        STRING_OR_ARRAY,
    ]
    instructions: str | None = None

    max_output_tokens: PositiveInteger | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: StopStrings | None = None
    top_logprobs: TopLogprobs | None = None

    stream: Flag = False

    tools: Annotated[Entries[Any], AfterValidator(check_depth)] | None = None
    tool_choice: Free = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Entries[Any] | None = None

    previous_response_id: Free = None
    conversation: Free = None
    prompt: Free = None

    max_tool_calls: Free = None
    metadata: Free = None
    prompt_cache_key: Free = None
    safety_identifier: Free = None
    user: Free = None


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A request for a response: its body, with items and tools read.

    Attributes:
        tools: Those declared among the items, and those that the client's own searches have found,
            too.
    """

    body: ResponsesBody
    turns: tuple[Turn, ...]
    tools: tuple[Declared, ...]

    @property
    def model(self) -> str:
        return self.body.model

    @property
    def stream(self) -> bool:
        return self.body.stream

    def includes(self, what: str) -> bool:
        """Whether `include` has this entry."""
        return what in (self.body.include or ())

    @property
    def wants_reasoning(self) -> bool:
        """It asks for reasoning items."""
        options = self.body.reasoning
        return self.includes(REASONING) or (options is not None and options.summary is not None)

    @property
    def text_format(self) -> TextFormat | None:
        return self.body.text.format if self.body.text is not None else None


def read_request(body: Any) -> ResponsesRequest:
    """The typed request.

    Raises:
        RequestError: Wrong shape; `param` names the field.
    """
    wire = validate(ResponsesBody, body)
    turns, tools = read_input(wire.input), read_tools(wire.tools or ())
    tools += _more_tools(turns, tools, Offered)
    if searches(tools):
        tools += _more_tools(turns, tools, Found)
    return ResponsesRequest(wire, turns, tools)


def _more_tools(
    turns: Sequence[Turn], declared: Sequence[Declared], among: type[Offered | Found]
) -> tuple[Declared, ...]:
    """Tools that items of one kind bring and that are not declared anyway."""
    known = {tool.spec.name for tool in declared if isinstance(tool, Tool)}
    found: list[Declared] = []
    for turn in turns:
        if isinstance(turn, among):
            for tool in read_tools(turn.tools, turn.at):
                if isinstance(tool, Hosted) or tool.spec.name not in known:
                    found.append(tool)
                if isinstance(tool, Tool):
                    known.add(tool.spec.name)
    return tuple(found)
