"""The conversation of a Messages request in neutral terms: blocks -> Messages.

A turn is a list of blocks; a chat template knows text, reasoning, calls and results. So:

* Neighbouring turns of one role are one turn.
* Results of calls come before everything else of their turn, or a template would find something
  between call and result. Their images stay in them.
* What another service's own tools did is told as calls and results like any other.
* A turn of the assistant at the end is the beginning of the answer.

It knows no model but whether it takes images.

Source: Messages, section 3 ("Messages and blocks") and section 2 (prefix-cache hygiene).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from ingress.dialects.messages_request import (
    AssistantBlock,
    AssistantTurn,
    Base64Source,
    CompactionBlock,
    ContainerUploadBlock,
    ContentSource,
    DocumentBlock,
    DocumentPart,
    ImageBlock,
    PlainTextSource,
    ResultPart,
    SearchResultBlock,
    ServerResultBlock,
    SystemContent,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserBlock,
    UserTurn,
)
from schemas.errors import ModelRequestRejected, UnsupportedValue
from schemas.message import ImageLink, Message, Part, TextPart, ToolCall

PER_REQUEST_LINE: Final = "x-anthropic-billing-header:"
"""How a block of the system prompt begins that differs in every request of one client. At the very
start of the prompt it would keep the prefix cache from ever being hit."""

_ERROR: Final = "Error: "

_NOT_TEXT: Final = frozenset(
    {
        *("cache_control", "caller", "citations", "data", "encrypted_content", "encrypted_index"),
        *("encrypted_stdout", "file_id", "media_type", "type"),
    }
)
"""Keys in the result of another service's tool that mean nothing to a model."""

Block: TypeAlias = UserBlock | ResultPart | DocumentPart


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation.

    Attributes:
        messages: With the system prompt first, if there is one.
        continue_last: The last message is the assistant's, and its answer goes on from there.
    """

    messages: tuple[Message, ...]
    continue_last: bool = False


def conversation(
    turns: Sequence[Turn], system: SystemContent | None, *, vision: bool
) -> Conversation:
    """What the model is to read.

    Args:
        turns: As the request has them.
        system: The system prompt.
        vision: The model takes images.

    Raises:
        ModelRequestRejected: There is an image and the model takes none.
        UnsupportedValue: The last turn cannot be continued, or there is nothing to answer.
    """
    reader = _Reader(vision=vision)
    if instructions := _system_text(system):
        reader.messages.append(_said("system", instructions))
    # A system turn that says nothing must not part the turns around it.
    spoken = [item for item in enumerate(turns) if _says_something(item[1])]
    for role, run in groupby(spoken, key=lambda item: item[1].role):
        reader.read(role, list(run))
    if not reader.messages:
        raise UnsupportedValue("`messages` has nothing to answer.", param="messages")
    index, last = spoken[-1] if spoken else (0, turns[0])
    if not isinstance(last, AssistantTurn):
        return Conversation(messages=tuple(reader.messages))
    return _prefilled(reader.messages, f"messages[{index}]")


def _says_something(turn: Turn) -> bool:
    return not isinstance(turn, SystemTurn) or bool(_turn_text(turn))


def _prefilled(messages: list[Message], param: str) -> Conversation:
    """The conversation that ends with the beginning of the answer."""
    last = messages[-1]
    if last.role == "tool":  # the turn ends with what a server tool found: now comes the answer
        return Conversation(messages=tuple(messages))
    if last.tool_calls:
        raise UnsupportedValue(
            f"`{param}` ends with a tool call: its result must follow.", param=param
        )
    if last.text:
        return Conversation(messages=tuple(messages), continue_last=True)
    if last.reasoning or all(message.role == "system" for message in messages[:-1]):
        raise UnsupportedValue(f"`{param}` has no text that could be continued.", param=param)
    return Conversation(messages=tuple(messages[:-1]))


def _system_text(system: SystemContent | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return _lines(block.text for block in system if not block.text.startswith(PER_REQUEST_LINE))


def _turn_text(turn: SystemTurn) -> str:
    content = turn.content
    return content if isinstance(content, str) else _lines(block.text for block in content)


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)


def _said(role: Any, text: str) -> Message:
    return Message(role=role, parts=(TextPart(text=text),) if text else ())


class _Reader:
    """Turns, one run of a role after the other, to messages."""

    def __init__(self, *, vision: bool) -> None:
        self.messages: list[Message] = []
        self._vision = vision

    def read(self, role: str, run: Sequence[tuple[int, Turn]]) -> None:
        """Take the turns of one role that follow each other, with their indexes."""
        match role:
            case "system":
                self._system([turn for _, turn in run if isinstance(turn, SystemTurn)])
            case "user":
                self._user([(index, turn) for index, turn in run if isinstance(turn, UserTurn)])
            case _:
                self._assistant([turn for _, turn in run if isinstance(turn, AssistantTurn)])

    # --- System ----------------------------------------------------------------------------------

    def _system(self, turns: Sequence[SystemTurn]) -> None:
        text = _lines(map(_turn_text, turns))
        if self.messages and self.messages[-1].role == "system":
            text = _lines((self.messages.pop().text, text))
        self.messages.append(_said("system", text))

    # --- User ------------------------------------------------------------------------------------

    def _user(self, turns: Sequence[tuple[int, UserTurn]]) -> None:
        results: list[Message] = []
        parts: list[Part] = []
        for index, turn in turns:
            if isinstance(turn.content, str):
                parts.append(TextPart(text=turn.content))
                continue
            for position, block in enumerate(turn.content):
                param = f"messages[{index}].content[{position}]"
                match block:
                    case ToolResultBlock():
                        results.append(self._result(block, param))
                    case ServerResultBlock():
                        results.append(self._server_result(block))
                    case _:
                        parts += self._parts(block, param)
        said = _joined(parts)
        self.messages += results
        if said or not results:
            self.messages.append(Message(role="user", parts=said))

    def _result(self, block: ToolResultBlock, param: str) -> Message:
        parts: list[Part] = [TextPart(text=_ERROR)] if block.is_error else []
        content = block.content or ""
        if isinstance(content, str):
            parts.append(TextPart(text=content))
        else:
            for position, inner in enumerate(content):
                parts += self._parts(inner, f"{param}.content[{position}]")
        return Message(role="tool", parts=_joined(parts), tool_call_id=block.tool_use_id)

    def _server_result(self, block: ServerResultBlock) -> Message:
        text = _plain_text(block.content)
        if block.is_error:
            text = _ERROR + text
        parts = (TextPart(text=text),) if text else ()
        return Message(role="tool", parts=parts, tool_call_id=block.tool_use_id)

    # --- Parts -----------------------------------------------------------------------------------

    def _parts(self, block: Block, param: str) -> Iterator[Part]:
        match block:
            case TextBlock(text=text):
                yield TextPart(text=text)
            case ImageBlock():
                yield self._image(block, f"{param}.source")
            case SearchResultBlock():
                texts = [inner.text for inner in block.content or ()]
                yield TextPart(text=_lines([block.title or "", block.source or "", *texts]))
            case ToolReferenceBlock(tool_name=name):
                yield TextPart(text=name)
            case ContainerUploadBlock(file_id=file_id):
                yield TextPart(text=_uploaded(file_id))
            case DocumentBlock(source=PlainTextSource(data=text)):
                yield TextPart(text=text)
            case DocumentBlock(source=ContentSource(content=str(text))):
                yield TextPart(text=text)
            case DocumentBlock(source=ContentSource(content=[*inner])):
                for position, part in enumerate(inner):
                    yield from self._parts(part, f"{param}.source.content[{position}]")

    def _image(self, block: ImageBlock, param: str) -> ImageLink:
        if not self._vision:
            raise ModelRequestRejected("This model does not take images.", param=param)
        source = block.source
        if isinstance(source, Base64Source):
            url = f"data:{source.media_type};base64,{source.data}"
            return ImageLink(url=url, param=f"{param}.data")
        return ImageLink(url=source.url, param=f"{param}.url")

    # --- Assistant -------------------------------------------------------------------------------

    def _assistant(self, turns: Sequence[AssistantTurn]) -> None:
        """A message for what the assistant said, cut where results stand in the middle of it."""
        before = len(self.messages)
        said = _Said()
        for turn in turns:
            said.begin_turn()
            blocks: Sequence[AssistantBlock] = (
                [TextBlock(text=turn.content)] if isinstance(turn.content, str) else turn.content
            )
            for block in blocks:
                if isinstance(block, ServerResultBlock):
                    if not said.empty:
                        self.messages.append(said.message())
                        said = _Said()
                    self.messages.append(self._server_result(block))
                else:
                    said.add(block)
        if not said.empty or len(self.messages) == before:
            self.messages.append(said.message())


class _Said:
    """What the assistant said in one go: thoughts, text, calls."""

    def __init__(self) -> None:
        self._turns: list[str] = [""]
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def empty(self) -> bool:
        return not (any(self._turns) or any(self._thoughts) or self._calls)

    def begin_turn(self) -> None:
        self._turns.append("")

    def add(self, block: AssistantBlock) -> None:
        match block:
            case TextBlock(text=text) | CompactionBlock(content=str() as text):
                self._turns[-1] += text  # an answer may be cut into blocks anywhere
            case ThinkingBlock(thinking=text):
                self._thoughts.append(text)
            case ToolUseBlock():
                arguments = orjson.dumps(block.input).decode()
                self._calls.append(ToolCall(id=block.id, name=block.name, arguments=arguments))
            case ContainerUploadBlock(file_id=file_id):
                self._turns[-1] += _uploaded(file_id)

    def message(self) -> Message:
        text = _lines(self._turns)
        return Message(
            role="assistant",
            parts=(TextPart(text=text),) if text else (),
            reasoning=_lines(self._thoughts) or None,
            tool_calls=tuple(self._calls),
        )


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts without empty ones; text that follows text is set off from it by a line break."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart):
            if not part.text:
                continue
            if isinstance(last, TextPart):
                gap = "" if last.text == _ERROR or last.text.endswith("\n") else "\n"
                joined[-1] = TextPart(text=last.text + gap + part.text)
                continue
        joined.append(part)
    return tuple(joined)


def _uploaded(file_id: str) -> str:
    return f"[uploaded file {file_id}]"


def _plain_text(content: Any) -> str:
    """The readable part of a result whose form is its tool's own business."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return _lines(map(_plain_text, content))
    told = _readable(content)
    if isinstance(told, str):
        return told
    return orjson.dumps(told).decode() if told else ""


def _readable(value: Any) -> Any:
    match value:
        case {"type": "text", "text": str(text)} | {"type": "text", "data": str(text)}:
            return text
        case dict():
            return {key: _readable(inner) for key, inner in value.items() if key not in _NOT_TEXT}
        case list():
            return [_readable(inner) for inner in value]
    return value
