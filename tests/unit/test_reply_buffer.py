"""What has arrived of a reply and was not read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from schemas.delta import ReplyMessage
from schemas.transport.base import ReplyLost, ReplySuspended
from schemas.transport.reply_buffer import ReplyBuffer


def message(attempt: int, seq: int) -> ReplyMessage:
    return ReplyMessage("job", attempt, seq, ())


async def at_once(buffer: ReplyBuffer) -> Sequence[ReplyMessage]:
    async with asyncio.timeout(0.1):
        return await buffer.take()


async def test_too_much_unread_suspends_and_what_had_arrived_is_read_first() -> None:
    buffer = ReplyBuffer(100)
    assert buffer.put(message(1, 0), 60)
    assert not buffer.put(message(1, 1), 60)
    assert buffer.put(message(1, 2), 1), "told once"
    assert await at_once(buffer) == [message(1, 0)]
    for _ in range(2):
        with pytest.raises(ReplySuspended):
            await at_once(buffer)


async def test_a_further_attempt_keeps_what_was_not_read() -> None:
    buffer = ReplyBuffer(100)
    buffer.put(message(1, 0), 1)
    buffer.fail(ReplyLost("The worker was lost."))
    buffer.put(message(1, 1), 1)
    buffer.renew()
    buffer.put(message(2, 0), 1)
    assert await at_once(buffer) == [message(1, 0), message(2, 0)]
    with pytest.raises(TimeoutError):
        await at_once(buffer)


async def test_a_renewed_buffer_waits_and_fills_again() -> None:
    buffer = ReplyBuffer(100)
    buffer.put(message(1, 0), 60)
    buffer.put(message(1, 1), 60)
    assert await at_once(buffer) == [message(1, 0)]
    buffer.renew()
    with pytest.raises(TimeoutError):
        await at_once(buffer)
    assert buffer.put(message(2, 0), 60)
    assert await at_once(buffer) == [message(2, 0)]


async def test_much_is_read_in_steps_and_stays_bounded_meanwhile() -> None:
    buffer = ReplyBuffer(1000)
    for seq in range(1000):
        assert buffer.put(message(1, seq), 1)
    read = [*await at_once(buffer)]
    assert 0 < len(read) < 1000
    for seq in range(1000, 1000 + len(read)):
        assert buffer.put(message(1, seq), 1), "there is as much room as was read"
    assert not buffer.put(message(1, 1000 + len(read)), 1)
    total = 1000 + len(read)
    while len(read) < total:
        read += await at_once(buffer)
    assert read == [message(1, seq) for seq in range(total)]
    with pytest.raises(ReplySuspended):
        await at_once(buffer)


async def test_what_was_left_of_a_step_is_read_before_the_next_attempt() -> None:
    buffer = ReplyBuffer(1000)
    for seq in range(600):
        buffer.put(message(1, seq), 1)
    read = [*await at_once(buffer)]
    buffer.renew()
    buffer.put(message(2, 0), 1)
    while len(read) < 601:
        read += await at_once(buffer)
    assert read == [*(message(1, seq) for seq in range(600)), message(2, 0)]
    with pytest.raises(TimeoutError):
        await at_once(buffer)


async def test_who_listens_is_offered_what_comes_while_the_reader_waits() -> None:
    buffer = ReplyBuffer(100)
    offered: list[ReplyMessage] = []

    def listen(offer: ReplyMessage) -> bool:
        offered.append(offer)
        return offer.seq % 2 == 0

    buffer.listener = listen
    buffer.put(message(1, 0), 1)
    assert offered == [], "nobody waits yet"
    assert await at_once(buffer) == [message(1, 0)]
    reading = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    buffer.put(message(1, 2), 1)
    await asyncio.sleep(0)
    assert not reading.done(), "it was taken"
    buffer.put(message(1, 3), 1)
    buffer.put(message(1, 4), 1)
    assert await reading == [message(1, 3), message(1, 4)]
    assert offered == [message(1, 2), message(1, 3)], "what is unread comes first"


async def test_nothing_is_lost_with_a_reader_who_gives_up() -> None:
    buffer = ReplyBuffer(100)
    reading = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    buffer.put(message(1, 0), 1)
    reading.cancel()
    buffer.put(message(1, 1), 1)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await at_once(buffer) == [message(1, 0), message(1, 1)]
