"""The life of a batch: pure functions from one state to the next.

    validating ─► failed
         └─► in_progress ─► finalizing ─► completed
                 │  └─(its time is over)─► finalizing ─► expired
                 └─(cancel)─► cancelling ─► cancelled

A batch in `cancelling` stays so until what it has produced has been written.

Source: wire reference of the batch APIs, "State machine".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from schemas.batch import UNFINISHED, Batch, LineError, Status
from schemas.errors import BatchNotCancellable, BatchNotEnded

ENDED: Final[tuple[Status, ...]] = ("failed", "completed", "expired", "cancelled")


def cancel(batch: Batch, now: float) -> Batch:
    """What a client's wish to cancel makes of it.

    Raises:
        BatchNotCancellable: It has ended.
    """
    if batch.status in ENDED:
        raise BatchNotCancellable(f"The batch is {batch.status} and cannot be cancelled.")
    if batch.status in ("cancelling", "finalizing"):
        return batch
    return msgspec.structs.replace(batch, status="cancelling", cancelling_at=now)


def valid(batch: Batch, *, total: int, model: str | None, now: float) -> Batch:
    """The input has been read and is sound."""
    counts = msgspec.structs.replace(batch.counts, total=total)
    batch = msgspec.structs.replace(batch, counts=counts, model=model)
    if batch.status == "validating":
        batch = msgspec.structs.replace(batch, status="in_progress", in_progress_at=now)
    return batch


def invalid(batch: Batch, errors: Sequence[LineError], now: float) -> Batch:
    """The input is unsound; nothing runs."""
    return msgspec.structs.replace(batch, status="failed", failed_at=now, errors=tuple(errors))


def finalizing(batch: Batch, now: float) -> Batch:
    """No line will run any more; the results are being written. Cancelled ones keep their state."""
    if batch.status == "in_progress":
        return msgspec.structs.replace(batch, status="finalizing", finalizing_at=now)
    return batch


def finished(
    batch: Batch,
    *,
    now: float,
    cancelled: int,
    expired: int,
    output_file_id: str | None = None,
    error_file_id: str | None = None,
    results_blob: str | None = None,
) -> Batch:
    """Everything is written. `cancelled` and `expired` count the lines that were not executed."""
    counts = msgspec.structs.replace(batch.counts, cancelled=cancelled, expired=expired)
    batch = msgspec.structs.replace(
        batch,
        counts=counts,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
        results_blob=results_blob,
    )
    if batch.status == "cancelling":
        return msgspec.structs.replace(batch, status="cancelled", cancelled_at=now)
    if expired:
        return msgspec.structs.replace(batch, status="expired", expired_at=now)
    return msgspec.structs.replace(batch, status="completed", completed_at=now)


def archived(batch: Batch, now: float) -> Batch:
    """The results of a message batch are gone; how it ended stays known."""
    if batch.archived_at is not None:
        return batch
    return msgspec.structs.replace(batch, results_blob=None, archived_at=now)


def require_ended(batch: Batch) -> None:
    """Refuse what can only be done with a batch that has ended.

    Raises:
        BatchNotEnded: It has not.
    """
    if batch.status in UNFINISHED:
        raise BatchNotEnded("The batch has not ended yet.")
