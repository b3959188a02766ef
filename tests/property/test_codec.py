"""The codec gives back what it was given, and refuses everything else with its own error."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import (
    AnnounceRequest,
    Cancel,
    CodecError,
    Control,
    StoredJob,
    decode_blob,
    decode_control,
    decode_frame,
    decode_job,
    decode_worker,
    encode_blob,
    encode_control,
    encode_frame,
    encode_job,
    encode_worker,
)
from schemas.delta import ReplyMessage
from schemas.job import Job
from schemas.model_card import WorkerInfo
from tests.property import strategies

controls = st.builds(Cancel, job_id=strategies.names, attempt=st.integers(1, 9)) | st.just(
    AnnounceRequest()
)


@given(strategies.jobs)
def test_jobs_round_trip(job: Job) -> None:
    assert decode_job(encode_job(job)) == job


@given(strategies.jobs, strategies.jobs)
def test_a_stored_job_is_the_same_in_every_attempt(first: Job, later: Job) -> None:
    """Whatever differs between attempts is in the message; the rest is of the first one."""
    blob, key = encode_blob(first), "jobs/1-a"
    again = msgspec.structs.replace(
        first,
        attempt=later.attempt,
        queue_deadline=later.queue_deadline,
        continuation=later.continuation,
        suspect=later.suspect,
    )
    for job in (first, again):
        stored = StoredJob.of(job, key)
        assert decode_job(encode_job(stored)) == stored
        assert stored.job(decode_blob(blob)) == job


@given(st.binary(max_size=60))
def test_a_blob_of_garbage_is_refused(blob: bytes) -> None:
    with pytest.raises(CodecError):
        decode_blob(blob)


@given(strategies.tuples_of(strategies.messages))
def test_frames_round_trip(messages: tuple[ReplyMessage, ...]) -> None:
    assert decode_frame(encode_frame(messages)).messages == messages


@given(strategies.workers)
def test_announcements_round_trip(worker: WorkerInfo) -> None:
    assert decode_worker(encode_worker(worker)) == worker


@given(controls)
def test_controls_round_trip(control: Control) -> None:
    assert decode_control(encode_control(control)) == control


@given(st.binary(max_size=60) | strategies.json_values.map(repr).map(str.encode))
def test_garbage_is_refused_and_nothing_else_happens(body: bytes) -> None:
    for decode in (decode_job, decode_frame, decode_worker, decode_control):
        with contextlib.suppress(CodecError):
            raise AssertionError(f"{decode.__name__} made {decode(body)!r} of it")


@given(strategies.jobs, st.data())
def test_a_damaged_job_is_refused_or_is_a_job(job: Job, data: st.DataObject) -> None:
    body = bytearray(encode_job(job))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        assert isinstance(decode_job(bytes(body)), Job)


@given(strategies.messages, st.data())
def test_a_damaged_frame_is_refused_or_is_a_frame(
    message: ReplyMessage, data: st.DataObject
) -> None:
    body = bytearray(encode_frame((message,)))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        assert all(isinstance(found, ReplyMessage) for found in decode_frame(bytes(body)).messages)


@given(strategies.messages, st.data())
def test_a_cut_frame_is_refused(message: ReplyMessage, data: st.DataObject) -> None:
    body = encode_frame((message,))
    cut = data.draw(st.integers(0, len(body) - 1))
    with contextlib.suppress(CodecError):
        raise AssertionError(f"made {decode_frame(body[:cut])!r} of it")
