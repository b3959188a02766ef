"""Values of files and batches, as they are stored: no dialect's words, no clock, no database.

One batch engine serves two public shapes. A batch is a list of input lines; each ends in exactly
one result, which is stored as the very line that the client will read.

Source: wire reference of the batch APIs.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from schemas.delta import Usage
from schemas.usage_record import UsageRecord

Shape: TypeAlias = Literal["openai", "messages"]
"""Which public API a batch belongs to: OpenAI batches, or Anthropic message batches."""

FilePurpose: TypeAlias = Literal["batch", "batch_output"]

Status: TypeAlias = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
"""Those of OpenAI batches; what message batches call theirs is derived from them."""

UNFINISHED: Final[tuple[Status, ...]] = ("validating", "in_progress", "cancelling", "finalizing")
"""A batcher has something to do."""

Outcome: TypeAlias = Literal["succeeded", "errored", "cancelled", "expired"]
"""How one line ended: the last two without having been executed."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that an account has, or the output of a batch.

    Attributes:
        size: In bytes.
        created_at: Unix seconds.
        expires_at: From then on it is not there any more; None for never.
        blob: Key of its content in the blob store.
    """

    file_id: str
    account: str
    filename: str
    purpose: FilePurpose
    size: int
    created_at: int
    expires_at: int | None = None
    blob: str


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an input cannot be a batch.

    Attributes:
        line: From 1; None if it is about the whole file.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines by their outcome; `total` is 0 until the input has been read."""

    total: int = 0
    succeeded: int = 0
    errored: int = 0
    cancelled: int = 0
    expired: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and where it stands.

    Times are Unix seconds, None until reached.

    Attributes:
        endpoint: Path of the dialect that every line is a request of.
        input_file_id: None for message batches, whose requests came in the body.
        input_blob: Key of the input, one line per request.
        model: What all lines ask for; None if they differ or that is not known yet.
        output_expires_after_s: Of its output files; None for never.
        expires_at: When what is not done by then is given up.
        usage: Of all lines that were executed.
        errors: Why it failed in validation.
        output_file_id, error_file_id: OpenAI batches that have ended, if there is such a file.
        results_blob: Message batches that have ended.
        archived_at: Since when the results of a message batch are gone.
    """

    batch_id: str
    account: str
    shape: Shape
    endpoint: str
    status: Status = "validating"
    input_file_id: str | None = None
    input_blob: str
    model: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None
    created_at: float
    expires_at: float
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    archived_at: float | None = None
    counts: Counts = Counts()
    usage: Usage = Usage(0, 0, 0, 0)
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    results_blob: str | None = None


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input line.

    Attributes:
        line: From 1, as in the input; blank lines count.
        text: The line of the output, whole but for its end.
        record: What it used; stored together with it.
    """

    line: int
    outcome: Outcome
    text: bytes
    usage: Usage = Usage(0, 0, 0, 0)
    record: UsageRecord | None = None
