"""The one reader of batch input: bytes in pieces of any size to lines, and a line to a request.

Validation and execution read with this, so what one accepted the other does not refuse. A line ends
with LF and with nothing else: CR before it is dropped, while U+2028, U+0085 and the like may stand
inside of strings. A byte order mark may come first. Lines of white space count, but are no
requests. It knows no file, no store and no clock.

Source: wire reference of the batch APIs, "Input line", "Validation errors" and the rules of custom
ids.
"""

from __future__ import annotations

import json  # noqa: TID251 - the only parser that takes half a surrogate pair
import re
from typing import Any, Final

import msgspec

from ingress.strict_json import decode_json
from schemas.batch import LineError, Shape
from schemas.errors import InvalidJson

MAX_LINE_BYTES: Final = 50_000_000
"""As large as a request of its own may be."""

MAX_CUSTOM_ID: Final = 512

INVALID_JSON_LINE: Final = "invalid_json_line"
MISSING_PARAMETER: Final = "missing_required_parameter"
INVALID_METHOD: Final = "invalid_method"
MISMATCHED_ENDPOINT: Final = "mismatched_endpoint"

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class LineReader:
    """Cuts bytes into numbered lines; how they were cut into pieces makes no difference.

    No more than one line is kept, and of one that is too long nothing.

    Args:
        max_line_bytes: A longer line is read over.
    """

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._number = 1
        self._kept: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[tuple[int, bytes | None]]:
        """The lines that end in this piece, but for empty ones: number from 1, and text.

        The text is None if the line was too long; `parse_line` makes an error of it.
        """
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._keep(end)
            lines += self._line()
            self._number += 1
        self._keep(rest)
        return lines

    def end(self) -> list[tuple[int, bytes | None]]:
        """The last line, if it has no end of its own. Called once, after all pieces."""
        return self._line()

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max:
            self._kept.clear()
        elif data:
            self._kept.append(data)

    def _line(self) -> list[tuple[int, bytes | None]]:
        too_long = self._size > self._max
        text = b"".join(self._kept)
        self._kept.clear()
        self._size = 0
        if too_long:
            return [(self._number, None)]
        if self._number == 1:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        text = text.strip()
        return [(self._number, text)] if text else []


class InputLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a batch.

    Attributes:
        line: From 1, as in the input; empty lines count.
        custom_id: The client's name for it, of any characters; never an id of ours.
        body: The request in the words of the batch's dialect, not looked at yet. In OpenAI batches
            it names a model.
    """

    line: int
    custom_id: str
    body: dict[str, Any]


class _Bad(Exception):
    """A line is no request. Never leaves this module."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def parse_line(
    line: int, text: bytes | None, *, shape: Shape, endpoint: str
) -> InputLine | LineError:
    """What a line of a `LineReader` means; for any bytes whatever, and never an exception.

    The body is only required to be there: what is wrong inside of it concerns its line alone, and
    is found when it is executed.

    Args:
        line: Its number.
        text: None for a line that was too long.
        shape: Whose lines these are.
        endpoint: Of the batch; what `url` must be in OpenAI batches.
    """
    try:
        value = _decode(text)
        if shape == "messages":
            return InputLine(line=line, custom_id=_custom_id(value), body=_object(value, "params"))
        return _openai_line(line, value, endpoint)
    except _Bad as bad:
        return LineError(code=bad.code, message=str(bad), param=bad.param, line=line)


def _openai_line(line: int, value: dict[str, Any], endpoint: str) -> InputLine:
    custom_id = _custom_id(value)
    method = _string(value, "method")
    if method != "POST":
        raise _Bad(INVALID_METHOD, "`method` must be POST.", "method")
    if _string(value, "url") != endpoint:
        raise _Bad(
            MISMATCHED_ENDPOINT, f"`url` must be the endpoint of the batch, {endpoint}.", "url"
        )
    body = _object(value, "body")
    if not isinstance(model := body.get("model"), str) or not model:
        raise _Bad(MISSING_PARAMETER, "`body.model` must name a model.", "body.model")
    return InputLine(line=line, custom_id=custom_id, body=body)


def _custom_id(value: dict[str, Any]) -> str:
    custom_id = value.get("custom_id")
    if isinstance(custom_id, str) and 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        return custom_id
    message = f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters."
    raise _Bad(MISSING_PARAMETER, message, "custom_id")


def _string(value: dict[str, Any], name: str) -> str:
    if isinstance(found := value.get(name), str):
        return found
    raise _Bad(MISSING_PARAMETER, f"`{name}` must be a string.", name)


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    if isinstance(found := value.get(name), dict):
        return found
    raise _Bad(MISSING_PARAMETER, f"`{name}` must be an object.", name)


def _decode(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise _Bad(INVALID_JSON_LINE, "The line is too long.")
    try:
        value = decode_json(text, "The line")
    except InvalidJson as error:
        value = _decode_halves(text) if _ESCAPED_SURROGATE.search(text) else None
        if value is None:
            raise _Bad(INVALID_JSON_LINE, _why(text, error)) from None
    if not isinstance(value, dict):
        raise _Bad(INVALID_JSON_LINE, "The line must be a JSON object.")
    return value


def _why(text: bytes, error: InvalidJson) -> str:
    try:
        text.decode()
    except UnicodeDecodeError:
        return "The line is not UTF-8."
    return error.message


def _decode_halves(text: bytes) -> dict[str, Any] | None:
    r"""A line whose custom id has half of a surrogate pair, such as `"\ud83d"`; None for others.

    JSON can say that, and some programs cut their ids so. Everything else is under the rules that
    every request is under.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str):
            return None
        custom_id = value.pop("custom_id")
        return {**decode_json(json.dumps(value).encode()), "custom_id": custom_id}
    except (ValueError, RecursionError, InvalidJson):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found
