"""One record of every line of a batch, by what its result tells."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from ingress.usage.store import Selection
from schemas.delta import Usage
from tests.fixtures.batches import add_batch, ended, openai_line, output, run_batcher, said
from tests.fixtures.metrics import Samples
from tests.fixtures.stack import MODEL, memory_stack
from tests.integration.test_usage import neutral


@pytest.mark.rule("usage.lines", "usage.log-file")
async def test_every_line_has_a_record(tmp_path: Path) -> None:
    lines = [
        openai_line("one", said("a b c")),
        openai_line("failed", f"{said('a b c')}[[fail:2]]"),
        openai_line("invalid", "x", temperature=99),
        openai_line("two", said("a b")),
    ]
    log = tmp_path / "usage.jsonl"
    async with memory_stack(files=tmp_path, usage_log=log) as stack:
        services = stack.services
        assert services.store is not None
        assert services.blobs is not None
        assert services.usage.store is not None
        async with run_batcher(services, retries=0):
            batch = await add_batch(services.store, services.blobs, lines)
            batch = await ended(services.store, batch)
        told = {
            line["custom_id"]: neutral("chat", line["response"]["body"]["usage"])
            for line in await output(services.blobs, batch)
        }
        records = await services.usage.store.records(Selection(), limit=9)
        counted = Samples.of(services.metrics.registry)
    by_line = {record.record_id: record for record in records}
    assert by_line.keys() == {f"{batch.batch_id}:{line}" for line in (1, 2, 3, 4)}
    one, failed, invalid, two = (by_line[f"{batch.batch_id}:{line}"] for line in (1, 2, 3, 4))
    assert {"one": one.usage, "two": two.usage} == told
    assert (one.outcome, one.status, one.model, one.attempts) == ("completed", 200, MODEL, 1)
    assert {record.job_class for record in records} == {"batch"}
    assert {record.account for record in records} == {batch.account}
    assert (failed.outcome, failed.code, failed.usage.output_tokens) == (
        "failed",
        "generation_failed",
        2,
    )
    assert (invalid.outcome, invalid.status, invalid.usage) == ("failed", 400, Usage())
    used = {"model": MODEL, "class": "batch"}
    for kind in ("input", "output"):
        tokens = sum(getattr(record.usage, f"{kind}_tokens") for record in records)
        assert counted(f"headrace_{kind}_tokens_total", used) == tokens > 0
    assert counted("headrace_queue_wait_seconds_count", used) == 3, "of those that a worker had"
    logged = [orjson.loads(line)["record_id"] for line in log.read_bytes().splitlines()]
    assert sorted(logged) == sorted(by_line)
