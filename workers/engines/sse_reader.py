"""Bytes of an event stream to the data of its records.

Source: WHATWG HTML, "Server-sent events", section 9.2.6 (interpreting an event stream).
"""

from __future__ import annotations

import re
from typing import Final

from workers.engines.upstream_errors import failed

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""A longer line without an end is not an event stream."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseReader:
    """Bytes to the data of complete SSE records.

    Lines end at LF, CR or CRLF and at nothing else: a JSON string may contain other line
    separators.
    """

    __slots__ = ("_after_cr", "_begun", "_data", "_line")

    def __init__(self) -> None:
        self._line = b""
        self._begun = False  # a line has been read, so no mark of the byte order can come any more
        self._after_cr = False  # a LF that comes now belongs to a line end that has been seen
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Take more bytes.

        Raises:
            GenerationFailed: A line does not end.
        """
        if self._after_cr and received:
            received = received.removeprefix(b"\n")
            self._after_cr = False
        if received.endswith(b"\r"):
            self._after_cr = True
        *lines, self._line = _LINE_END.split(self._line + received)
        if len(self._line) > MAX_RECORD_BYTES:
            raise failed("upstream sent an endless line")
        records: list[bytes] = []
        for line in lines:
            self._take(line, records)
        return records

    def finish(self) -> list[bytes]:
        """The stream has ended: what it forgot to terminate."""
        records: list[bytes] = []
        self._take(self._line, records)
        self._take(b"", records)
        self._line = b""
        return records

    def _take(self, line: bytes, records: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            records.append(b"\n".join(self._data))
            self._data.clear()
