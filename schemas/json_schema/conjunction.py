"""Two schemas that must both hold, as one.

Works on schemas without references. Where JSON Schema has no keyword for the exact result, the
result is the nearest wider one: it accepts whatever both accept. Parts that are themselves schemas
are not worked out here but left as an `allOf` of the two.

Source: JSON Schema 2020-12, core, section 10.2.1.1 ("allOf"); validation, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LEAST: Final = (*("maxItems", "maxLength", "maxProperties", "maximum", "exclusiveMaximum"),)
_GREATEST: Final = (*("minItems", "minLength", "minProperties", "minimum", "exclusiveMinimum"),)
_OBJECT: Final = ("properties", "patternProperties", "additionalProperties")
_ARRAY: Final = ("prefixItems", "items")


def both(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any] | None:
    """The conjunction of two schemas' plain keywords (no `allOf`, `anyOf`, `oneOf`).

    Returns:
        None if nothing can obey both.
    """
    merged = {**right, **left}  # of texts about a schema, the outer ones win
    merged = {name: merged[name] for name in (*left, *(name for name in right if name not in left))}
    for name in left.keys() & right.keys():
        if name in _LEAST:
            merged[name] = min(left[name], right[name])
        elif name in _GREATEST:
            merged[name] = max(left[name], right[name])
        elif name in ("propertyNames", "unevaluatedProperties"):
            merged[name] = _all_of(left[name], right[name])
    if "type" in left and "type" in right:
        merged["type"] = common_types(types(left), types(right))
        if not merged["type"]:
            return None
    if "enum" in left and "enum" in right:
        allowed = {identity(value) for value in right["enum"]}
        merged["enum"] = [value for value in left["enum"] if identity(value) in allowed]
        if not merged["enum"]:
            return None
    if "required" in left and "required" in right:
        merged["required"] = list(dict.fromkeys([*left["required"], *right["required"]]))
    if any(name in left for name in _OBJECT) and any(name in right for name in _OBJECT):
        _merge_properties(merged, left, right)
    if any(name in left for name in _ARRAY) and any(name in right for name in _ARRAY):
        _merge_items(merged, left, right)
    return merged


def types(schema: Mapping[str, Any]) -> list[str]:
    """The values of `type`, as a list."""
    value = schema["type"]
    return list(value) if isinstance(value, list) else [value]


def common_types(left: list[str], right: list[str]) -> list[str]:
    """Types that are in both; an integer is a number."""
    common = [name for name in left if name in right]
    if "integer" not in common and (
        ("integer" in left and "number" in right) or ("number" in left and "integer" in right)
    ):
        common.append("integer")
    return common


def identity(value: Any) -> bytes:
    """The same for values that JSON Schema calls equal, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value, order="deterministic")


def _merge_properties(
    merged: dict[str, Any], left: Mapping[str, Any], right: Mapping[str, Any]
) -> None:
    known = {**left.get("properties", {}), **right.get("properties", {})}
    if known:
        merged["properties"] = {
            name: _all_of(_of_property(left, name), _of_property(right, name)) for name in known
        }
    patterns = {**right.get("patternProperties", {}), **left.get("patternProperties", {})}
    if patterns:
        merged["patternProperties"] = {
            pattern: _all_of(
                left.get("patternProperties", {}).get(pattern, True),
                right.get("patternProperties", {}).get(pattern, True),
            )
            for pattern in patterns
        }
    if "additionalProperties" in left or "additionalProperties" in right:
        merged["additionalProperties"] = _all_of(
            left.get("additionalProperties", True), right.get("additionalProperties", True)
        )


def _of_property(schema: Mapping[str, Any], name: str) -> Any:
    """What one side says about a property.

    Whether a pattern matches the name is not looked into; where there are patterns, anything goes.
    """
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _merge_items(merged: dict[str, Any], left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    length = max(len(left.get("prefixItems", ())), len(right.get("prefixItems", ())))
    if length:
        merged["prefixItems"] = [
            _all_of(_of_item(left, index), _of_item(right, index)) for index in range(length)
        ]
    if "items" in left or "items" in right:
        merged["items"] = _all_of(left.get("items", True), right.get("items", True))


def _of_item(schema: Mapping[str, Any], index: int) -> Any:
    prefix = schema.get("prefixItems", ())
    return prefix[index] if index < len(prefix) else schema.get("items", True)


def _all_of(left: Any, right: Any) -> Any:
    if left is True or left == right:
        return right
    return left if right is True else {"allOf": [left, right]}
