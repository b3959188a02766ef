"""What becomes of the lines of a batch: every one ends once, as a live request would have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingress.stores.base import BatchStore
from schemas.blobs.base import BlobStore
from tests.fixtures.batches import (
    add_batch,
    ended,
    ids,
    messages_line,
    openai_line,
    output,
    run_batcher,
    said,
)
from tests.fixtures.requests import ALL, answered_text
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.base import Engine


@asynccontextmanager
async def batch_stack(
    directory: Path, engine: Engine | None = None, *, worker: bool = True, **settings: Any
) -> AsyncIterator[tuple[Stack, BatchStore, BlobStore]]:
    """A service with a batcher, and its stores."""
    async with (
        memory_stack(engine, files=directory, worker=worker) as stack,
        run_batcher(stack.services, **settings),
    ):
        assert stack.services.store is not None
        assert stack.services.blobs is not None
        yield stack, stack.services.store, stack.services.blobs


@pytest.mark.parametrize("dialect", [name for name in ALL if name != "messages"])
async def test_lines_are_answered_as_live_requests_are(tmp_path: Path, dialect: str) -> None:
    lines = [openai_line(f"r{n}", said(f"answer {n}"), dialect) for n in range(20)]
    async with batch_stack(tmp_path) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines, dialect=dialect))
        results = await output(blobs, batch)
    assert batch.status == "completed"
    assert (batch.counts.total, batch.counts.succeeded, batch.counts.errored) == (20, 20, 0)
    assert batch.model == MODEL
    assert batch.error_file_id is None
    assert ids(results) == [f"r{n}" for n in range(20)]
    for n, line in enumerate(results):
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"].startswith("req_")
        assert answered_text(dialect, line["response"]["body"]) == f"answer {n}"
    assert batch.usage.output_tokens > 0


async def test_a_message_batch_has_its_results_in_one_place(tmp_path: Path) -> None:
    lines = [messages_line("a", said("one")), messages_line("b", said("two"), max_tokens=0)]
    async with batch_stack(tmp_path) as (_, store, blobs):
        batch = await ended(store, await add_batch(store, blobs, lines, shape="messages"))
        results = await output(blobs, batch)
        await until(lambda: _is_empty(blobs, "batches"))
    assert [line["result"]["type"] for line in results] == ["succeeded", "errored"]
    assert results[0]["result"]["message"]["content"][0]["text"] == "one"
    error = results[1]["result"]["error"]
    assert error["error"]["type"] == "invalid_request_error"
    assert error["request_id"].startswith("req_")
    assert (batch.counts.succeeded, batch.counts.errored) == (1, 1)


async def _is_empty(blobs: BlobStore, folder: str) -> bool:
    return not await blobs.list(folder)
