"""A reply cut anywhere and gone on with is the reply: nothing twice, nothing missing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.continuation import Arrived, Remaining
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Finished,
    FinishReason,
    InternalsDelta,
    PromptDelta,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    TokensDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import ProtocolViolation
from schemas.job import ChatPrompt, ChoicePrefix, Job
from schemas.reply import ReplyChecker
from schemas.sampling import EngineOptions, OutputLimit, SamplingParams
from tests.property import strategies

NO_UNITS = (PromptDelta, TokensDelta, InternalsDelta)


def units_of(deltas: Sequence[Delta]) -> list[tuple[Any, ...]]:
    """A choice unit by unit, and its end: the same however its text is cut."""
    units: list[tuple[Any, ...]] = []
    for delta in deltas:
        match delta:
            case TextDelta() | ReasoningDelta():
                units += [(type(delta), character) for character in delta.text]
            case ArgumentsDelta():
                units += [(ArgumentsDelta, delta.call, character) for character in delta.text]
            case ToolCallStarted() | Finished():
                units.append((delta,))
            case _:
                raise AssertionError(delta)
    return units


def cut(delta: Delta, at: int) -> list[Delta]:
    """The Delta in two, where it has text."""
    match delta:
        case TextDelta() | ReasoningDelta():
            kind = type(delta)
            return [kind(delta.choice, delta.text[:at]), kind(delta.choice, delta.text[at:])]
        case ArgumentsDelta():
            choice, call, text = delta.choice, delta.call, delta.text
            return [
                ArgumentsDelta(choice, call, text[:at]),
                ArgumentsDelta(choice, call, text[at:]),
            ]
    return [delta]


@st.composite
def rechunked(draw: st.DrawFn, deltas: Sequence[Delta]) -> list[list[Delta]]:
    """The same Deltas cut up otherwise, in batches."""
    batches: list[list[Delta]] = [[]]
    for delta in deltas:
        for piece in cut(delta, draw(st.integers(0, 6))):
            if draw(st.booleans()):
                batches.append([])
            batches[-1].append(piece)
    return batches


@st.composite
def cut_choices(draw: st.DrawFn) -> tuple[list[Delta], list[list[Delta]], int]:
    """What a choice says, the same as another worker says it, and where the first was lost."""
    told = [d for d in draw(strategies.choices(0)) if not isinstance(d, NO_UNITS)]
    said = [piece for batch in draw(rechunked(told)) for piece in batch]
    again = draw(rechunked(said))
    return said, again, draw(st.integers(0, len(said) - 1))


def message(choice: int, token_ids: tuple[int, ...] = (), *deltas: Delta) -> ReplyMessage:
    return ReplyMessage("job", 1, 0, deltas, ((choice, token_ids),) if token_ids else ())


def job(n: int = 1, **engine: Any) -> Job:
    return Job(
        job_id="job",
        model="m",
        prompt=ChatPrompt(messages=()),
        sampling=SamplingParams(
            limit=OutputLimit(max_tokens=9), n=n, engine=EngineOptions(**engine)
        ),
        created_at=0,
        deadline=9,
        queue_deadline=9,
    )


@given(cut_choices())
def test_what_remains_is_exactly_the_rest(
    case: tuple[list[Delta], list[list[Delta]], int],
) -> None:
    said, again, at = case
    arrived = Arrived(1)
    arrived.add_ids(message(0, (1,)))
    for delta in said[:at]:
        arrived.add(delta)
    continuation = arrived.continuation(job())
    assert continuation is not None
    remaining = Remaining(continuation.choices[0])
    rest = [delta for batch in again for delta in remaining.of(batch)]
    assert units_of(said[:at]) + units_of(rest) == units_of(said)
    as_it_came = [delta for batch in again for delta in batch]
    assert all(delta in as_it_came for delta in rest if not getattr(delta, "text", "some"))


@given(st.integers(0, 4), st.integers(0, 4))
def test_parts_of_the_prompt_are_told_once(arrived: int, more: int) -> None:
    remaining = Remaining(ChoicePrefix((), 0, arrived))
    told = [remaining.prompt_part() for _ in range(arrived + more)]
    assert told == [False] * arrived + [True] * more


@given(strategies.logprobs, st.integers(0, 4))
def test_log_probabilities_stay_with_what_is_left_of_their_text(logprob: Any, units: int) -> None:
    remaining = Remaining(ChoicePrefix((1,), units))
    assert remaining.of([TextDelta(0, "abc", (logprob,))]) == [
        TextDelta(0, "abc"[units:], (logprob,))
    ]


@settings(max_examples=40)
@given(strategies.completed_replies(2), st.integers(2, 16))
def test_choices_are_kept_apart(deltas: list[Delta], lost_at: int) -> None:
    events = deltas[2:-1][:lost_at]
    together, alone = Arrived(2), [Arrived(2), Arrived(2)]
    for number, delta in enumerate(events):
        choice: int = delta.choice  # type: ignore[union-attr]
        told = message(choice, (number,))
        for arrived in (together, alone[choice]):
            arrived.add_ids(told)
            arrived.add(delta)
    assert together.tokens == len(events)
    if continuation := together.continuation(job(n=2)):
        empty = ChoicePrefix()
        for choice, arrived in enumerate(alone):
            own = arrived.continuation(job(n=2))
            prefix = own.choices[choice] if own else empty
            assert continuation.choices[choice] == prefix
            assert not own or own.choices[1 - choice] == empty


def test_an_arrival_keeps_ids_in_order_and_the_end() -> None:
    arrived = Arrived(2)
    for token_ids in ((7, 8), (9,)):
        arrived.add_ids(message(1, token_ids))
    arrived.add(TextDelta(1, "né"))
    arrived.add(ToolCallStarted(1, 0, "a_long_name"))
    arrived.add(Finished(1, FinishReason.STOP))
    continuation = arrived.continuation(job(n=2))
    assert continuation is not None
    assert continuation.choices == (ChoicePrefix(), ChoicePrefix((7, 8, 9), 3, 0, True))


@pytest.mark.parametrize(
    "engine", [{"hidden_states": "all"}, {"routed_experts": True}, {"logit_processor": "x"}]
)
def test_what_a_choice_tells_at_its_end_cannot_be_gone_on_with(engine: dict[str, Any]) -> None:
    arrived = Arrived(1)
    arrived.add_ids(message(0, (1,)))
    assert arrived.continuation(job()) is not None
    assert arrived.continuation(job(**engine)) is None


@pytest.mark.parametrize("delta", [TextDelta(0, "a"), Finished(0, FinishReason.STOP)])
def test_nor_can_ids_that_nobody_told(delta: Delta) -> None:
    """Not even where another choice has some."""
    arrived = Arrived(2)
    arrived.add_ids(message(1, (1,)))
    arrived.add(delta)
    assert arrived.continuation(job(n=2)) is None


def test_where_nothing_has_arrived_there_is_nothing_to_go_on_with() -> None:
    arrived = Arrived(2)
    assert arrived.continuation(job(n=2)) is None
    arrived.add(PromptDelta(1, "p"))
    continuation = arrived.continuation(job(n=2))
    assert continuation is not None
    assert continuation.choices[1] == ChoicePrefix((), 0, 1)


# --- The grammar over several attempts -----------------------------------------------------------

N = 2
OPENING: tuple[Delta, ...] = (Accepted("x", 1), Started("x", 1, 0))


@settings(max_examples=40)
@given(strategies.completed_replies(N), st.lists(st.integers(0, 16), max_size=3))
def test_the_grammar_goes_on_where_an_attempt_was_lost(
    deltas: list[Delta], lost_at: list[int]
) -> None:
    checker = ReplyChecker(N)
    events = deltas[2:-1]
    for begin, end in pairwise([0, *sorted(lost_at), len(events)]):
        checker.begin_attempt(continued=True)
        for delta in [*OPENING, *events[begin:end]]:
            checker.feed(delta)
    checker.feed(deltas[-1])
    assert checker.state == "ended"


@settings(max_examples=40)
@given(strategies.completed_replies(N), st.integers(0, 16))
def test_a_fresh_attempt_begins_everything_anew(deltas: list[Delta], lost_at: int) -> None:
    checker = ReplyChecker(N)
    for delta in deltas[:lost_at]:
        checker.feed(delta)
    checker.begin_attempt(continued=False)
    for delta in deltas:
        checker.feed(delta)
    assert checker.state == "ended"


REPEATED = [
    pytest.param(ToolCallStarted(0, 0, "f"), id="a call that has begun"),
    pytest.param(PromptDelta(0, "p"), id="the prompt"),
    pytest.param(TextDelta(1, "a"), id="a choice that has finished"),
    pytest.param(Completed(Usage()), id="the end of a reply with an open choice"),
]


@pytest.mark.parametrize("delta", REPEATED)
def test_what_has_arrived_is_refused_a_second_time(delta: Delta) -> None:
    checker = ReplyChecker(2)
    said: list[Delta] = [ToolCallStarted(0, 0, "f"), Finished(1, FinishReason.STOP)]
    for before in [*OPENING, *said]:
        checker.feed(before)
    checker.begin_attempt(continued=True)
    with pytest.raises(ProtocolViolation):
        checker.feed(TextDelta(0, "before it was accepted"))
    checker.begin_attempt(continued=True)
    for before in OPENING:
        checker.feed(before)
    with pytest.raises(ProtocolViolation):
        checker.feed(delta)
