"""Records as lines of a file: JSON, one write each, so that several processes may share it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import orjson

from ingress.usage.lines import line_of
from schemas.usage_record import UsageRecord


class LogFile:
    """Appends records to a file, which is opened anew for each group: it may be moved away.

    Args:
        path: Made if it is not there, for nobody else to read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: Sequence[UsageRecord] = ()
        self._written = 0  # of that group
        self._cut = False  # the file may end within a line, which nobody can read

    async def append(self, group: Sequence[UsageRecord]) -> None:
        """Write a group; of one that is given again only what is missing.

        Raises:
            OSError: It could not be written whole.
        """
        await asyncio.to_thread(self._append, group)

    def _append(self, group: Sequence[UsageRecord]) -> None:
        if group is not self._group:
            self._group, self._written = group, 0
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for record in group[self._written :]:
                line = orjson.dumps(line_of(record)) + b"\n"
                if self._cut:
                    line = b"\n" + line
                self._cut = os.write(file, line) < len(line)
                if self._cut:
                    raise OSError("no room for a whole line")
                self._written += 1
        finally:
            os.close(file)
