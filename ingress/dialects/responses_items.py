"""Input items -> the turns of a conversation.

An item is read into one of a few things, whatever its type: something said, a call, or the result
of a call. Types that say nothing to a model are skipped, unknown ones refused. What depends on the
model or the profile is left for later.

Source: Responses, section 3 (input items).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import orjson
from pydantic import BeforeValidator, Tag

from ingress.dialects.custom_tools import wrap_input
from ingress.dialects.responses_builtins import BUILTINS
from ingress.dialects.responses_tools import Path, flat_name
from ingress.dialects.validation import (
    STRING_OR_ARRAY,
    Entries,
    WireModel,
    bad_shape,
    field_path,
    validate,
)
from schemas.errors import (
    SchemaValidationFailed,
    UnsupportedInputItem,
    UnsupportedValue,
)
from schemas.message import ToolCall

# --- What an item is -----------------------------------------------------------------------------


class ImageInput(msgspec.Struct, frozen=True, kw_only=True):
    """An image, not looked at yet: whether it matters depends on model and profile.

    Attributes:
        url: As it came.
        param: Where the request has it.
    """

    url: Any
    param: str


Content: TypeAlias = tuple[str | ImageInput, ...]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message.

    Attributes:
        untyped: Where the item is, if it has the short form without `type`.
    """

    role: Literal["system", "user", "assistant"]
    content: Content
    untyped: str | None = None


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the assistant made.

    Attributes:
        search: It is a search for tools.
    """

    call: ToolCall
    search: bool = False


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call."""

    call_id: str
    content: Content


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search for tools.

    Attributes:
        tools: Definitions, not looked at yet: they matter only if the client searches.
        at: Where the request has them.
    """

    call_id: str
    tools: list[Any]
    at: tuple[int | str, ...]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """More tools, declared among the items.

    Attributes:
        tools: Definitions, not looked at yet.
        at: Where the request has them.
    """

    tools: list[Any]
    at: tuple[int | str, ...]


Turn: TypeAlias = Said | Called | Answered | Found | Offered

# --- Their wire forms ----------------------------------------------------------------------------


def _argument_text(value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    if not isinstance(value, str):
        raise bad_shape("must be a string")
    return value if value.strip() else "{}"


class _Message(WireModel):
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[Entries[Any], Tag("<array>")], STRING_OR_ARRAY
    ]


class _FunctionCall(WireModel):
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Annotated[str, BeforeValidator(_argument_text)] = "{}"


class _CustomCall(WireModel):
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class _BuiltinCall(WireModel):
    call_id: str


class _Result(WireModel):
    call_id: str
    output: Any


class _LocalShellResult(WireModel):
    """Its `id` is officially that of the call; newer clients send `call_id` as everywhere else."""

    id: str | None = None
    call_id: str | None = None
    output: Any


class _PatchResult(WireModel):
    call_id: str
    status: str | None = None
    output: str | None = None


class _Text(WireModel):
    text: str


class _Refusal(WireModel):
    refusal: str


# --- Reading -------------------------------------------------------------------------------------

SKIPPED: Final = frozenset(
    {
        "agent_reasoning",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "configuration_update",
        "ghost_snapshot",
        "other",
        "reasoning",
        "web_search_call",
    }
)
"""Types that are accepted and say nothing to the model."""


def read_input(value: str | Sequence[Any]) -> tuple[Turn, ...]:
    """The turns that `input` stands for.

    Raises:
        UnsupportedInputItem: An item, or a part of one, is of a type that cannot be served.
        RequestError: An item is not as its type demands.
    """
    if isinstance(value, str):
        return (Said(role="user", content=(value,)),)
    if not value:
        raise UnsupportedValue("`input` must not be empty.", param="input")
    return tuple(turn for index, raw in enumerate(value) for turn in _read(raw, ("input", index)))


def _read(raw: Any, at: Path) -> Iterator[Turn]:
    if not isinstance(raw, dict):
        raise _wrong(at, "must be an object")
    kind = raw.get("type")
    if kind is None:
        if "role" not in raw:
            raise _unsupported((*at, "type"), "is required")
        yield _message(raw, at, untyped=field_path((*at, "type")))
    elif not isinstance(kind, str):
        raise _unsupported((*at, "type"), "must be a string")
    elif kind == "message":
        yield _message(raw, at)
    elif kind == "agent_message":
        # What another agent says to this one: someone else's words, as a user's are.
        yield _message({**raw, "role": "user"}, at)
    elif kind == "additional_tools":
        yield from _more_tools(raw, at)
    elif kind in _READERS:
        yield _READERS[kind](raw, at)
    elif kind in _BUILTIN_CALLS:
        yield from _builtin_call(_BUILTIN_CALLS[kind], raw, at)
    elif kind == "tool_search_output":
        yield from _search_result(raw, at)
    elif kind not in SKIPPED:
        raise _unsupported((*at, "type"), "is no type of input item that is supported here")


def _message(raw: dict[str, Any], at: Path, *, untyped: str | None = None) -> Said:
    if raw.get("content", ()) is None:  # some clients write an empty message so
        raw = {**raw, "content": []}
    wire = validate(_Message, raw, at)
    return Said(
        role="system" if wire.role == "developer" else wire.role,
        content=_content(wire.content, (*at, "content")),
        untyped=untyped,
    )


def _function_call(raw: dict[str, Any], at: Path) -> Called:
    wire = validate(_FunctionCall, raw, at)
    name = flat_name(wire.name, wire.namespace)
    return Called(call=ToolCall(id=wire.call_id, name=name, arguments=wire.arguments))


def _custom_call(raw: dict[str, Any], at: Path) -> Called:
    wire = validate(_CustomCall, raw, at)
    name = flat_name(wire.name, wire.namespace)
    return Called(call=ToolCall(id=wire.call_id, name=name, arguments=wrap_input(wire.input)))


def _builtin_call(name: str, raw: dict[str, Any], at: Path) -> Iterator[Called]:
    builtin = BUILTINS[name]
    search = name == "tool_search"
    value = raw.get(builtin.field)
    if search and not (isinstance(raw.get("call_id"), str) and isinstance(value, dict)):
        return  # the provider's own search
    call_id = validate(_BuiltinCall, raw, at).call_id
    if not isinstance(value, dict):
        raise _wrong((*at, builtin.field), "must be an object")
    arguments = builtin.argument_text(value)
    yield Called(call=ToolCall(id=call_id, name=name, arguments=arguments), search=search)


def _result(raw: dict[str, Any], at: Path) -> Answered:
    wire = validate(_Result, raw, at)
    return Answered(call_id=wire.call_id, content=_output(wire.output, (*at, "output")))


def _local_shell_result(raw: dict[str, Any], at: Path) -> Answered:
    wire = validate(_LocalShellResult, raw, at)
    call_id = wire.call_id or wire.id
    if call_id is None:
        raise _wrong((*at, "call_id"), "is required")
    return Answered(call_id=call_id, content=_output(wire.output, (*at, "output")))


def _shell_result(raw: dict[str, Any], at: Path) -> Answered:
    wire = validate(_Result, raw, at)
    if isinstance(wire.output, str):
        return Answered(call_id=wire.call_id, content=(wire.output,))
    if not isinstance(wire.output, list):
        raise _wrong((*at, "output"), "must be an array")
    return Answered(call_id=wire.call_id, content=(orjson.dumps(wire.output).decode(),))


def _patch_result(raw: dict[str, Any], at: Path) -> Answered:
    wire = validate(_PatchResult, raw, at)
    text = "\n".join(line for line in (wire.status, wire.output) if line)
    return Answered(call_id=wire.call_id, content=(text,))


def _more_tools(raw: dict[str, Any], at: Path) -> Iterator[Offered]:
    tools = raw.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        raise _wrong((*at, "tools"), "must be an array")
    yield Offered(tools=tools, at=(*at, "tools"))


def _search_result(raw: dict[str, Any], at: Path) -> Iterator[Found]:
    call_id, tools = raw.get("call_id"), raw.get("tools")
    if isinstance(call_id, str) and isinstance(tools, list):
        yield Found(call_id=call_id, tools=tools, at=(*at, "tools"))


_READERS: Final[Mapping[str, Callable[[dict[str, Any], Path], Turn]]] = {
    "function_call": _function_call,
    "function_call_output": _result,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _result,
    "local_shell_call_output": _local_shell_result,
    "shell_call_output": _shell_result,
    "apply_patch_call_output": _patch_result,
}

_BUILTIN_CALLS: Final = {builtin.item_type: name for name, builtin in BUILTINS.items()}


def _output(value: Any, at: Path) -> Content:
    """The output of a call: text, parts, or an object with either as its `content`."""
    if isinstance(value, dict):
        value, at = value.get("content"), (*at, "content")
    if not isinstance(value, str | list):
        raise _wrong(at, "must be a string or an array")
    return _content(value, at)


def _content(value: str | list[Any], at: Path) -> Content:
    if isinstance(value, str):
        return (value,)
    return tuple(part for index, raw in enumerate(value) for part in _read_part(raw, (*at, index)))


def _read_part(raw: Any, at: Path) -> Iterator[str | ImageInput]:
    if not isinstance(raw, dict):
        raise _wrong(at, "must be an object")
    kind = raw.get("type")
    match kind:
        case "input_text" | "output_text" | "text":
            yield validate(_Text, raw, at).text
        case "refusal":
            yield validate(_Refusal, raw, at).refusal
        case "summary_text" | "reasoning_text" | "encrypted_content":
            return
        case "input_image":
            yield ImageInput(url=raw.get("image_url"), param=field_path((*at, "image_url")))
        case None:
            raise _wrong((*at, "type"), "is required")
        case _:
            raise _unsupported((*at, "type"), "is no type of content that is supported here")


def _wrong(at: Path, text: str) -> SchemaValidationFailed:
    param = field_path(at)
    return SchemaValidationFailed(f"`{param}` {text}.", param=param)


def _unsupported(at: Path, text: str) -> UnsupportedInputItem:
    param = field_path(at)
    return UnsupportedInputItem(f"`{param}` {text}.", param=param)
