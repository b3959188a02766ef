"""The port of the batch store: files and batches of accounts, and the results of lines.

It keeps records; contents lie in the blob store. It knows nothing of the life of a batch: who
changes one hands over a pure function of `ingress.batch.lifecycle`.

Rules every store obeys (the contract suite checks them):

* A record of another account is not there.
* Every method is one transaction: it has happened, or it has not. What it returned stays true
  through the death of any process.
* A line's result is stored once. The same line stored again changes nothing, nor the counts.
* Whoever lost a lease can change nothing under it.
* Nothing blocks the event loop.

All methods raise `StoreUnavailable` where the database cannot be reached or fails. If that comes
while a change is made, the change may have happened all the same: look before making it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from schemas.batch import Batch, FilePurpose, LineResult, Outcome, Shape, StoredFile
from schemas.errors import ErrorKind, ServiceError

T = TypeVar("T")


class StoreUnavailable(ServiceError):
    """The database cannot be reached or fails. May be raised to a client as it is."""

    kind = ErrorKind.OVERLOADED
    status = 503
    code = "store_unavailable"
    default_retry_after_s = 5


class LeaseLost(Exception):
    """Another batcher has the batch, or nobody; what was to be changed has not changed."""


class FileInUse(Exception):
    """The file is the input of a batch that has not ended."""


class IdempotencyConflict(Exception):
    """The key was used for another request."""


class BatchLimitReached(Exception):
    """The account has as many unfinished batches as it may have."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list, in the order asked for.

    Attributes:
        more: Whether there is something after it, in the direction it was asked for.
    """

    items: tuple[T, ...]
    more: bool


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a repeated creation the same one.

    Attributes:
        key: The client's, within its account.
        digest: Of the request.
        since: Unix seconds; an older use of the key is forgotten.
    """

    key: str
    digest: bytes
    since: float


class BatchStore(Protocol):
    """Where records of files and batches are kept. `account` is whose; `now` is Unix seconds."""

    # --- Files ------------------------------------------------------------------------------------

    async def add_file(self, file: StoredFile) -> None: ...

    async def file(self, account: str, file_id: str, now: float) -> StoredFile | None:
        """One that has neither been deleted nor expired."""
        ...

    async def files(
        self,
        account: str,
        *,
        now: float,
        limit: int,
        purpose: FilePurpose | None = None,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Page[StoredFile] | None:
        """By creation, ties by id; None if there is no file `after`."""
        ...

    async def delete_file(self, account: str, file_id: str, now: float) -> StoredFile | None:
        """The record is gone; its content is the caller's to delete. None if there was none.

        Raises:
            FileInUse: It is still needed.
        """
        ...

    async def expired_files(self, now: float, limit: int) -> Sequence[StoredFile]:
        """Records that have expired, but for inputs of unfinished batches."""
        ...

    async def forget_file(self, file_id: str) -> None:
        """Delete the record of an expired file, once its content is gone."""
        ...

    # --- Batches ----------------------------------------------------------------------------------

    async def add_batch(
        self, batch: Batch, *, idempotency: Idempotency | None = None, max_unfinished: int
    ) -> Batch:
        """Returns the new one, or the one that the same request made before.

        Raises:
            IdempotencyConflict: The key belongs to another request.
            BatchLimitReached: The account has `max_unfinished` of both shapes together.
        """
        ...

    async def made_before(self, account: str, idempotency: Idempotency) -> Batch | None:
        """What `add_batch` would return for this request without adding anything.

        Raises:
            IdempotencyConflict: The key belongs to another request.
        """
        ...

    async def batch(self, account: str, batch_id: str) -> Batch | None: ...

    async def batches(
        self,
        account: str,
        shape: Shape,
        *,
        limit: int,
        after: str | None = None,
        before: str | None = None,
    ) -> Page[Batch] | None:
        """Newest first: older ones than `after`, or the next newer ones than `before`.

        Returns None if there is no such batch to go on from.
        """
        ...

    async def change_batch(
        self,
        batch_id: str,
        change: Callable[[Batch], Batch],
        *,
        account: str | None = None,
        owner: str | None = None,
        files: Sequence[StoredFile] = (),
    ) -> Batch | None:
        """Replace a batch by what a pure function makes of it; returns that.

        `change` may be called more than once; what it raises is raised, and nothing has changed.
        `account` says whose the batch must be, `owner` who must hold its lease. `files` are added
        in the same transaction; one that is there already is left alone.

        Returns None if there is no such batch.

        Raises:
            LeaseLost: Somebody else holds the lease.
        """
        ...

    async def delete_batch(
        self, account: str, batch_id: str, allowed: Callable[[Batch], None]
    ) -> Batch | None:
        """The record and its results are gone, the blobs are the caller's to delete.

        `allowed` raises if the batch must stay. Returns None if there was none.
        """
        ...

    async def archivable(self, created_before: float, limit: int) -> Sequence[Batch]:
        """Message batches that have ended and still have a results blob, created before then."""
        ...

    # --- What a batcher does ----------------------------------------------------------------------

    async def claim(
        self, owner: str, *, now: float, lease_s: float, without: Collection[str] = ()
    ) -> Batch | None:
        """The oldest unfinished batch that nobody holds; None if there is none.

        `owner` is unique to this claim; every later call names it. `without` are ids of batches
        that are not wanted, whoever holds them.
        """
        ...

    async def renew(self, batch_id: str, owner: str, *, now: float, lease_s: float) -> Batch:
        """Hold it for longer; returns it as it is now, so that a cancellation is seen.

        A lease that ran out is renewed if nobody else has taken the batch.

        Raises:
            LeaseLost: Somebody has, or it is gone.
        """
        ...

    async def release(self, batch_id: str, owner: str) -> None:
        """Let others have it at once; nothing if it was lost."""
        ...

    async def commit(self, batch_id: str, owner: str, results: Sequence[LineResult]) -> int:
        """Store results, and add them to the batch's counts and usage; returns how many were new.

        Their records of usage are kept with them.

        Raises:
            LeaseLost: Nothing was stored.
        """
        ...

    def committed(self, batch_id: str) -> AsyncIterator[int]:
        """Numbers of the lines that have a result, ascending."""
        ...

    def results(self, batch_id: str) -> AsyncIterator[tuple[int, Outcome, bytes]]:
        """Line number, outcome and text of every result, ascending; read in small parts."""
        ...

    async def named_blobs(self, keys: Collection[str]) -> Collection[str]:
        """Which of these blobs a record needs: of a file, an unfinished batch's input, results.

        The last part of a key of theirs is the id of the file or the batch that has the blob.
        """
        ...

    async def unfinished_batches(self, limit: int) -> Sequence[Batch]:
        """Of all accounts, the oldest first; for who looks after the deployment."""
        ...

    def unfinished(self) -> AsyncIterator[str]:
        """Ids of the batches that have not ended, in no order; read in small parts."""
        ...

    async def undropped(self, limit: int) -> Sequence[str]:
        """Batches that have ended and still have results: who ended them died before dropping."""
        ...

    async def drop_results(self, batch_id: str) -> None:
        """Of a batch that has ended; they are in its files. Also makes the room free."""
        ...

    async def close(self) -> None: ...
