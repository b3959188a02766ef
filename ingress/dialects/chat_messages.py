"""The conversation of a chat request: its wire models, and the neutral messages it becomes.

Whether images are kept depends on the model, all else can be judged without knowing it.

Source: Chat Completions, sections 3 (messages), 12 (legacy function calling) and 13 (vision).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BeforeValidator, Tag, model_validator

from ingress.dialects.custom_tools import wrap_input
from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Entries,
    WireModel,
    bad_shape,
    by_field,
    check_depth,
)
from schemas.errors import UnsupportedValue
from schemas.message import ImageLink, Message, Part, TextPart, ToolCall

# --- Content parts -------------------------------------------------------------------------------


class TextContent(WireModel):
    """A piece of text."""

    text: str


class ImageUrl(WireModel):
    """Where an image is; `detail` has no effect."""

    url: str | None = None
    file_id: str | None = None

    @model_validator(mode="after")
    def _points_somewhere(self) -> ImageUrl:
        if self.url is None and self.file_id is None:
            raise bad_shape("is required", field="url")
        return self


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
    Annotated[str, Tag("<string>")] | Annotated[Entries[InputPart], Tag("<array>")],
    STRING_OR_ARRAY,
]

AssistantContent: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Entries[AssistantPart], Tag("<array>")],
    STRING_OR_ARRAY,
]

Content: TypeAlias = str | Sequence[InputPart] | Sequence[AssistantPart] | None

# --- Messages ------------------------------------------------------------------------------------


def _argument_text(value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return orjson.dumps(check_depth(value)).decode()
    if not isinstance(value, str):
        raise bad_shape("must be a string")
    return value if value.strip() else "{}"


def _text_only(value: Any) -> Any:
    return value if isinstance(value, str) else None


class CalledFunction(WireModel):
    """Name and arguments of an earlier call; an object is taken for its JSON text."""

    name: str
    arguments: Annotated[str, BeforeValidator(_argument_text)] = "{}"


class CalledCustom(WireModel):
    """Name and input of an earlier call of a custom tool."""

    name: str
    input: str


class CalledTool(WireModel):
    """A call that an assistant message made."""

    id: str
    type: Literal["function", "custom"] | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None

    @model_validator(mode="after")
    def _calls_something(self) -> CalledTool:
        wanted = self.type or "function"
        if getattr(self, wanted) is None:
            raise bad_shape("is required", field=wanted)
        return self


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
    """A turn of the assistant, as we sent it or as the client made it up.

    Attributes:
        reasoning: What other servers call `reasoning_content`. Anything but text has no effect.
    """

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, BeforeValidator(_text_only)] = None
    tool_calls: Entries[CalledTool] | None = None
    function_call: CalledFunction | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        said = (self.content, self.refusal, self.reasoning_content, self.reasoning)
        silent = all(saying is None for saying in said)
        if silent and not self.tool_calls and self.function_call is None:
            raise bad_shape("is required in a message without tool calls", field="content")
        return self


class ToolMessage(WireModel):
    """The result of a call. The call itself may be missing: clients trim history."""

    role: Literal["tool"]
    content: InputContent
    tool_call_id: str
    name: str | None = None


class FunctionMessage(WireModel):
    """The result of a legacy call, which is known by the function's name."""

    role: Literal["function"]
    name: str
    content: InputContent | None = None


ChatMessage: TypeAlias = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")]
    | Annotated[FunctionMessage, Tag("<function>")],
    by_field("role", "system", "developer", "user", "assistant", "tool", "function"),
]

# --- Neutral messages ----------------------------------------------------------------------------


def neutral_messages(messages: Sequence[ChatMessage], *, vision: bool) -> tuple[Message, ...]:
    """The conversation in neutral terms.

    Args:
        messages: As the request has them.
        vision: The model takes images. For any other they are left out without an error.

    Raises:
        UnsupportedValue: An image that the model would see is named by a file id.
    """
    neutral = []
    legacy_ids: dict[str, str] = {}  # function name -> id of its last legacy call
    for index, message in enumerate(messages):
        parts = _parts(message.content, f"messages[{index}].content", vision=vision)
        match message:
            case AssistantMessage():
                neutral.append(_assistant(message, parts, index, legacy_ids))
            case ToolMessage():
                neutral.append(
                    Message(
                        role="tool",
                        parts=parts,
                        tool_call_id=message.tool_call_id,
                        name=message.name,
                    )
                )
            case FunctionMessage(name=name):
                call_id = legacy_ids.get(name, _legacy_id(index))
                neutral.append(Message(role="tool", parts=parts, tool_call_id=call_id, name=name))
            case _:
                role = "system" if message.role == "developer" else message.role
                neutral.append(Message(role=role, parts=parts, name=message.name))
    return tuple(neutral)


def _assistant(
    message: AssistantMessage, parts: tuple[Part, ...], index: int, legacy_ids: dict[str, str]
) -> Message:
    if message.content is None and message.refusal:
        parts = (TextPart(text=message.refusal),)
    calls = [_call(call) for call in message.tool_calls or ()]
    if (legacy := message.function_call) is not None:
        legacy_ids[legacy.name] = call_id = _legacy_id(index)
        calls.append(ToolCall(id=call_id, name=legacy.name, arguments=legacy.arguments))
    return Message(
        role="assistant",
        parts=parts,
        reasoning=message.reasoning_content or message.reasoning or None,
        tool_calls=tuple(calls),
        name=message.name,
    )


def _call(call: CalledTool) -> ToolCall:
    if call.type == "custom":
        assert call.custom is not None, "checked when it was read"
        return ToolCall(id=call.id, name=call.custom.name, arguments=wrap_input(call.custom.input))
    assert call.function is not None, "checked when it was read"
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)


def _legacy_id(index: int) -> str:
    """Legacy calls have no id of their own; templates need one."""
    return f"function_call_{index}"


def _parts(content: Content, where: str, *, vision: bool) -> tuple[Part, ...]:
    """Images in their places, and text joined between them; nothing for no text."""
    if isinstance(content, str | None):
        return (TextPart(text=content),) if content else ()
    parts: list[Part] = []
    text = ""
    for position, part in enumerate(content):
        match part:
            case TextContent():
                text += part.text
            case RefusalContent():
                text += part.refusal
            case ImageContent() if vision:
                if text:
                    parts.append(TextPart(text=text))
                    text = ""
                parts.append(_image(part.image_url, f"{where}[{position}].image_url"))
    if text:
        parts.append(TextPart(text=text))
    return tuple(parts)


def _image(image: ImageUrl, where: str) -> ImageLink:
    if image.url is None:
        param = f"{where}.file_id"
        raise UnsupportedValue(f"`{param}` cannot be used: send the image by URL.", param=param)
    return ImageLink(url=image.url, param=f"{where}.url")
