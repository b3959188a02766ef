"""Bytes of an event stream to the data of its records.

Source: the server-sent events format of the HTML standard, without lone CR as a line end.
"""

from __future__ import annotations

from typing import Final

from workers.engines.upstream_errors import failed

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""A longer line without an end is not an event stream."""


class SseReader:
    """Bytes to the data of complete SSE records.

    Lines end at LF or CRLF and at nothing else: a JSON string may contain other line separators.
    """

    __slots__ = ("_data", "_line")

    def __init__(self) -> None:
        self._line = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Take more bytes.

        Raises:
            GenerationFailed: A line does not end.
        """
        *lines, self._line = (self._line + received).split(b"\n")
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
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            records.append(b"\n".join(self._data))
            self._data.clear()
