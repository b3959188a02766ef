"""`{"requests": [ … ]}` in pieces of any size to the texts of its requests, one by one.

It finds where each request begins and ends and hands its bytes on as they came, so nothing in it
can change on the way; what is no JSON in it is found by who decodes it. What is around the requests
is read strictly. Members of the object with other names mean nothing.

Source: RFC 8259; wire reference of the batch APIs, "Anthropic message batches".
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias, TypeVar

from ingress.strict_json import decode_json
from schemas.errors import InvalidJson, RequestTooLarge, SchemaValidationFailed

NAME: Final = "requests"

_MAX_MEMBERS: Final = 100
_MAX_NAME_BYTES: Final = 1000

_SPACES: Final = re.compile(rb"[ \t\r\n]*+")
_STRING_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_MARK: Final = re.compile(rb'["{}\[\]]')
_SCALAR_END: Final = re.compile(rb"[,\]} \t\r\n]")

T = TypeVar("T")
_Reading: TypeAlias = Generator[bytes | None, None, T]
"""A step of reading: what it finds, and None wherever it needs the next piece."""


class RequestsArray:
    """Cuts the body of a message batch into its requests.

    Args:
        max_bytes: Of one request; a longer one is refused.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = b""
        self._at = 0
        self._ended = False
        self._reading = self._body()
        next(self._reading)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The texts of the requests that end in this piece; take all of them.

        Raises:
            RequestError: The body cannot be a message batch. All requests before were handed out.
        """
        self._data = self._data[self._at :] + piece
        self._at = 0
        while (text := next(self._reading)) is not None:
            yield text

    def end(self) -> None:
        """There is nothing more.

        Raises:
            RequestError: There should be.
        """
        self._ended = True
        # Reading is over only when it has seen the end.
        next(self._reading, None)

    def _body(self) -> _Reading[None]:
        yield None
        if (yield from self._next()) != b"{":
            raise InvalidJson("The request body must be a JSON object.")
        names: set[str] = set()
        following = yield from self._next()
        while following != b"}" or names:
            if following != b'"':
                raise _not_json()
            self._at -= 1
            name = decode_json((yield from self._value(None, _MAX_NAME_BYTES)), "The request body")
            if name in names:
                raise InvalidJson("The request body has an object with the same name twice.")
            names.add(name)
            if len(names) > _MAX_MEMBERS:
                raise SchemaValidationFailed("The request body has too many fields.")
            if (yield from self._next()) != b":":
                raise _not_json()
            yield from self._member(name)
            following = yield from self._next()
            if following == b"}":
                break
            if following != b",":
                raise _not_json()
            following = yield from self._next()
        if NAME not in names:
            raise SchemaValidationFailed(f"`{NAME}` is required.", param=NAME)
        yield from self._nothing()

    def _member(self, name: str) -> _Reading[None]:
        first = yield from self._next()
        if name == NAME and first == b"[":
            yield from self._items()
            return
        self._at -= 1
        decode_json((yield from self._value(None, self._max_bytes)), "The request body")
        if name == NAME:
            raise SchemaValidationFailed(f"`{NAME}` must be an array.", param=NAME)

    def _items(self) -> _Reading[None]:
        following = yield from self._next()
        number = 0
        while following != b"]" or number:
            self._at -= 1
            yield (yield from self._value(f"{NAME}[{number}]", self._max_bytes))
            number += 1
            following = yield from self._next()
            if following == b"]":
                return
            if following != b",":
                raise _not_json()
            following = yield from self._next()

    # --- Steps ------------------------------------------------------------------------------------

    def _more(self) -> _Reading[None]:
        """The next piece, once the present one has been read."""
        if self._ended:
            raise _not_json()
        yield None

    def _next(self) -> _Reading[bytes]:
        """The next byte that is no white space; it has been read then."""
        while True:
            self._at = self._skip_spaces()
            if self._at < len(self._data):
                self._at += 1
                return self._data[self._at - 1 : self._at]
            yield from self._more()

    def _nothing(self) -> _Reading[None]:
        """White space to the end."""
        while not self._ended:
            self._at = self._skip_spaces()
            if self._at < len(self._data):
                raise _not_json()
            yield None

    def _skip_spaces(self) -> int:
        found = _SPACES.match(self._data, self._at)
        assert found is not None
        return found.end()

    def _value(self, path: str | None, max_bytes: int) -> _Reading[bytes]:
        """The text of the value that begins here, from its first byte to its last."""
        kept: list[bytes] = []
        size = 0
        scan = _Scan(self._data[self._at])
        while True:
            end = scan.end(self._data, self._at)
            part = self._data[self._at :] if end is None else self._data[self._at : end]
            kept.append(part)
            size += len(part)
            self._at += len(part)
            if size > max_bytes:
                what = "A field of the body" if path is None else f"`{path}`"
                raise RequestTooLarge(
                    f"{what} must not be larger than {max_bytes} bytes.", param=path
                )
            if end is not None:
                return b"".join(kept)
            yield from self._more()


class _Scan:
    """Where a value ends that begins with this byte, across pieces."""

    def __init__(self, first: int) -> None:
        self._scalar = first not in b'"{['
        self._in_string = False
        self._escaped = False
        self._depth = 0

    def end(self, data: bytes, at: int) -> int | None:
        """The place after its last byte; None if it goes on in the next piece."""
        if self._scalar:
            found = _SCALAR_END.search(data, at)
            return found.start() if found else None
        while True:
            if self._in_string:
                quote = self._string_end(data, at)
                if quote is None:
                    return None
                at = quote + 1
            else:
                found = _MARK.search(data, at)
                if found is None:
                    return None
                at = found.end()
                self._take(found[0])
            if not self._in_string and self._depth == 0:
                return at

    def _take(self, mark: bytes) -> None:
        if mark == b'"':
            self._in_string = True
        else:
            # Which bracket closes which is for the decoder to judge.
            self._depth += 1 if mark in b"{[" else -1

    def _string_end(self, data: bytes, at: int) -> int | None:
        """The quotation mark that ends the string which has begun."""
        if self._escaped and at < len(data):
            self._escaped = False
            at += 1
        found = _STRING_REST.match(data, at)
        assert found is not None
        at = found.end()
        if at == len(data):
            return None
        if data[at] == _BACKSLASH:  # the last byte: what it escapes comes with the next piece
            self._escaped = True
            return None
        self._in_string = False
        return at


_BACKSLASH: Final = 0x5C


def _not_json() -> InvalidJson:
    return InvalidJson("The request body is not valid JSON.")
