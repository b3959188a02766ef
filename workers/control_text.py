"""Control text: what in a vocabulary steers a model, and how callers' text is kept from being it.

Knows tokenizers, and neither templates nor conversations.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

_BRACKETED: Final = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_OUTPUT_MARKER: Final = re.compile(
    r"think|thought|reason|tool|call|channel|function|arg_|python_", re.I
)


class ControlText:
    """Keeps control text that a caller wrote from becoming control tokens.

    A mark is put after the first character of every control text found in the caller's strings. It
    is plain letters, so that it comes through the template wherever the string goes, JSON included.
    The rendered text is then cut at the marks: the two halves are tokenised apart, and neither is
    control. Strings without control text are left alone, so the usual prompt is exactly the
    template's.
    """

    def __init__(self, controls: frozenset[str]) -> None:
        self._mark = f"x{secrets.token_hex(12)}x"
        rests: dict[str, list[str]] = {}
        for control in sorted(controls):
            rests.setdefault(control[0], []).append(re.escape(control[1:]))
        # Only the first character is consumed, so that overlapping control texts are all found.
        pattern = "|".join(
            f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()
        )
        self._found = re.compile(pattern) if rests else None
        self._beginnings = {control[:end] for control in controls for end in range(1, len(control))}
        self._longest = max(map(len, controls), default=0)

    def mark(self, value: Any) -> Any:
        """A copy of a JSON value with the marks in its strings, keys included."""
        match value:
            case str():
                return self._mark_text(value)
            case dict():
                return {self.mark(key): self.mark(item) for key, item in value.items()}
            case list() | tuple():
                return [self.mark(item) for item in value]
            case _:
                return value

    def segments(self, text: str) -> list[str]:
        """Rendered text, cut at the marks; at least one segment."""
        return text.split(self._mark)

    def _mark_text(self, text: str) -> str:
        if self._found is None:
            return text
        cuts = [found.end() for found in self._found.finditer(text)]
        # A string that ends like a control text could be completed by what the template puts next.
        if any(text[-size:] in self._beginnings for size in range(1, self._longest)):
            cuts.append(len(text))
        if not cuts:
            return text
        edges = [0, *cuts, len(text)]
        return self._mark.join(text[start:end] for start, end in pairwise(edges))


def control_texts(tokenizer: Any, template: str) -> frozenset[str]:
    """Texts of added tokens that mean control.

    Special tokens always do. Others do when they look like markup and the template or an output
    parser gives them a meaning: `<think>` is such a token in many models, while runs of spaces or
    HTML tags, which some vocabularies also hold, are ordinary text.
    """
    special = special_texts(tokenizer)
    controls = set()
    for token in getattr(tokenizer, "added_tokens_decoder", {}).values():
        content = token.content
        if (
            not token.special
            and _BRACKETED.fullmatch(content)
            and (content in template or _OUTPUT_MARKER.search(content))
        ):
            controls.add(content)
    return frozenset(controls | {text for text in special if len(text.strip()) > 1})


def special_texts(tokenizer: Any) -> frozenset[str]:
    """All tokens that decoding leaves out, those without a role in the tokenizer included."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset(tokenizer.all_special_tokens) | {
        token.content for token in added if token.special
    }


def has_output_marker(special_tokens: Iterable[str]) -> bool:
    """Whether one of these texts marks reasoning or tool calls in a model's output."""
    return any(_OUTPUT_MARKER.search(token) for token in special_tokens)
