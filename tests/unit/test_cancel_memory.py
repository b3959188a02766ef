"""Which Jobs were cancelled, remembered for a while and in bounded number."""

from __future__ import annotations

from schemas.codec import Cancel
from schemas.transport.cancel_memory import MOST_REMEMBERED, CancelMemory
from tests.contract.transport_suite import a_job


def remembered(memory: CancelMemory, job_id: str, attempt: int = 1) -> bool:
    return memory.covers(a_job("demo-model", attempt=attempt, job_id=job_id))


def test_a_cancel_covers_its_attempt_and_earlier_ones() -> None:
    memory = CancelMemory(keep_s=10)
    memory.add(Cancel(job_id="a", attempt=2), now=0)
    memory.add(Cancel(job_id="a", attempt=1), now=0)  # overtaken on its way
    assert [remembered(memory, "a", attempt) for attempt in (1, 2, 3)] == [True, True, False]
    assert not remembered(memory, "b")


def test_it_forgets_after_a_while_what_was_not_cancelled_again() -> None:
    memory = CancelMemory(keep_s=10)
    for job_id, now in (("a", 0), ("b", 1), ("a", 8), ("c", 12)):
        memory.add(Cancel(job_id=job_id, attempt=1), now=now)
    assert [remembered(memory, job_id) for job_id in "abc"] == [True, False, True]


def test_it_is_bounded() -> None:
    memory = CancelMemory(keep_s=10)
    for n in range(MOST_REMEMBERED + 10):
        memory.add(Cancel(job_id=str(n), attempt=1), now=0)
    assert len(memory._attempts) == MOST_REMEMBERED
    assert not remembered(memory, "9")
    assert remembered(memory, "10")
