"""Blobs as objects of a bucket: Amazon's S3, MinIO, or whatever speaks its protocol.

Credentials, and what a location does not say, are read by obstore from the usual `AWS_*` variables
or from the machine's role. A large blob goes up in parts, and is there when the last of them is
acknowledged; an upload that ends early is aborted. What a process leaves that was killed during
one takes room but no name: a bucket's lifecycle rule removes it, since obstore cannot list it.

The only module that knows obstore. What a store answers in words is never passed on.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import re
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from schemas.blobs.base import BlobMissing, BlobStoreUnavailable, check_key, probe_key
from schemas.blobs.location import BucketLocation
from schemas.blobs.pieces import gathered

_PART_BYTES = 5 << 20
"""The least that S3 takes; of its 10,000 parts that makes 50 GB."""

_PARTS_AT_ONCE = 2
"""Per writer, which besides holds the part that is next and the one that it gathers."""

_PIECE_BYTES = 1 << 20
"""What a reader gets in one turn, at least."""

_ABORT_S = 10.0
"""How long a writer that ends early waits for its upload to be aborted."""

_LAST_RESULTS_S = 2.0
_LOOK_EVERY_S = 0.01
_QUIET_LOOKS = 5

_CONNECT_S = 5.0

_READ_S = 86_400.0
"""For a whole answer: a client that downloads slowly holds the read open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """With a store that is not well.

    Attributes:
        retries: How often a request is sent again that got no answer, or a 5xx.
        first_pause_s: Before the first of them; each further pause is up to twice as long.
        within_s: No retry begins later.
        silence_s: For a request's body to be taken and its answer to begin, and between two pieces
            of an answer.
    """

    retries: int = 5
    first_pause_s: float = 0.1
    longest_pause_s: float = 3.0
    within_s: float = 60.0
    silence_s: float = 30.0


class S3Store:
    """See `schemas.blobs.base.BlobStore`."""

    def __init__(self, location: BucketLocation, patience: Patience) -> None:
        config: dict[str, Any] = {
            # One DELETE per blob: not every store has the other, and we delete few at a time.
            "disable_bulk_delete": True,
        }
        if location.endpoint is not None:
            config["endpoint"] = location.endpoint
        if location.region is not None:
            config["region"] = location.region
        self._bucket = Bucket(
            location.bucket,
            prefix=location.prefix or None,
            config=config,  # type: ignore[arg-type] # the keys are S3Config's
            client_options={
                "allow_http": location.allow_http,
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "read_timeout": timedelta(seconds=patience.silence_s),
                "timeout": timedelta(seconds=_READ_S),
            },
            retry_config={
                "max_retries": patience.retries,
                "retry_timeout": timedelta(seconds=patience.within_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=patience.first_pause_s),
                    "max_backoff": timedelta(seconds=patience.longest_pause_s),
                    "base": 2,
                },
            },
        )

    @classmethod
    def open(cls, location: BucketLocation, patience: Patience | None = None) -> S3Store:
        """A store in a bucket, which must be there. Blocks.

        Raises:
            BlobStoreUnavailable: There can be no blobs there, or nobody can tell.
        """
        probe = probe_key()
        try:
            with _explained():
                store = cls(location, patience or Patience())
                # All that a store must be allowed to do.
                obstore.put(store._bucket, probe, b"", use_multipart=False)
                obstore.get(store._bucket, probe)
                next(iter(obstore.list(store._bucket, "jobs", chunk_size=1)))
                obstore.delete(store._bucket, probe)
        except BlobStoreUnavailable as error:
            raise BlobStoreUnavailable(f"no blobs can be kept in {location}: {error}") from None
        return store

    async def put(self, key: str, data: bytes) -> None:
        check_key(key)
        if len(data) <= _PART_BYTES:
            with _explained():
                await obstore.put_async(self._bucket, key, data, use_multipart=False)
        else:
            await self.write(key, _parts_of(data))

    async def get(self, key: str) -> bytes:
        check_key(key)
        with _explained():
            found = await self._get(key)
            return bytes(await found.bytes_async())

    async def write(self, key: str, pieces: AsyncIterable[bytes]) -> int:
        check_key(key)
        upload, size = None, 0
        async with contextlib.aclosing(gathered(pieces, _PART_BYTES)) as parts:
            try:
                async for part in parts:
                    size += len(part)
                    if upload is None:
                        if len(part) < _PART_BYTES:  # and so the only one
                            await self.put(key, part)
                            return size
                        upload = _Upload(self._bucket, key)
                    await upload.give(part)
                    del part  # before the next one is gathered
                assert upload is not None
                await upload.finish()
            except BaseException:
                if upload is not None:
                    await upload.abandon()
                raise
        return size

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        check_key(key)
        with _explained():
            found = await self._get(key)
        # An answer that breaks off is asked for again from there, if it is still the same object.
        pieces = aiter(found.stream(min_chunk_size=_PIECE_BYTES))
        while True:
            try:
                with _explained():
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            yield piece

    async def delete(self, key: str) -> None:
        check_key(key)
        with _explained():
            try:
                await obstore.delete_async(self._bucket, key)
            except FileNotFoundError:
                await self._check_there()

    async def list(self, folder: str) -> Mapping[str, float]:
        with _explained():
            return {
                blob["path"]: blob["last_modified"].timestamp()
                async for blobs in obstore.list(self._bucket, folder)
                for blob in blobs
            }

    async def _get(self, key: str) -> obstore.GetResult:
        try:
            return await obstore.get_async(self._bucket, key)
        except FileNotFoundError:
            await self._check_there()
            raise BlobMissing from None

    async def _check_there(self) -> None:
        """Not a missing blob, if the whole bucket is missing: the same is said of both."""
        async for _ in obstore.list(self._bucket, "jobs", chunk_size=1):
            return


class _AbandonedError(Exception):
    """The writer has ended early."""


class _Upload:
    """A blob on its way up, in parts that its writer gives one by one.

    Obstore would take them from an iterator of the writer's. But that would run in a task of
    obstore's, and an upload that is cancelled leaves its parts in the bucket: it is aborted only if
    the iterator fails. So the writer stays in its own task, and tells here how it ends.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._parts: asyncio.Queue[bytes | _AbandonedError | None] = asyncio.Queue()
        self._upload = asyncio.ensure_future(
            obstore.put_async(
                bucket,
                key,
                self,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        )
        self._upload.add_done_callback(_heed)

    async def give(self, part: bytes) -> None:
        """Returns when the part is taken, which may be long before it is stored.

        Raises:
            BlobStoreUnavailable: The upload has failed.
        """
        self._parts.put_nowait(part)
        del part
        taken = asyncio.ensure_future(self._parts.join())
        try:
            await asyncio.wait({taken, self._upload}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()
        if self._upload.done():
            with _explained():
                self._upload.result()

    async def finish(self) -> None:
        """There are no more parts; returns when the blob is there.

        Raises:
            BlobStoreUnavailable: The upload has failed.
        """
        self._parts.put_nowait(None)
        with _explained():
            await asyncio.shield(self._upload)

    async def abandon(self) -> None:
        """Make it fail, and wait until it has been aborted."""
        while not self._parts.empty():
            self._parts.get_nowait()
        self._parts.put_nowait(_AbandonedError())
        await asyncio.wait({self._upload}, timeout=_ABORT_S)

    def __aiter__(self) -> _Upload:
        return self

    async def __anext__(self) -> bytes:
        part = await self._parts.get()
        self._parts.task_done()
        match part:
            case None:
                raise StopAsyncIteration
            case _AbandonedError():
                raise part
        return part


async def _parts_of(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), _PART_BYTES):
        yield data[start : start + _PART_BYTES]


def _heed(upload: asyncio.Future[Any]) -> None:
    """Take note of how it ended, so that nothing is said of it when its writer has gone."""
    if not upload.cancelled():
        upload.exception()


@atexit.register
def _let_obstore_finish() -> None:
    """A thread of obstore's that is still telling of a result when the interpreter ends aborts us.

    It tells it in Python: it waits for the interpreter's lock, and is ended by force instead, which
    Rust does not survive. So the last result must have been told before the process ends.
    """
    give_up_at, quiet = time.monotonic() + _LAST_RESULTS_S, 0
    while quiet < _QUIET_LOOKS and time.monotonic() < give_up_at:
        time.sleep(_LOOK_EVERY_S)
        ours = {thread.ident for thread in threading.enumerate()}
        quiet = 0 if sys._current_frames().keys() - ours else quiet + 1


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_KINDS = {
    "/latest/api/token": "there are no credentials: AWS_ACCESS_KEY_ID is not set, and this "
    "machine has no role",
    "source: BadScheme": "an endpoint without TLS is used only with allow_http=true in the URL",
    "kind: Connect": "it cannot be reached",
    "kind: Timeout": "it did not answer in time",
    "kind: Interrupted": "it broke off its answer",
}
"""What obstore's error says of itself only in words."""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say in our own words what obstore could not do."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise BlobStoreUnavailable(_reason(str(error))) from None


def _reason(text: str) -> str:
    """Why, by the few words of an error that are from closed sets."""
    for sign, reason in _KINDS.items():
        if sign in text:
            return reason
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is None:
        return "it did not answer as a store does"
    return f"it answered {status[1]}" + (f" {code[1]}" if code else "")
