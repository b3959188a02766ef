"""A schema without references, reduced to the forms that constrained decoding enforces.

Grammar compilers read less than JSON Schema says. Of `anyOf` beside `properties` they see one only;
of several `allOf` none; of `enum` beside `type` they believe both. So every schema is written here
as one of: an enumeration, alternatives, or one type with the keywords of that type. What has no
such form is left out, which accepts more, never less.

Two things are read as they are meant, not to the letter: a schema with the keywords of one type
only (`properties`, say) is of that type, and `nullable` allows null.

Source: Chat Completions, "Structured outputs"; XGrammar 0.2.7, whose behaviour was tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.json_schema.conjunction import both, identity, types
from schemas.json_schema.limits import MAX_NODES
from schemas.json_schema.scalars import integer, is_enforceable, number, obeys, string

_MAX_BRANCHES: Final = 64
"""Alternatives that several `anyOf` may combine to; further ones are left out."""

_KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("unevaluatedProperties", "minProperties", "maxProperties"),
    ),
    "array": ("prefixItems", "items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_TEXTS: Final = ("title", "description")
_EXCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_COMBINING: Final = ("allOf", "anyOf", "oneOf")


class TooComplex(Exception):
    """Working the schema out takes too much."""


def canonical(schema: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in enforceable form.

    Returns:
        None if no value obeys it.

    Raises:
        TooComplex: It combines too many alternatives.
    """
    return _Reduction().schema(schema)


class _Whole:
    """All that must hold at once.

    Attributes:
        keywords: Plain keywords, merged.
        choices: Lists of alternatives; one of each must hold.
        texts: Title and description, the outermost ones.
    """

    def __init__(self) -> None:
        self.keywords: dict[str, Any] = {}
        self.choices: list[Sequence[Any]] = []
        self.texts: dict[str, Any] = {}

    def take(self, part: Mapping[str, Any]) -> Sequence[bool | Mapping[str, Any]] | None:
        """Add a schema.

        Returns:
            What of it has to be added next, in the order of its keywords; None if it contradicts.
        """
        for name in _TEXTS:
            if name in part:
                self.texts.setdefault(name, part[name])
        own = {name: value for name, value in part.items() if name not in ("allOf", *_TEXTS)}
        inner: Sequence[bool | Mapping[str, Any]] = part.get("allOf", ())
        if inner and own:
            names = [name for name in part if name not in _TEXTS]
            return (*inner, own) if names[0] == "allOf" else (own, *inner)
        if inner:
            return inner
        plain = {name: value for name, value in own.items() if name not in _COMBINING}
        merged = both(self.keywords, _one_spelling(plain))
        if merged is None:
            return None
        self.keywords = merged
        self.choices += [own[name] for name in ("anyOf", "oneOf") if name in own]
        return ()


class _Reduction:
    def __init__(self) -> None:
        self._nodes = 0

    def schema(self, schema: bool | Mapping[str, Any]) -> dict[str, Any] | None:
        self._count(1)
        whole = _Whole()
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, bool):
                if part:
                    continue
                return None
            rest = whole.take(part)
            if rest is None:
                return None
            self._count(len(whole.keywords.get("properties", ())))
            waiting += reversed(rest)
        if whole.choices:
            reduced = self._alternatives(whole.keywords, whole.choices)
        else:
            reduced = self._typed(whole.keywords)
        return None if reduced is None else {**whole.texts, **reduced}

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > 2 * MAX_NODES:
            raise TooComplex

    # --- Alternatives ----------------------------------------------------------------------------

    def _alternatives(
        self, base: Mapping[str, Any], choices: Sequence[Sequence[Any]]
    ) -> dict[str, Any] | None:
        combined: list[tuple[Any, ...]] = [(base,)]
        for choice in choices:
            if len(combined) == 1 or len(combined) * len(choice) <= _MAX_BRANCHES:
                combined = [(*each, option) for each, option in itertools.product(combined, choice)]
        branches = [self.schema({"allOf": list(each)}) for each in combined]
        return _any_of([branch for branch in branches if branch is not None])

    def _typed(self, base: dict[str, Any]) -> dict[str, Any] | None:
        allowed = _allowed_types(base)
        if "enum" in base:
            values = [value for value in base["enum"] if obeys(value, allowed, base)]
            return _enumeration(values) if values else None
        if allowed is None:
            return {}
        branches = [self._of_type(name, base) for name in allowed]
        return _any_of([branch for branch in branches if branch is not None])

    # --- One type --------------------------------------------------------------------------------

    def _of_type(self, name: str, base: Mapping[str, Any]) -> dict[str, Any] | None:
        own = {
            keyword: base[keyword]
            for keyword in base
            if keyword in _KEYWORDS.get("number" if name == "integer" else name, ())
        }
        match name:
            case "object":
                return self._object(own)
            case "array":
                return self._array(own)
            case "string":
                return string(own)
            case "integer":
                return integer(own)
            case "number":
                return number(own)
            case _:
                return {"type": name}

    def _object(self, own: Mapping[str, Any]) -> dict[str, Any] | None:
        patterns = self._patterns(own)
        additional = self._additional(own)
        closed = additional is False and not patterns
        required = list(dict.fromkeys(own.get("required", ())))
        properties = self._properties(own, required)
        least, most = own.get("minProperties", 0), own.get("maxProperties")
        if (
            properties is None
            or (closed and max(least, len(required)) > len(properties))
            or (most is not None and max(least, len(required)) > most)
        ):
            return None
        for name in required:
            properties.setdefault(name, additional if isinstance(additional, dict) else {})
        if additional is None and least > len(properties):
            additional = True  # left unsaid, decoding would add none
        parts = {
            "properties": properties,
            "required": required,
            "patternProperties": patterns,
            "propertyNames": self._property_names(own),
            "additionalProperties": additional,
            "minProperties": least if least > len(required) else None,
            "maxProperties": most,
        }
        return {"type": "object"} | {
            name: part for name, part in parts.items() if part is not None and part not in ({}, [])
        }

    def _properties(self, own: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any] | None:
        """Those that something can obey; None if one that cannot is required."""
        properties: dict[str, Any] = {}
        for name, schema in own.get("properties", {}).items():
            reduced = self.schema(schema)
            if reduced is not None:
                properties[name] = reduced
            elif name in required:
                return None
        return properties

    def _patterns(self, own: Mapping[str, Any]) -> dict[str, Any]:
        patterns: dict[str, Any] = {}
        for pattern, schema in own.get("patternProperties", {}).items():
            reduced = self.schema(schema) if is_enforceable(pattern) else None
            if reduced is not None:
                patterns[pattern] = reduced
        return patterns

    def _additional(self, own: Mapping[str, Any]) -> bool | dict[str, Any] | None:
        """What further properties must obey; None if nothing is said about them."""
        rest = own.get("additionalProperties", own.get("unevaluatedProperties"))
        if rest is None:
            return None
        if not all(map(is_enforceable, own.get("patternProperties", ()))):
            return True  # they have to make room for what was left out
        reduced = self.schema(rest)
        return False if reduced is None else reduced or True

    def _property_names(self, own: Mapping[str, Any]) -> dict[str, Any] | None:
        """`propertyNames`, where nothing else says what the names are."""
        if "propertyNames" not in own or own.get("properties") or own.get("required"):
            return None
        names = self.schema({"allOf": [{"type": "string"}, own["propertyNames"]]})
        return None if names == {"type": "string"} else names

    def _array(self, own: Mapping[str, Any]) -> dict[str, Any] | None:
        least: int = own.get("minItems", 0)
        most: float = own.get("maxItems", math.inf)
        prefix: list[dict[str, Any]] = []
        for schema in own.get("prefixItems", ()):
            reduced = self.schema(schema)
            if reduced is None:
                most = min(most, len(prefix))
                break
            prefix.append(reduced)
        rest = self.schema(own.get("items", True))
        if rest is None:
            most = min(most, len(prefix))
        if least > most:
            return None
        parts: dict[str, Any] = {}
        if prefix and most:
            parts["prefixItems"] = prefix[: len(prefix) if most == math.inf else int(most)]
        if most <= len(prefix):
            parts["items"] = False
        elif "items" in own or not prefix or least > len(prefix) or most < math.inf:
            parts["items"] = rest
        if least:
            parts["minItems"] = least
        if most < math.inf:
            parts["maxItems"] = most
        return {"type": "array", **parts}


# --- Parts ---------------------------------------------------------------------------------------


def _one_spelling(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Older and shorter keywords in terms of the others."""
    keywords = dict(plain)
    if "const" in keywords:
        values = [keywords.pop("const")]
        if identity(values[0]) not in map(identity, keywords.get("enum", values)):
            values = []
        keywords["enum"] = values
    if keywords.pop("nullable", False) is True and "type" in keywords:
        keywords["type"] = list(dict.fromkeys([*types(keywords), "null"]))
    for exclusive, bound in _EXCLUSIVE.items():
        if isinstance(flag := keywords.get(exclusive), bool):
            del keywords[exclusive]
            if flag and bound in keywords:
                keywords[exclusive] = keywords.pop(bound)
    return keywords


def _allowed_types(base: Mapping[str, Any]) -> list[str] | None:
    """Types that values may have; None if any."""
    if "type" in base:
        allowed = list(dict.fromkeys(types(base)))
        return [name for name in allowed if name != "integer" or "number" not in allowed]
    if "enum" in base:
        return None
    meant = [name for name in _KEYWORDS if any(keyword in base for keyword in _KEYWORDS[name])]
    return meant or None


def _enumeration(values: Sequence[Any]) -> dict[str, Any]:
    distinct = list({identity(value): value for value in values}.values())
    return {"const": distinct[0]} if len(distinct) == 1 else {"enum": distinct}


def _any_of(branches: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """One of several schemas, each of which something obeys."""
    flat = [
        option
        for branch in branches
        for option in (branch["anyOf"] if list(branch) == ["anyOf"] else [branch])
    ]
    distinct = list({identity(branch): branch for branch in flat}.values())
    if {"type": "number"} in distinct and {"type": "integer"} in distinct:
        distinct.remove({"type": "integer"})
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    if {} in distinct:
        return {}
    if all(list(branch) == ["type"] for branch in distinct):
        names = dict.fromkeys(name for branch in distinct for name in types(branch))
        return {"type": list(names)}
    return {"anyOf": distinct}
