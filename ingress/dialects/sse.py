"""Server-sent events: payload -> Frame.

A Frame is one complete record, so that whoever writes Frames one after the other can never glue two
records together. This module knows no dialect.

Source: WHATWG HTML, "Server-sent events", section 9.2.6 (interpreting an event stream).
"""

from __future__ import annotations

from ingress.dialects.base import Frame

DATA = b"data: "
END = b"\n\n"

DONE: Frame = b"data: [DONE]\n\n"
"""The last record of a successful stream in the OpenAI dialects."""

KEEP_ALIVE: Frame = b": keep-alive\n\n"
"""A comment; every client ignores it."""


def event(name: str, payload: bytes) -> Frame:
    """A record with an event name. `payload` is one line (see `wire_json`)."""
    return b"event: %b\n" % name.encode() + DATA + payload + END


def data(payload: bytes) -> Frame:
    """A record without an event name. `payload` is one line (see `wire_json`)."""
    return DATA + payload + END
