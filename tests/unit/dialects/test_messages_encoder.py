"""What is particular to Messages in an answer: reasons, usage, ids, profiles, keep-alive."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson
import pytest

from ingress.dialects.messages import Messages
from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ErrorInfo, ErrorKind, ProtocolViolation
from tests.unit.dialects.test_messages_transcripts import records
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

STOP, LENGTH, CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS
OVERLOADED = ErrorInfo(
    code="model_overloaded", kind=ErrorKind.OVERLOADED, status=503, message="Full."
)


def reply(*said: Delta, end: Finished | None = None, usage: Usage | None = None) -> list[Delta]:
    return [
        Accepted("w", 412),
        Started("w", 412, 256),
        *said,
        end or Finished(0, STOP),
        Completed(usage or Usage(412, 256, 37, 0)),
    ]


def encoder(profile: Profile = WAFER, **fields: Any) -> Any:
    messages = Messages()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    request = messages.parse(body)
    job = messages.normalise(request, CARD, CONTEXT).job
    return messages.encoder(request, job, msgspec.structs.replace(STAMP, profile=profile))


def stream(deltas: Sequence[Delta], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events, where the status line is settled by the first of them."""
    writer = encoder(**fields)
    frames = [frame for delta in deltas for frame in writer.feed(delta)]
    return records(b"".join([*writer.open(), *frames]).decode())


def body(deltas: Sequence[Delta], **fields: Any) -> dict[str, Any]:
    writer = encoder(**fields)
    for delta in deltas:
        writer.feed(delta)
    answer: dict[str, Any] = orjson.loads(writer.body())
    return answer


CALL = (ToolCallStarted(0, 0, "f"), ArgumentsDelta(0, 0, "{}"))


@pytest.mark.rule("messages.stop-reasons", "messages.stop-sequence-reported")
@pytest.mark.parametrize(
    ("said", "end", "reason", "sequence"),
    [
        ((TextDelta(0, "a"),), Finished(0, STOP), "end_turn", None),
        ((TextDelta(0, "a"),), Finished(0, STOP, "###END"), "stop_sequence", "###END"),
        ((TextDelta(0, "a"),), Finished(0, STOP, 151_336), "end_turn", None),
        ((TextDelta(0, "a"),), Finished(0, STOP, "not asked for"), "end_turn", None),
        ((TextDelta(0, "a"),), Finished(0, LENGTH), "max_tokens", None),
        (CALL, Finished(0, CALLS), "tool_use", None),
        (CALL, Finished(0, STOP), "tool_use", None),
        (CALL, Finished(0, STOP, "###END"), "tool_use", None),
        (CALL, Finished(0, LENGTH), "max_tokens", None),
        ((), Finished(0, STOP), "end_turn", None),
        ((), Finished(0, FinishReason.CONTENT_FILTER), "refusal", None),
    ],
)
def test_why_it_ended(
    said: Sequence[Delta], end: Finished, reason: str, sequence: str | None
) -> None:
    deltas = reply(*said, end=end)
    answer = body(deltas, stop_sequences=["###END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    *_, (name, told), _ = stream(deltas, stop_sequences=["###END"])
    assert name == "message_delta"
    assert told["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_cancelled_choice_is_no_success() -> None:
    with pytest.raises(ProtocolViolation):
        body(reply(end=Finished(0, FinishReason.CANCELLED)))


@pytest.mark.rule(
    "messages.start-usage-zero", "messages.final-usage", "messages.input-includes-cached"
)
def test_usage_is_zero_at_the_start_and_includes_the_cached_tokens() -> None:
    events = stream(reply(TextDelta(0, "hello")))
    zeros = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    final = zeros | {"input_tokens": 412, "output_tokens": 37, "cache_read_input_tokens": 256}
    assert events[0][1]["message"]["usage"] == zeros
    assert events[-2][1]["usage"] == final
    assert body(reply(TextDelta(0, "hello")))["usage"] == final


@pytest.mark.rule("messages.official-usage")
def test_the_official_profile_tells_true_usage_at_once_and_without_the_cached_tokens() -> None:
    events = stream(reply(TextDelta(0, "hello")), profile=OFFICIAL)
    start = events[0][1]["message"]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"]) == (156, 256)
    assert start["output_tokens"] == 0
    end = events[-2][1]["usage"]
    assert (end["input_tokens"], end["cache_read_input_tokens"]) == (156, 256)
    assert end["output_tokens"] == 37


def test_a_stream_that_begins_before_its_first_token_knows_the_prompt_by_then() -> None:
    writer = encoder(OFFICIAL)
    writer.feed(Accepted("w", 412))
    ((_, start),) = records(writer.open()[0].decode())
    assert start["message"]["usage"]["input_tokens"] == 412


def test_a_stream_that_begins_with_the_whole_reply_at_hand_does_not_tell_its_end() -> None:
    start = stream(reply(TextDelta(0, "a"), end=Finished(0, STOP, "#")), stop_sequences=["#"])[0][1]
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["stop_sequence"] is None


def test_a_stream_that_begins_before_its_worker_speaks_tells_zeros_in_either_profile() -> None:
    ((_, start),) = records(encoder(OFFICIAL).open()[0].decode())
    assert set(start["message"]["usage"].values()) == {0}


@pytest.mark.rule("messages.no-ping", "messages.keep-alive")
def test_a_silent_stream_is_kept_alive_by_a_comment() -> None:
    writer = encoder()
    assert len(writer.open()) == 1
    assert writer.keep_alive() == (b": keep-alive\n\n",)


@pytest.mark.rule("messages.official-ping")
def test_the_official_profile_pings() -> None:
    writer = encoder(OFFICIAL)
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    assert writer.open()[1:] == (ping,)
    assert writer.keep_alive() == (ping,)


@pytest.mark.rule("messages.thinking-first", "messages.thinking-deltas")
def test_thinking_is_a_block_before_the_answer_with_an_empty_signature() -> None:
    deltas = reply(ReasoningDelta(0, "Hm"), ReasoningDelta(0, "m."), TextDelta(0, "Yes."))
    assert body(deltas)["content"] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    events = stream(deltas)
    assert events[1][1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [data["delta"] for name, data in events if name == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "m."},
        {"type": "text_delta", "text": "Yes."},
    ]


@pytest.mark.rule("messages.thinking-omitted")
def test_thinking_may_be_left_out_of_its_blocks() -> None:
    deltas = reply(ReasoningDelta(0, "Hmm."), TextDelta(0, "Yes."))
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    assert body(deltas, **omitted)["content"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    names = [name for name, _ in stream(deltas, **omitted)]
    assert names[1:4] == ["content_block_start", "content_block_stop", "content_block_start"]
    assert "Hmm" not in str(stream(deltas, **omitted))
    shown = {"thinking": {"type": "adaptive", "display": "summarized"}}
    assert body(deltas, **shown)["content"][0]["thinking"] == "Hmm."


def test_parts_in_any_order_are_blocks_without_gaps() -> None:
    said: list[Delta] = [
        ReasoningDelta(0, "Need both files."),
        TextDelta(0, "Reading."),
        ToolCallStarted(0, 0, "read"),
        ArgumentsDelta(0, 0, '{"path":"a.txt"}'),
        ReasoningDelta(0, "Now the other."),
        ToolCallStarted(0, 1, "read"),
        ArgumentsDelta(0, 1, '{"path":"b.txt"}'),
    ]
    starts = [data for name, data in stream(reply(*said)) if name == "content_block_start"]
    assert [(data["index"], data["content_block"]["type"]) for data in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
        (3, "thinking"),
        (4, "tool_use"),
    ]


@pytest.mark.rule("messages.ids")
def test_ids_have_the_documented_form_and_derive_from_the_stamp() -> None:
    two: list[Delta] = [*CALL, ToolCallStarted(0, 1, "f"), ArgumentsDelta(0, 1, "{}")]
    answer = body(reply(*two))
    assert re.fullmatch(r"msg_[0-9a-f]{32}", answer["id"])
    ids = [block["id"] for block in answer["content"]]
    assert all(re.fullmatch(r"toolu_[0-9A-Za-z]{24}", call_id) for call_id in ids)
    assert len(set(ids)) == 2
    started = [d["content_block"]["id"] for n, d in stream(reply(*two)) if n.endswith("k_start")]
    assert started == ids


@pytest.mark.rule("messages.empty-arguments")
@pytest.mark.parametrize("arguments", [[], [""], [" "]])
def test_a_call_without_arguments_has_an_empty_object(arguments: list[str]) -> None:
    said: list[Delta] = [ToolCallStarted(0, 0, "get_clock")]
    said += [ArgumentsDelta(0, 0, a) for a in arguments]
    assert body(reply(*said))["content"][0]["input"] == {}
    events = stream(reply(*said))
    joined = "".join(d["delta"]["partial_json"] for n, d in events if n == "content_block_delta")
    assert orjson.loads(joined) == {}


@pytest.mark.rule("messages.cut-call")
@pytest.mark.parametrize(
    "arguments", ['{"title":"Q3","body":"The first', '{"a":1}, ', "[1]", "nul"]
)
def test_arguments_that_were_cut_off_are_passed_on_as_they_are(arguments: str) -> None:
    said: list[Delta] = [ToolCallStarted(0, 0, "save"), ArgumentsDelta(0, 0, arguments)]
    deltas = reply(*said, end=Finished(0, LENGTH))
    answer = body(deltas)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"INVALID_JSON": arguments}
    told = [d["delta"]["partial_json"] for n, d in stream(deltas) if n == "content_block_delta"]
    assert told == [arguments]


def test_a_call_cut_off_before_its_arguments_has_none() -> None:
    deltas = reply(ToolCallStarted(0, 0, "save"), end=Finished(0, LENGTH))
    assert body(deltas)["content"][0]["input"] == {}
    assert [name for name, _ in stream(deltas)][1:3] == [
        "content_block_start",
        "content_block_stop",
    ]


def test_an_empty_answer_has_no_blocks() -> None:
    assert body(reply())["content"] == []
    assert [name for name, _ in stream(reply())] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.rule("messages.failed-stream")
def test_a_failure_leaves_the_open_block_open_and_says_so() -> None:
    writer = encoder()
    frames = [*writer.open(), *writer.feed(TextDelta(0, "Once upon"))]
    frames += writer.fail(OVERLOADED)
    events = records(b"".join(frames).decode())
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1][1] == {
        "type": "error",
        "error": {
            "type": "overloaded_error",
            "message": "Full.",
            "code": "model_overloaded",
            "param": None,
            "request_id": "req_a1b2c3d4e5f6",
        },
        "request_id": "req_a1b2c3d4e5f6",
    }


def test_a_body_needs_a_whole_reply() -> None:
    with pytest.raises(RuntimeError, match="complete"):
        encoder().body()
