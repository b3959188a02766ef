"""How much of a text's end must wait because it could still become a marker."""

from __future__ import annotations


def partial_marker(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` without completing it."""
    if len(marker) < 2:
        return 0
    tail = text[1 - len(marker) :]
    start = tail.find(marker[0])
    while start >= 0 and not marker.startswith(tail[start:]):
        start = tail.find(marker[0], start + 1)
    return len(tail) - start if start >= 0 else 0
