"""Blobs as files of a directory that all processes share: on one machine, or on a network mount.

A blob is written beside its place and then renamed, which readers see as one step. What is put is
not synced to disk, since what it is for does not outlive the machine either; what is written in
pieces is, with the directory that names it. Directories are made for their owner alone (0700),
files too (0600), whatever the process's umask: all processes of a deployment run as one user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from schemas.blobs.base import BlobMissing, BlobStoreUnavailable, check_key, probe_key
from schemas.blobs.pieces import gathered

T = TypeVar("T")

_THREADS = 4
"""Blobs are written and read by so many threads at once; it also bounds how many are on their way
through memory."""

_PIECE_BYTES = 1 << 20
"""What a thread writes or reads in one turn."""

_DISCARD_S = 5.0
"""How long a writer that ends early waits until its file is gone. On a mount that hangs it is left
to the thread."""


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
        probe = probe_key()
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

    async def write(self, key: str, pieces: AsyncIterable[bytes]) -> int:
        check_key(key)
        unfinished, size = _Unfinished(self.root, key), 0
        try:
            async with contextlib.aclosing(gathered(pieces, _PIECE_BYTES)) as cut:
                async for piece in cut:
                    await self._run(partial(unfinished.write, piece))
                    size += len(piece)
            await self._run(lambda: unfinished.finish(lasting=True))
        except BaseException:
            discarded = self._threads.submit(unfinished.discard)
            await asyncio.wait({asyncio.wrap_future(discarded)}, timeout=_DISCARD_S)
            raise
        return size

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        check_key(key)
        reader = _Reader(self.root / key)
        try:
            if not await self._run(lambda: reader.open(self.root)):
                raise BlobMissing
            while piece := await self._run(reader.read):
                yield piece
        finally:
            # Not awaited: whoever abandons an iterator may be beyond waiting.
            self._threads.submit(reader.close)

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run(lambda: self._remove(key))

    async def list(self, folder: str) -> Mapping[str, float]:
        return await self._run(lambda: self._entries(folder))

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise BlobStoreUnavailable(_why(error)) from None

    def _write(self, key: str, data: bytes) -> None:
        unfinished = _Unfinished(self.root, key)
        try:
            unfinished.write(data)
            unfinished.finish(lasting=False)
        except BaseException:
            unfinished.discard()
            raise

    def _read(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            self.root.stat()  # not a missing blob, if the whole store is missing
            return None

    def _remove(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def _entries(self, folder: str) -> Mapping[str, float]:
        self.root.stat()
        try:
            with os.scandir(self.root / folder) as found:
                return {
                    f"{folder}/{entry.name}": at
                    for entry in found
                    if (at := _written(entry)) is not None
                }
        except FileNotFoundError:
            return {}


class _Unfinished:
    """A blob on its way: a file beside its place. Blocks.

    Its methods exclude each other, since a writer that is cancelled discards it while a thread may
    still be at work on it.
    """

    def __init__(self, root: Path, key: str) -> None:
        self._root = root
        self._place = root / key
        self._path = self._place.with_name(f"{self._place.name}.{secrets.token_hex(4)}.part")
        self._file: FileIO | None = None
        self._over = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            rest = memoryview(data)
            file = self._opened()
            while rest:
                rest = rest[file.write(rest) :]

    def finish(self, *, lasting: bool) -> None:
        """Put it in its place; `lasting` for one that a power cut must not take back."""
        with self._lock:
            with self._opened() as file:
                if lasting:
                    os.fsync(file)
            self._path.rename(self._place)
            self._over = True
            if lasting:
                _sync_directory(self._place.parent)
                _sync_directory(self._root)

    def discard(self) -> None:
        with self._lock:
            if not self._over and self._file is not None:
                with contextlib.suppress(OSError):  # a sweep will find it
                    self._file.close()
                    self._path.unlink(missing_ok=True)
            self._over = True

    def _opened(self) -> FileIO:
        if self._over:
            raise OSError("discarded")  # nobody hears of it: the writer was cancelled
        if self._file is None:
            # The root is made at the start and never again: without it, its volume is not mounted.
            self._place.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = FileIO(self._path, "xb", opener=_open_for_owner)
        return self._file


class _Reader:
    """A blob being read. Blocks; it may be closed while a thread reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._closed = False
        self._lock = threading.Lock()

    def open(self, root: Path) -> bool:
        """Whether there is such a blob."""
        with self._lock:
            if self._closed:
                return False
            try:
                self._file = FileIO(self._path)
            except FileNotFoundError:
                root.stat()  # not a missing blob, if the whole store is missing
                return False
            return True

    def read(self) -> bytes:
        with self._lock:
            if self._file is None or self._closed:
                return b""
            return self._file.read(_PIECE_BYTES) or b""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _written(entry: os.DirEntry[str]) -> float | None:
    """When a file was last written; None if it is gone by now."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return None


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__
