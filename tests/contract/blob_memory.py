"""How much memory a store needs for a large blob: `python -m tests.contract.blob_memory LOCATION`.

A program of its own, since only a fresh process's peak tells. Prints how many bytes the peak grew
while 64 MB were written and read again, after a small blob had gone the same way.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator

from schemas.blobs.base import BlobStore
from schemas.blobs.location import open_blobs

SMALL, LARGE = 6_000_000, 64_000_000
_PIECE = bytes(range(250)) * 400


async def pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(_PIECE)):
        yield bytes(_PIECE)


async def there_and_back(store: BlobStore, size: int) -> None:
    assert await store.write("files/large", pieces(size)) == size
    read = 0
    async for piece in store.read("files/large"):
        read += len(piece)
    assert read == size


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main() -> None:
    store = open_blobs(sys.argv[1])
    await there_and_back(store, SMALL)
    before = peak_bytes()
    await there_and_back(store, LARGE)
    sys.stdout.write(f"{peak_bytes() - before}\n")


if __name__ == "__main__":
    asyncio.run(main())
