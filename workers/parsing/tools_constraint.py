"""Constraints that make a model call, in the words of its own format.

The result is a structural tag of XGrammar: which markup opens and closes a call, and a schema for
what stands between. Text before a forced call is not allowed: the call is what was asked for.

Source: XGrammar 0.2.7, `xgrammar.structural_tag`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint, JsonSchema, StructuralTag

_MOST_WHITE_SPACE: Final = 2  # a model that is unsure can go on with line breaks for ever
_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}
_NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are written.

    Attributes:
        begin: Opens a call; `{name}` stands for the tool's name.
        end: Closes it.
        trigger: The text after which nothing but a call may come; with it the section begins, or
            each call.
        section: Stands before and after all calls.
        separator: Stands between calls.
        style: How arguments are written, as XGrammar calls it.
        number: Text before and after a number that follows `begin`.
    """

    begin: str
    end: str
    trigger: str
    section: tuple[str, str] = ("", "")
    separator: str = ""
    style: str = "json"
    number: tuple[str, str] | None = None


def calls_constraint(
    tools: Sequence[ToolSpec], choice: ToolChoice, calls: Calls, *also: Calls
) -> Constraint | None:
    """What enforces a choice, and in any mode the schemas of strict tools.

    Args:
        tools: Those offered.
        choice: What the model must or may do.
        calls: How it writes calls.
        also: Other ways to write them; section and separator are those of `calls`.
    """
    tags = [tag for one in (calls, *also) for tag in forced_tags(one, tools, choice)]
    if not tags:
        return None
    single = choice.mode == "named" or not choice.parallel
    begin, end = calls.section
    run: dict[str, Any] = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": calls.separator,
        "at_least_one": True,
        "stop_after_first": single,
    }
    if begin:
        run = {"type": "tag", "begin": begin, "content": run, "end": end}
    if choice.mode == "auto":
        run = {
            "type": "triggered_tags",
            "triggers": [calls.trigger],
            "tags": [run] if begin else tags,
            "stop_after_first": single,
        }
    return StructuralTag(spec={"type": "structural_tag", "format": run})


def forced_tags(
    calls: Calls, tools: Sequence[ToolSpec], choice: ToolChoice
) -> list[dict[str, Any]]:
    """One tag for each tool that may be called; none if nothing has to be enforced.

    Forced calls obey their tool's schema, strict or not: who forces a call wants its arguments.
    """
    match choice.mode:
        case "named":
            return [_tag(calls, tool, obey=True) for tool in tools if tool.name == choice.name]
        case "required":
            return [_tag(calls, tool, obey=True) for tool in tools]
        case "auto" if any(tool.strict for tool in tools):
            return [_tag(calls, tool, obey=tool.strict) for tool in tools]
        case _:
            return []


def json_calls_constraint(tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
    """A list of calls in JSON, for formats that no structural tag describes; forced calls only."""
    if choice.mode not in ("required", "named"):
        return None
    items = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": _schema(tool, obey=True)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
        if choice.mode == "required" or tool.name == choice.name
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    if choice.mode == "named" or not choice.parallel:
        schema["maxItems"] = 1
    return JsonSchema(schema=schema)


def _tag(calls: Calls, tool: ToolSpec, *, obey: bool) -> dict[str, Any]:
    arguments = {
        "type": "json_schema",
        "json_schema": _schema(tool, obey=obey),
        "style": calls.style,
        "max_whitespace_cnt": _MOST_WHITE_SPACE,
    }
    begin = calls.begin.replace("{name}", tool.name)
    content: dict[str, Any] = arguments
    if calls.number is not None:
        before, after = calls.number
        begin += before
        content = {
            "type": "sequence",
            "elements": [
                {"type": "regex", "pattern": r"\d+"},
                {"type": "const_string", "value": after},
                arguments,
            ],
        }
    return {"type": "tag", "begin": begin, "content": content, "end": calls.end}


def _schema(tool: ToolSpec, *, obey: bool) -> dict[str, Any]:
    return (tool.parameters or _NO_ARGUMENTS) if obey else _ANY_OBJECT
