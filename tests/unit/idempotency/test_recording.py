from __future__ import annotations

import asyncio

import pytest

from ingress.idempotency.recording import Follower, Recording, Room

START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}


def body(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def rest(follower: Follower) -> bytes:
    found = b""
    while True:
        message = await follower.next()
        found += message.get("body", b"")
        if message["type"] == "http.response.body" and not message["more_body"]:
            follower.leave()
            return found


@pytest.mark.rule("idempotency.joins")
async def test_everybody_gets_everything() -> None:
    room = Room(1 << 20)
    answer = Recording(room, max_bytes=1 << 20)
    early = asyncio.create_task(rest(answer.follow()))
    await answer.send(START)
    await answer.send(body(b"one"))
    middle = asyncio.create_task(rest(answer.follow()))
    await answer.send(body(b"two"))
    await answer.send(body(b"", more=False))
    assert await early == await middle == await rest(answer.follow()) == b"onetwo"
    assert room.used == 6
    answer.close()
    assert room.used == 0


@pytest.mark.rule("idempotency.memory", "idempotency.slow")
async def test_beyond_its_bound_it_waits_for_the_slowest() -> None:
    room = Room(1 << 20)
    answer = Recording(room, max_bytes=10)
    slow, fast = answer.follow(), answer.follow()
    await answer.send(START)
    await answer.send(body(b"x" * 8))
    for follower in (slow, fast):
        assert (await follower.next())["status"] == 200
    assert (await fast.next())["body"] == b"x" * 8
    sending = asyncio.create_task(answer.send(body(b"y" * 8)))
    done, _ = await asyncio.wait({sending}, timeout=0.01)
    assert not done
    assert (await fast.next())["body"] == b"y" * 8  # who is fast has it all the same
    assert answer.whole
    assert (await slow.next())["body"] == b"x" * 8 + b"y" * 8
    await sending
    assert not answer.whole
    assert room.used <= 10
    sending = asyncio.create_task(answer.send(body(b"z" * 11)))
    assert (await fast.next())["body"] == b"z" * 11
    slow.leave()  # nobody waits for one who has left
    await sending


@pytest.mark.rule("idempotency.left-alone")
async def test_when_the_last_has_left() -> None:
    answer = Recording(Room(100), max_bytes=100)
    alone = asyncio.Event()
    answer.on_alone = alone.set
    one, two = answer.follow(), answer.follow()
    one.leave()
    one.leave()
    assert not alone.is_set()
    two.leave()
    assert alone.is_set()
    receiving = asyncio.create_task(answer.receive())
    answer.give_up()
    assert await receiving == {"type": "http.disconnect"}


async def test_what_breaks_off_is_told_to_all() -> None:
    answer = Recording(Room(100), max_bytes=100)
    waiting = [asyncio.create_task(rest(answer.follow())) for _ in range(2)]
    await answer.send(START)
    answer.break_off(ValueError("broken"))
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ValueError)


async def test_what_all_hold_together_is_bounded() -> None:
    room = Room(1 << 20)
    least = 1 << 20
    first, second = (Recording(room, max_bytes=4 * least) for _ in range(2))
    for answer in (first, second):
        await answer.send(START)
        await answer.send(body(b"x" * least))
    assert first.whole
    await second.send(body(b"x" * least))
    assert not second.whole  # nobody follows it, and there is no room for it
    assert room.used == least
