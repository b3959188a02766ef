"""The tools of a Responses request: what the model is offered, and how the client knows it.

Every tool that can be served is a function to the model. What a call of it becomes on the way back
is decided by its `Tool`.

Source: Responses, sections 2 (`tool_choice`) and 4 (tools); dialect profiles, #7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ingress.dialects import tools
from ingress.dialects.custom_tools import custom_tool
from ingress.dialects.profile import Profile
from ingress.dialects.responses_builtins import BUILTINS
from ingress.dialects.validation import Entries, WireModel, field_path, validate
from schemas.errors import (
    InvalidTool,
    SchemaValidationFailed,
    ToolChoiceUnknownTool,
    UnsupportedValue,
)
from schemas.message import ToolChoice, ToolSpec

Path: TypeAlias = tuple[int | str, ...]

_WEB_SEARCH: Final = re.compile(r"web_search(_preview)?(_\d{4}_\d{2}_\d{2})?")
_WEB_SEARCH_NAME: Final = "web_search"

_HOSTED: Final = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "programmatic_tool_calling",
    }
)
"""Tools that the provider would have to run. So it would `shell` and `tool_search`, unless they say
that the client does."""

_SEARCH: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to search the web for."}},
    "required": ["query"],
    "additionalProperties": False,
}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that the model is offered.

    Attributes:
        kind: What a call of it becomes: `function`, `custom`, or one of `BUILTINS`.
        name: As the client calls it.
        namespace: The group it is in.
        spec: As the model sees it. Its name is that of the group and its own, joined.
        param: Where the request has it.
    """

    kind: str
    name: str
    namespace: str | None = None
    spec: ToolSpec
    param: str


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that nobody here runs.

    Attributes:
        param: Where the request has it.
    """

    param: str


Declared: TypeAlias = Tool | Hosted


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is offered.

    Attributes:
        ignored: Tools that were left out, by path.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice
    ignored: tuple[str, ...] = ()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools)


def searches(tools: Sequence[Declared]) -> bool:
    """Whether the client runs searches for tools."""
    return any(isinstance(tool, Tool) and tool.kind == "tool_search" for tool in tools)


def flat_name(name: str, namespace: str | None) -> str:
    """The name under which the model knows a tool of a group."""
    return f"{namespace}__{name}" if namespace else name


# --- Definitions ---------------------------------------------------------------------------------


class _Function(WireModel):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class _Grammar(WireModel):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class _Custom(WireModel):
    name: str
    description: str | None = None
    format: _Grammar | None = None


class _Namespace(WireModel):
    name: str
    description: str | None = None
    tools: Entries[Any]


class _Shell(WireModel):
    environment: dict[str, Any] | None = None


class _ToolSearch(WireModel):
    execution: str | None = None
    description: str | None = None
    parameters: Any = None


def read_tools(declared: Sequence[Any], at: Path = ("tools",)) -> tuple[Declared, ...]:
    """The definitions, each one checked.

    Raises:
        RequestError: One is of no known type, or not as its type demands.
    """
    return tuple(
        tool for index, raw in enumerate(declared) for tool in _read(raw, (*at, index), None)
    )


def _read(raw: Any, at: Path, group: _Namespace | None) -> Iterator[Declared]:
    kind = _type_of(raw, at)
    if kind == "function":
        yield _function(raw, at, group)
    elif kind == "custom":
        yield _custom(raw, at, group)
    elif group is not None:
        raise _invalid((*at, "type"), "must be `function` or `custom` within a namespace")
    elif kind == "namespace":
        inner = validate(_Namespace, raw, at)
        tools.check_name(inner.name, field_path((*at, "name")))
        for index, entry in enumerate(inner.tools):
            yield from _read(entry, (*at, "tools", index), inner)
    elif _WEB_SEARCH.fullmatch(kind):
        spec = ToolSpec(
            name=_WEB_SEARCH_NAME,
            description="Searches the web.",
            parameters=_SEARCH,
            strict=True,
        )
        yield Tool(kind="function", name=spec.name, spec=spec, param=field_path(at))
    elif kind in BUILTINS:
        yield _builtin(kind, raw, at)
    elif kind in _HOSTED:
        yield Hosted(param=field_path((*at, "type")))
    else:
        raise _invalid((*at, "type"), "is no type of tool that is known here")


def _type_of(raw: Any, at: Path) -> str:
    if not isinstance(raw, dict):
        raise _wrong(at, "must be an object")
    kind = raw.get("type")
    if kind is None:
        raise _wrong((*at, "type"), "is required")
    if not isinstance(kind, str):
        raise _wrong((*at, "type"), "must be a string")
    return kind


def _function(raw: Any, at: Path, group: _Namespace | None) -> Tool:
    wire = validate(_Function, raw, at)
    spec = ToolSpec(
        name=_checked_name(wire.name, at, group),
        description=_described(wire.description, group),
        parameters=tools.check_parameters(wire.parameters, field_path((*at, "parameters"))),
        strict=bool(wire.strict),
    )
    return Tool(
        kind="function",
        name=wire.name,
        namespace=group.name if group else None,
        spec=spec,
        param=field_path(at),
    )


def _custom(raw: Any, at: Path, group: _Namespace | None) -> Tool:
    wire = validate(_Custom, raw, at)
    grammar = None
    if wire.format is not None and wire.format.type == "grammar":
        if wire.format.definition is None:
            raise _wrong((*at, "format", "definition"), "is required")
        grammar = wire.format.definition
    spec = custom_tool(
        _checked_name(wire.name, at, group), _described(wire.description, group), grammar
    )
    return Tool(
        kind="custom",
        name=wire.name,
        namespace=group.name if group else None,
        spec=spec,
        param=field_path(at),
    )


def _checked_name(name: str, at: Path, group: _Namespace | None) -> str:
    param = field_path((*at, "name"))
    tools.check_name(name, param)
    return tools.check_name(flat_name(name, group.name if group else None), param)


def _described(description: str | None, group: _Namespace | None) -> str | None:
    """A tool's description, with that of its group: the model sees no groups."""
    if group is None or not group.description:
        return description
    return f"{description}\n\n{group.description}" if description else group.description


def _builtin(kind: str, raw: Any, at: Path) -> Declared:
    spec = BUILTINS[kind].spec
    if kind == "shell":
        environment = validate(_Shell, raw, at).environment
        if environment is not None and environment.get("type") != "local":
            return Hosted(param=field_path((*at, "type")))
    elif kind == "tool_search":
        wire = validate(_ToolSearch, raw, at)
        if wire.execution != "client":
            return Hosted(param=field_path((*at, "type")))
        parameters = tools.check_parameters(wire.parameters, field_path((*at, "parameters")))
        spec = ToolSpec(
            name=spec.name,
            description=wire.description or spec.description,
            parameters=parameters or spec.parameters,
        )
    return Tool(kind=kind, name=kind, spec=spec, param=field_path(at))


def _wrong(at: Path, text: str) -> SchemaValidationFailed:
    param = field_path(at)
    return SchemaValidationFailed(f"`{param}` {text}.", param=param)


def _invalid(at: Path, text: str) -> InvalidTool:
    param = field_path(at)
    return InvalidTool(f"`{param}` {text}.", param=param)


# --- What is offered -----------------------------------------------------------------------------


def offer(
    declared: Sequence[Declared], tool_choice: Any, *, parallel: bool, profile: Profile
) -> Offer:
    """What the model is offered, and what it must do with it.

    Raises:
        InvalidTool: A tool is hosted and the profile refuses those, or two have one name.
        RequestError: `tool_choice` is not possible.
    """
    hosted = [tool for tool in declared if isinstance(tool, Hosted)]
    if hosted and profile.refuse_hosted_tools:
        param = hosted[0].param
        raise InvalidTool(
            f"`{param}` is a hosted tool, and this service runs none: give a `function`.",
            param=param,
        )
    offered = tuple(tool for tool in declared if isinstance(tool, Tool))
    tools.check_unique((tool.param, tool.spec) for tool in offered)
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "allowed_tools":
        offered, mode = _allowed(offered, tool_choice)
        tool_choice = mode
    return Offer(
        tools=offered,
        choice=_choice(offered, tool_choice, parallel=parallel),
        ignored=tuple(tool.param.removesuffix(".type") for tool in hosted),
    )


def _choice(offered: Sequence[Tool], tool_choice: Any, *, parallel: bool) -> ToolChoice:
    param = "tool_choice"
    specs = [tool.spec for tool in offered]
    match tool_choice:
        case None | "auto":
            return ToolChoice(mode="auto", parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case "required":
            return tools.required(specs, parallel=parallel, param=param)
        case str():
            raise UnsupportedValue(
                "`tool_choice` must be `auto`, `none`, `required` or an object.", param=param
            )
        case {"type": "namespace"}:
            raise _invalid((param, "type"), "names no single tool")
        case dict():
            found = _selected(offered, tool_choice, (param,))
            name = found[0].spec.name if found else ""
            return tools.named(name, specs, parallel=parallel, param=param)
        case _:
            raise _wrong((param,), "must be a string or an object")


def _allowed(offered: Sequence[Tool], choice: dict[str, Any]) -> tuple[tuple[Tool, ...], str]:
    """The tools that are left, and the mode."""
    at: Path = ("tool_choice",)
    mode = choice.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise UnsupportedValue(
            "`tool_choice.mode` must be `auto` or `required`.", param="tool_choice.mode"
        )
    entries = choice.get("tools")
    if not isinstance(entries, list):
        raise _wrong((*at, "tools"), "must be an array")
    kept: set[str] = set()
    for index, entry in enumerate(entries):
        where = (*at, "tools", index)
        if not isinstance(entry, dict):
            raise _wrong(where, "must be an object")
        found = _selected(offered, entry, where)
        if not found:
            param = field_path(where)
            raise ToolChoiceUnknownTool(
                f"`{param}` names a tool that is not in `tools`.", param=param
            )
        kept.update(tool.spec.name for tool in found)
    return tuple(tool for tool in offered if tool.spec.name in kept), mode


def _selected(offered: Sequence[Tool], entry: dict[str, Any], at: Path) -> Sequence[Tool]:
    """The tools that an entry of `tool_choice` means, if they are offered.

    Raises:
        InvalidTool: It means a hosted tool.
    """
    kind = _type_of(entry, at)
    if kind in BUILTINS:
        return [tool for tool in offered if tool.kind == kind]
    if _WEB_SEARCH.fullmatch(kind):
        found = [tool for tool in offered if tool.spec.name == _WEB_SEARCH_NAME]
        if found:
            return found
    if kind not in ("function", "custom", "namespace"):
        raise _invalid((*at, "type"), "names no tool that can be chosen")
    name = entry.get("name")
    if not isinstance(name, str):
        raise _wrong((*at, "name"), "is required" if name is None else "must be a string")
    if kind == "namespace":
        return [tool for tool in offered if tool.namespace == name]
    group = entry.get("namespace")
    exact = [tool for tool in offered if tool.spec.name == flat_name(name, group)]
    return exact or [tool for tool in offered if tool.name == name and group is None]
