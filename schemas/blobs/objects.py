"""Blobs as objects of a bucket: Amazon's S3, MinIO, or whatever speaks its protocol.

Credentials, and what a location does not say, are read by obstore from the usual `AWS_*` variables
or from the machine's role. A large blob goes up in parts, and is there when the last of them is
acknowledged; an upload that ends early is aborted. What a process leaves that was killed during
one takes room but no name: a bucket's lifecycle rule removes it, since obstore cannot list it.

The only module that knows obstore. What a store answers in words is never passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
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
"""Per writer. With what it gathers and hands over, it holds four parts at most."""

_PIECE_BYTES = 1 << 20
"""What a reader gets in one turn, at least."""

_ABORT_S = 10.0
"""How long a writer that ends early waits for its upload to be aborted."""

_CONNECT_S = 5
_SILENCE_S = 30
"""For a request's body to be taken and its answer to begin, and between two pieces of an answer."""

_READ_S = 86_400
"""For a whole answer: a client that downloads slowly holds the read open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and for how long, a request is sent again that got no answer, or a 5xx."""

    most: int = 5
    first_pause_s: float = 0.1
    longest_pause_s: float = 3.0
    within_s: float = 60.0


class S3Store:
    """See `schemas.blobs.base.BlobStore`."""

    def __init__(self, location: BucketLocation, retries: Retries) -> None:
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
                "read_timeout": timedelta(seconds=_SILENCE_S),
                "timeout": timedelta(seconds=_READ_S),
            },
            retry_config={
                "max_retries": retries.most,
                "retry_timeout": timedelta(seconds=retries.within_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=retries.first_pause_s),
                    "max_backoff": timedelta(seconds=retries.longest_pause_s),
                    "base": 2,
                },
            },
        )

    @classmethod
    def open(cls, location: BucketLocation, retries: Retries | None = None) -> S3Store:
        """A store in a bucket, which must be there. Blocks.

        Raises:
            BlobStoreUnavailable: There can be no blobs there, or nobody can tell.
        """
        probe = probe_key()
        try:
            with _explained():
                store = cls(location, retries or Retries())
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
        async with contextlib.aclosing(gathered(pieces, _PART_BYTES)) as parts:
            first = await anext(parts)
            if len(first) < _PART_BYTES:
                await self.put(key, first)
                return len(first)
            return await self._upload(key, first, parts)

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

    async def _upload(self, key: str, first: bytes, rest: AsyncIterator[bytes]) -> int:
        handover = _Handover()
        upload = asyncio.ensure_future(
            obstore.put_async(
                self._bucket,
                key,
                handover,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        )
        upload.add_done_callback(_heed)
        try:
            await handover.give(first, upload)
            size = len(first)
            async for part in rest:
                await handover.give(part, upload)
                size += len(part)
            await handover.give(None, upload)
            with _explained():
                await asyncio.shield(upload)
        except BaseException:
            # Were it cancelled, its parts would stay: an error makes obstore abort the upload.
            handover.abandon()
            await asyncio.wait({upload}, timeout=_ABORT_S)
            raise
        return size


class _AbandonedError(Exception):
    """The writer has ended early."""


class _Handover:
    """Parts on their way from a writer's own task to the upload, one at a time.

    So the writer's pieces are made where the writer runs, with its time limits and cancellation.
    """

    def __init__(self) -> None:
        self._parts: asyncio.Queue[bytes | _AbandonedError | None] = asyncio.Queue(1)

    async def give(self, part: bytes | None, upload: asyncio.Future[Any]) -> None:
        """Wait until there is room for a part, or None as the end.

        Raises:
            BlobStoreUnavailable: The upload has failed.
        """
        giving = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait({giving, upload}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            giving.cancel()
        if upload.done():
            with _explained():
                upload.result()

    def abandon(self) -> None:
        """Make the upload fail."""
        while not self._parts.empty():
            self._parts.get_nowait()
        self._parts.put_nowait(_AbandonedError())

    def __aiter__(self) -> _Handover:
        return self

    async def __anext__(self) -> bytes:
        match await self._parts.get():
            case None:
                raise StopAsyncIteration
            case _AbandonedError() as abandoned:
                raise abandoned
            case part:
                return part


async def _parts_of(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), _PART_BYTES):
        yield data[start : start + _PART_BYTES]


def _heed(upload: asyncio.Future[Any]) -> None:
    """Take note of how it ended, so that nothing is said of it when its writer has gone."""
    if not upload.cancelled():
        upload.exception()


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
