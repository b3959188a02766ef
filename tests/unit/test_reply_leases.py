"""Which reply queue a request is given: one of its own, or one that many share."""

from __future__ import annotations

from collections import Counter

import pytest

from schemas.transport.rabbit_reply_pool import Leases, ReplyQueue


def leases(size: int, queues: int) -> Leases:
    made = Leases(size)
    for number in range(queues):
        made.add(ReplyQueue(f"q{number}"))
    return made


def taken(made: Leases, jobs: range) -> list[ReplyQueue]:
    queues = [made.take(str(job)) for job in jobs]
    assert None not in queues
    return [queue for queue in queues if queue is not None]


def test_as_many_requests_as_there_are_queues_have_one_each() -> None:
    queues = taken(leases(4, 4), range(4))
    assert len({queue.name for queue in queues}) == 4


def test_those_beyond_share_as_few_as_they_can() -> None:
    made = leases(4, 4)
    taken(made, range(4))
    later = taken(made, range(4, 40))
    assert len({queue.name for queue in later}) == 1


def test_a_queue_that_gets_free_is_kept_for_when_fewer_run() -> None:
    made = leases(4, 4)
    own = taken(made, range(4))
    shared = taken(made, range(4, 12))[0]
    alone = next(number for number, queue in enumerate(own) if queue is not shared)
    made.release(own[alone], str(alone))
    assert made.take("later") is shared
    for job in (*range(4, 12), "later"):
        made.release(shared, str(job))
    assert made.take("last") is own[alone]


def test_no_queue_is_shared_by_more_than_it_bears_while_others_have_room() -> None:
    made = leases(2, 2)
    load = Counter(queue.name for queue in taken(made, range(400)))
    assert sorted(load.values()) == [144, 256]


def test_before_all_queues_are_there_requests_share_those_that_are() -> None:
    made = leases(64, 2)
    queues = taken(made, range(5))
    assert len({queue.name for queue in queues}) == 2
    made.add(ReplyQueue("new"))
    assert taken(made, range(5, 6))[0].name == "new"


def test_without_sharing_there_is_none_left() -> None:
    made = leases(0, 1)
    assert made.take("first") is not None
    assert made.take("second") is None


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_released_is_free_once(times: int) -> None:
    made = leases(1, 1)
    (queue,) = taken(made, range(1))
    for _ in range(times):
        made.release(queue, "0")
    assert made.free == 1
    assert made.jobs_on(queue.name) == set()
    assert made.jobs_on("unknown") == set()
