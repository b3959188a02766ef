"""A batch as a service shows it, in one form for both APIs.

Source: wire reference of the batch APIs, the two batch objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas.batch import LineError, Shape

ALL_SUCCEEDED: Final = 0
SOME_FAILED: Final = 2
NOT_COMPLETED: Final = 3

_ENDED: Final = ("failed", "completed", "expired", "cancelled")
_MESSAGES_PREFIX: Final = "msgbatch_"


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a batch.

    Attributes:
        status: In the words of its API.
        created_at: Unix seconds.
        total: Requests; 0 until the input has been read.
        succeeded, errored: How many have ended so. Message batches do not tell before all have.
        unexecuted: Requests that were given up, of those that are told apart from errors.
        tokens: Input and output; None where the API does not tell.
        errors: Why the input was refused.
    """

    batch_id: str
    shape: Shape
    endpoint: str
    status: str
    ended: bool
    created_at: float
    total: int
    succeeded: int
    errored: int
    unexecuted: int
    tokens: tuple[int, int] | None = None
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def done(self) -> int:
        """Requests that have a result."""
        return self.succeeded + self.errored + self.unexecuted

    @property
    def exit_status(self) -> int:
        """What a command that waited for its end returns."""
        if self.unexecuted or (self.shape == "openai" and self.status != "completed"):
            return NOT_COMPLETED
        return SOME_FAILED if self.errored else ALL_SUCCEEDED


def shape_of(batch_id: str) -> Shape:
    """Which API a batch belongs to."""
    return "messages" if batch_id.startswith(_MESSAGES_PREFIX) else "openai"


def view(body: Mapping[str, Any]) -> BatchView:
    """Read a batch object of either API.

    Raises:
        ValueError: It is none.
    """
    try:
        return _message_batch(body) if body.get("type") == "message_batch" else _batch(body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a batch") from error


def _batch(body: Mapping[str, Any]) -> BatchView:
    counts = body.get("request_counts") or {}
    usage = body.get("usage") or {}
    return BatchView(
        batch_id=body["id"],
        shape="openai",
        endpoint=body["endpoint"],
        status=body["status"],
        ended=body["status"] in _ENDED,
        created_at=body["created_at"],
        total=counts.get("total", 0),
        succeeded=counts.get("completed", 0),
        errored=counts.get("failed", 0),
        unexecuted=0,
        tokens=(usage["input_tokens"], usage["output_tokens"]) if usage else None,
        errors=tuple(
            LineError(
                code=error.get("code") or "",
                message=error.get("message") or "",
                param=error.get("param"),
                line=error.get("line"),
            )
            for error in (body.get("errors") or {}).get("data", ())
        ),
        output_file_id=body.get("output_file_id"),
        error_file_id=body.get("error_file_id"),
    )


def _message_batch(body: Mapping[str, Any]) -> BatchView:
    counts = body["request_counts"]
    return BatchView(
        batch_id=body["id"],
        shape="messages",
        endpoint="/v1/messages",
        status=body["processing_status"],
        ended=body["processing_status"] == "ended",
        created_at=datetime.fromisoformat(body["created_at"]).timestamp(),
        total=sum(counts.values()),
        succeeded=counts["succeeded"],
        errored=counts["errored"],
        unexecuted=counts["canceled"] + counts["expired"],
    )
