"""A record as one flat JSON object, for files and the log. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.usage_record import UsageRecord


def line_of(record: UsageRecord) -> dict[str, Any]:
    """Every field by its name, those of the usage among them."""
    fields = msgspec.structs.asdict(record)
    usage = fields.pop("usage")
    return {**fields, **msgspec.structs.asdict(usage)}
