"""Finds stop strings in answer text and cuts the text off before them.

Stop strings act on the answer only, never on reasoning or tool calls, so this comes after those
were split off. There are two kinds: the caller's, which the reply names, and those that belong to
the model's chat template (such as the next speaker's label), which are a natural end.

The string that is complete first wins, counted in characters; of several that are complete at the
same character, the longest. So the result does not depend on how the text was cut into chunks.
"""

from __future__ import annotations

from schemas.sampling import StopConditions
from workers.parsing.holdback import partial_marker


class StopScanner:
    """Passes answer text through until a stop string.

    Args:
        stop: The caller's stop conditions; `include_in_text` keeps the caller's string in the text.
        template_stops: The template's own stop strings, which are never kept.

    Attributes:
        stopped: A stop string was found; further text is dropped.
        matched: The caller's stop string that was found; None if it was the template's.
        armed: While False, stop strings that become complete are ordinary text.
    """

    __slots__ = ("_callers", "_held", "_include", "_strings", "armed", "matched", "stopped")

    def __init__(self, stop: StopConditions, template_stops: tuple[str, ...] = ()) -> None:
        self._callers = frozenset(stop.strings)
        # The empty string would end every answer before it began.
        self._strings = tuple(filter(None, dict.fromkeys(stop.strings + template_stops)))
        self._include = stop.include_in_text
        self._held = ""
        self.stopped = False
        self.matched: str | None = None
        self.armed = True

    def feed(self, text: str) -> str:
        """Take more text; returns what is certain to come before any stop string."""
        if self.stopped:
            return ""
        known = len(self._held)
        text, self._held = self._held + text, ""
        # (end, start) of each string's first occurrence that ends in the new text: the smallest is
        # complete first, and of equals the one that starts earliest is the longest.
        found = [
            (start + len(string), start, string)
            for string in self._strings
            if (start := text.find(string, max(0, known - len(string) + 1))) >= 0
        ]
        if found and self.armed:
            return self._stop_at(text, *min(found))
        held = max((partial_marker(text, string) for string in self._strings), default=0)
        if held:
            self._held = text[-held:]
            return text[:-held]
        return text

    def finish(self) -> str:
        """The text has ended: release what is held back."""
        held, self._held = self._held, ""
        return held

    def _stop_at(self, text: str, end: int, start: int, string: str) -> str:
        self.stopped = True
        if string not in self._callers:
            return text[:start]
        self.matched = string
        return text[:end] if self._include else text[:start]
