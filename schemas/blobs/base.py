"""The port of a blob store: bytes under a key, whole or not at all.

Keys are made by this program alone, never from what a client sent. A blob is written once. Blobs
hold prompts, so a store lets nobody else read them; and a request under zero data retention must
not come near one: whoever lets such requests in publishes their Jobs without a store.

Rules every store obeys (the contract suite checks them):

* A reader finds the whole blob or none, whatever becomes of the writer.
* Deleting what is not there is no error; neither is two processes deleting the same.
* What a writer that was killed left behind is no blob. Where a store shows it, it is listed, and
  can be deleted by that name.
* A writer that ends early in any other way leaves nothing.
* Nothing blocks the event loop.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Protocol

_KEY = re.compile(r"[a-z]+/[a-z0-9_-]+(\.[a-z0-9.]+)?")
"""A folder and a name. Neither begins with a dot, so no key leads out of the store."""

UNFINISHED = re.compile(r"\.[0-9a-f]{8}\.part$")
"""How the name ends of what a killed writer leaves, in a store that shows such."""


class BlobMissing(Exception):
    """The store is there, the blob is not."""


class BlobStoreUnavailable(Exception):
    """The store cannot be reached, written or read. The text says why, and may be shown."""


class BlobStore(Protocol):
    """Where blobs lie."""

    async def put(self, key: str, data: bytes) -> None:
        """Store a blob.

        Raises:
            BlobStoreUnavailable: It was not stored.
        """
        ...

    async def get(self, key: str) -> bytes:
        """The whole blob.

        Raises:
            BlobMissing: There is none.
            BlobStoreUnavailable: There may be one.
        """
        ...

    async def write(self, key: str, pieces: AsyncIterable[bytes]) -> int:
        """Store what comes in pieces, in constant memory, to last; returns its size in bytes.

        What `pieces` raises is raised, and nothing was stored. An earlier blob of that key is
        replaced. Unlike after `put`, the blob is there after a power cut.

        Raises:
            BlobStoreUnavailable: It was not stored.
        """
        ...

    def read(self, key: str) -> AsyncGenerator[bytes, None]:
        """The blob in pieces, in constant memory. Close it if it is not read to its end.

        Raises:
            BlobMissing: There is none; with the first piece, so before anything was delivered.
            BlobStoreUnavailable: The rest cannot be had.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete a blob, if it is there.

        Raises:
            BlobStoreUnavailable: It may still be there.
        """
        ...

    async def list(self, folder: str) -> Mapping[str, float]:
        """Keys in a folder such as `jobs`, in no order, with what unfinished puts left.

        Each with the Unix time when it was last written, by the store's clock.

        Raises:
            BlobStoreUnavailable: Not known.
        """
        ...


def check_key(key: str) -> None:
    """Refuse a key that could name anything but a blob.

    Raises:
        ValueError: It is none of ours.
    """
    if not _KEY.fullmatch(key):
        raise ValueError("a blob's key must be like jobs/1760000000-0f3a")


def probe_key() -> str:
    """A key to try a store with. If the blob stays behind, the sweep of Jobs deletes it."""
    return f"jobs/{int(time.time())}-probe-{secrets.token_hex(8)}"
