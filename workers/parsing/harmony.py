"""The format of gpt-oss: a reply of several messages, each on a channel.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

So it is a reasoning format and a tool format in one: `analysis` is reasoning, a message to a
function is a call, everything else is the answer. The prompt ends with `<|start|>assistant`.

Source: OpenAI, "Harmony response format"; SGLang 0.5.23, `srt/parser/harmony_parser`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from schemas.delta import ReasoningDelta, TextDelta
from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint, StructuralTag
from workers.parsing.base import CallParser
from workers.parsing.reader import Step, TextReader
from workers.parsing.reasoning import ReasoningFormat
from workers.parsing.tools_constraint import Calls, forced_tags

_HEAD_LIMIT: Final = 512
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_BEGINNINGS: Final = ("<|start|>", "<|channel|>", "<|message|>")
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")


class HarmonyReader(TextReader):
    """Splits reasoning, calls and answer.

    Args:
        choice: Number of the choice, for its Deltas.
        may_call: Messages to functions are calls; otherwise they are answer text.
    """

    def __init__(self, choice: int, *, may_call: bool) -> None:
        super().__init__(choice)
        self._may_call = may_call
        self._last: type | None = None  # kind of the last message, to set the next one apart

    def grammar(self) -> Step[None]:
        # The prompt ends in a head that is still open.
        head = yield from self.expect(" to=")
        marker = "<|start|>" if head else (yield from self.plain(*_BEGINNINGS))
        while marker:
            while marker in ("<|start|>", "<|channel|>"):
                self.in_call = True
                piece, marker = yield from self.until(
                    "<|channel|>", "<|message|>", limit=_HEAD_LIMIT
                )
                head += f"{piece} "
            if marker != "<|message|>":
                head = ""
                self.broken()
                marker = yield from self.plain(*_BEGINNINGS)
                continue
            marker = yield from self.streamed(self._body(head), *_ENDS, keep=not self.in_call)
            self.in_reasoning = self.in_call = False
            head = ""
            if marker not in _BEGINNINGS:
                self.accept()
                marker = yield from self.plain(*_BEGINNINGS)

    def _body(self, head: str) -> Callable[[str], None]:
        """Begins a message; returns what takes its text."""
        recipient = _RECIPIENT.search(head)
        name = recipient.group(1).removeprefix("functions.") if recipient else ""
        thinks = "analysis" in _RECIPIENT.sub("", head)
        if name and self._may_call and not thinks:
            self._last = None
            self.in_call = True
            self.call(name)
            return self.arguments
        self.in_call = False
        if thinks:
            self.in_reasoning = True
            return self._apart(ReasoningDelta, self.reasoning)
        return self._apart(TextDelta, self.text)

    def _apart(self, kind: type, emit: Callable[[str], None]) -> Callable[[str], None]:
        """Sets a message apart from one of the same kind right before it."""
        gap = "\n\n" if self._last is kind else ""
        self._last = kind

        def emit_apart(text: str) -> None:
            nonlocal gap
            if text:
                emit(gap + text)
                gap = ""
            self.accept()

        return emit_apart


class HarmonyFormat:
    """gpt-oss."""

    markers: tuple[str, str] | None = None

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return HarmonyReader(choice, may_call=bool(tools))

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        """Calls may follow reasoning, which is part of the same text here."""
        tags = [tag for calls in _CALLS for tag in forced_tags(calls, tools, choice)]
        if not tags:
            return None
        messages = [_message("analysis"), _message("commentary")]
        if choice.mode == "auto":
            messages.append(_message("final"))
        one = not choice.parallel or choice.mode == "named"
        called = _run(tags, single=one)
        before = {"type": "sequence", "elements": [_run(messages), _const(_NEXT), called]}
        alternatives = [called, before]
        if choice.mode == "auto":
            alternatives.append(_run(messages))
        return StructuralTag(
            spec={"type": "structural_tag", "format": {"type": "or", "elements": alternatives}}
        )


_NEXT: Final = "<|start|>assistant"
_CALLS: Final = tuple(
    Calls(begin=begin, end="<|call|>", trigger="<|channel|>")
    for begin in (
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.{name}<|constrain|>json<|message|>",
        " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.{name}<|channel|>commentary json<|message|>",
    )
)


def _message(channel: str) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f"<|channel|>{channel}<|message|>",
        "content": {"type": "any_text"},
        "end": ["<|end|>", "<|return|>"],
    }


def _run(tags: list[dict[str, Any]], *, single: bool = False) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": _NEXT,
        "at_least_one": True,
        "stop_after_first": single,
    }


def _const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


HARMONY: Final = HarmonyFormat()
HARMONY_NAME: Final = "gpt-oss"
"""SGLang's name of it, among reasoning formats and tool formats."""

BEFORE_FINAL: Final = ReasoningFormat(
    opening="<|channel|>analysis<|message|>",
    closing=f"<|end|>{_NEXT}<|channel|>final<|message|>",
)
"""What comes before an answer that is constrained, in the terms of other formats."""
