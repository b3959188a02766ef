"""Laws of the chat encoder, with the official client's own reader as the oracle."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.lib.streaming._deltas import accumulate_delta
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from ingress.dialects.base import Stamp
from ingress.dialects.chat import Chat
from ingress.dialects.chat_encoder import ChatEncoder
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
    TokenLogprob,
    ToolCallStarted,
    TopLogprob,
    Usage,
)
from schemas.job import Job
from schemas.model_card import ModelCard
from schemas.reply import ReplyChecker
from tests.unit.dialects.transcripts import CONTEXT

CARD = ModelCard(id="m", context_length=1000)
STAMP = Stamp(response_id="0" * 32, created=5, model="m", request_id="req_1")

# --- Grammatical replies -------------------------------------------------------------------------

# Whitespace and the characters that break line readers are as likely as all others together.
texts = st.text(
    st.one_of(
        st.sampled_from(' \n"\\\u2028\u2029\x85\x0b'), st.characters(exclude_categories=["Cs"])
    ),
    max_size=6,
)
blanks = st.text(st.sampled_from(" \n\t"), max_size=3)
logprobs = st.floats(max_value=0, allow_nan=False)


@st.composite
def token_logprobs(draw: st.DrawFn) -> TokenLogprob:
    token, value = draw(texts), draw(logprobs)
    top = draw(st.lists(st.builds(TopLogprob, st.just(1), texts, st.binary(max_size=4), logprobs)))
    return TokenLogprob(1, token, token.encode(), value, tuple(top))


@st.composite
def choices(draw: st.DrawFn, choice: int, with_logprobs: bool) -> list[Delta]:
    """One choice: parts in any order, then its end."""
    deltas: list[Delta] = []
    calls = 0
    tokens = st.lists(token_logprobs(), max_size=2) if with_logprobs else st.just([])
    for kind in draw(st.lists(st.sampled_from(["text", "blank", "reasoning", "call"]), max_size=6)):
        if kind == "call":
            deltas.append(ToolCallStarted(choice, calls, draw(texts)))
            fragments = draw(st.lists(texts, max_size=3))
            deltas += [ArgumentsDelta(choice, calls, fragment) for fragment in fragments]
            calls += 1
        elif kind == "reasoning":
            deltas.append(ReasoningDelta(choice, draw(texts)))
        else:
            text = draw(texts if kind == "text" else blanks)
            deltas.append(TextDelta(choice, text, tuple(draw(tokens))))
    reasons = [reason for reason in FinishReason if reason is not FinishReason.CANCELLED]
    matched = draw(st.one_of(st.none(), texts, st.integers(0, 9)))
    return [*deltas, Finished(choice, draw(st.sampled_from(reasons)), matched)]


@st.composite
def replies(draw: st.DrawFn, with_logprobs: bool = False) -> list[Delta]:
    """A whole reply of one to three choices, interleaved."""
    queues = [draw(choices(index, with_logprobs)) for index in range(draw(st.integers(1, 3)))]
    deltas: list[Delta] = [Accepted("w", 3), Started("w", 3, 1)]
    while open_queues := [queue for queue in queues if queue]:
        deltas.append(draw(st.sampled_from(open_queues)).pop(0))
    counts = [draw(st.integers(0, 9)) for _ in range(4)]
    return [*deltas, Completed(Usage(*counts))]


def cut(draw: st.DrawFn, deltas: Sequence[Delta]) -> list[Delta]:
    """The same reply with its texts joined and cut elsewhere."""
    again: list[Delta] = []
    for delta in deltas:
        if not isinstance(delta, TextDelta | ReasoningDelta | ArgumentsDelta):
            again.append(delta)
            continue
        start = 0
        marks = draw(st.lists(st.integers(0, len(delta.text)), max_size=3))
        for end in [*sorted(marks), len(delta.text)]:
            again.append(_with_text(delta, delta.text[start:end]))
            start = end
    return again


def join(deltas: Sequence[Delta]) -> list[Delta]:
    """The same reply with neighbouring texts joined."""

    def key(item: tuple[int, Delta]) -> Any:
        index, delta = item
        if isinstance(delta, ArgumentsDelta):
            return type(delta), delta.choice, delta.call
        if isinstance(delta, TextDelta | ReasoningDelta):
            return type(delta), delta.choice
        return index

    joined: list[Delta] = []
    for _, run in groupby(enumerate(deltas), key):
        first, *rest = (delta for _, delta in run)
        if rest:
            assert isinstance(first, TextDelta | ReasoningDelta | ArgumentsDelta)
            text = "".join(delta.text for delta in (first, *rest))  # type: ignore[union-attr]
            first = _with_text(first, text)
        joined.append(first)
    return joined


def _with_text(delta: TextDelta | ReasoningDelta | ArgumentsDelta, text: str) -> Delta:
    if isinstance(delta, ArgumentsDelta):
        return ArgumentsDelta(delta.choice, delta.call, text)
    return type(delta)(delta.choice, text)


# --- Reading as the official client does ---------------------------------------------------------


def normalised(body: dict[str, Any]) -> Job:
    chat = Chat()
    return chat.normalise(chat.parse(body), CARD, CONTEXT).job


def encode(deltas: Sequence[Delta], *, with_logprobs: bool = False) -> tuple[list[bytes], Any]:
    chat = Chat()
    count = sum(isinstance(delta, Finished) for delta in deltas)
    checker = ReplyChecker(count)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    body |= {"n": count, "logprobs": with_logprobs}
    if with_logprobs:
        body["top_logprobs"] = 20
    encoder = chat.encoder(chat.parse(body), normalised(body), STAMP)
    frames = [*encoder.open()]
    for delta in deltas:
        checker.feed(delta)
        frames += encoder.feed(delta)
    return frames, orjson.loads(encoder.body())


def accumulate(frames: Sequence[bytes]) -> dict[str, Any]:
    """What the official client makes of the stream."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    events = list(SSEDecoder().iter_bytes(iter([b"".join(frames)])))
    assert events.pop().data == "[DONE]"
    for event in events:
        for _ in state.handle_chunk(ChatCompletionChunk.model_validate(event.json())):
            pass
    return state.current_completion_snapshot.model_dump()


def essence(answer: dict[str, Any]) -> Any:
    """What a client may rely on, from a body or from an accumulated stream.

    Absent and null are the same. The official reader does not accumulate a choice's extra fields.
    """
    return {
        "id": answer["id"],
        "usage": _present(answer["usage"]),
        "choices": [
            {
                "index": choice["index"],
                "finish_reason": choice["finish_reason"],
                "logprobs": choice["logprobs"]
                if (choice["logprobs"] or {}).get("content")
                else None,
                "content": choice["message"]["content"],
                "reasoning": choice["message"].get("reasoning_content"),
                "calls": [
                    (
                        call["id"],
                        call["type"],
                        call["function"]["name"],
                        call["function"]["arguments"],
                    )
                    for call in choice["message"]["tool_calls"] or ()
                ],
            }
            for choice in answer["choices"]
        ],
    }


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _present(field) for name, field in value.items() if field is not None}
    return value


@pytest.mark.rule("chat.stream-is-body")
@given(replies())
def test_the_official_client_reads_the_body_from_the_stream(deltas: list[Delta]) -> None:
    frames, body = encode(deltas)
    assert essence(accumulate(frames)) == essence(body)


@given(replies(with_logprobs=True))
def test_and_with_log_probabilities(deltas: list[Delta]) -> None:
    frames, body = encode(deltas, with_logprobs=True)
    assert essence(accumulate(frames)) == essence(body)


@pytest.mark.rule("chat.stream-is-body")
@given(replies(), st.data())
def test_chunk_boundaries_carry_no_meaning(deltas: list[Delta], data: st.DataObject) -> None:
    frames, body = encode(deltas)
    for variant in (join(deltas), data.draw(st.composite(cut)(deltas))):
        other_frames, other_body = encode(variant)
        assert other_body == body
        assert essence(accumulate(other_frames)) == essence(accumulate(frames))


@given(replies(with_logprobs=True))
def test_a_frame_is_one_record_on_one_line(deltas: list[Delta]) -> None:
    *frames, done = encode(deltas, with_logprobs=True)[0]
    assert done == b"data: [DONE]\n\n"
    for frame in frames:
        line, blank = frame.decode().splitlines()  # splits on all that any reader splits on
        assert blank == ""
        assert line.startswith("data: ")
        assert isinstance(orjson.loads(line.removeprefix("data: ")), dict)


@pytest.mark.rule("chat.finish-tool-calls", "chat.tool-arguments-are-text")
@given(replies())
def test_a_call_is_whole_or_marked_as_cut(deltas: list[Delta]) -> None:
    body = encode(deltas)[1]
    for choice in body["choices"]:
        calls = choice["message"]["tool_calls"]
        assert (choice["finish_reason"] == "tool_calls") <= bool(calls)
        if choice["finish_reason"] == "tool_calls":
            assert all(call["function"]["arguments"].strip() for call in calls)


@given(replies())
def test_only_whitespace_beside_calls_is_dropped(deltas: list[Delta]) -> None:
    for choice in encode(deltas)[1]["choices"]:
        own = [
            delta
            for delta in deltas
            if isinstance(delta, TextDelta | ReasoningDelta | ToolCallStarted)
            and delta.choice == choice["index"]
            and (isinstance(delta, ToolCallStarted) or delta.text)
        ]
        parts = [(kind, list(run)) for kind, run in groupby(own, type)]
        kept, called = "", False
        for (kind, run), (following, _) in pairwise([*parts, (None, [])]):
            called = called or kind is ToolCallStarted
            text = "".join(delta.text for delta in run if isinstance(delta, TextDelta))
            if text.strip() or not (called or following is ToolCallStarted):
                kept += text
        assert choice["message"]["content"] == kept


# --- Other spellings of calls --------------------------------------------------------------------


def written(deltas: Sequence[Delta], *, legacy: bool) -> tuple[list[Any], list[Any]]:
    """Messages joined from the stream as the official client joins deltas, and of the body."""
    count = sum(isinstance(delta, Finished) for delta in deltas)
    job = normalised({"model": "m", "messages": [{"role": "user", "content": "x"}], "n": count})
    encoder = ChatEncoder(
        job,
        STAMP,
        include_usage=False,
        service_tier=None,
        custom_tools=frozenset(d.name for d in deltas if isinstance(d, ToolCallStarted)),
        legacy_calls=legacy,
    )
    frames = [*encoder.open()]
    for delta in deltas:
        frames += encoder.feed(delta)
    joined: list[dict[Any, Any]] = [{} for _ in range(count)]
    for frame in frames[:-2]:
        (choice,) = orjson.loads(frame.removeprefix(b"data: "))["choices"]
        accumulate_delta(joined[choice["index"]], choice["delta"])
    body = orjson.loads(encoder.body())["choices"]
    assert all((choice["finish_reason"] == "tool_calls") <= (not legacy) for choice in body)
    return joined, [choice["message"] for choice in body]


@given(replies(), st.booleans(), st.data())
@pytest.mark.rule("chat.stream-is-body")
def test_custom_and_legacy_calls_join_to_the_body(
    deltas: list[Delta], legacy: bool, data: st.DataObject
) -> None:
    joined, body = written(deltas, legacy=legacy)
    for found, message in zip(joined, body, strict=True):
        for call in found.get("tool_calls", ()):
            del call["index"]
        assert found == _present(message)
    again = data.draw(st.composite(cut)(deltas))
    assert written(again, legacy=legacy)[1] == body
