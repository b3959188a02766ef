"""Tool-call formats: how a family of models writes calls, and how it can be made to.

A format splits answer text into text and calls, and says which constraint makes a model write one.
One file per family (`tools_*.py`), one line each in `TOOL_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.base import CallParser
from workers.parsing.tools_json import HermesFormat


class ToolFormat(Protocol):
    """One way of writing calls."""

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        """A parser for one choice: answer text in; TextDelta, ToolCallStarted, ArgumentsDelta out.

        Args:
            choice: Number of the choice, for its Deltas.
            tools: Those offered; argument types come from their schemas where the format has none.
        """
        ...

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        """What enforces `choice`, and the schemas of strict tools.

        Returns:
            None if nothing has to be enforced.
        """
        ...


_HERMES: Final = HermesFormat()

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    "hermes": _HERMES,
    "qwen": _HERMES,
    "qwen25": _HERMES,
}
"""By the name SGLang's `--tool-call-parser` uses."""

_SIGNS: Final = (("<tool_call>", "qwen25"),)


def detect_tool_format(template: str) -> str | None:
    """The format that a chat template teaches its model; None if it shows none that we know."""
    return next((name for sign, name in _SIGNS if sign in template), None)
