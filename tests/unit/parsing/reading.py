"""Reads what a parser makes of a text, whatever chunks it came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted
from schemas.message import ToolSpec
from schemas.sampling import StopConditions
from workers.parsing.base import PartDelta
from workers.parsing.pipeline import ChoiceParser, build_parser
from workers.parsing.tools import TOOL_FORMATS


class Part(msgspec.Struct, frozen=True):
    """Contiguous output of one kind; a call's `text` are its arguments."""

    kind: str
    text: str
    name: str = ""


def tool_parser(
    format: str,
    tools: Sequence[ToolSpec] = (),
    *,
    stops: tuple[str, ...] = (),
    single_call: bool = False,
) -> ChoiceParser:
    """A parser for calls in one format, and nothing else."""
    return build_parser(
        0,
        reasoning_format=None,
        starts_inside=False,
        visible=True,
        stop=StopConditions(strings=stops),
        template_stops=(),
        tool_format=TOOL_FORMATS[format],
        tools=tools,
        single_call=single_call,
    )


def joined(deltas: Iterable[PartDelta]) -> list[Part]:
    """Deltas with no trace left of where they were cut."""
    parts: list[Part] = []
    for delta in deltas:
        match delta:
            case ToolCallStarted(call=call, name=name):
                assert call == sum(part.kind == "call" for part in parts), "calls are numbered"
                parts.append(Part("call", "", name))
                continue
            case TextDelta(text=text):
                kind = "text"
            case ReasoningDelta(text=text):
                kind = "reasoning"
            case ArgumentsDelta(text=text, call=call):
                kind = "call"
                assert parts[-1].kind == kind, "arguments directly follow their call"
                assert call == sum(part.kind == "call" for part in parts) - 1
        assert text, "no empty Delta"
        if parts and parts[-1].kind == kind:
            parts[-1] = Part(kind, parts[-1].text + text, parts[-1].name)
        else:
            parts.append(Part(kind, text))
    return parts


def read(parser: ChoiceParser, chunks: Iterable[str], *, cut: bool = False) -> list[Part]:
    """Everything that a parser makes of a text."""
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)]
    return joined([*deltas, *([] if parser.stopped else parser.finish(cut=cut))])


def calls(parts: Iterable[Part]) -> list[tuple[str, str]]:
    return [(part.name, part.text) for part in parts if part.kind == "call"]


def text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "text")
