"""Strict JSON: bytes to a value, or a refusal that all readers of a client's JSON share.

UTF-8, no NaN, no lone surrogates, no name twice in an object, bounded depth. It knows no transport:
a request body and a line of a batch are read by the same rules.

Source: RFC 8259; error catalogue, section 5.
"""

from __future__ import annotations

import json  # noqa: TID251 - the only parser that shows every name of an object
import re
from typing import Any, Final

import orjson

from schemas.errors import InvalidJson

MAX_DEPTH: Final = 128
"""Nesting of JSON values. Tool schemas in use stay below 30; deeper ones only exhaust stacks."""

_ESCAPED_COLON: Final = re.compile(rb"\\u003[aA]")


def decode_json(body: bytes, what: str = "The request body") -> Any:
    """The value of a JSON text.

    Args:
        body: The text.
        what: What it is, to begin a message with.

    Raises:
        InvalidJson: It is not.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        # The parser's text may quote the input.
        raise InvalidJson(f"{what} is not valid JSON.") from None
    # The walk costs; few brackets cannot nest deeply.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _check_depth(value, what)
    if not _has_unique_names(value, body):
        raise InvalidJson(f"{what} has an object with the same name twice.")
    return value


def _check_depth(value: Any, what: str) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    raise InvalidJson(f"{what} nests deeper than {MAX_DEPTH} levels.")


def _has_unique_names(value: Any, body: bytes) -> bool:
    """Whether no object has the same name twice: readers differ in which of the two counts.

    The parser keeps one of them and does not tell. But every colon of the text either follows a
    name or stands in a string, so one that the parsed value lacks went with a lost name.
    """
    if _ESCAPED_COLON.search(body):
        # It is no colon in the text, but one in the value. Hardly anybody writes one.
        return _reads_unique_names(body)
    missing = body.count(b":")
    level = [value]
    while missing and level:
        below: list[Any] = []
        for node in level:
            if type(node) is str:
                missing -= node.count(":")
            elif type(node) is list:
                below += node
            elif type(node) is dict:
                missing -= len(node)
                below += node
                below += node.values()
        level = below
    return not missing


def _reads_unique_names(body: bytes) -> bool:
    unique = True

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal unique
        unique = unique and len({name for name, _ in pairs}) == len(pairs)

    json.loads(body, object_pairs_hook=look, parse_int=float)
    return unique
