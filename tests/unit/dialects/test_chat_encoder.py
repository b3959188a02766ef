"""What the transcripts cannot show: options, profiles, and illegal ends."""

from typing import Any

import orjson
import pytest

from ingress.dialects.base import Stamp
from ingress.dialects.chat import Chat
from ingress.dialects.chat_encoder import ChatEncoder
from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from schemas.delta import (
    Completed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ModelOverloaded, ProtocolViolation
from tests.unit.dialects.transcripts import CARD, CONTEXT

USAGE = Usage(7, 0, 2, 0)


def encoder(*, profile: Profile = WAFER, **fields: Any) -> ChatEncoder:
    chat = Chat()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = chat.parse(body)
    stamp = Stamp(
        response_id="0" * 32, created=5, model="GLM-5.3", request_id="req_1", profile=profile
    )
    return chat.encoder(request, chat.normalise(request, CARD, CONTEXT).job, stamp)


def stream(encoder: ChatEncoder) -> list[Any]:
    """The JSON of each record of a one-word answer; `[DONE]` as None."""
    frames = [*encoder.open()]
    for delta in (TextDelta(0, "yo"), Finished(0, FinishReason.STOP), Completed(USAGE)):
        frames += encoder.feed(delta)
    payloads = [frame.removeprefix(b"data: ").removesuffix(b"\n\n") for frame in frames]
    return [None if payload == b"[DONE]" else orjson.loads(payload) for payload in payloads]


@pytest.mark.rule("chat.stream-usage-last")
@pytest.mark.parametrize(
    "options",
    [{}, {"stream_options": {}}, {"stream_options": None}]
    + [{"stream_options": {"include_usage": wanted}} for wanted in (False, True, None)],
)
def test_profile_wafer_always_sends_one_usage_chunk_at_the_end(options: dict[str, Any]) -> None:
    *chunks, usage, done = stream(encoder(stream=True, **options))
    assert done is None
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 9
    assert [chunk.get("usage") for chunk in chunks] == [None] * 3


def test_other_chunks_say_usage_null_only_when_usage_was_asked_for() -> None:
    asked = stream(encoder(stream_options={"include_usage": True}))
    assert ["usage" in chunk for chunk in asked[:3]] == [True] * 3
    unasked = stream(encoder())
    assert ["usage" in chunk for chunk in unasked[:3]] == [False] * 3


@pytest.mark.rule("chat.stream-usage-last")
def test_profile_official_sends_usage_only_when_asked() -> None:
    asked = stream(encoder(profile=OFFICIAL, stream_options={"include_usage": True}))
    assert asked[-2]["usage"]["total_tokens"] == 9
    unasked = stream(encoder(profile=OFFICIAL))
    assert unasked[-1] is None
    assert unasked[-2]["choices"][0]["finish_reason"] == "stop"


def test_service_tier_is_echoed_only_if_set() -> None:
    set_ = encoder(service_tier="priority")
    assert {chunk["service_tier"] for chunk in stream(set_)[:-1]} == {"default"}
    assert orjson.loads(set_.body())["service_tier"] == "default"
    unset = encoder()
    assert not any("service_tier" in chunk for chunk in stream(unset)[:-1])
    assert "service_tier" not in orjson.loads(unset.body())


def test_ids_and_clock_come_from_the_stamp_in_every_chunk() -> None:
    heads = {
        (chunk["id"], chunk["created"], chunk["model"], chunk["object"])
        for chunk in stream(encoder())[:-1]
    }
    assert heads == {("0" * 32, 5, "GLM-5.3", "chat.completion.chunk")}


def test_call_ids_differ_between_calls_choices_and_answers() -> None:
    def ids(response_id: str) -> list[str]:
        chat = Chat()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2}
        request = chat.parse(body)
        stamp = Stamp(response_id=response_id, created=5, model="m", request_id="r")
        encoder = chat.encoder(request, chat.normalise(request, CARD, CONTEXT).job, stamp)
        for choice in (0, 1):
            encoder.feed(ToolCallStarted(choice, 0, "f"))
            encoder.feed(ToolCallStarted(choice, 1, "f"))
            encoder.feed(Finished(choice, FinishReason.STOP))
        encoder.feed(Completed(USAGE))
        choices = orjson.loads(encoder.body())["choices"]
        return [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]

    assert ids("a" * 32) == ids("a" * 32)
    assert len({*ids("a" * 32), *ids("b" * 32)}) == 8


def test_logprobs_are_an_empty_list_when_asked_for_and_none_came() -> None:
    asked = encoder(logprobs=True)
    stream(asked)
    assert orjson.loads(asked.body())["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_beginning_a_reply_writes_nothing() -> None:
    assert encoder().feed(Started("w", 1, 0)) == ()


def test_empty_deltas_are_not_sent() -> None:
    fed = encoder()
    fed.feed(TextDelta(0, "a"))
    assert fed.feed(TextDelta(0, "")) == ()
    assert fed.feed(ReasoningDelta(0, "")) == ()


@pytest.mark.rule("chat.stream-failure")
def test_failure_is_one_error_record() -> None:
    failing = encoder()
    failing.open()
    (record,) = failing.fail(ModelOverloaded("Busy.").info())
    assert orjson.loads(record.removeprefix(b"data: ")) == {
        "error": {
            "message": "Busy.",
            "type": "overloaded_error",
            "param": None,
            "code": "model_overloaded",
            "request_id": "req_1",
        }
    }


def test_a_cancelled_choice_is_never_told_as_a_success() -> None:
    with pytest.raises(ProtocolViolation):
        encoder().feed(Finished(0, FinishReason.CANCELLED))


def test_there_is_no_body_before_the_end() -> None:
    fed = encoder()
    fed.feed(Finished(0, FinishReason.STOP))
    with pytest.raises(RuntimeError):
        fed.body()


def test_body_escapes_what_line_readers_split_on() -> None:
    fed = encoder()
    text = "a\u0085b\u2028c\u2029d"
    for delta in (TextDelta(0, text), Finished(0, FinishReason.STOP), Completed(USAGE)):
        fed.feed(delta)
    body = fed.body()
    assert len(body.decode().splitlines()) == 1
    assert orjson.loads(body)["choices"][0]["message"]["content"] == text


def test_keep_alive_is_a_comment() -> None:
    assert encoder().keep_alive() == (b": keep-alive\n\n",)
