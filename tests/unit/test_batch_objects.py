"""What clients are shown of a batch in each state, and which states there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from ingress.batch import lifecycle
from ingress.batch.objects import batch_object, message_batch_object, rfc_3339
from ingress.public_url import public_url
from schemas.batch import Batch, Counts, LineError
from schemas.delta import Usage
from schemas.errors import BatchNotCancellable, BatchNotEnded

NEW = Batch(
    batch_id="batch_1",
    account="a",
    shape="openai",
    endpoint="/v1/responses",
    input_file_id="file-1",
    input_blob="files/file-1",
    metadata={"k": "v"},
    created_at=1000.9,
    expires_at=87400.9,
)


def running(batch: Batch = NEW) -> Batch:
    return lifecycle.valid(batch, total=5, model="m", now=1001.5)


def counted(batch: Batch) -> Batch:
    counts = msgspec.structs.replace(batch.counts, succeeded=2, errored=1)
    return msgspec.structs.replace(batch, counts=counts, usage=Usage(10, 4, 20, 7))


def ended(batch: Batch, **left: int) -> Batch:
    rest = {"cancelled": 0, "expired": 0, **left}
    return lifecycle.finished(lifecycle.finalizing(batch, 1010.5), now=1020.5, **rest)


STATES: dict[str, Callable[[], Batch]] = {
    "validating": lambda: NEW,
    "failed": lambda: lifecycle.invalid(NEW, [LineError(code="c", message="m", line=3)], 1002.5),
    "in_progress": lambda: counted(running()),
    "finalizing": lambda: lifecycle.finalizing(counted(running()), 1010.5),
    "completed": lambda: ended(counted(running())),
    "expired": lambda: ended(counted(running()), expired=2),
    "cancelling": lambda: lifecycle.cancel(counted(running()), 1005.5),
    "cancelled": lambda: ended(lifecycle.cancel(counted(running()), 1005.5), cancelled=2),
}
TIMES = {
    "validating": {},
    "failed": {"failed_at": 1002},
    "in_progress": {"in_progress_at": 1001},
    "finalizing": {"in_progress_at": 1001, "finalizing_at": 1010},
    "completed": {"in_progress_at": 1001, "finalizing_at": 1010, "completed_at": 1020},
    "expired": {"in_progress_at": 1001, "finalizing_at": 1010, "expired_at": 1020},
    "cancelling": {"in_progress_at": 1001, "cancelling_at": 1005},
    "cancelled": {"in_progress_at": 1001, "cancelling_at": 1005, "cancelled_at": 1020},
}
LATER = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


@pytest.mark.rule("batches.object", "batches.states", "batches.counts", "batches.usage")
@pytest.mark.parametrize("status", STATES)
def test_an_openai_batch(status: str) -> None:
    batch = STATES[status]()
    shown = batch_object(batch)
    unread = status in ("validating", "failed")
    failed = {"expired": 3, "cancelled": 3}.get(status, 1)
    assert shown == {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/responses",
        "model": None if unread else "m",
        "errors": {
            "object": "list",
            "data": [{"code": "c", "message": "m", "param": None, "line": 3}],
        }
        if status == "failed"
        else None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": status,
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 1000,
        "expires_at": 87400,
        **dict.fromkeys(LATER),
        **TIMES[status],
        "request_counts": {"total": 0, "completed": 0, "failed": 0}
        if unread
        else {"total": 5, "completed": 2, "failed": failed},
        "usage": shown["usage"],
        "metadata": {"k": "v"},
    }
    if status not in lifecycle.ENDED:
        assert shown["usage"] is None
    elif status != "failed":
        assert shown["usage"] == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 30,
        }
    else:
        assert shown["usage"]["total_tokens"] == 0


@pytest.mark.rule("message-batches.states", "message-batches.counts", "message-batches.object")
@pytest.mark.parametrize("status", STATES)
def test_a_message_batch(status: str) -> None:
    batch = msgspec.structs.replace(STATES[status](), shape="messages", batch_id="msgbatch_1")
    shown = message_batch_object(batch, "https://here")
    has_ended = status in lifecycle.ENDED
    left = {"expired": {"expired": 2}, "cancelled": {"canceled": 2}}.get(status, {})
    counts = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    if has_ended and status != "failed":
        counts |= {"succeeded": 2, "errored": 1, **left}
    elif not has_ended and status != "validating":
        counts |= {"processing": 5}
    cancelled = status in ("cancelling", "cancelled")
    assert shown == {
        "id": "msgbatch_1",
        "type": "message_batch",
        "processing_status": "ended"
        if has_ended
        else "canceling"
        if status == "cancelling"
        else "in_progress",
        "request_counts": counts,
        "created_at": "1970-01-01T00:16:40.900000Z",
        "expires_at": "1970-01-02T00:16:40.900000Z",
        "ended_at": f"1970-01-01T00:{'16:42' if status == 'failed' else '17:00'}.500000Z"
        if has_ended
        else None,
        "cancel_initiated_at": "1970-01-01T00:16:45.500000Z" if cancelled else None,
        "archived_at": None,
        "results_url": None,
    }


@pytest.mark.rule("message-batches.results-url", "message-batches.results")
def test_results_have_an_address_while_they_are_there() -> None:
    batch = msgspec.structs.replace(STATES["completed"](), results_blob="results/1")
    url = "https://here/v1/messages/batches/batch_1/results"
    assert message_batch_object(batch, "https://here")["results_url"] == url
    archived = msgspec.structs.replace(batch, archived_at=5000.0)
    shown = message_batch_object(archived, "https://here")
    assert shown["results_url"] is None
    assert shown["archived_at"] == "1970-01-01T01:23:20.000000Z"


def test_moments() -> None:
    assert rfc_3339(1767323045.000006) == "2026-01-02T03:04:05.000006Z"
    assert rfc_3339(1767323045) == "2026-01-02T03:04:05.000000Z"


# --- Transitions ----------------------------------------------------------------------------------


@pytest.mark.rule("batches.cancel", "message-batches.cancel", "batches.states")
@pytest.mark.parametrize("status", STATES)
def test_cancelling(status: str) -> None:
    batch = STATES[status]()
    if status in lifecycle.ENDED:
        with pytest.raises(BatchNotCancellable):
            lifecycle.cancel(batch, 2000.5)
    elif status in ("validating", "in_progress"):
        cancelled = lifecycle.cancel(batch, 2000.5)
        assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", 2000.5)
        assert lifecycle.cancel(cancelled, 3000.5) == cancelled
    else:
        assert lifecycle.cancel(batch, 2000.5) == batch


@pytest.mark.rule("batches.states")
def test_a_batch_cancelled_before_it_was_read_ends_as_cancelled() -> None:
    batch = running(lifecycle.cancel(NEW, 1000.95))
    assert (batch.status, batch.in_progress_at, batch.counts) == (
        "cancelling",
        None,
        Counts(total=5),
    )
    assert ended(batch, cancelled=5).status == "cancelled"


@pytest.mark.rule("message-batches.delete", "message-batches.results")
@pytest.mark.parametrize("status", STATES)
def test_what_needs_the_end(status: str) -> None:
    if status in lifecycle.ENDED:
        lifecycle.require_ended(STATES[status]())
    else:
        with pytest.raises(BatchNotEnded):
            lifecycle.require_ended(STATES[status]())


# --- Links ----------------------------------------------------------------------------------------


@pytest.mark.rule("message-batches.results-url")
@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"host": "llm.example:8443"}, "http://llm.example:8443"),
        ({"host": "[::1]:80"}, "http://[::1]:80"),
        ({"host": "inner", "x-forwarded-host": "outer.example"}, "http://outer.example"),
        ({"host": "h", "x-forwarded-proto": "https"}, "https://h"),
        (
            {"host": "h", "x-forwarded-proto": "HTTPS, http", "x-forwarded-host": "o:1, p"},
            "https://o:1",
        ),
        ({"host": "h", "x-forwarded-proto": "javascript"}, "http://h"),
        ({"host": "h", "x-forwarded-host": "a/b"}, "http://h"),
        ({"host": "h", "x-forwarded-host": "user@evil"}, "http://h"),
        ({"host": 'h"><x'}, "http://10.0.0.9:8000"),
        ({}, "http://10.0.0.9:8000"),
    ],
)
def test_where_a_client_reaches_the_service(headers: dict[str, str], url: str) -> None:
    scope: dict[str, Any] = {
        "type": "http",
        "scheme": "http",
        "server": ("10.0.0.9", 8000),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    assert public_url(Request(scope), None) == url
    assert public_url(Request(scope), "https://set.example/base") == "https://set.example/base"
