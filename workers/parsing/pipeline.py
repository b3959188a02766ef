"""One choice's parser, put together from stages: generated text in, Deltas out.

    text ─► reasoning split off ─► tool calls split off ─► stop strings ─► TextDelta
                    │                        └─► ToolCallStarted, ArgumentsDelta
                    └─► ReasoningDelta

The order matters. Reasoning is split off first, so that neither a stop string nor a drafted tool
call inside it acts; calls come next, so that no stop string acts inside one.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.delta import ReasoningDelta, TextDelta, ToolCallStarted
from schemas.message import ToolSpec
from schemas.sampling import StopConditions
from workers.parsing.base import CallParser, ChoiceParser, PartDelta, PlainText
from workers.parsing.harmony import HARMONY, HARMONY_NAME
from workers.parsing.reasoning import REASONING_FORMATS, ReasoningSplitter
from workers.parsing.stop import StopScanner
from workers.parsing.stop_pattern import StopPatternScanner
from workers.parsing.tools import ToolFormat

__all__ = ["ChoiceParser", "StagedParser", "build_parser"]


def build_parser(
    choice: int,
    *,
    reasoning_format: str | None,
    starts_inside: bool,
    visible: bool,
    stop: StopConditions,
    template_stops: tuple[str, ...],
    turned_off: bool = False,
    hidden_when_off: bool = False,
    tool_format: ToolFormat | None = None,
    tools: Sequence[ToolSpec] = (),
    single_call: bool = False,
) -> ChoiceParser:
    """The parser for one choice, with no more stages than it needs.

    Args:
        choice: Number of the choice, for its Deltas.
        reasoning_format: A name of `REASONING_FORMATS`, or `HARMONY_NAME`, which marks reasoning
            and calls in one; None for raw text.
        starts_inside: The prompt ends inside an open reasoning part.
        visible: Reasoning is passed on; otherwise it is split off and dropped.
        stop: The caller's stop conditions.
        template_stops: Stop strings of the model's chat template.
        turned_off: See `ReasoningSplitter`.
        hidden_when_off: See `ReasoningSplitter`; for requests with reasoning off only.
        tool_format: How the model writes calls; None where none may be made.
        tools: Those offered.
        single_call: A second call ends the choice, and is none.

    Raises:
        KeyError: There is no such reasoning format.
    """
    splitter = None
    calls = None if tool_format is None else tool_format.parser(choice, tools)
    if reasoning_format == HARMONY_NAME or tool_format is HARMONY:
        calls = HARMONY.parser(choice, tools if tool_format is not None else ())
    elif reasoning_format is not None:
        splitter = ReasoningSplitter(
            REASONING_FORMATS[reasoning_format],
            starts_inside=starts_inside,
            turned_off=turned_off,
            hidden_when_off=hidden_when_off,
            call_markers=tool_format.markers if tool_format is not None else None,
        )
    scanner: StopScanner | StopPatternScanner | None = None
    if stop.patterns:
        scanner = StopPatternScanner(stop, template_stops)
    elif stop.strings or template_stops:
        scanner = StopScanner(stop, template_stops)
    if splitter is None and calls is None and scanner is None:
        return PlainText(choice)
    return StagedParser(choice, splitter, calls, scanner, visible=visible, single_call=single_call)


class StagedParser:
    """Runs text through the stages."""

    transparent = False

    def __init__(
        self,
        choice: int,
        splitter: ReasoningSplitter | None,
        calls: CallParser | None,
        scanner: StopScanner | StopPatternScanner | None,
        *,
        visible: bool,
        single_call: bool,
    ) -> None:
        self._choice = choice
        self._single_call = single_call
        self._second_call = False
        self._splitter = splitter
        self._calls = calls
        self._scanner = scanner
        self.kept_back = 0
        self._visible = visible

    @property
    def stopped(self) -> bool:
        return self._second_call or (self._scanner is not None and self._scanner.stopped)

    @property
    def matched(self) -> str | None:
        return self._scanner.matched if self._scanner else None

    @property
    def in_reasoning(self) -> bool:
        if self._splitter is not None:
            return not self._splitter.in_answer
        return self._calls is not None and self._calls.in_reasoning

    @property
    def in_call(self) -> bool:
        return self._calls is not None and self._calls.in_call

    def may_turn(self, text: str) -> bool:
        if self._splitter is not None:
            return self._splitter.may_turn(text)
        # Formats that mark reasoning and calls in one do it by markers that end so.
        return self._calls is not None and ">" in text

    @property
    def stops_armed(self) -> bool:
        return self._scanner is None or self._scanner.armed

    @stops_armed.setter
    def stops_armed(self, armed: bool) -> None:
        if self._scanner is not None:
            self._scanner.armed = armed

    def feed(self, text: str) -> Sequence[PartDelta]:
        if self.stopped:
            return ()
        reasoning, answer = self._splitter.feed(text) if self._splitter else ("", text)
        return [*self._reasoning(reasoning), *self._answer(answer)]

    def finish(self, *, cut: bool = False) -> Sequence[PartDelta]:
        reasoning, answer = self._splitter.finish() if self._splitter else ("", "")
        parts = [*self._reasoning(reasoning), *self._answer(answer)]
        if self._calls is not None and not self.stopped:
            parts += self._until_stop(self._calls.finish(cut=cut))
        if not self.stopped:
            parts += self._released()
        return parts

    def _reasoning(self, text: str) -> Sequence[PartDelta]:
        return (ReasoningDelta(self._choice, text),) if text and self._visible else ()

    def _text(self, text: str) -> Sequence[PartDelta]:
        return (TextDelta(self._choice, text),) if text else ()

    def _scanned(self, text: str) -> Sequence[PartDelta]:
        """What of text may be passed on now, as far as stop strings go."""
        if self._scanner is None:
            return self._text(text)
        passed = self._scanner.feed(text)
        self.kept_back += len(text) - len(passed)
        return self._text(passed)

    def _released(self) -> Sequence[PartDelta]:
        """What the scanner holds back, now that no stop string can come of it."""
        self.kept_back = 0
        return self._text(self._scanner.finish() if self._scanner else "")

    def _answer(self, text: str) -> Sequence[PartDelta]:
        """What of the answer may be passed on now."""
        if not text:
            return ()
        if self._calls is not None:
            return self._until_stop(self._calls.feed(text))
        return self._scanned(text)

    def _until_stop(self, parts: Sequence[PartDelta]) -> Sequence[PartDelta]:
        """What of text and calls may be passed on; no stop string spans a call."""
        passed: list[PartDelta] = []
        for part in parts:
            if isinstance(part, TextDelta) and self._scanner is not None:
                passed += self._scanned(part.text)
            elif isinstance(part, ReasoningDelta) and not self._visible:
                continue
            else:
                passed += self._released()
                if self._single_call and isinstance(part, ToolCallStarted) and part.call:
                    self._second_call = True
                else:
                    passed.append(part)
            if self.stopped:
                break
        return passed
