"""One choice's parser, put together from stages: generated text in, Deltas out.

    text ─► reasoning split off ─► answer text ─► stop strings ─► TextDelta
                    └─► ReasoningDelta

The order matters. Reasoning is split off first, so that neither a stop string nor a drafted tool
call inside it acts. A stage that finds tool calls stands between the two: it takes answer text, and
what it leaves of it goes on to the stop strings (`StagedParser._answer`).
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.delta import ReasoningDelta, TextDelta
from schemas.sampling import StopConditions
from workers.parsing.base import ChoiceParser, PartDelta, PlainText
from workers.parsing.reasoning import REASONING_FORMATS, ReasoningSplitter
from workers.parsing.stop import StopScanner

__all__ = ["ChoiceParser", "StagedParser", "build_parser"]


def build_parser(
    choice: int,
    *,
    reasoning_format: str | None,
    starts_inside: bool,
    visible: bool,
    stop: StopConditions,
    template_stops: tuple[str, ...],
    hidden_when_off: bool = False,
) -> ChoiceParser:
    """The parser for one choice, with no more stages than it needs.

    Args:
        choice: Number of the choice, for its Deltas.
        reasoning_format: A name of `REASONING_FORMATS`; None for raw text.
        starts_inside: The prompt ends inside an open reasoning part.
        visible: Reasoning is passed on; otherwise it is split off and dropped.
        stop: The caller's stop conditions.
        template_stops: Stop strings of the model's chat template.
        hidden_when_off: See `ReasoningSplitter`; for requests with reasoning off only.

    Raises:
        KeyError: There is no such format.
    """
    splitter = None
    if reasoning_format is not None:
        splitter = ReasoningSplitter(
            REASONING_FORMATS[reasoning_format],
            starts_inside=starts_inside,
            hidden_when_off=hidden_when_off,
        )
    scanner = StopScanner(stop, template_stops) if stop.strings or template_stops else None
    if splitter is None and scanner is None:
        return PlainText(choice)
    return StagedParser(choice, splitter, scanner, visible=visible)


class StagedParser:
    """Runs text through the stages."""

    def __init__(
        self,
        choice: int,
        splitter: ReasoningSplitter | None,
        scanner: StopScanner | None,
        *,
        visible: bool,
    ) -> None:
        self._choice = choice
        self._splitter = splitter
        self._scanner = scanner
        self._visible = visible

    @property
    def stopped(self) -> bool:
        return self._scanner is not None and self._scanner.stopped

    @property
    def matched(self) -> str | None:
        return self._scanner.matched if self._scanner else None

    @property
    def in_answer(self) -> bool:
        return self._splitter is None or self._splitter.in_answer

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
        return self._parts(reasoning, self._answer(answer))

    def finish(self) -> Sequence[PartDelta]:
        reasoning, answer = self._splitter.finish() if self._splitter else ("", "")
        answer = self._answer(answer)
        if self._scanner is not None:
            answer += self._scanner.finish()
        return self._parts(reasoning, answer)

    def _answer(self, text: str) -> str:
        """What of the answer text may be passed on now."""
        return self._scanner.feed(text) if self._scanner and text else text

    def _parts(self, reasoning: str, answer: str) -> Sequence[PartDelta]:
        parts: list[PartDelta] = []
        if reasoning and self._visible:
            parts.append(ReasoningDelta(self._choice, reasoning))
        if answer:
            parts.append(TextDelta(self._choice, answer))
        return parts
