"""How much of a text's end must wait because it could still become a marker."""

from __future__ import annotations


def partial_marker(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` without completing it."""
    last = text[-1:]
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker[length - 1] == last and text.endswith(marker[:length]):
            return length
    return 0
