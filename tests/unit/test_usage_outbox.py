"""Records on their way out: sent in groups, as often as it takes, in bounded memory."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry

from ingress.stores.base import StoreUnavailable
from ingress.usage.log_file import LogFile
from ingress.usage.metrics import UsageMetrics
from ingress.usage.outbox import Outbox
from schemas.delta import Usage
from schemas.transport.base import RecordsNotTaken
from schemas.usage_record import UsageRecord
from tests.contract.test_usage_stores import a_record


class Place:
    """Takes records, unless it is told to fail."""

    def __init__(self) -> None:
        self.taken: list[UsageRecord] = []
        self.groups: list[int] = []
        self.tries = 0
        self.fails_with: Exception | None = None
        self.tried = asyncio.Event()

    async def send(self, group: Sequence[UsageRecord]) -> None:
        self.tries += 1
        self.tried.set()
        if self.fails_with is not None:
            raise self.fails_with
        self.taken += group
        self.groups.append(len(group))


class Boxed:
    def __init__(self, place: Place, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        metrics = UsageMetrics(self.registry)
        self.outbox = Outbox(place.send, to="store", metrics=metrics, **settings)

    def count(self, outcome: str) -> float:
        labels = {"to": "store", "outcome": outcome}
        return self.registry.get_sample_value("headrace_usage_records_total", labels) or 0.0


RECORDS = [a_record(number) for number in range(1200)]


async def test_closing_sends_all_in_order_and_in_groups() -> None:
    place = Place()
    boxed = Boxed(place, linger_s=60)
    for record in RECORDS:
        boxed.outbox.record(record)
    assert place.taken == []
    async with asyncio.timeout(5):
        await boxed.outbox.close()
    assert place.taken == RECORDS
    assert place.groups == [500, 500, 200]
    assert boxed.count("sent") == 1200


async def test_what_comes_is_sent_without_being_asked() -> None:
    place = Place()
    boxed = Boxed(place, linger_s=0)
    boxed.outbox.record(RECORDS[0])
    async with asyncio.timeout(5):
        await place.tried.wait()
    assert place.taken == RECORDS[:1]
    await boxed.outbox.close()
    assert place.taken == RECORDS[:1]


@pytest.mark.rule("usage.outlasts")
@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), RecordsNotTaken("no broker"), OSError("disk full")]
)
async def test_a_place_that_is_away_is_waited_for(error: Exception) -> None:
    place = Place()
    place.fails_with = error
    boxed = Boxed(place, linger_s=0)
    boxed.outbox.record(RECORDS[0])
    async with asyncio.timeout(5):
        while place.tries < 3:
            place.tried.clear()
            await place.tried.wait()
        boxed.outbox.record(RECORDS[1])
        place.fails_with = None
        await boxed.outbox.close()
    assert place.taken == RECORDS[:2]


@pytest.mark.rule("usage.bounded")
async def test_what_has_no_room_is_written_into_the_log() -> None:
    place = Place()
    place.fails_with = StoreUnavailable("away")
    boxed = Boxed(place, most=2, close_s=0.01)
    with structlog.testing.capture_logs() as lines:
        for record in RECORDS[:3]:
            boxed.outbox.record(record)
        dropped = [line for line in lines if line["event"] == "usage.dropped"]
        assert [line["record_id"] for line in dropped] == [RECORDS[2].record_id]
        assert (dropped[0]["log_level"], dropped[0]["output_tokens"]) == ("error", 3)
        await boxed.outbox.close()
        boxed.outbox.record(RECORDS[3])
    dropped = [line for line in lines if line["event"] == "usage.dropped"]
    assert [line["record_id"] for line in dropped] == [
        RECORDS[number].record_id for number in (2, 0, 1, 3)
    ]
    assert (boxed.count("dropped"), boxed.count("sent")) == (4, 0)


async def test_a_group_that_cannot_be_sent_for_a_fault_of_ours_holds_up_no_other() -> None:
    place = Place()
    place.fails_with = TypeError("ours")
    boxed = Boxed(place, linger_s=0)
    with structlog.testing.capture_logs() as lines:
        boxed.outbox.record(RECORDS[0])
        async with asyncio.timeout(5):
            await place.tried.wait()
            place.fails_with = None
            boxed.outbox.record(RECORDS[1])
            await boxed.outbox.close()
    assert [line["record_id"] for line in lines if line["event"] == "usage.dropped"] == [
        RECORDS[0].record_id
    ]
    assert place.taken == [RECORDS[1]]


@pytest.mark.rule("usage.log-file")
async def test_a_file_has_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    await LogFile(path).append(RECORDS[:2])
    path.rename(tmp_path / "usage.1")
    odd = a_record(9, key="\u2028é", usage=Usage(7, 6, 5, 4), code="generation_failed")
    await LogFile(path).append([odd])
    await LogFile(path).append(RECORDS[2:3])
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["record_id"] for line in lines] == [odd.record_id, RECORDS[2].record_id]
    assert lines[0]["key"] == "\u2028é"
    told = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    assert [lines[0][name] for name in told] == [7, 6, 5, 4]
    assert "usage" not in lines[0]
    assert (tmp_path / "usage.1").read_bytes().count(b"\n") == 2
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_group_that_failed_half_way_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    log, group = LogFile(path), RECORDS[:3]
    await log.append(group[:1])
    size = path.stat().st_size
    path.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 2, before[1]))  # a line and a half
    try:
        for _ in range(2):
            with pytest.raises(OSError):
                await log.append(group)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await log.append(group)
    whole = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert [orjson.loads(line)["record_id"] for line in whole] == [r.record_id for r in group]
