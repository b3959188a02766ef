"""Finds stop patterns in answer text and cuts the text off before them.

Stands behind the scanner for stop strings and has its interface. The match that is complete first
wins, counted in characters; of several that are complete at the same character, the longest. A stop
string wins over a pattern that would have ended inside it. So the result does not depend on how the
text was cut into chunks.
"""

from __future__ import annotations

from schemas.sampling import StopConditions
from schemas.stop_pattern import StopAutomaton
from workers.parsing.stop import StopScanner


class StopPatternScanner:
    """Passes answer text through until a stop string or a stop pattern.

    Args:
        stop: The caller's stop conditions, with patterns.
        template_stops: The template's own stop strings.
    """

    def __init__(self, stop: StopConditions, template_stops: tuple[str, ...] = ()) -> None:
        self._strings = StopScanner(stop, template_stops)
        self._automaton = StopAutomaton(stop.patterns)
        self._include = stop.include_in_text
        self._held = ""
        self._live: dict[int, int] = {}  # state -> where in the held text its match began
        self._matched: str | None = None

    @property
    def stopped(self) -> bool:
        return self._matched is not None or self._strings.stopped

    @property
    def matched(self) -> str | None:
        return self._strings.matched if self._matched is None else self._matched

    @property
    def armed(self) -> bool:
        return self._strings.armed

    @armed.setter
    def armed(self, armed: bool) -> None:
        self._strings.armed = armed

    def feed(self, text: str) -> str:
        """Take more text; returns what is certain to come before any stop."""
        if self.stopped:
            return ""
        passed = self._search(self._strings.feed(text))
        return passed + self._release() if self.stopped else passed

    def finish(self) -> str:
        """The text has ended: release what is held back."""
        if self.stopped:
            return ""
        return self._search(self._strings.finish()) + self._release()

    def _release(self) -> str:
        held, self._held = self._held, ""
        self._live.clear()
        return held

    def _search(self, text: str) -> str:
        start, text = len(self._held), self._held + text
        for at in range(start, len(text)):
            char = text[at]
            live: dict[int, int] = {}
            # Earlier beginnings come first, and of equal states the earliest is kept.
            for state, began in self._live.items():
                if after := self._automaton.step(state, char):
                    live.setdefault(after, began)
            if after := self._automaton.begin(char):
                live.setdefault(after, at)
            self._live = live
            for state, began in live.items() if self.armed else ():
                if (pattern := self._automaton.matched(state)) is not None:
                    self._matched = pattern
                    self._held = ""
                    return text[: at + 1] if self._include else text[:began]
        keep = min(self._live.values(), default=len(text))
        self._held = text[keep:]
        self._live = {state: began - keep for state, began in self._live.items()}
        return text[:keep]
