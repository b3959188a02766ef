"""The dialects this service speaks, by name. A new dialect is its own files and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from ingress.dialects.base import Dialect
from ingress.dialects.chat import Chat
from ingress.dialects.completions import Completions
from ingress.dialects.messages import Messages
from ingress.dialects.responses import Responses

_ALL: tuple[Dialect, ...] = (
    Chat(),
    Completions(),
    Messages(),
    Responses(),
)

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in _ALL}
