"""Sealed Jobs: who can read them, and who cannot."""

from __future__ import annotations

import time

import msgspec
import pytest

from schemas.codec import CodecError
from schemas.job import ChatPrompt, ChoicePrefix, Continuation, Job
from schemas.message import ImagePart, Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.sealing import Box, NotForUs, Opener, Sealer
from tests.fixtures.canary import Search, canary

SECRET, ANSWER = canary("prompt"), canary("answer")


def a_job() -> Job:
    now = time.time()
    parts = (TextPart(text=SECRET), ImagePart(media_type="image/png", data=SECRET.encode()))
    prefix = ChoicePrefix(token_ids=tuple(ANSWER.encode()), units=3)
    return Job(
        job_id="job-1",
        attempt=3,
        model="m",
        prompt=ChatPrompt(messages=(Message(role="user", parts=parts),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=8)),
        created_at=now,
        deadline=now + 60,
        queue_deadline=now + 6,
        continuation=Continuation(choices=(prefix,)),
        suspect=True,
        zdr=True,
    )


def test_the_workers_it_is_sealed_to_can_read_all_of_it_and_others_nothing() -> None:
    job, replies, sealer = a_job(), Box(), Sealer()
    workers, stranger = [Opener(), Opener()], Opener()
    body = sealer.seal(job, replies, [worker.public_key for worker in workers])
    assert list(Search({"prompt": SECRET, "answer": ANSWER}).text("body", body)) == []
    for worker in workers:
        opened, box = worker.open(body)
        assert opened == job
        assert replies.open(box.close(b"reply", b"job-1"), b"job-1") == b"reply"
    with pytest.raises(NotForUs):
        stranger.open(body)


def test_every_dispatcher_has_a_key_of_its_own_and_every_message_another_text() -> None:
    job, worker = a_job(), Opener()
    first, second = Sealer(), Sealer()
    keys = [worker.public_key]
    bodies = [sealer.seal(job, Box(), keys) for sealer in (first, first, second)]
    assert len(set(bodies)) == 3
    assert [worker.open(body)[0] for body in bodies] == [job] * 3


def test_replies_are_of_one_job_only() -> None:
    closed = Box().close(b"reply", b"job-1")
    with pytest.raises(CodecError):
        Box().open(closed, b"job-1")
    box = Box()
    with pytest.raises(CodecError):
        box.open(box.close(b"reply", b"job-1"), b"job-2")
    with pytest.raises(CodecError):
        box.open(b"short")


def test_what_was_changed_or_cut_is_not_read() -> None:
    worker = Opener()
    body = Sealer().seal(a_job(), Box(), [worker.public_key])
    for changed in range(0, len(body), 7):
        broken = bytearray(body)
        broken[changed] ^= 1
        with pytest.raises((CodecError, NotForUs)):
            worker.open(bytes(broken))
    for cut in range(0, len(body), 7):
        with pytest.raises(CodecError):
            worker.open(body[:cut])


@pytest.mark.parametrize("body", [b"", b'{"version":1}', b"\xff" * 40, msgspec.msgpack.encode([1])])
def test_anything_else_is_no_sealed_job(body: bytes) -> None:
    with pytest.raises(CodecError, match="no sealed Job"):
        Opener().open(body)


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(CodecError, match="version 9"):
        Opener().open(msgspec.msgpack.encode((9, (), b"")))
