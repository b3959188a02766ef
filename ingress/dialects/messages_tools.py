"""Tools of a Messages request -> neutral tools and the choice among them.

Server tools (web search, bash, text editor and so on) come without a schema. They are offered to
the model as ordinary tools with a schema of ours, one per family; the client executes the calls.

Source: Messages, section 4 ("Tools"); dialect profiles, #10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ingress.dialects import tools as neutral
from ingress.dialects.messages_request import Tool, ToolChoiceOption
from ingress.dialects.profile import Profile
from schemas.errors import InvalidTool, SchemaValidationFailed
from schemas.message import ToolChoice, ToolSpec

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_POINT: Final = {"type": "array", "items": _WHOLE, "minItems": 2, "maxItems": 2}


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """What we know of a family of server tools.

    Attributes:
        name: Of the tool where the definition has none.
        description: For the model.
        parameters: Properties of the arguments.
        required: Those that every call has.
    """

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]


def _one_of(*values: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(values)}


_EDITOR: Final = {
    "command": _one_of("view", "create", "str_replace", "insert"),
    "path": _TEXT,
    "file_text": {**_TEXT, "description": "Of `create`: the content of the new file."},
    "old_str": {**_TEXT, "description": "Of `str_replace`: the text to replace."},
    "new_str": {**_TEXT, "description": "Of `str_replace`: the new text."},
    "insert_line": {**_WHOLE, "description": "Of `insert`: the line after which to insert."},
    "insert_text": {**_TEXT, "description": "Of `insert`: the text to insert."},
    "view_range": {
        **_POINT,
        "description": "Of `view`: first and last line, from 1; -1 is the end.",
    },
}

_FAMILIES: Final[Mapping[str, _Family]] = {
    "web_search": _Family(
        name="web_search",
        description="Search the web.",
        parameters={"query": _TEXT},
        required=("query",),
    ),
    "web_fetch": _Family(
        name="web_fetch",
        description="Fetch the content of a web page.",
        parameters={"url": _TEXT},
        required=("url",),
    ),
    "bash": _Family(
        name="bash",
        description="Run a command in a bash session that stays open between calls.",
        parameters={
            "command": {**_TEXT, "description": "The command to run."},
            "restart": {"type": "boolean", "description": "Start the session anew instead."},
        },
        required=(),
    ),
    "text_editor": _Family(
        name="str_replace_based_edit_tool",
        description="View, create and edit text files.",
        parameters=_EDITOR,
        required=("command", "path"),
    ),
    "computer": _Family(
        name="computer",
        description="Use a computer by its screen, mouse and keyboard.",
        parameters={
            "action": {
                **_TEXT,
                "description": (
                    "Such as screenshot, left_click, right_click, double_click, mouse_move, "
                    "left_click_drag, scroll, type, key, hold_key, wait, cursor_position, zoom."
                ),
            },
            "coordinate": {**_POINT, "description": "Where, as [x, y] in pixels."},
            "start_coordinate": {**_POINT, "description": "Where a drag starts."},
            "region": {
                "type": "array",
                "items": _WHOLE,
                "minItems": 4,
                "maxItems": 4,
                "description": "Of `zoom`: [x1, y1, x2, y2].",
            },
            "text": {**_TEXT, "description": "The text to type, or the keys to press."},
            "duration": {"type": "number", "description": "Seconds, of `wait` and `hold_key`."},
            "scroll_direction": _one_of("up", "down", "left", "right"),
            "scroll_amount": {**_WHOLE, "description": "Clicks of the wheel."},
        },
        required=("action",),
    ),
    "code_execution": _Family(
        name="code_execution",
        description="Run code and return what it prints.",
        parameters={"code": _TEXT},
        required=("code",),
    ),
    "memory": _Family(
        name="memory",
        description="Keep notes in files under /memories, across conversations.",
        parameters={
            "command": _one_of("view", "create", "str_replace", "insert", "delete", "rename"),
            "path": _TEXT,
            **{
                name: _EDITOR[name]
                for name in (
                    *("file_text", "old_str", "new_str", "insert_line", "insert_text"),
                    "view_range",
                )
            },
            "old_path": {**_TEXT, "description": "Of `rename`."},
            "new_path": {**_TEXT, "description": "Of `rename`."},
        },
        required=("command",),
    ),
    "tool_search_tool_regex": _Family(
        name="tool_search_tool_regex",
        description="Find tools whose names or descriptions match a regular expression.",
        parameters={"pattern": _TEXT},
        required=("pattern",),
    ),
    "tool_search_tool_bm25": _Family(
        name="tool_search_tool_bm25",
        description="Find tools by words.",
        parameters={"query": _TEXT},
        required=("query",),
    ),
    "browser_toolset": _Family(
        name="browser",
        description="Use a web browser.",
        parameters={
            "action": {**_TEXT, "description": "Such as navigate, click, type, scroll, read."},
            "url": _TEXT,
            "coordinate": _POINT,
            "text": _TEXT,
        },
        required=("action",),
    ),
    "advisor": _Family(
        name="advisor",
        description="Ask a more capable model for advice.",
        parameters={"question": _TEXT},
        required=("question",),
    ),
}
_COMPUTER_TOOLSET: Final = "computer_toolset"

_VERSIONED: Final = re.compile(r"([a-z0-9_]+?)(?:_\d{8})?")
_MCP_TOOLSET: Final = "mcp_toolset"


def offer(
    definitions: Sequence[Tool], choice: ToolChoiceOption | None, profile: Profile
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools that the model sees, and the choice among them.

    Raises:
        InvalidTool: A tool has an unknown type, a bad name, or the name of another.
        ToolSchemaInvalid: `input_schema` is no object schema.
        SchemaValidationFailed: A client's tool lacks its name or schema.
        UnsupportedValue: The choice asks for a call where there is nothing to call.
        ToolChoiceUnknownTool: The choice names a tool that is not there.
    """
    placed = {
        (where := f"tools[{index}]"): _tool(definition, where)
        for index, definition in enumerate(definitions)
        if definition.type != _MCP_TOOLSET  # what it stands for only its own server knows
    }
    neutral.check_unique(placed.items())
    specs = tuple(placed.values())
    if choice is None:
        return specs, ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "none":
            return specs, ToolChoice(mode="none", parallel=parallel)
        case "tool":
            if choice.name is None:
                raise _required("tool_choice.name")
            return specs, neutral.named(
                choice.name, specs, parallel=parallel, param="tool_choice.name"
            )
        case "any" if profile.enforce_any:
            return specs, neutral.required(specs, parallel=parallel, param="tool_choice")
    return specs, ToolChoice(parallel=parallel)


def _tool(tool: Tool, where: str) -> ToolSpec:
    if tool.type not in (None, "custom"):
        return _server_tool(tool, where)
    if tool.name is None:
        raise _required(f"{where}.name")
    if tool.input_schema is None:
        raise _required(f"{where}.input_schema")
    return ToolSpec(
        name=neutral.check_name(tool.name, f"{where}.name"),
        description=tool.description,
        parameters=neutral.check_parameters(tool.input_schema, f"{where}.input_schema"),
        strict=tool.strict,
    )


def _server_tool(tool: Tool, where: str) -> ToolSpec:
    found = _VERSIONED.fullmatch(tool.type or "")
    name = found.group(1) if found else ""
    family = _FAMILIES.get("computer" if name == _COMPUTER_TOOLSET else name)
    if family is None:
        param = f"{where}.type"
        raise InvalidTool(
            f"`{param}` must be `custom`, or name a server tool of the families "
            f"{', '.join(_FAMILIES)}.",
            param=param,
        )
    return ToolSpec(
        name=neutral.check_name(tool.name or family.name, f"{where}.name"),
        description=tool.description or family.description + _screen(tool),
        parameters={
            "type": "object",
            "properties": {key: dict(value) for key, value in family.parameters.items()},
            "required": list(family.required),
        },
    )


def _screen(tool: Tool) -> str:
    """What a computer tool says about its screen."""
    if tool.display_width_px is None or tool.display_height_px is None:
        return ""
    return f" The screen has {tool.display_width_px} x {tool.display_height_px} pixels."


def _required(param: str) -> SchemaValidationFailed:
    return SchemaValidationFailed(f"`{param}` is required.", param=param)
