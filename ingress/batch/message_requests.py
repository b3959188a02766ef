"""The body of a message batch to the lines that are stored: the envelope is checked, and no more.

What a request asks for is judged when it is executed, and fails alone then.

Source: wire reference of the batch APIs, "Anthropic message batches"; error catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ingress.batch.input_check import UsedIds
from ingress.batch.lines import MAX_LINE_BYTES
from ingress.batch.requests_array import NAME, RequestsArray
from ingress.strict_json import decode_json
from schemas.errors import RequestTooLarge, SchemaValidationFailed, UnsupportedValue

MAX_REQUESTS: Final = 100_000

CUSTOM_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class MessageRequests:
    """Reads the body of a message batch.

    Args:
        on_request: Called with each request, as decoded JSON.

    Attributes:
        total: Requests so far.
    """

    def __init__(
        self,
        *,
        max_requests: int = MAX_REQUESTS,
        on_request: Callable[[Any], None] | None = None,
    ) -> None:
        self._max = max_requests
        self._on_request = on_request
        self._array = RequestsArray(max_bytes=MAX_LINE_BYTES)
        self._used = UsedIds()
        self.total = 0

    def feed(self, piece: bytes) -> bytes:
        """The lines of the requests that end in this piece, each with its end.

        Raises:
            RequestError: This is no message batch; `param` is a path such as
                `requests[17].custom_id`.
        """
        return b"".join([self._line(text) for text in self._array.feed(piece)])

    def end(self) -> None:
        """The body is whole.

        Raises:
            RequestError: It is not, or without any request.
        """
        self._array.end()
        if not self.total:
            raise UnsupportedValue(f"`{NAME}` must not be empty.", param=NAME)

    def _line(self, text: bytes) -> bytes:
        number = self.total
        self.total += 1
        if self.total > self._max:
            raise RequestTooLarge(f"A batch may have {self._max} requests.", param=NAME)
        path = f"{NAME}[{number}]"
        request = decode_json(text, f"`{path}`")
        self._check(number, request, path)
        if self._on_request is not None:
            self._on_request(request)
        # In sound JSON the end of a line is white space: inside of strings it must be escaped.
        return text.translate(_ONE_LINE) + b"\n"

    def _check(self, number: int, request: Any, path: str) -> None:
        if not isinstance(request, dict):
            raise SchemaValidationFailed(f"`{path}` must be an object.", param=path)
        at = f"{path}.custom_id"
        custom_id = _member(request, "custom_id", path)
        if not isinstance(custom_id, str):
            raise SchemaValidationFailed(f"`{at}` must be a string.", param=at)
        if not CUSTOM_ID.fullmatch(custom_id):
            raise UnsupportedValue(
                f"`{at}` must have 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`.", param=at
            )
        before = self._used.first(custom_id, number)
        if before is not None:
            raise UnsupportedValue(f"`{at}` is also that of `{NAME}[{before}]`.", param=at)
        if not isinstance(_member(request, "params", path), dict):
            raise SchemaValidationFailed(
                f"`{path}.params` must be an object.", param=f"{path}.params"
            )


def _member(request: dict[str, Any], name: str, path: str) -> Any:
    if name not in request:
        raise SchemaValidationFailed(f"`{path}.{name}` is required.", param=f"{path}.{name}")
    return request[name]
