"""Tools of a chat request: their wire models, and the neutral tools and choice they become.

Custom tools are offered as functions (`custom_tools`). The legacy spelling of tools, `functions`
with `function_call`, is a spelling of its own: the answer is written in it too.

Source: Chat Completions, sections 8 (tools) and 12 (legacy function calling).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Tag, model_validator

from ingress.dialects import tools
from ingress.dialects.custom_tools import custom_tool
from ingress.dialects.validation import (
    STRING_OR_OBJECT,
    Entries,
    Flag,
    WireModel,
    bad_shape,
    by_field,
    check_depth,
)
from schemas.errors import InvalidTool, ToolChoiceUnknownTool, UnsupportedValue
from schemas.message import ToolChoice, ToolSpec

# --- Definitions ---------------------------------------------------------------------------------


class FunctionDefinition(WireModel):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: Annotated[Any, AfterValidator(check_depth)] = None
    strict: Flag = False


class InputGrammar(WireModel):
    """What the input of a custom tool looks like; in which notation is for the model to see."""

    definition: str


class InputFormat(WireModel):
    """Any text, or text that follows a grammar."""

    type: Literal["text", "grammar"]
    grammar: InputGrammar | None = None

    @model_validator(mode="after")
    def _has_its_grammar(self) -> InputFormat:
        if self.type == "grammar" and self.grammar is None:
            raise bad_shape("is required", field="grammar")
        return self


class CustomDefinition(WireModel):
    """A tool whose input is text."""

    name: str
    description: str | None = None
    format: InputFormat | None = None


class ToolDefinition(WireModel):
    """A tool. A function may leave its `type` out; which types there are is judged later."""

    type: str | None = None
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None

    @model_validator(mode="after")
    def _defines_something(self) -> ToolDefinition:
        wanted = self.type or "function"
        if wanted in ("function", "custom") and getattr(self, wanted) is None:
            raise bad_shape("is required", field=wanted)
        return self

    @property
    def is_custom(self) -> bool:
        return self.type == "custom"


# --- Choices -------------------------------------------------------------------------------------


class NamedTool(WireModel):
    """A tool, by its name."""

    name: str


class FunctionChoice(WireModel):
    """This function must be called."""

    function: NamedTool


class CustomChoice(WireModel):
    """This custom tool must be called."""

    custom: NamedTool


AllowedTool: TypeAlias = Annotated[
    Annotated[FunctionChoice, Tag("<function>")] | Annotated[CustomChoice, Tag("<custom>")],
    by_field("type", "function", "custom"),
]


class AllowedTools(WireModel):
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Entries[AllowedTool]


class AllowedChoice(WireModel):
    """Only some of the tools may be called."""

    allowed_tools: AllowedTools


Choice: TypeAlias = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("<string>")]
    | Annotated[
        Annotated[
            Annotated[FunctionChoice, Tag("<function>")]
            | Annotated[CustomChoice, Tag("<custom>")]
            | Annotated[AllowedChoice, Tag("<allowed_tools>")],
            by_field("type", "function", "custom", "allowed_tools"),
        ],
        Tag("<object>"),
    ],
    STRING_OR_OBJECT,
]

LegacyChoice: TypeAlias = Annotated[
    Annotated[Literal["auto", "none"], Tag("<string>")] | Annotated[NamedTool, Tag("<object>")],
    STRING_OR_OBJECT,
]

# --- Neutral tools -------------------------------------------------------------------------------


def offer(
    definitions: Sequence[ToolDefinition], choice: Choice | None, *, parallel: bool
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools that the model sees, and the choice among them.

    Raises:
        InvalidTool: A tool has an unknown type, a bad name, or the name of another.
        ToolSchemaInvalid: Its parameters are no object schema.
        UnsupportedValue: The choice asks for a call where there is nothing to call.
        ToolChoiceUnknownTool: The choice names a tool that is not there.
    """
    placed = {
        (where := f"tools[{index}]"): _tool(definition, where)
        for index, definition in enumerate(definitions)
    }
    tools.check_unique(placed.items())
    specs = tuple(placed.values())
    if not specs and choice in (None, "auto", "none"):
        return (), ToolChoice()
    match choice:
        case None | "auto":
            return specs, ToolChoice(parallel=parallel)
        case "none":
            return specs, ToolChoice(mode="none", parallel=parallel)
        case "required":
            return specs, tools.required(specs, parallel=parallel, param="tool_choice")
        case AllowedChoice(allowed_tools=allowed):
            specs = _allowed(specs, allowed.tools)
            if allowed.mode == "auto":
                return specs, ToolChoice(parallel=parallel)
            return specs, tools.required(specs, parallel=parallel, param="tool_choice")
    return specs, tools.named(_name(choice), specs, parallel=parallel, param="tool_choice")


def offer_legacy(
    functions: Sequence[FunctionDefinition], choice: LegacyChoice | None
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """As `offer`, for the legacy spelling, which has room for one call only.

    Raises:
        RequestError: As `offer`.
    """
    placed = {
        (where := f"functions[{index}]"): _function(function, where)
        for index, function in enumerate(functions)
    }
    tools.check_unique(placed.items())
    specs = tuple(placed.values())
    match choice:
        case NamedTool(name=name):
            return specs, tools.named(name, specs, parallel=False, param="function_call")
        case "none":
            return specs, ToolChoice(mode="none", parallel=False)
    return specs, ToolChoice(parallel=False)


def _tool(definition: ToolDefinition, where: str) -> ToolSpec:
    match definition:
        case ToolDefinition(type="function" | None, function=FunctionDefinition() as function):
            return _function(function, f"{where}.function")
        case ToolDefinition(type="custom", custom=CustomDefinition() as custom):
            grammar = custom.format.grammar if custom.format else None
            return custom_tool(
                tools.check_name(custom.name, f"{where}.custom.name"),
                custom.description,
                grammar.definition if grammar else None,
            )
    param = f"{where}.type"
    raise InvalidTool(f"`{param}` must be one of function, custom.", param=param)


def _function(function: FunctionDefinition, where: str) -> ToolSpec:
    return ToolSpec(
        name=tools.check_name(function.name, f"{where}.name"),
        description=function.description,
        parameters=tools.check_parameters(function.parameters, f"{where}.parameters"),
        strict=function.strict,
    )


def _allowed(specs: Sequence[ToolSpec], allowed: Sequence[AllowedTool]) -> tuple[ToolSpec, ...]:
    """The tools on the list, in the order in which they were defined."""
    param = "tool_choice.allowed_tools.tools"
    if not allowed:
        raise UnsupportedValue(f"`{param}` must not be empty.", param=param)
    names = [_name(tool) for tool in allowed]
    known = {spec.name for spec in specs}
    for index, name in enumerate(names):
        if name not in known:
            raise ToolChoiceUnknownTool(
                f"`{param}[{index}]` names a tool that is not in `tools`.",
                param=f"{param}[{index}]",
            )
    return tuple(spec for spec in specs if spec.name in names)


def _name(choice: FunctionChoice | CustomChoice) -> str:
    return choice.function.name if isinstance(choice, FunctionChoice) else choice.custom.name
