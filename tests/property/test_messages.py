"""Laws of the Messages encoder, with the official client's own reader as the oracle."""

from collections.abc import Sequence
from typing import Any, cast

import orjson
from anthropic._streaming import SSEDecoder
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ingress.dialects.messages import Messages
from ingress.dialects.messages_encoder import INVALID_JSON
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
from schemas.model_card import ModelCard
from schemas.reply import ReplyChecker
from tests.property.test_chat import STAMP, blanks, cut, join, texts
from tests.unit.dialects.transcripts import CONTEXT

CARD = ModelCard(id="m", context_length=1000)
STOPS = ["###END", "\n\n"]
EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)

argument_objects = st.dictionaries(texts, texts | st.integers(0, 9), max_size=2).map(
    lambda value: orjson.dumps(value).decode()
)


@st.composite
def replies(draw: st.DrawFn) -> list[Delta]:
    """A whole reply: parts in any order, arguments whole or, at the end, cut off."""
    said: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "blank", "reasoning", "call"]), max_size=6)):
        if kind == "call":
            said.append(ToolCallStarted(0, calls, draw(st.text(min_size=1, max_size=3))))
            arguments = draw(argument_objects | st.just(""))
            half = draw(st.integers(0, len(arguments)))
            said += [ArgumentsDelta(0, calls, a) for a in (arguments[:half], arguments[half:])]
            calls += 1
        elif kind == "reasoning":
            said.append(ReasoningDelta(0, draw(texts)))
        else:
            said.append(TextDelta(0, draw(texts if kind == "text" else blanks)))
    reasons = [reason for reason in FinishReason if reason is not FinishReason.CANCELLED]
    reason = draw(st.sampled_from(reasons))
    if reason is FinishReason.LENGTH and said and isinstance(said[-1], ArgumentsDelta):
        said.pop()
    matched = draw(st.none() | st.sampled_from([*STOPS, "other"]) | st.integers(0, 9))
    counts = [draw(st.integers(0, 9)) for _ in range(3)]
    cached = draw(st.integers(0, counts[0]))
    return [
        Accepted("w", counts[0]),
        Started("w", counts[0], cached),
        *said,
        Finished(0, reason, matched),
        Completed(Usage(counts[0], cached, counts[1], min(counts[1:]))),
    ]


def encode(
    deltas: Sequence[Delta], *, profile: Profile = WAFER, open_last: bool = False
) -> tuple[list[bytes], dict[str, Any]]:
    messages = Messages()
    checker = ReplyChecker(1)
    request = messages.parse(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "x"}],
            "stop_sequences": STOPS,
        }
    )
    stamp = STAMP if profile is WAFER else _with_profile(profile)
    encoder = messages.encoder(request, messages.normalise(request, CARD, CONTEXT).job, stamp)
    opening = [] if open_last else [*encoder.open()]
    frames: list[bytes] = []
    for delta in deltas:
        checker.feed(delta)
        frames += encoder.feed(delta)
    if open_last:
        opening = [*encoder.open()]
    return [*opening, *frames], orjson.loads(encoder.body())


def _with_profile(profile: Profile) -> Any:
    return type(STAMP)(
        response_id=STAMP.response_id,
        created=STAMP.created,
        model=STAMP.model,
        request_id=STAMP.request_id,
        profile=profile,
    )


def events(frames: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the official client's reader of lines makes of the stream."""
    found = []
    for event in SSEDecoder().iter_bytes(iter([b"".join(frames)])):
        data = event.json()
        assert event.event == data["type"]
        found.append(data)
    return found


def accumulate(frames: Sequence[bytes]) -> dict[str, Any]:
    """What the official client's stream helper makes of the stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for data in events(frames):
        if data["type"] == "ping":
            continue  # as the client does
        snapshot = accumulate_event(
            event=EVENTS.validate_python(data), current_snapshot=snapshot, json_bufs=buffers
        )
    for index, block in enumerate(snapshot.content):
        # The client guesses at JSON that was cut off; what it was sent is in its buffer.
        if block.type == "tool_use" and index in buffers:
            block.input = _object(buffers[index].decode())
    return cast("dict[str, Any]", snapshot.model_dump(mode="json", exclude_none=True))


def _object(arguments: str) -> Any:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {INVALID_JSON: arguments} if arguments.strip() else {}


def present(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: present(inner) for name, inner in value.items() if inner is not None}
    return [present(inner) for inner in value] if isinstance(value, list) else value


@given(replies(), st.sampled_from([WAFER, OFFICIAL]), st.booleans())
def test_the_official_client_reads_the_body_from_the_stream(
    deltas: list[Delta], profile: Profile, open_last: bool
) -> None:
    frames, body = encode(deltas, profile=profile, open_last=open_last)
    assert accumulate(frames) == present(body)


@given(replies(), st.data())
def test_chunk_boundaries_carry_no_meaning(deltas: list[Delta], data: st.DataObject) -> None:
    frames, body = encode(deltas)
    for variant in (join(deltas), data.draw(st.composite(cut)(deltas))):
        other_frames, other_body = encode(variant)
        assert other_body == body
        assert accumulate(other_frames) == accumulate(frames)


@given(replies())
def test_a_frame_is_one_record_of_two_lines(deltas: list[Delta]) -> None:
    for frame in encode(deltas)[0]:
        event, data, blank = frame.decode().splitlines()  # on all that any reader splits on
        assert blank == ""
        payload = orjson.loads(data.removeprefix("data: "))
        assert event == f"event: {payload['type']}"


@given(replies())
def test_blocks_are_numbered_without_gaps_and_never_overlap(deltas: list[Delta]) -> None:
    count, is_open = 0, False
    for event in events(encode(deltas)[0]):
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == count
                count, is_open = count + 1, True
            case "content_block_delta":
                assert is_open
                assert event["index"] == count - 1
            case "content_block_stop":
                assert is_open
                assert event["index"] == count - 1
                is_open = False
            case _:
                assert not is_open


@given(replies())
def test_a_call_is_whole_or_marked_as_cut(deltas: list[Delta]) -> None:
    body = encode(deltas)[1]
    calls = [block for block in body["content"] if block["type"] == "tool_use"]
    if body["stop_reason"] == "tool_use":
        assert calls
        assert all(INVALID_JSON not in call["input"] for call in calls)
    else:
        assert not calls or body["stop_reason"] in ("max_tokens", "refusal")
