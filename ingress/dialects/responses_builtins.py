"""Tools that a client runs itself and that have item types of their own.

The model is offered each as a function. Its call becomes the item that the client knows, and the
item comes back as the call: both directions of one mapping stand here side by side. A call whose
arguments do not fit its item is told as the function call that it is, so that nothing is made up.

Source: Responses, sections 3 (input items) and 4 (tools).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import orjson
from pydantic import model_validator

from ingress.dialects.validation import WireModel, check_depth
from schemas.message import ToolSpec


class LocalShellAction(WireModel):
    """One command, as a list of arguments."""

    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class ShellAction(WireModel):
    """Commands, each one line."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class PatchOperation(WireModel):
    """A change to one file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None

    @model_validator(mode="after")
    def _has_a_diff(self) -> PatchOperation:
        if self.diff is None and self.type != "delete_file":
            raise ValueError("a diff is needed")
        return self


class Builtin(msgspec.Struct, frozen=True, kw_only=True):
    """One such tool.

    Attributes:
        item_type: Of its call.
        id_prefix: Of that item's id.
        field: Of the item, where the arguments are.
        fixed: What else is in that field.
        extra: What else the item has.
        arguments: What a call must fit; None if any object does.
        spec: The function that stands in for it.
    """

    item_type: str
    id_prefix: str
    field: str
    fixed: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    arguments: type[WireModel] | None
    spec: ToolSpec

    def item_fields(self, arguments: str) -> dict[str, Any] | None:
        """The fields of the item for a call with this argument JSON; None if it does not fit."""
        try:
            value = orjson.loads(arguments)
            if not isinstance(value, dict):
                return None
            check_depth(value)
            if self.arguments is not None:
                value = self.arguments.model_validate(value).model_dump(exclude_none=True)
        except ValueError:  # no JSON, too deep to be encoded, or not what the tool takes
            return None
        return {self.field: {**self.fixed, **value}, **self.extra}

    def argument_text(self, value: Mapping[str, Any]) -> str:
        """The argument JSON of a call that came back with this value of its field."""
        own = {
            name: inner
            for name, inner in value.items()
            if inner is not None and self.fixed.get(name) != inner
        }
        return orjson.dumps(own).decode()


def _spec(name: str, description: str, properties: dict[str, Any], required: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": required.split(),
            "additionalProperties": False,
        },
    )


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_TIMEOUT: Final = {"type": "integer", "description": "Milliseconds until it is ended."}

BUILTINS: Final[Mapping[str, Builtin]] = {
    "local_shell": Builtin(
        item_type="local_shell_call",
        id_prefix="lsh_",
        field="action",
        fixed={"type": "exec", "env": {}},
        arguments=LocalShellAction,
        spec=_spec(
            "local_shell",
            "Runs a command on the user's machine and returns what it prints.",
            {
                "command": _texts("The program and its arguments."),
                "working_directory": _text("Where to run it."),
                "timeout_ms": _TIMEOUT,
            },
            "command",
        ),
    ),
    "shell": Builtin(
        item_type="shell_call",
        id_prefix="sh_",
        field="action",
        extra={"environment": None},
        arguments=ShellAction,
        spec=_spec(
            "shell",
            "Runs shell commands on the user's machine and returns what each prints.",
            {
                "commands": _texts("Command lines; each runs in a shell of its own."),
                "timeout_ms": _TIMEOUT,
                "max_output_length": {
                    "type": "integer",
                    "description": "Characters of output to return at most.",
                },
            },
            "commands",
        ),
    ),
    "apply_patch": Builtin(
        item_type="apply_patch_call",
        id_prefix="apc_",
        field="operation",
        arguments=PatchOperation,
        spec=_spec(
            "apply_patch",
            "Creates, updates or deletes one file on the user's machine.",
            {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": _text("Of the file, relative to the working directory."),
                "diff": _text("Unified diff hunks without file headers; not for delete_file."),
            },
            "type path",
        ),
    ),
    "tool_search": Builtin(
        item_type="tool_search_call",
        id_prefix="tsc_",
        field="arguments",
        extra={"execution": "client"},
        arguments=None,
        spec=_spec(
            "tool_search",
            "Finds further tools. Those found can be called afterwards.",
            {"query": _text("What the tool should do.")},
            "query",
        ),
    ),
}
"""By the `type` of the tool, which is also the name of the function."""
