"""The lines of an input blob, read to the end through whatever outages of its store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog

from ingress.batch.endings import closing
from ingress.batch.lines import LineReader
from ingress.batch.patience import Pauses
from schemas.blobs.base import BlobStore, BlobStoreUnavailable

log = structlog.get_logger(__name__)


async def read_lines(blobs: BlobStore, key: str) -> AsyncIterator[tuple[int, bytes | None]]:
    """Every line with its number, ascending, in constant memory; see `LineReader`.

    Where the store fails in the middle, it is read from the start and on from there.

    Raises:
        BlobMissing: There is no such blob.
    """
    last = 0
    pauses = Pauses()
    while True:
        reader = LineReader()
        try:
            async with closing(blobs.read(key)) as pieces:
                async for piece in pieces:
                    pauses.reset()
                    for number, text in reader.feed(piece):
                        if number > last:
                            yield number, text
                            last = number
            for number, text in reader.end():
                if number > last:
                    yield number, text
            return
        except BlobStoreUnavailable as error:
            log.warning("batch.input_away", line=last, reason=str(error))
            await pauses.pause()
