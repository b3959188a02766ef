"""A reply that moves from worker to worker is, in every dialect, what it would have been.

The owner's and the worker's side of a continuation are the real ones; only the engine and the
parser are missing, and a parser may let its text go in other pieces than the lost one did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.dialects.base import Encoder
from ingress.dialects.profile import PROFILES, ProfileName
from ingress.dialects.registry import DIALECTS
from schemas.continuation import Arrived, Remaining
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from schemas.job import ChoicePrefix, Job
from schemas.reply import ReplyChecker
from schemas.sampling import SamplingParams
from tests.fixtures.official import join
from tests.fixtures.requests import request_body
from tests.property.strategies import interleavings, logprobs, tuples_of
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

MODEL_CARD = msgspec.structs.replace(
    CARD, capabilities=msgspec.structs.replace(CARD.capabilities, completions=True)
)
SAID = (TextDelta, ReasoningDelta, ArgumentsDelta, ToolCallStarted, Finished)


class Moved(NamedTuple):
    """A reply, and what its owner delivers when it is moved."""

    whole: list[Delta]
    delivered: list[Delta]


pieces_of_text = st.text("ab é🧪\n{", min_size=1, max_size=5)


@st.composite
def choices(draw: st.DrawFn, choice: int) -> list[Delta]:
    """What a model says: parts of several pieces, none of them empty."""
    said: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=4)):
        if kind == "call":
            said.append(ToolCallStarted(choice, calls, "look"))
            calls += 1
        for text in draw(st.lists(pieces_of_text, min_size=1, max_size=3)):
            match kind:
                case "text":
                    said.append(TextDelta(choice, text, draw(tuples_of(logprobs, 1))))
                case "reasoning":
                    said.append(ReasoningDelta(choice, text))
                case _:
                    said.append(ArgumentsDelta(choice, calls - 1, text))
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    return [*said, Finished(choice, FinishReason.TOOL_CALLS if calls else reason)]


@st.composite
def replies(draw: st.DrawFn, n: int) -> list[Delta]:
    said = draw(interleavings([draw(choices(choice)) for choice in range(n)]))
    usage = Usage(9, 4, 7, 2)
    return [Accepted("w", 9), Started("w", 9, 4), *said, Completed(usage)]


def pieces(delta: Delta, at: int) -> list[Delta]:
    """In two, where its text has no log probabilities to stay with."""
    text = getattr(delta, "text", "")
    if at >= len(text) or at == 0 or (isinstance(delta, TextDelta) and delta.logprobs):
        return [delta]
    return [
        msgspec.structs.replace(delta, text=text[:at]),
        msgspec.structs.replace(delta, text=text[at:]),
    ]


@st.composite
def moved_replies(draw: st.DrawFn, n: int) -> Moved:
    """A reply whose workers are lost one to three times."""
    whole = draw(replies(n))
    of_choice: list[list[Any]] = [
        [d for d in whole if getattr(d, "choice", None) == number] for number in range(n)
    ]
    opening, end = whole[:2], whole[-1]
    job = a_job(n)
    arrived, checker = Arrived(n), ReplyChecker(n)
    delivered: list[Delta] = []
    attempt = [*opening, *whole[2:]]
    for lost in (*draw(st.lists(st.integers(2, len(whole)), min_size=1, max_size=3)), None):
        for delta in attempt[:lost] if lost is None or lost < len(attempt) else attempt[:-1]:
            checker.feed(delta)
            if isinstance(delta, SAID):
                # The first piece of a token comes with its id; all of the ids here are alike.
                arrived.add_ids(ReplyMessage("job", 1, 0, (), ((delta.choice, (7,)),)))
                arrived.add(delta)
            if not isinstance(delta, Accepted | Started) or not _has(delivered, type(delta)):
                delivered.append(delta)
        continuation = arrived.continuation(job)
        checker.begin_attempt(continued=continuation is not None)
        prefixes = continuation.choices if continuation else (ChoicePrefix(),) * n
        again = [
            draw(rest_of(said, prefix))
            for said, prefix in zip(of_choice, prefixes, strict=True)
            if not prefix.finished
        ]
        attempt = [*opening, *draw(interleavings(again)), end]
    return Moved(whole, delivered)


def _has(deltas: Sequence[Delta], kind: type) -> bool:
    return any(isinstance(delta, kind) for delta in deltas)


@st.composite
def rest_of(draw: st.DrawFn, said: Sequence[Any], prefix: ChoicePrefix) -> list[Delta]:
    """What the next worker sends of a choice: all of it is parsed again, otherwise cut up."""
    remaining = Remaining(prefix)
    rest: list[Delta] = []
    units = prefix.units
    for delta in said:
        if units > 0 and isinstance(delta, TextDelta):
            delta = TextDelta(delta.choice, delta.text)  # a replay has none
        units -= len(getattr(delta, "text", " "))
        rest += remaining.of(pieces(delta, draw(st.integers(0, 6))))
    return rest


def a_job(n: int) -> Job:
    request = DIALECTS["chat"].parse(request_body("chat", model=CARD.id))
    job = DIALECTS["chat"].normalise(request, MODEL_CARD, CONTEXT).job
    sampling: SamplingParams = msgspec.structs.replace(job.sampling, n=n)
    return msgspec.structs.replace(job, sampling=sampling)


LOGPROBS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 2},
    "completions": {"logprobs": 2},
    "responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "messages": {},
}
THINKING: Mapping[str, Mapping[str, Any]] = {
    "chat": {"reasoning_effort": "high"},
    "completions": {},
    "responses": {"reasoning": {"effort": "high", "summary": "auto"}},
    "messages": {"thinking": {"type": "enabled"}},
}


def text_alone(deltas: Sequence[Delta]) -> list[Delta]:
    """What of a reply a prompt of tokens can be answered with."""
    return [
        Finished(delta.choice, FinishReason.STOP)
        if isinstance(delta, Finished) and delta.reason is FinishReason.TOOL_CALLS
        else delta
        for delta in deltas
        if not isinstance(delta, ReasoningDelta | ToolCallStarted | ArgumentsDelta)
    ]


def encode(
    dialect: str, deltas: Sequence[Delta], profile: ProfileName, **changes: Any
) -> tuple[Any, list[tuple[Any, str]]]:
    """The body of an answer, and its stream with neighbouring pieces joined."""
    speaking = DIALECTS[dialect]
    body = request_body(dialect, model=CARD.id, stream=True, **THINKING[dialect], **changes)
    request = speaking.parse(body)
    job = speaking.normalise(request, MODEL_CARD, CONTEXT).job
    stamp = msgspec.structs.replace(STAMP, profile=PROFILES[profile])
    encoder: Encoder = speaking.encoder(request, job, stamp)
    frames = [*encoder.open()]
    for delta in text_alone(deltas) if dialect == "completions" else deltas:
        frames += encoder.feed(delta)
    events: list[tuple[Any, str]] = []
    for line in b"".join(frames).split(b"\n"):
        if line.startswith(b"data: {"):
            join(events, dialect, orjson.loads(line.removeprefix(b"data: ")))
    return orjson.loads(encoder.body()), events


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=25)
@given(moved_replies(1))
def test_a_moved_reply_is_the_same_stream_and_body(profile: ProfileName, moved: Moved) -> None:
    for dialect in DIALECTS:
        body, events = encode(dialect, moved.delivered, profile)
        assert (body, events) == encode(dialect, moved.whole, profile), dialect


@settings(max_examples=25)
@given(moved_replies(1))
def test_its_log_probabilities_are_the_same(moved: Moved) -> None:
    for dialect, asked in LOGPROBS.items():
        body, _ = encode(dialect, moved.delivered, "official", **asked)
        assert body == encode(dialect, moved.whole, "official", **asked)[0], dialect


@settings(max_examples=25)
@given(moved_replies(3))
def test_each_choice_of_it_is_the_same(moved: Moved) -> None:
    for dialect in ("chat", "completions"):
        body, _ = encode(dialect, moved.delivered, "wafer", n=3)
        assert body == encode(dialect, moved.whole, "wafer", n=3)[0], dialect
