"""Laws of the Responses encoder, with the official client's own reader as the oracle."""

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type
from openai._streaming import SSEDecoder
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ingress.dialects.base import Stamp
from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from ingress.dialects.responses import Responses
from schemas.delta import (
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import WorkerFailed
from tests.property.test_chat import choices, cut, join
from tests.unit.dialects.transcripts import CARD, CONTEXT

TOOLS = [
    {"type": "function", "name": "find"},
    {"type": "custom", "name": "edit"},
    {"type": "shell"},
    {
        "type": "namespace",
        "name": "a",
        "description": "Group.",
        "tools": [{"type": "custom", "name": "b"}],
    },
]
NAMES = ("find", "edit", "shell", "a__b", "unheard-of")
ARGUMENTS = ("{}", '{"input":"a\\nb"}', '{"commands":["ls"]}', '{"inp')

bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.just("x"), "tools": st.just(TOOLS)},
    optional={
        "reasoning": st.just({"effort": "high", "summary": "auto"}),
        "text": st.just({"format": {"type": "json_schema", "name": "n", "schema": {}}}),
        "include": st.just(["message.output_text.logprobs"]),
    },
)
profiles = st.sampled_from([WAFER, OFFICIAL])


@st.composite
def replies(draw: st.DrawFn, with_logprobs: bool = True) -> list[Delta]:
    """One choice with calls of all kinds of tools."""
    deltas: list[Delta] = []
    for delta in draw(choices(0, with_logprobs)):
        if isinstance(delta, ToolCallStarted) and draw(st.booleans()):
            deltas.append(ToolCallStarted(0, delta.call, draw(st.sampled_from(NAMES))))
            arguments = draw(st.sampled_from(ARGUMENTS))
            deltas.append(ArgumentsDelta(0, delta.call, arguments))
        else:
            deltas.append(delta)
    return deltas


def encode(
    deltas: Sequence[Delta], body: Any, profile: Profile, *, lost: bool = False
) -> tuple[list[bytes], Any]:
    responses = Responses()
    context = msgspec.structs.replace(CONTEXT, profile=profile)
    request = responses.parse(body)
    stamp = Stamp(response_id="0" * 32, created=5, model="m", request_id="req_1", profile=profile)
    encoder = responses.encoder(request, responses.normalise(request, CARD, context).job, stamp)
    frames = [*encoder.open()]
    for delta in deltas:
        frames += encoder.feed(delta)
    if lost:
        return [*frames, *encoder.fail(WorkerFailed("Lost.").info())], None
    frames += encoder.feed(Completed(Usage(3, 1, 4, 1)))
    return frames, orjson.loads(encoder.body())


def read(frames: Sequence[bytes]) -> list[Any]:
    """The events as the official client reads them from the wire."""
    return [event.json() for event in SSEDecoder().iter_bytes(iter([b"".join(frames)]))]


def accumulate(events: Sequence[Any]) -> tuple[ResponseStreamState[None], list[Any]]:
    """What the official client's helper makes of the stream; it raises on broken order."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    told = []
    for event in events:
        typed: Any = construct_type(type_=ResponseStreamEvent, value=event)
        told += state.handle_event(typed)
    return state, told


def fold(events: Sequence[Any]) -> list[Any]:
    """The output items, built from nothing but the events about them."""
    items: list[Any] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(orjson.loads(orjson.dumps(event["item"])))
        elif kind == "output_item.done":
            items[-1]["status"] = event["item"]["status"]
        elif "item_id" in event:
            item = items[-1]
            assert (event["item_id"], event["output_index"]) == (item["id"], len(items) - 1)
            _grow(item, kind, event)
    return items


GROWING = {"function_call_arguments": "arguments", "custom_tool_call_input": "input"}


def _grow(item: Any, kind: str, event: Any) -> None:
    subject, what = kind.split(".")
    if subject in GROWING:
        field = GROWING[subject]
        if what == "delta":
            item[field] += event["delta"]
        assert event.get(field, item[field]) == item[field]
    elif kind == "content_part.added":
        assert event["content_index"] == len(item["content"])
        item["content"].append(event["part"])
    elif kind == "content_part.done":
        assert event["part"] == item["content"][0]
    else:
        assert subject in ("output_text", "reasoning_text")
        part = item["content"][event["content_index"]]
        if what == "delta":
            part["text"] += event["delta"]
            if "logprobs" in event:
                part["logprobs"] = [*part["logprobs"], *event["logprobs"]]
        assert event.get("text", part["text"]) == part["text"]


@pytest.mark.rule("responses.stream-equals-body")
@given(replies(), bodies, profiles)
def test_the_events_fold_to_the_body(deltas: list[Delta], body: Any, profile: Profile) -> None:
    frames, answer = encode(deltas, body, profile)
    events = read(frames)
    assert fold(events) == answer["output"]
    assert events[-1]["response"] == answer
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.rule("responses.created-first", "responses.one-identity")
@given(replies(), bodies, profiles)
def test_the_official_helper_reads_the_body_from_the_stream(
    deltas: list[Delta], body: Any, profile: Profile
) -> None:
    frames, answer = encode(deltas, body, profile)
    state, told = accumulate(read(frames))
    if told[-1].type == "response.incomplete":
        assert told[-1].response.to_dict() == answer
    else:
        assert state._completed_response is not None
        final = state._completed_response.to_dict()
        assert final["id"] == answer["id"]
        for item, expected in zip(final["output"], answer["output"], strict=True):
            for name, value in expected.items():
                if name != "content":
                    assert item[name] == value
            shown = [part["text"] for part in item.get("content") or ()]
            assert shown == [part["text"] for part in expected.get("content") or ()]


@given(replies(), bodies, profiles)
def test_bodies_and_events_are_of_the_official_types(
    deltas: list[Delta], body: Any, profile: Profile
) -> None:
    frames, answer = encode(deltas, body, profile)
    _RESPONSE.validate_python(answer)
    for event in read(frames):
        _EVENT.validate_python(event)


_RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.rule("responses.chunking")
@given(replies(with_logprobs=False), bodies, profiles, st.data())
def test_chunk_boundaries_carry_no_meaning(
    deltas: list[Delta], body: Any, profile: Profile, data: st.DataObject
) -> None:
    frames, answer = encode(deltas, body, profile)
    for variant in (join(deltas), data.draw(st.composite(cut)(deltas))):
        other_frames, other_answer = encode(variant, body, profile)
        assert other_answer == answer
        assert fold(read(other_frames)) == fold(read(frames))


@pytest.mark.rule("responses.event-names")
@given(replies(), bodies, profiles)
def test_a_frame_is_one_record_of_two_lines(
    deltas: list[Delta], body: Any, profile: Profile
) -> None:
    for frame in encode(deltas, body, profile)[0]:
        name, data, blank = frame.decode().splitlines()  # splits on all that any reader splits on
        assert blank == ""
        assert name == f"event: {orjson.loads(data.removeprefix('data: '))['type']}"


@pytest.mark.rule("responses.failed")
@given(replies(), bodies, profiles, st.data())
def test_a_failure_anywhere_is_told_as_one(
    deltas: list[Delta], body: Any, profile: Profile, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(deltas) - 1))
    events = read(encode(deltas[:at], body, profile, lost=True)[0])
    assert [e["type"] for e in events if e["type"].endswith(("completed", "incomplete"))] == []
    assert events[-1]["type"] == "response.failed"
    output = events[-1]["response"]["output"]
    ended = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert output[: len(ended)] == ended
    assert [item["status"] for item in output[len(ended) :]] in ([], ["incomplete"])
    assert accumulate(events)[0]._completed_response is None


@pytest.mark.rule("responses.reasoning-not-returned")
@given(replies(), bodies)
def test_profile_wafer_has_no_trace_of_reasoning(deltas: list[Delta], body: Any) -> None:
    without = [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]
    texts = [d for d in deltas if isinstance(d, ReasoningDelta | TextDelta) and d.text]
    if all(isinstance(delta, TextDelta) for delta in texts):
        assert encode(without, body, WAFER) == encode(deltas, body, WAFER)
    kinds = {item["type"] for item in encode(deltas, body, WAFER)[1]["output"]}
    assert "reasoning" not in kinds


@pytest.mark.rule("responses.incomplete")
@given(replies(), bodies, profiles)
def test_status_tells_how_it_ended(deltas: list[Delta], body: Any, profile: Profile) -> None:
    frames, answer = encode(deltas, body, profile)
    end = deltas[-1]
    assert isinstance(end, Finished)
    cut_short = end.reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    assert (answer["status"] == "incomplete") is cut_short
    assert (answer["incomplete_details"] is not None) is cut_short
    last = read(frames)[-1]["type"]
    assert last == f"response.{answer['status'] if profile is OFFICIAL else 'completed'}"
    early = [item["status"] for item in answer["output"][:-1]]
    assert set(early) <= {"completed"}
