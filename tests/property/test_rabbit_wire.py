"""Frames read and written by hand are the frames the AMQP library reads and writes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from schemas.transport.rabbit_wire import FrameTap, Poster

OURS, THEIRS = 5, 6
FRAME_MAX = 64
HEARTBEAT = pamqp.frame.marshal(Heartbeat(), 0)

bodies = st.binary(max_size=200)
names = st.text("abc.é", max_size=12)


def content(channel: int, method: object, body: bytes) -> list[bytes]:
    """A message as frames, split as the broker splits it."""
    size = FRAME_MAX - 8
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    frames = [
        pamqp.frame.marshal(method, channel),
        pamqp.frame.marshal(ContentHeader(body_size=len(body)), channel),
    ]
    return frames + [pamqp.frame.marshal(ContentBody(piece), channel) for piece in pieces]


def delivery(channel: int, tag: str, body: bytes) -> list[bytes]:
    return content(channel, commands.Basic.Deliver(tag, 1, False, "", "key"), body)


def returned(channel: int, key: str, body: bytes) -> list[bytes]:
    return content(channel, commands.Basic.Return(312, "NO_ROUTE", "exchange", key), body)


@st.composite
def messages_in(draw: st.DrawFn) -> tuple[list[list[bytes]], list[object], bytes]:
    """What the broker sends, what we must be told of it, and what aiormq must get to read."""
    sent: list[list[bytes]] = []
    told: list[object] = []
    left = b""
    for sort in draw(st.lists(st.sampled_from("dDrRmb"), max_size=8)):
        body, name = draw(bodies), draw(names)
        if sort == "d":
            sent.append(delivery(OURS, name, body))
            told.append((name, body))
            continue
        if sort == "r":
            sent.append(returned(OURS, name, body))
            told.append(name)
            continue
        if sort == "D":
            sent.append(delivery(THEIRS, name, body))
        elif sort == "R":
            sent.append(returned(THEIRS, name, body))
        elif sort == "m":
            sent.append([pamqp.frame.marshal(commands.Basic.ConsumeOk(name), OURS)])
        else:
            sent.append([HEARTBEAT])
        left += b"".join(sent[-1])
    return sent, told, left


@given(messages_in(), st.data())
def test_wherever_the_stream_is_cut_each_reader_gets_its_own(
    case: tuple[list[list[bytes]], list[object], bytes], data: st.DataObject
) -> None:
    sent, expected, left = case
    stream = b"".join(b"".join(frames) for frames in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    told: list[object] = []
    loop = asyncio.new_event_loop()
    try:
        tap = FrameTap(loop)
        tap.watch_deliveries(OURS, lambda tag, body: told.append((tag, body)))
        tap.watch_returns(OURS, told.append)
        for start, stop in pairwise([0, *sorted(cuts), len(stream)]):
            tap.feed_data(stream[start:stop])
        tap.feed_eof()
        read = loop.run_until_complete(tap.read())
    finally:
        loop.close()
    assert told == expected
    assert read.replace(HEARTBEAT, b"") == left.replace(HEARTBEAT, b"")
    assert read.count(HEARTBEAT) <= left.count(HEARTBEAT) + bool(expected)


@given(names, bodies)
def test_posted_messages_are_what_the_library_would_write(key: str, body: bytes) -> None:
    poster = Poster(OURS, FRAME_MAX)
    address = poster.address("headrace.control", key, mandatory=True)
    written = poster.message(address, body)
    frames = []
    while written:
        size, channel, frame = pamqp.frame.unmarshal(written)
        assert channel == OURS
        frames.append(frame)
        written = written[size:]
    publish, header, *pieces = frames
    assert (publish.exchange, publish.routing_key) == ("headrace.control", key)
    assert publish.mandatory
    assert header.body_size == len(body)
    assert header.properties.delivery_mode == 1
    assert b"".join(piece.value for piece in pieces) == body
    assert all(len(piece.value) <= FRAME_MAX - 8 for piece in pieces)


def test_the_tap_sees_the_broker_block_and_unblock() -> None:
    loop = asyncio.new_event_loop()
    try:
        tap, rung = FrameTap(loop), []
        tap.on_blocked = lambda: rung.append(tap.blocked)
        tap.feed_data(pamqp.frame.marshal(commands.Connection.Blocked("memory"), 0))
        assert (tap.blocked, rung) == (True, [True])
        tap.feed_data(pamqp.frame.marshal(commands.Connection.Unblocked(), 0))
        assert (tap.blocked, rung) == (False, [True])
    finally:
        loop.close()
