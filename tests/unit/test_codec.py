"""What the bytes look like, and what is said about those that are wrong."""

from __future__ import annotations

import msgspec
import pytest

from schemas.codec import (
    Cancel,
    CodecError,
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
)
from schemas.delta import Completed, Finished, FinishReason, ReplyMessage, TextDelta, Usage
from schemas.job import ChatPrompt, ChoicePrefix, Continuation, Job
from schemas.message import ImagePart, Message, TextPart
from schemas.sampling import OutputLimit, SamplingParams

JOB = Job(
    job_id="j1",
    model="m",
    prompt=ChatPrompt(
        messages=(
            Message(
                role="user",
                parts=(
                    TextPart(text="the secret"),
                    ImagePart(media_type="image/png", data=b"\x89PNG"),
                ),
            ),
        )
    ),
    sampling=SamplingParams(limit=OutputLimit(max_tokens=5)),
    created_at=1.0,
    deadline=2.0,
    queue_deadline=1.5,
)


def test_a_job_can_be_read_by_an_operator() -> None:
    assert encode_job(JOB) == (
        b'{"version":1,"job_id":"j1","attempt":1,"request_id":"","model":"m",'
        b'"job_class":"interactive","prompt":{"type":"chat","messages":[{"role":"user","parts":'
        b'[{"type":"text","text":"the secret"},'
        b'{"type":"image","media_type":"image/png","data":"iVBORw=="}]}]},'
        b'"sampling":{"limit":{"max_tokens":5}},"created_at":1.0,"deadline":2.0,'
        b'"queue_deadline":1.5,"continuation":null,"suspect":false,"exclusive":false,"zdr":false}'
    )


def test_the_message_of_a_stored_job_has_nothing_of_the_prompt() -> None:
    prefix = ChoicePrefix((7, 8), 3)
    job = msgspec.structs.replace(
        JOB, attempt=2, suspect=True, continuation=Continuation(choices=(prefix,))
    )
    assert encode_job(StoredJob.of(job, "jobs/2-j1")) == (
        b'{"version":1,"stored":"jobs/2-j1","job_id":"j1","attempt":2,"request_id":"","model":"m",'
        b'"job_class":"interactive","deadline":2.0,"queue_deadline":1.5,'
        b'"continuation":{"choices":[[[7,8],3,0,false]]},"suspect":true,"exclusive":false}'
    )


def test_a_blob_of_another_version_is_refused() -> None:
    blob = encode_blob(msgspec.structs.replace(JOB, version=2))
    with pytest.raises(CodecError, match="unknown schema version 2"):
        decode_blob(blob)


def test_a_frame_is_small_and_carries_several_jobs() -> None:
    frame = encode_frame(
        (
            ReplyMessage("a", 1, 0, (TextDelta(0, "hé"),), ((0, (7,)),)),
            ReplyMessage("b", 2, 5, (Finished(0, FinishReason.STOP), Completed(Usage(1, 0, 2, 0)))),
        )
    )
    assert frame.decode() == (
        '[1,[["a",1,0,[["text",0,"hé",[]]],[[0,[7]]]],'
        '["b",2,5,[["finished",0,"stop",null],["completed",[1,0,2,0]]],[]]]]'
    )


@pytest.mark.parametrize("read", [decode_job, decode_worker, decode_control])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "undecodable"),
        (b'{"', "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b'{"job_id":"x"}', "`version`"),
        (b'{"version":2,"anything":[1,2]}', "unknown schema version 2; this side speaks 1"),
        (b'{"version":1}', "undecodable"),
    ],
)
def test_objects_that_cannot_be_read(read: object, body: bytes, reason: str) -> None:
    assert callable(read)
    with pytest.raises(CodecError, match=reason):
        read(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "undecodable"),
        (b"{}", "undecodable"),
        (b'[1,[["a",1,0,[["song",0,"la"]]]]]', "undecodable"),
        (b"[1]", "undecodable"),
        (b"[2,[]]", "unknown schema version 2"),
        (b'[2,{"shaped":"otherwise"}]', "unknown schema version 2"),
    ],
)
def test_frames_that_cannot_be_read(body: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        decode_frame(body)


def test_a_refusal_quotes_nothing_of_the_prompt() -> None:
    broken = encode_job(JOB).replace(b'"type":"text","text"', b'"type":"text","txt"')
    with pytest.raises(CodecError) as caught:
        decode_job(broken)
    assert "secret" not in str(caught.value)
    wrong = encode_job(JOB).replace(b'"job_class":"interactive"', b'"job_class":"the \'secret"')
    with pytest.raises(CodecError) as caught:
        decode_job(wrong)
    assert "secret" not in str(caught.value)
    assert "job_class" in str(caught.value)


def test_nesting_without_end_is_refused() -> None:
    deep = b"[" * 100_000
    with pytest.raises(CodecError):
        decode_frame(b"[1," + deep)
    with pytest.raises(CodecError):
        decode_job(b'{"version":1,"prompt":' + deep)


def test_a_cancel_names_the_attempt() -> None:
    cancel = Cancel(job_id="j1", attempt=2)
    assert decode_control(encode_control(cancel)) == cancel
