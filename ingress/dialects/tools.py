"""Tools, as far as the three dialects of conversations agree: names, schemas and the choice.

The shape of a definition is each dialect's own; what makes one valid is the same for all. It knows
no dialect: fields are named by the `param` that comes with them.

Source: Chat Completions, section 8 ("Tools"); error catalogue, "Request validation".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from schemas.errors import (
    InvalidTool,
    ToolChoiceUnknownTool,
    ToolSchemaInvalid,
    UnsupportedParameter,
    UnsupportedValue,
)
from schemas.message import ToolChoice, ToolSpec
from schemas.model_card import ModelCard
from schemas.sampling import Constraint

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_supported(card: ModelCard, param: str) -> None:
    """For requests with tools: a model that cannot see them would answer as if there were none.

    Raises:
        UnsupportedParameter: The model does not call tools.
    """
    if not card.capabilities.tools:
        raise UnsupportedParameter(
            f"`{param}` cannot be used: this model does not call tools.", param=param
        )


def check_name(name: str, param: str) -> str:
    """A tool's name.

    Raises:
        InvalidTool: It is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidTool(
            f"`{param}` must be 1 to 128 letters, digits, underscores, dots or hyphens.",
            param=param,
        )
    return name


def check_parameters(schema: Any, param: str) -> dict[str, Any] | None:
    """A tool's argument schema; None if it has none.

    Raises:
        ToolSchemaInvalid: It is not an object schema.
    """
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type", "object" if not schema else None) not in (
        "object",
        ["object"],
    ):
        raise ToolSchemaInvalid(
            f'`{param}` must be a JSON schema with `type` "object".', param=param
        )
    return schema


def check_unique(tools: Iterable[tuple[str, ToolSpec]]) -> None:
    """No two tools have one name.

    Args:
        tools: Each with the place where the request has it.

    Raises:
        InvalidTool: Two have.
    """
    seen: set[str] = set()
    for param, tool in tools:
        if tool.name in seen:
            raise InvalidTool(f"`{param}` has the name of another tool.", param=param)
        seen.add(tool.name)


def required(tools: Sequence[ToolSpec], *, parallel: bool, param: str) -> ToolChoice:
    """The model must call something.

    Raises:
        UnsupportedValue: There is nothing to call.
    """
    if not tools:
        raise UnsupportedValue(f"`{param}` requires a call, but there are no tools.", param=param)
    return ToolChoice(mode="required", parallel=parallel)


def named(name: str, tools: Sequence[ToolSpec], *, parallel: bool, param: str) -> ToolChoice:
    """The model must call this tool.

    Raises:
        UnsupportedValue: There are no tools.
        ToolChoiceUnknownTool: It is not among them.
    """
    if not tools:
        raise UnsupportedValue(f"`{param}` names a tool, but there are no tools.", param=param)
    if all(tool.name != name for tool in tools):
        raise ToolChoiceUnknownTool(f"`{param}` names a tool that is not in `tools`.", param=param)
    return ToolChoice(mode="named", name=name, parallel=parallel)


def answer_constraint(constraint: Constraint | None, choice: ToolChoice) -> Constraint | None:
    """What restricts the answer when the request has both a response format and tools.

    A forced call wins over the format; in any other mode the format wins over calls.
    Source: Chat Completions, "Structured outputs".
    """
    return None if choice.mode in ("required", "named") else constraint
