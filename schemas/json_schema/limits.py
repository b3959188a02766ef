"""How large a JSON schema may become.

Source: error catalogue, `json_schema_refs_too_large`.
"""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 1 << 20
"""Encoded JSON of the schema, its references inlined."""

MAX_NODES: Final = 10_000
"""Schemas within the schema, its references inlined."""

MAX_DEPTH: Final = 100
"""Levels of JSON. The time that grammar compilers take grows steeply with it."""
