"""Small texts that obey a constraint, for the scripted engine: it has no model to constrain.

Simple on purpose: the least that JSON schemas, patterns and grammars of clients need. Where that is
not enough the result is `None`, and the engine says what it would have said anyway.
"""

from __future__ import annotations

import re
from typing import Any, Final

_DEPTH: Final = 24
_PLAIN: Final[dict[str, Any]] = {
    "object": {},
    "array": [],
    "string": "text",
    "integer": 0,
    "number": 0,
    "boolean": True,
    "null": None,
}
_FORMATS: Final = {
    "date-time": "2020-01-01T00:00:00Z",
    "date": "2020-01-01",
    "time": "00:00:00Z",
    "email": "a@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def instance(schema: Any, depth: int = 0) -> Any:
    """A small value that obeys a JSON schema whose references are inlined."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return {}
    if "const" in schema:
        return schema["const"]
    for fixed in ("enum", "examples"):
        if schema.get(fixed):
            return schema[fixed][0]
    for several in ("anyOf", "oneOf"):
        if schema.get(several):
            return instance({**_without(schema, several), **schema[several][0]}, depth + 1)
    if schema.get("allOf"):
        return instance(_merged([_without(schema, "allOf"), *schema["allOf"]]), depth + 1)
    match _type(schema):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: instance(properties.get(name, {"type": "string"}), depth + 1)
                for name in dict.fromkeys(schema.get("required", ()))
            }
        case "array":
            firsts = schema.get("prefixItems", [])
            items = [instance(item, depth + 1) for item in firsts]
            more = schema.get("minItems", 0) - len(items)
            return items + [instance(schema.get("items", {}), depth + 1) for _ in range(more)]
        case "string":
            return _string(schema)
        case "integer" | "number":
            return _number(schema)
        case kind:
            return _PLAIN.get(kind, {})


def is_open(schema: dict[str, Any]) -> bool:
    """Whether any JSON object obeys a schema."""
    return schema.get("type", "object") == "object" and not (
        schema.keys() - {"type", "title", "description", "additionalProperties", "$schema"}
    )


def _without(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != keyword}


def _merged(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for schema in schemas:
        properties = {**merged.get("properties", {}), **schema.get("properties", {})}
        required = [*merged.get("required", ()), *schema.get("required", ())]
        merged = {**merged, **schema, "properties": properties, "required": required}
    return merged


def _type(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "array" if "items" in schema or "prefixItems" in schema else "object"


def _string(schema: dict[str, Any]) -> str:
    if "pattern" in schema and (matching := matching_text(schema["pattern"])) is not None:
        return matching
    text = _FORMATS.get(schema.get("format", ""), "text")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    return text.ljust(least, "x")[:most]


def _number(schema: dict[str, Any]) -> Any:
    step = schema.get("multipleOf", 1)
    if "minimum" in schema or "exclusiveMinimum" in schema:
        least = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", 0))
        whole = -(-least // step) * step
        return whole + step if whole == schema.get("exclusiveMinimum") else whole
    most = min(schema.get("maximum", 0), schema.get("exclusiveMaximum", step) - step)
    return most // step * step


def matching_text(pattern: str) -> str | None:
    """A short text that a regular expression matches as a whole."""
    try:
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined] # nothing public parses
        text: str = "".join(_piece(*item) for item in parsed)
        return text if re.fullmatch(pattern, text) else None
    except (re.error, ValueError, RecursionError, OverflowError, StopIteration):
        return None


def _piece(kind: object, value: Any) -> str:
    match str(kind):
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return "a" if value != ord("a") else "b"
        case "ANY":
            return "a"
        case "AT":
            return ""
        case "IN":
            return _one_of(value)
        case "BRANCH":
            return "".join(_piece(*item) for item in value[1][0])
        case "SUBPATTERN":
            return "".join(_piece(*item) for item in value[-1])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return "".join(_piece(*item) for item in [*value[2]] * value[0])
        case other:
            raise ValueError(other)


def _one_of(members: Any) -> str:
    """A character of a class such as `[^a-z]`."""
    pattern = re.compile(f"[{''.join(_class_member(str(kind), value) for kind, value in members)}]")
    named: list[str] = [chr(value) for kind, value in members if str(kind) == "LITERAL"]
    named += [chr(value[0]) for kind, value in members if str(kind) == "RANGE"]
    candidates: list[str] = [*named, *"a0A _-.,é"]
    return next(char for char in candidates if pattern.match(char))


def _class_member(kind: str, value: Any) -> str:
    match kind:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return re.escape(chr(value))
        case "RANGE":
            return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        case _:
            _, _, name = str(value).partition("_")
            letter = name.removeprefix("NOT_")[0]
            return f"\\{letter if name.startswith('NOT_') else letter.lower()}"


_RULE: Final = re.compile(r"([\w-]+)\s*::=(.*?)(?=\n\s*[\w-]+\s*::=|\Z)", re.DOTALL)
_SYMBOL: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[\w-]+|[()|*+?])')


def derived_text(grammar: str) -> str | None:
    """A text that a grammar derives: the first alternative everywhere, nothing optional."""
    rules = {name: _SYMBOL.findall(body) for name, body in _RULE.findall(grammar.split("#", 1)[0])}
    if "root" not in rules:
        return None
    try:
        return _derive(rules, rules["root"], 0)
    except (KeyError, RecursionError, ValueError, StopIteration):
        return None


def _derive(rules: dict[str, list[str]], symbols: list[str], depth: int) -> str:
    if depth > _DEPTH:
        raise RecursionError
    text = ""
    left = list(symbols)
    while left and left[0] not in "|)":
        symbol = left.pop(0)
        if symbol == "(":
            group, left = _group(left)
            piece = _derive(rules, group, depth + 1)
        elif symbol[0] == '"':
            piece = symbol[1:-1].encode().decode("unicode_escape")
        elif symbol[0] == "[":
            piece = matching_text(symbol) or ""
        else:
            optional = left[:1] in (["*"], ["?"])
            piece = "" if optional else _derive(rules, rules[symbol], depth + 1)
        if left[:1] in (["*"], ["?"]):
            piece = ""
        text += piece
        if left and left[0] in "*+?":
            left.pop(0)
    return text


def _group(symbols: list[str]) -> tuple[list[str], list[str]]:
    """The symbols up to the closing bracket, and those after it."""
    depth = 1
    for at, symbol in enumerate(symbols):
        depth += (symbol == "(") - (symbol == ")")
        if depth == 0:
            return symbols[:at], symbols[at + 1 :]
    raise ValueError("bracket")
