"""The typed body of Messages, and of counting its tokens.

Everything here can be judged without knowing the model; what depends on it is checked when the
request is normalised. Fields and block keys that have no effect are not declared: extra ones are
ignored, whatever a client's beta sends.

Source: Messages, sections 2 (request fields), 3 (messages and blocks) and 5 (thinking).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from ingress.dialects.sampling_fields import MAX_STOP_STRINGS, PositiveInteger, StopString, TopP
from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Entries,
    Flag,
    Integer,
    WireModel,
    bad_tag,
    bad_value,
    by_field,
    check_depth,
)

_MEDIA_TYPE = re.compile(r"image/[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")

# --- Blocks --------------------------------------------------------------------------------------


class TextBlock(WireModel):
    """A piece of text."""

    text: str


def _media_type(value: str) -> str:
    if not _MEDIA_TYPE.fullmatch(value):
        raise bad_value("must be the media type of an image, such as image/png")
    return value


class Base64Source(WireModel):
    """An image that came with the request."""

    media_type: Annotated[str, AfterValidator(_media_type)]
    data: str


class UrlSource(WireModel):
    """An image to be fetched."""

    url: str


class ImageBlock(WireModel):
    """An image. One by file id is refused: there is no such store."""

    source: Annotated[
        Annotated[Base64Source, Tag("<base64>")] | Annotated[UrlSource, Tag("<url>")],
        by_field("type", "base64", "url"),
    ]


class SearchResultBlock(WireModel):
    """Something found, given to the model as text."""

    title: str | None = None
    source: str | None = None
    content: Entries[TextBlock] | None = None


class PlainTextSource(WireModel):
    """A document that is text."""

    data: str


class ContentSource(WireModel):
    """A document that is text and images."""

    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[Entries[DocumentPart], Tag("<array>")],
        STRING_OR_ARRAY,
    ]


def _no_pdf(source: Any) -> Any:
    if isinstance(source, dict) and source.get("type") in ("base64", "url", "file"):
        raise bad_value(
            "must be `text` or `content`: PDF and uploaded documents are not supported",
            field="type",
        )
    return source


class DocumentBlock(WireModel):
    """A document; only its text (and images) can be given to the model."""

    source: Annotated[
        Annotated[PlainTextSource, Tag("<text>")] | Annotated[ContentSource, Tag("<content>")],
        by_field("type", "text", "content"),
        BeforeValidator(_no_pdf),
    ]


class ToolReferenceBlock(WireModel):
    """A tool that a search for tools has found."""

    tool_name: str


def _empty_if_null(value: Any) -> Any:
    return {} if value is None else value


class ToolUseBlock(WireModel):
    """A call that an assistant turn made, of a client's or of a server's tool."""

    id: str
    name: str
    input: Annotated[
        dict[str, Any],
        BeforeValidator(_empty_if_null),
        AfterValidator(check_depth),
        Field(default_factory=dict),
    ]


class ToolResultBlock(WireModel):
    """The result of a call. The call itself may be missing: clients trim history."""

    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("<string>")] | Annotated[Entries[ResultPart], Tag("<array>")],
            STRING_OR_ARRAY,
        ]
        | None
    ) = None
    is_error: Flag = False


class ServerResultBlock(WireModel):
    """The result of a call that another service ran itself, in whatever form its tool has."""

    tool_use_id: str
    content: Annotated[Any, AfterValidator(check_depth)] = None
    is_error: Flag = False


class ThinkingBlock(WireModel):
    """What the assistant thought; its signature means nothing here."""

    thinking: str = ""


class ContainerUploadBlock(WireModel):
    """A file that another service had put beside its code execution."""

    file_id: str


class CompactionBlock(WireModel):
    """A summary that stands for an earlier part of the conversation."""

    content: str | None = None


class SilentBlock(WireModel):
    """A block with nothing in it for the model."""


# --- Which blocks may stand where ----------------------------------------------------------------

_TAGS: Final = {
    "text": "<text>",
    "image": "<image>",
    "document": "<document>",
    "search_result": "<search_result>",
    "tool_reference": "<tool_reference>",
    "tool_use": "<call>",
    "server_tool_use": "<call>",
    "mcp_tool_use": "<call>",
    "tool_result": "<tool_result>",
    "thinking": "<thinking>",
    "container_upload": "<container_upload>",
    "compaction": "<compaction>",
    "redacted_thinking": "<silent>",
    "fallback": "<silent>",
    "mcp_tool_listing": "<silent>",
}


def _tag(value: Any) -> str | None:
    name = value.get("type") if isinstance(value, dict) else None
    return _TAGS.get(name, "<server_result>") if isinstance(name, str) else None


_BY_TYPE = Discriminator(_tag, custom_error_type="unknown_tag:type", custom_error_message="is bad")


def _only(*names: str, server_results: bool = False) -> BeforeValidator:
    """Refuses blocks of other types."""

    def check(value: Any) -> Any:
        name = value.get("type") if isinstance(value, dict) else None
        if not isinstance(name, str) or name in names:
            return value  # what is not a block at all is told by the discriminator
        if server_results and name.endswith("_tool_result"):
            return value
        raise bad_tag("type", names)

    return BeforeValidator(check)


DocumentPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[ImageBlock, Tag("<image>")],
    _BY_TYPE,
    _only("text", "image"),
]

ResultPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")],
    _BY_TYPE,
    _only("text", "image", "document", "search_result", "tool_reference"),
]

UserBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ContainerUploadBlock, Tag("<container_upload>")]
    | Annotated[ServerResultBlock, Tag("<server_result>")],
    _BY_TYPE,
    _only(
        *("text", "image", "document", "search_result", "tool_result", "container_upload"),
        server_results=True,
    ),
]

AssistantBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<call>")]
    | Annotated[ServerResultBlock, Tag("<server_result>")]
    | Annotated[ContainerUploadBlock, Tag("<container_upload>")]
    | Annotated[CompactionBlock, Tag("<compaction>")]
    | Annotated[SilentBlock, Tag("<silent>")],
    _BY_TYPE,
    _only(
        *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"),
        *("container_upload", "compaction", "fallback", "mcp_tool_listing"),
        server_results=True,
    ),
]

SystemContent: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[Entries[Annotated[TextBlock, _only("text")]], Tag("<array>")],
    STRING_OR_ARRAY,
]

# --- Turns ---------------------------------------------------------------------------------------


class UserTurn(WireModel):
    """What the user says, and the results of the calls before."""

    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[Entries[UserBlock], Tag("<array>")],
        STRING_OR_ARRAY,
    ]


class AssistantTurn(WireModel):
    """What the assistant said, or, at the end, how its answer shall begin."""

    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[Entries[AssistantBlock], Tag("<array>")],
        STRING_OR_ARRAY,
    ]


class SystemTurn(WireModel):
    """Instructions in the middle of the conversation."""

    role: Literal["system"]
    content: SystemContent


Turn: TypeAlias = Annotated[
    Annotated[UserTurn, Tag("<user>")]
    | Annotated[AssistantTurn, Tag("<assistant>")]
    | Annotated[SystemTurn, Tag("<system>")],
    by_field("role", "user", "assistant", "system"),
]

# --- Options -------------------------------------------------------------------------------------


class Tool(WireModel):
    """A tool of the client's, or one of the server tools, which differ by `type`."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: Annotated[Any, AfterValidator(check_depth)] = None
    strict: Flag = False
    display_width_px: Integer | None = None
    display_height_px: Integer | None = None


class ToolChoiceOption(WireModel):
    """Whether and what the model must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Flag = False


class Thinking(WireModel):
    """The switch of reasoning. A budget is ignored."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: Any = None


class OutputFormat(WireModel):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[Any, Field(alias="schema"), AfterValidator(check_depth)]


class OutputConfig(WireModel):
    """How the answer shall be. An unknown effort is ignored."""

    effort: Any = None
    format: OutputFormat | None = None


def _top_k(value: int) -> int:
    if value < -1:
        raise bad_value("must be at least 1, or 0 for no limit")
    return value


class PromptRequest(WireModel):
    """What counting and generating have in common: all that a prompt depends on.

    `output_format` is the older place of `output_config.format`.
    """

    model: str
    messages: Annotated[Entries[Turn], Field(min_length=1)]
    system: SystemContent | None = None

    tools: Entries[Tool] | None = None
    tool_choice: ToolChoiceOption | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class CountRequest(PromptRequest):
    """A request to count the tokens of a prompt."""

    @property
    def stream(self) -> bool:
        return False


class MessagesRequest(PromptRequest):
    """A request for a message."""

    max_tokens: PositiveInteger

    stop_sequences: Annotated[Entries[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[Integer, AfterValidator(_top_k)] | None = None
    stream: Flag = False
