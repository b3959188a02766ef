"""A conversation in neutral terms: messages, their parts, tools and the choice among them.

Nothing here knows a dialect; roles are those a chat template knows.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Plain text."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """An image already fetched and checked.

    Attributes:
        media_type: Such as `image/png`.
        data: The encoded file.
    """

    media_type: str
    data: bytes


class ImageLink(msgspec.Struct, frozen=True, kw_only=True, tag="image_link"):
    """An image still to be read; an `ImagePart` takes its place before the Job leaves the ingress.

    Attributes:
        url: A `data:` or `https:` URL, not yet checked.
        param: Where the request has it, for errors.
    """

    url: str
    param: str


Part: TypeAlias = TextPart | ImagePart | ImageLink


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call the assistant made earlier in the conversation.

    Attributes:
        arguments: JSON text, as the model wrote it.
    """

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn.

    Attributes:
        parts: Content in order; empty for an assistant turn that only calls tools.
        reasoning: What the assistant thought in this turn, for templates that can use it.
        tool_calls: Calls made by an assistant turn.
        tool_call_id: Which call a `tool` turn answers.
        name: Name of the speaker or of the tool.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function the model may call.

    Attributes:
        parameters: JSON schema of the arguments, an object schema; None means no parameters.
        strict: Arguments must obey the schema.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether and what the model must call.

    Attributes:
        mode: `named` calls the tool `name`.
        parallel: More than one call in a reply is allowed.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True
