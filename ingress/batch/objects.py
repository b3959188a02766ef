"""Batches as their clients see them: OpenAI's object and Anthropic's; no store and no web.

Every documented field is always there.

Source: wire reference of the batch APIs, "Batch object" of both dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ingress.batch.lifecycle import ENDED
from ingress.stores.base import Page
from schemas.batch import Batch, LineError
from schemas.delta import Usage

COMPLETION_WINDOW: Final = "24h"
DEFAULT_PAGE: Final = 20
LARGEST_PAGE: Final = 100
LARGEST_MESSAGES_PAGE: Final = 1000


def batch_object(batch: Batch) -> dict[str, Any]:
    """An OpenAI batch."""
    counts = batch.counts
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors(batch.errors) if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": COMPLETION_WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(batch.completed_at),
        "failed_at": _seconds(batch.failed_at),
        "expired_at": _seconds(batch.expired_at),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(batch.cancelled_at),
        "request_counts": {
            "total": counts.total,
            "completed": counts.succeeded,
            "failed": counts.errored + counts.cancelled + counts.expired,
        },
        "usage": _usage(batch.usage) if batch.status in ENDED else None,
        "metadata": batch.metadata,
    }


def batch_list(page: Page[Batch]) -> dict[str, Any]:
    """A page of OpenAI batches."""
    return {"object": "list", **_page(page, batch_object)}


def message_batch_object(batch: Batch, base_url: str) -> dict[str, Any]:
    """A message batch.

    Args:
        batch: Of that shape.
        base_url: Of the service as its client reaches it, without a slash at the end.
    """
    ended = batch.status in ENDED
    counts = batch.counts
    readable = ended and batch.archived_at is None and batch.results_blob is not None
    return {
        "id": batch.batch_id,
        "type": "message_batch",
        "processing_status": processing_status(batch),
        "request_counts": {
            "processing": 0 if ended else counts.total,
            "succeeded": counts.succeeded if ended else 0,
            "errored": counts.errored if ended else 0,
            "canceled": counts.cancelled if ended else 0,
            "expired": counts.expired if ended else 0,
        },
        "created_at": rfc_3339(batch.created_at),
        "expires_at": rfc_3339(batch.expires_at),
        "ended_at": _moment(_ended_at(batch)),
        "cancel_initiated_at": _moment(batch.cancelling_at),
        "archived_at": _moment(batch.archived_at),
        "results_url": (
            f"{base_url}/v1/messages/batches/{batch.batch_id}/results" if readable else None
        ),
    }


def message_batch_list(page: Page[Batch], base_url: str) -> dict[str, Any]:
    """A page of message batches."""
    return _page(page, lambda batch: message_batch_object(batch, base_url))


def deleted_message_batch(batch_id: str) -> dict[str, Any]:
    """What a client is told whose message batch is gone."""
    return {"id": batch_id, "type": "message_batch_deleted"}


def processing_status(batch: Batch) -> Literal["in_progress", "canceling", "ended"]:
    """What message batches call their status."""
    if batch.status in ENDED:
        return "ended"
    return "canceling" if batch.status == "cancelling" else "in_progress"


def rfc_3339(seconds: float) -> str:
    """Unix seconds as a moment in UTC, such as `2026-01-02T03:04:05.000006Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _page(page: Page[Batch], show: Callable[[Batch], dict[str, Any]]) -> dict[str, Any]:
    return {
        "data": [show(batch) for batch in page.items],
        "first_id": page.items[0].batch_id if page.items else None,
        "last_id": page.items[-1].batch_id if page.items else None,
        "has_more": page.more,
    }


def _errors(errors: tuple[LineError, ...]) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "line": error.line,
            }
            for error in errors
        ],
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _ended_at(batch: Batch) -> float | None:
    ends = (batch.completed_at, batch.expired_at, batch.cancelled_at, batch.failed_at)
    return next((moment for moment in ends if moment is not None), None)


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def _moment(moment: float | None) -> str | None:
    return None if moment is None else rfc_3339(moment)
