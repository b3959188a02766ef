"""References within a JSON schema replaced by what they point to.

The result has no `$ref` and none of the keywords that decoding never enforces. Only places that
hold schemas are looked at: a property called `$ref`, or one inside an `enum`, is data.

The walk recurses once per level of nesting, which is bounded; chains of references are followed in
a loop, and whatever multiplies is counted as it grows.

Source: JSON Schema 2020-12, core, sections 8.2 ("$id", "$anchor", "$ref") and 10; error catalogue,
`json_schema_refs_*`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from schemas.errors import (
    InvalidJsonSchema,
    JsonSchemaRefsRecursive,
    JsonSchemaRefsRemote,
    JsonSchemaRefsTooLarge,
    JsonSchemaRefsUnresolvable,
    RequestError,
)
from schemas.json_schema.limits import MAX_BYTES, MAX_DEPTH, MAX_NODES

Schema: TypeAlias = bool | dict[str, Any]

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ONE: Final = frozenset({"additionalProperties", "propertyNames", "unevaluatedProperties"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "patternProperties"})
_COUNTS: Final = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
_MOST: Final = 2**31 - 1  # compilers count in 32 bits, and some wrap around
_BOUNDS: Final = frozenset({"minimum", "maximum"})
_EXCLUSIVE_BOUNDS: Final = frozenset({"exclusiveMinimum", "exclusiveMaximum"})
_ASSERTIONS: Final = (
    frozenset({"type", "enum", "const", "required", "pattern", "nullable", "title", "description"})
    | _COUNTS
    | _BOUNDS
    | _EXCLUSIVE_BOUNDS
)
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})

_PLAIN_NAME: Final = re.compile(r"[\w$-]{1,64}")
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


def inline(schema: Any, *, param: str) -> Schema:
    """The schema without references; a `$ref` beside other keywords becomes part of an `allOf`.

    Args:
        schema: As the client sent it.
        param: Where the request has it, for errors.

    Raises:
        InvalidJsonSchema: It is not a schema, or nests too deep, or is too large.
        JsonSchemaRefsRemote, JsonSchemaRefsUnresolvable, JsonSchemaRefsRecursive,
        JsonSchemaRefsTooLarge: Its references cannot be inlined.
    """
    place = _Place(where=param, resource=schema, resource_where=param)
    return _Inliner(schema, param).schema(schema, place)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the walk is.

    Attributes:
        where: Path in the request, for errors.
        resource: The schema that `#` means here: the nearest one around with an `$id`.
        resource_where: Its path.
        around: Identities of the schemas around this one; a reference to one of them never ends.
        depth: Levels of JSON around this one.
    """

    where: str
    resource: Any
    resource_where: str
    around: frozenset[int] = frozenset()
    depth: int = 0

    def within(self, step: str | int) -> _Place:
        """The place one level down."""
        return replace(self, where=self.where + _step(step), depth=self.depth + 1)

    def inside(self, schema: dict[str, Any]) -> _Place:
        """The same place, after entering the schema that is there."""
        place = replace(self, around=self.around | {id(schema)})
        name = schema.get("$id")
        if not isinstance(name, str) or name.startswith("#"):
            return place
        return replace(place, resource=schema, resource_where=self.where)


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_NAME.fullmatch(step) else ".*"


class _Inliner:
    def __init__(self, document: Any, param: str) -> None:
        self._document = document
        self._param = param
        self._nodes = 0
        self._bytes = 0
        self._followed = False
        self._named: dict[str, Any] | None = None  # by `$id`, once needed

    def schema(self, schema: Any, place: _Place) -> Schema:
        """One schema and all within it."""
        self._nodes += 1
        if place.depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise self._too_large()
        parts: list[Schema] = []
        while isinstance(schema, dict):
            place = place.inside(schema)
            reference = next((name for name in _REFERENCES if name in schema), None)
            keywords = self._keywords(schema, place)
            if keywords or reference is None:
                parts.append(keywords)
            if reference is None:
                break
            schema, place = self._follow(schema[reference], place, reference)
        if isinstance(schema, bool):
            parts.append(schema)
        elif not isinstance(schema, dict):
            raise InvalidJsonSchema(
                f"`{place.where}` must be a schema: an object or a boolean.", param=place.where
            )
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def _keywords(self, schema: Mapping[str, Any], place: _Place) -> dict[str, Any]:
        """Those of the schema's own keywords that decoding can enforce, in their order."""
        kept: dict[str, Any] = {}
        for name, value in schema.items():
            here = place.within(name)
            if name in _ONE:
                kept[name] = self.schema(value, here)
            elif name in _LISTS:
                entries = _expect(value, list, "an array", here)
                kept[name] = [
                    self.schema(entry, here.within(index)) for index, entry in enumerate(entries)
                ]
            elif name in _MAPS:
                entries = _expect(value, dict, "an object", here)
                kept[name] = {
                    key: self.schema(entry, here.within(key)) for key, entry in entries.items()
                }
                self._count(list(entries))
            elif name in ("items", "additionalItems"):
                self._items(kept, name, value, here)
            else:
                self._assertion(kept, name, value, here)
        return kept

    def _items(self, kept: dict[str, Any], name: str, value: Any, here: _Place) -> None:
        """`items`, also in the older spelling: an array, and `additionalItems` for the rest."""
        if isinstance(value, list):
            kept["prefixItems"] = [
                self.schema(entry, here.within(index)) for index, entry in enumerate(value)
            ]
        elif name == "items":
            kept["items"] = self.schema(value, here)
        elif isinstance(kept.get("prefixItems"), list):
            kept.setdefault("items", self.schema(value, here))

    def _assertion(self, kept: dict[str, Any], name: str, value: Any, here: _Place) -> None:
        """A keyword whose value is not a schema; those never enforced are left out."""
        if name not in _ASSERTIONS:
            return
        if name in _EXCLUSIVE_BOUNDS and isinstance(value, bool):
            rule = None  # as in the oldest schemas
        elif name == "required" and isinstance(value, bool):
            return  # as in the oldest schemas, and it does not speak of this one
        else:
            rule = _broken_rule(name, value)
        if rule is not None:
            raise _malformed(here, rule)
        self._count(value)
        kept[name] = min(int(value), _MOST) if name in _COUNTS else value

    # --- References ------------------------------------------------------------------------------

    def _follow(self, reference: Any, place: _Place, keyword: str) -> tuple[Any, _Place]:
        """The schema that is referred to, and its place."""
        here = place.within(keyword)
        if not isinstance(reference, str):
            raise _malformed(here, "must be a string")
        self._followed = True
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._too_large()
        address, _, fragment = reference.partition("#")
        if address:
            resource = self._resource(address)
            if resource is None:
                raise JsonSchemaRefsRemote(
                    f"`{here.where}` refers to another document; only local references work.",
                    param=here.where,
                )
            place = replace(place, resource=resource, resource_where=place.where)
        found, where = _target(place, _unquote(fragment))
        if not isinstance(found, dict | bool):
            raise JsonSchemaRefsUnresolvable(
                f"`{here.where}` refers to a schema that is not there.", param=here.where
            )
        if id(found) in place.around:
            raise JsonSchemaRefsRecursive(
                f"`{here.where}` refers to a schema that it is part of; "
                "recursive schemas are not supported.",
                param=here.where,
            )
        return found, replace(place, where=where)

    def _resource(self, address: str) -> Any:
        """The schema that has this `$id`; None if none has."""
        if self._named is None:
            self._named = {}
            for schema in _dicts(self._document):
                if isinstance(name := schema.get("$id"), str):
                    self._named.setdefault(name.removesuffix("#"), schema)
        return self._named.get(address)

    # --- Limits ----------------------------------------------------------------------------------

    def _count(self, value: Any) -> None:
        self._bytes += len(msgspec.json.encode(value))
        if self._bytes > MAX_BYTES:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        if self._followed:
            return JsonSchemaRefsTooLarge(
                f"`{self._param}` becomes too large once its references are inlined.",
                param=self._param,
            )
        return InvalidJsonSchema(f"`{self._param}` is too large or too deep.", param=self._param)


def _target(place: _Place, fragment: str) -> tuple[Any, str]:
    """What a fragment points to within the resource, and its path; None if to nothing."""
    found, where = place.resource, place.resource_where
    if not fragment:
        return found, where
    if not fragment.startswith("/"):
        return next(filter(lambda schema: _is_called(schema, fragment), _dicts(found)), None), where
    for token in fragment[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found, where = found[name], where + _step(name)
        elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found, where = found[int(name[:9])], where + _step(int(name[:9]))
        else:
            return None, where
    return found, where


def _is_called(schema: Mapping[str, Any], fragment: str) -> bool:
    names = (schema.get("$anchor"), schema.get("$dynamicAnchor"))
    return fragment in names or schema.get("$id") == f"#{fragment}"


def _broken_rule(name: str, value: Any) -> str | None:
    """What a keyword's value would have to be and is not."""
    match name:
        case "type":
            names = value if isinstance(value, list) else [value]
            if not names or any(not isinstance(each, str) or each not in _TYPES for each in names):
                return "must be one or more of JSON's types"
        case "enum" if not isinstance(value, list):
            return "must be an array"
        case "required":
            if not isinstance(value, list) or any(not isinstance(each, str) for each in value):
                return "must be an array of strings"
        case "pattern" | "title" | "description" if not isinstance(value, str):
            return "must be a string"
        case _ if name in _COUNTS:
            if not _is_number(value) or value != int(value) or value < 0:
                return "must be an integer of at least 0"
        case _ if name in _BOUNDS or name in _EXCLUSIVE_BOUNDS:
            if not _is_number(value):
                return "must be a number"
    return None


def _expect(value: Any, kind: type, name: str, here: _Place) -> Any:
    if not isinstance(value, kind):
        raise _malformed(here, f"must be {name}")
    return value


def _malformed(here: _Place, rule: str) -> InvalidJsonSchema:
    return InvalidJsonSchema(f"`{here.where}` {rule}.", param=here.where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _dicts(value: Any) -> Sequence[Mapping[str, Any]]:
    """All objects within a value, itself included."""
    found: list[Mapping[str, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found.append(each)
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return found


def _unquote(fragment: str) -> str:
    """Percent escapes undone."""
    if "%" not in fragment:
        return fragment
    raw = _PERCENT.sub(lambda found: bytes([int(found[1], 16)]), fragment.encode())
    return raw.decode(errors="replace")
