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
from workers.parsing.harmony import HARMONY
from workers.parsing.tools_json import HERMES, INTERNS1, LLAMA3
from workers.parsing.tools_named import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, MISTRAL
from workers.parsing.tools_pythonic import LFM2, PYTHONIC
from workers.parsing.tools_tagged import (
    DOTS,
    GLM45,
    GLM47,
    MIMO,
    MINIMAX_M2,
    QWEN3_CODER,
    DsmlFormat,
)


class ToolFormat(Protocol):
    """One way of writing calls.

    Attributes:
        markers: What begins and ends a run of calls; None where no such pair of markers does.
    """

    markers: tuple[str, str] | None

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


TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    "deepseekv3": DEEPSEEK_V3,
    "deepseekv31": DEEPSEEK_V31,
    "deepseekv32": DsmlFormat("function_calls"),
    "deepseekv4": DsmlFormat("tool_calls"),
    "deepseekv41": DsmlFormat("calls", space=" "),
    "dots": DOTS,
    "glm": GLM45,
    "glm45": GLM45,
    "glm47": GLM47,
    "gpt-oss": HARMONY,
    "hermes": HERMES,
    "interns1": INTERNS1,
    "kimi_k2": KIMI_K2,
    "lfm2": LFM2,
    "ling3": GLM45,
    "llama3": LLAMA3,
    "mimo": MIMO,
    "minimax-m2": MINIMAX_M2,
    "mistral": MISTRAL,
    "nanbeige": QWEN3_CODER,
    "poolside_v1": GLM45,
    "pythonic": PYTHONIC,
    "qwen": HERMES,
    "qwen25": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "spark25": GLM45,
    "step3p5": QWEN3_CODER,
    "trinity": HERMES,
}
"""By the name SGLang's `--tool-call-parser` uses."""

# What a chat template must contain, all of it; the first that fits wins.
_SIGNS: Final = (
    (("<|channel|>", "<|message|>"), "gpt-oss"),
    (("<｜DSML｜", "function_calls"), "deepseekv32"),  # noqa: RUF001 - the model's own spelling
    (("<｜DSML｜", "tool_calls"), "deepseekv4"),  # noqa: RUF001
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseekv3"),  # noqa: RUF001
    (("<｜tool▁calls▁begin｜>",), "deepseekv31"),  # noqa: RUF001
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("<dots_function_call>",), "dots"),
    (("<|action_start|>", "<|plugin|>"), "interns1"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<arg_key>", "<tool_call>"), "glm45"),
    (("<function=",), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>",), "qwen25"),
    (("<|python_tag|>",), "llama3"),
    (("<|python_start|>",), "pythonic"),
)


def detect_tool_format(template: str) -> str | None:
    """The format that a chat template teaches its model; None if it shows none that we know."""
    return next((name for signs, name in _SIGNS if all(sign in template for sign in signs)), None)
