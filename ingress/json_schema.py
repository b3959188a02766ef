"""What the dialects need of JSON schemas; the rules are the worker's too and live in `schemas`."""

from __future__ import annotations

from schemas.json_schema import enforceable

__all__ = ["enforceable"]
