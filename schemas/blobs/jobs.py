"""Large Jobs by reference: the Job goes into a blob store, and its message names the blob.

The dispatcher's side is `JobWriter`, the worker's `JobReader`. The blob is written once per request
and read once per attempt; whoever wrote it deletes it when the reply closes, whatever its end. What
a process that was killed leaves behind is deleted by `sweep`, which any process may do: a blob's
key says until when somebody may need it.

Without a store every Job travels in its message, as far as the broker takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator

import structlog

from schemas.blobs.base import BlobMissing, BlobStore, BlobStoreUnavailable
from schemas.codec import StoredJob, decode_blob, decode_job, encode_blob, encode_job
from schemas.delta import Failed, Interrupted
from schemas.errors import InternalError, ModelOverloaded
from schemas.job import Job

log = structlog.get_logger(__name__)

FOLDER = "jobs"
_NAME = re.compile(rf"{FOLDER}/(\d+)-.*")

MARGIN_S = 600.0
"""How long after its request's deadline a blob is still kept: clocks differ, and endings take a
moment."""

SWEEP_EVERY_S = 300.0

_LAST_DELETIONS_S = 10.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class JobUnavailable(Exception):
    """The message is sound, but the Job it names cannot be had.

    Attributes:
        answer: What its owner is told.
    """

    def __init__(self, job: StoredJob, reason: str, answer: Failed | Interrupted) -> None:
        super().__init__(reason)
        self.job = job
        self.answer = answer


class JobWriter:
    """Makes the messages of Jobs.

    Args:
        store: None keeps everything in the message.
        max_inline_bytes: What is larger goes into the store. A Job's continuation does not count:
            it is of one attempt only, and travels in the message.
    """

    def __init__(self, store: BlobStore | None, max_inline_bytes: int) -> None:
        self._store = store
        self._max_inline_bytes = max_inline_bytes
        self._puts: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._deletions: set[asyncio.Task[None]] = set()

    async def write(self, job: Job) -> bytes:
        """The message's body. Until `release` the store has what it refers to.

        A store that fails is gone round: what the broker takes can still be served.
        """
        if self._store is None:
            return encode_job(job)
        if job.job_id not in self._puts:
            blob = encode_blob(job)
            if len(blob) <= self._max_inline_bytes:
                return encode_job(job)
            key = f"{FOLDER}/{int(job.deadline)}-{job.job_id}"
            self._puts[job.job_id] = key, asyncio.create_task(self._store.put(key, blob))
            del blob
        key, put = self._puts[job.job_id]
        try:
            await asyncio.shield(put)  # it ends in any case, and then can be undone
        except BlobStoreUnavailable as error:
            del self._puts[job.job_id]
            log.error("blobs.not_written", job_id=job.job_id, reason=str(error))
            return encode_job(job)
        return encode_job(StoredJob.of(job, key))

    def release(self, job_id: str) -> None:
        """Nobody will need the Job any more. Idempotent."""
        stored = self._puts.pop(job_id, None)
        if stored is not None:
            deletion = asyncio.create_task(self._delete(*stored))
            self._deletions.add(deletion)
            deletion.add_done_callback(self._deletions.discard)

    async def close(self) -> None:
        """Release all that is left, and wait for it unless the store hangs."""
        for job_id in tuple(self._puts):
            self.release(job_id)
        if self._deletions:
            await asyncio.wait(self._deletions, timeout=_LAST_DELETIONS_S)

    async def _delete(self, key: str, put: asyncio.Task[None]) -> None:
        assert self._store is not None
        try:
            await put
            await self._store.delete(key)
        except BlobStoreUnavailable as error:
            log.warning("blobs.not_deleted", key=key, reason=str(error))  # a sweep will do it


class JobReader:
    """Reads the messages of Jobs.

    Args:
        store: Of the same place as the writer's; None if this worker has none.
        patience_s: How long a store that fails is tried before another worker has its turn.
    """

    def __init__(self, store: BlobStore | None, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s

    async def read(self, body: bytes) -> Job:
        """The Job of a message; waits for nothing unless it is a reference.

        Raises:
            CodecError: The message or the blob cannot be understood.
            JobUnavailable: The blob cannot be had.
        """
        job = decode_job(body)
        if isinstance(job, Job):
            return job
        if time.time() > job.queue_deadline:
            error = ModelOverloaded("The request waited too long for a free worker.")
            raise JobUnavailable(job, "queue deadline passed", Failed(error.info()))
        return job.job(decode_blob(await self._fetch(job)))

    async def _fetch(self, job: StoredJob) -> bytes:
        if self._store is None:
            log.error(
                "blobs.not_configured",
                job_id=job.job_id,
                hint="set HEADRACE_BLOBS to the place that the ingress uses",
            )
            raise JobUnavailable(
                job,
                "this worker has no blob store",
                Failed(
                    InternalError("This service is not set up for requests of this size.").info()
                ),
            )
        pause = _FIRST_PAUSE_S
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                return await self._store.get(job.stored)
            except BlobMissing:
                raise JobUnavailable(
                    job,
                    "its blob is gone",
                    Failed(InternalError("The request is no longer there to be answered.").info()),
                ) from None
            except BlobStoreUnavailable as error:
                if time.monotonic() + pause > give_up_at:
                    raise JobUnavailable(
                        job, f"blob store: {error}", Interrupted("unreadable")
                    ) from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)


async def sweep(store: BlobStore, now: float) -> int:
    """Delete the blobs of Jobs that nobody waits for at `now` (Unix time); returns how many.

    Several processes may do so at the same time.

    Raises:
        BlobStoreUnavailable: Some may be left.
    """
    deleted = 0
    for key in await store.list(FOLDER):
        named = _NAME.fullmatch(key)
        if named is not None and int(named[1]) + MARGIN_S < now:
            await store.delete(key)
            deleted += 1
    return deleted


@contextlib.asynccontextmanager
async def swept(store: BlobStore | None, every_s: float = SWEEP_EVERY_S) -> AsyncIterator[None]:
    """While the block runs, sweep the store, at once and every few minutes."""
    if store is None:
        yield
        return
    sweeping = asyncio.create_task(_sweep_regularly(store, every_s))
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.wait({sweeping})


async def _sweep_regularly(store: BlobStore, every_s: float) -> None:
    while True:
        try:
            if deleted := await sweep(store, time.time()):
                log.info("blobs.swept", deleted=deleted)
        except BlobStoreUnavailable as error:
            log.warning("blobs.not_swept", reason=str(error))
        await asyncio.sleep(every_s)
