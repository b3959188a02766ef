"""Blobs as files of a directory that all processes share: on one machine, or on a network mount.

A blob is written beside its place and then renamed, which readers see as one step; nothing is
synced to disk, since what a blob is for does not outlive the machine either. Directories are made
for their owner alone (0700), files too (0600), whatever the process's umask: all processes of a
deployment run as one user.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from schemas.blobs.base import BlobMissing, BlobStoreUnavailable, check_key

T = TypeVar("T")

_THREADS = 4
"""Blobs are written and read by so many threads at once; it also bounds how many are on their way
through memory."""


class DirectoryStore:
    """See `schemas.blobs.base.BlobStore`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Threads of its own: a mount that hangs must not take those of everybody else.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    @classmethod
    def open(cls, root: Path) -> DirectoryStore:
        """A store in a directory, which is made if it is not there. Blocks.

        Raises:
            BlobStoreUnavailable: There can be no blobs there.
        """
        store = cls(root)
        probe = f"jobs/probe-{secrets.token_hex(8)}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            store._write(probe, b"")
            store._remove(probe)
        except OSError as error:
            raise BlobStoreUnavailable(f"no blobs can be kept in {root}: {_why(error)}") from None
        return store

    async def put(self, key: str, data: bytes) -> None:
        check_key(key)
        await self._run(lambda: self._write(key, data))

    async def get(self, key: str) -> bytes:
        check_key(key)
        data = await self._run(lambda: self._read(key))
        if data is None:
            raise BlobMissing
        return data

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run(lambda: self._remove(key))

    async def list(self, folder: str) -> Sequence[str]:
        return await self._run(lambda: self._names(folder))

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise BlobStoreUnavailable(_why(error)) from None

    def _write(self, key: str, data: bytes) -> None:
        place = self.root / key
        # The root is made at the start and never again: without it, its volume is not mounted.
        place.parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "wb", buffering=0) as writer:
                rest = memoryview(data)
                while rest:
                    rest = rest[writer.write(rest) :]
            unfinished.rename(place)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _read(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            self.root.stat()  # not a missing blob, if the whole store is missing
            return None

    def _remove(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def _names(self, folder: str) -> Sequence[str]:
        self.root.stat()
        place = self.root / folder
        if not place.is_dir():
            return ()
        return [f"{folder}/{entry.name}" for entry in place.iterdir()]


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__
