"""JSON as it goes onto the wire.

Plain orjson output, except that the three characters which JSON allows inside strings but which
many line readers take for the end of a line are escaped: NEL (U+0085), LINE SEPARATOR (U+2028) and
PARAGRAPH SEPARATOR (U+2029). JSON's own rules escape every other such character already.
"""

from __future__ import annotations

from typing import Any

import orjson

# Each sequence starts with a UTF-8 lead byte, so it cannot match inside another character, and in
# JSON these characters stand only inside strings, where an escape is legal.
_ESCAPES = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def encode(value: Any) -> bytes:
    """JSON of any value that orjson takes."""
    return _escape(orjson.dumps(value))


def encode_text(text: str) -> bytes:
    """The JSON string literal of `text`. On the path of every text Delta."""
    encoded = orjson.dumps(text)
    return encoded if text.isascii() else _escape(encoded)


def _escape(encoded: bytes) -> bytes:
    for raw, escaped in _ESCAPES:
        encoded = encoded.replace(raw, escaped)
    return encoded
