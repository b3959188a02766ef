"""A form with one file in it, `multipart/form-data`, read as it comes.

Bytes go in in any pieces; the bytes of the file come out, the other parts are kept as text. How the
form was cut into pieces never makes a difference, also not in how it is refused. It must not know
what the fields mean, nor where the bytes come from and go.

Source: RFC 7578; RFC 2046, section 5.1; HTML, "Multipart form data", for what browsers do to names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from schemas.errors import RequestTooLarge, SchemaValidationFailed, UnsupportedMediaType

MAX_PARTS: Final = 32
MAX_VALUE_BYTES: Final = 4096
MAX_FILENAME: Final = 255
"""Characters; what file systems allow, in bytes."""

MAX_FORM_BYTES: Final = 1 << 16
"""What a form may have besides its file: boundaries, headers and fields."""

_MAX_HEADERS: Final = 16
_MAX_HEADER_BYTES: Final = 4096
_BOUNDARY: Final = re.compile(rb"[ -~]{0,199}[!-~]")
"""By the book there are fewer characters in fewer places, but clients are found that use others."""

_PARAMETER: Final = re.compile(
    rb"""[ \t]*;[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^ \t;"]*)""",
    re.DOTALL,
)
_BROKEN: Final = "The request body is not valid multipart/form-data."

_UNSHOWN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, ends of lines, marks that turn text around, halves of characters."""

_SILENT: Final = logging.Logger("multipart", level=logging.CRITICAL + 1)
"""The parser's own log quotes what it was given."""


class FileForm:
    """One form.

    Args:
        content_type: The header of the request.
        file_field: Name of the part that is the file.
        max_file_bytes: A larger file is refused.
        on_field: Called with name and value of each other part when it has been read; may refuse.

    Attributes:
        filename: As the client named the file, but safe to show; None until it comes.

    Raises:
        ServingError: There is no boundary to read it by.
    """

    def __init__(
        self,
        content_type: bytes,
        *,
        file_field: str,
        max_file_bytes: int,
        on_field: Callable[[str, str], None],
    ) -> None:
        self.filename: str | None = None
        self._file_field = file_field
        self._max_file_bytes = max_file_bytes
        self._on_field = on_field
        self._boundary = _boundary_of(content_type)
        self._parser: MultipartParser | None = None
        self._start = b""
        self._parts = 0
        self._size = 0
        self._file_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._field: str | None = None  # the part being read; None if it is the file
        self._value = b""
        self._pieces: list[bytes] = []
        self._ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Read on; returns what came of the file.

        Raises:
            ServingError: The form or the file is refused.
        """
        self._size += len(data)
        try:
            if self._parser is not None:
                self._parser.write(data)
            elif start := self._checked_start(data):
                self._parser = self._opened()
                self._parser.write(start)
        except FormParserError:
            raise SchemaValidationFailed(_BROKEN) from None
        if self._ended and self._size - self._file_size > MAX_FORM_BYTES:
            raise SchemaValidationFailed("The form has too much besides its file.")
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> None:
        """There is no more.

        Raises:
            SchemaValidationFailed: The form is not whole, or has no file.
        """
        if not self._ended:
            raise SchemaValidationFailed(_BROKEN)
        if self.filename is None:
            raise SchemaValidationFailed(
                f"The form has no file: it must come as the part `{self._file_field}`.",
                param=self._file_field,
            )

    def _checked_start(self, data: bytes) -> bytes:
        """What came so far if it begins a form, or nothing while that is not to be seen yet."""
        self._start += data
        start = self._start.removeprefix(b"\r\n") if len(self._start) > 1 else b""
        opening = b"--" + self._boundary
        if len(start) < len(opening):
            return b""
        if not start.startswith(opening):
            raise SchemaValidationFailed(_BROKEN)
        return start

    def _opened(self) -> MultipartParser:
        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_to_name,
                "on_header_value": self._add_to_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )
        parser.logger = _SILENT
        return parser

    # --- What the parser has found ----------------------------------------------------------------

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise SchemaValidationFailed(f"The form has more than {MAX_PARTS} parts.")
        self._headers = {}
        self._value = b""

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name = self._header_name.lower()
        if name in self._headers:
            raise SchemaValidationFailed(_BROKEN)
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in (b"binary", b"8bit", b"7bit"):
            raise UnsupportedMediaType("A part of the form must not be encoded for transfer.")
        disposition = self._headers.get(b"content-disposition", b"")
        parameters = _parameters(disposition)
        if _value_of(disposition) != b"form-data" or b"name" not in parameters:
            raise SchemaValidationFailed(_BROKEN)
        name = _unquoted(parameters[b"name"])
        filename = _filename(parameters)
        if name == self._file_field:
            self._begin_file(filename)
        elif filename is not None:
            raise SchemaValidationFailed(
                f"The form may have one file only, as the part `{self._file_field}`."
            )
        else:
            self._field = name

    def _begin_file(self, filename: str | None) -> None:
        if self.filename is not None:
            raise SchemaValidationFailed("The form has more than one file.", param=self._file_field)
        if not filename:
            raise SchemaValidationFailed(
                f"The part `{self._file_field}` must be a file with a name.",
                param=self._file_field,
            )
        if len(filename) > MAX_FILENAME:
            raise SchemaValidationFailed(
                f"The name of the file must have at most {MAX_FILENAME} characters.",
                param=self._file_field,
            )
        self.filename = filename
        self._field = None

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._file_size += end - start
            if self._file_size > self._max_file_bytes:
                raise too_large(self._max_file_bytes)
            self._pieces.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_VALUE_BYTES:
            raise SchemaValidationFailed(
                f"A field of the form must have at most {MAX_VALUE_BYTES} bytes."
            )

    def _end_part(self) -> None:
        if self._field is None:
            return
        try:
            value = self._value.decode()
        except UnicodeDecodeError:
            raise SchemaValidationFailed("A field of the form is not UTF-8.") from None
        self._on_field(self._field, value)

    def _end(self) -> None:
        self._ended = True


def too_large(max_file_bytes: int) -> RequestTooLarge:
    """The error for a file of more than so many bytes."""
    return RequestTooLarge(f"A file must have at most {max_file_bytes} bytes.", param="file")


def _boundary_of(content_type: bytes) -> bytes:
    """The line between the parts of a form.

    Raises:
        UnsupportedMediaType: It is no form.
        SchemaValidationFailed: It does not say.
    """
    if _value_of(content_type) != b"multipart/form-data":
        raise UnsupportedMediaType("The file must be sent as multipart/form-data.")
    boundary = _parameters(content_type).get(b"boundary", b"")
    boundary = boundary[1:-1] if boundary.startswith(b'"') else boundary
    if not _BOUNDARY.fullmatch(boundary):
        raise SchemaValidationFailed(
            "The header `Content-Type` must name the boundary of the multipart form."
        )
    return boundary


def _value_of(header: bytes) -> bytes:
    return header.partition(b";")[0].strip().lower()


def _parameters(header: bytes) -> dict[bytes, bytes]:
    """The parameters of a header such as `form-data; name="file"`, quotes and all.

    Raises:
        SchemaValidationFailed: It cannot be read, or has one twice.
    """
    found: dict[bytes, bytes] = {}
    at = len(header.partition(b";")[0])
    while match := _PARAMETER.match(header, at):
        name = match[1].lower()
        if name in found:
            raise SchemaValidationFailed(_BROKEN)
        found[name] = match[2]
        at = match.end()
    if header[at:].strip(b" \t;"):
        raise SchemaValidationFailed(_BROKEN)
    return found


def _unquoted(value: bytes) -> str:
    """The text of a parameter, as any client may have written it.

    Some write a quote within as `%22`, others as a backslash and a quote.
    """
    if value.startswith(b'"'):
        value = re.sub(rb'\\(["\\])', rb"\1", value[1:-1])
    for escaped, character in ((b"%22", b'"'), (b"%0D", b"\r"), (b"%0A", b"\n")):
        value = value.replace(escaped, character)
    return value.decode("utf-8", "replace")


def _filename(parameters: dict[bytes, bytes]) -> str | None:
    """The name of the file, without the way to it and without what cannot be shown."""
    extended = parameters.get(b"filename*")
    if extended is not None and extended.lower().startswith(b"utf-8'"):
        # Not for forms, by the book; but some clients say the true name nowhere else.
        name = unquote_to_bytes(extended.split(b"'", 2)[-1]).decode("utf-8", "replace")
    elif b"filename" in parameters:
        name = _unquoted(parameters[b"filename"])
    else:
        return None
    name = _UNSHOWN.sub("", re.split(r"[/\\]", name)[-1]).strip()
    return "" if name in (".", "..") else name
