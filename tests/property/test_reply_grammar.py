"""The reply checker accepts exactly the grammar; the sequence checker exactly the sequence."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Counted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    InternalsDelta,
    Interrupted,
    PromptDelta,
    ReasoningDelta,
    ReplyMessage,
    Started,
    TextDelta,
    TokensDelta,
    ToolCallStarted,
    Usage,
)
from schemas.errors import GenerationFailed, ProtocolViolation
from schemas.reply import ReplyChecker, SequenceChecker
from tests.property import strategies

N = 2
ANY_DELTA = st.one_of(
    st.just(Accepted("w", 1)),
    st.just(Started("w", 1, 0)),
    st.builds(PromptDelta, st.integers(-1, N), st.just("x")),
    st.builds(TokensDelta, st.integers(-1, N), st.just((1,))),
    st.builds(InternalsDelta, st.integers(-1, N)),
    st.builds(TextDelta, st.integers(-1, N), st.just("x")),
    st.builds(ReasoningDelta, st.integers(-1, N), st.just("x")),
    st.builds(ToolCallStarted, st.integers(0, N), st.integers(-1, 2), st.just("f")),
    st.builds(ArgumentsDelta, st.integers(0, N), st.integers(-1, 2), st.just("{}")),
    st.builds(Finished, st.integers(-1, N), st.just(FinishReason.STOP)),
    st.just(Completed(Usage())),
    st.just(Failed(GenerationFailed("no").info())),
    st.just(Interrupted("draining")),
    st.builds(Counted, st.just("w"), st.none() | st.just(1)),
)

# The grammar once more, as regular expressions over one letter per Delta, so that the checker is
# held against something that is not the checker.
LETTERS = {
    Accepted: "A", Started: "S", Completed: "C", Failed: "F", Interrupted: "I", TextDelta: "e",
    ReasoningDelta: "e", ToolCallStarted: "e", ArgumentsDelta: "e", Finished: "e", Counted: "N",
    PromptDelta: "e", TokensDelta: "e", InternalsDelta: "e",
}  # fmt: skip
ATTEMPT_PREFIX = re.compile("[FI]?|A([FI]|(Se*[CFI]?)?)?")
COUNT_PREFIX = re.compile("[FIN]?")  # of a Job without choices
CHOICE_LETTERS = {
    TextDelta: "t", ReasoningDelta: "t", ToolCallStarted: "T", ArgumentsDelta: "a", Finished: "f",
    PromptDelta: "p", TokensDelta: "i", InternalsDelta: "i",
}  # fmt: skip
CHOICE = re.compile("p*(t|i|T[ai]*)*f?")
EVENTS = (
    PromptDelta
    | TokensDelta
    | InternalsDelta
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ArgumentsDelta
    | Finished
)


def is_prefix_of_the_grammar(deltas: list[Delta], n: int) -> bool:
    word = "".join(LETTERS[type(delta)] for delta in deltas)
    if not (ATTEMPT_PREFIX if n else COUNT_PREFIX).fullmatch(word):
        return False
    events = [delta for delta in deltas if isinstance(delta, EVENTS)]
    by_choice = {choice: [e for e in events if e.choice == choice] for choice in range(n)}
    if sum(map(len, by_choice.values())) != len(events):
        return False
    for said in by_choice.values():
        if not CHOICE.fullmatch("".join(CHOICE_LETTERS[type(delta)] for delta in said)):
            return False
        opened = [delta.call for delta in said if isinstance(delta, ToolCallStarted)]
        if opened != list(range(len(opened))):
            return False
        latest = -1
        for delta in said:
            if isinstance(delta, ToolCallStarted):
                latest = delta.call
            elif isinstance(delta, ArgumentsDelta) and (latest < 0 or delta.call != latest):
                return False
    finished = sum(isinstance(delta, Finished) for delta in events)
    return "C" not in word or finished == n


def accepts(deltas: list[Delta], n: int) -> bool:
    checker = ReplyChecker(n)
    try:
        for delta in deltas:
            checker.feed(delta)
    except ProtocolViolation:
        return False
    return True


@given(strategies.choice_counts.flatmap(lambda n: st.tuples(st.just(n), strategies.attempts(n))))
def test_every_attempt_of_the_grammar_is_accepted_and_ends_it(
    case: tuple[int, list[Delta]],
) -> None:
    n, deltas = case
    checker = ReplyChecker(n)
    for delta in deltas:
        assert checker.state != "ended"
        checker.feed(delta)
    assert checker.state == "ended"


@given(st.lists(ANY_DELTA, max_size=6), st.sampled_from([0, N]))
def test_what_is_accepted_is_what_the_grammar_allows(deltas: list[Delta], n: int) -> None:
    assert accepts(deltas, n) == is_prefix_of_the_grammar(deltas, n)


@given(strategies.counted, st.lists(ANY_DELTA, max_size=1))
def test_a_count_is_the_whole_reply_of_a_job_that_only_counts(
    counted: Counted, more: list[Delta]
) -> None:
    assert accepts([counted], 0)
    assert not accepts([counted], 1)
    assert accepts([counted, *more], 0) == (not more)


@given(strategies.completed_replies(N), st.data())
def test_one_change_to_a_good_reply_is_judged_as_the_grammar_does(
    deltas: list[Delta], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(deltas) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "insert", "swap"]))
    if change == "drop":
        del deltas[at]
    elif change == "double":
        deltas.insert(at, deltas[at])
    elif change == "insert":
        deltas.insert(at, data.draw(ANY_DELTA))
    else:
        other = data.draw(st.integers(0, len(deltas) - 1))
        deltas[at], deltas[other] = deltas[other], deltas[at]
    assert accepts(deltas, N) == is_prefix_of_the_grammar(deltas, N)


@given(strategies.attempts(1), ANY_DELTA)
def test_nothing_follows_an_end(deltas: list[Delta], more: Delta) -> None:
    assert not accepts([*deltas, more], 1)


@given(strategies.completed_replies(2))
def test_refusals_name_the_delta_and_quote_nothing(deltas: list[Delta]) -> None:
    checker = ReplyChecker(2)
    for delta in deltas:
        checker.feed(delta)
    with pytest.raises(ProtocolViolation) as caught:
        checker.feed(TextDelta(0, "a secret"))
    assert caught.value.diagnostic == "TextDelta in state ended"
    assert "secret" not in caught.value.message


def message(attempt: int, seq: int) -> ReplyMessage:
    return ReplyMessage("job", attempt, seq, ())


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), max_size=12))
def test_a_sequence_is_taken_in_order_once_and_without_gaps(
    arrivals: list[tuple[int, int]],
) -> None:
    checker, taken = SequenceChecker(), list[int]()
    for attempt, seq in arrivals:
        due = len(taken)
        if attempt == 1 and seq < due:
            assert not checker.accept(message(attempt, seq))
        elif (attempt, seq) == (1, due):
            assert checker.accept(message(attempt, seq))
            taken.append(seq)
        else:
            with pytest.raises(ProtocolViolation):
                checker.accept(message(attempt, seq))
    assert all(after == before + 1 for before, after in pairwise(taken))


@given(st.integers(1, 5), st.integers(0, 5))
def test_a_new_attempt_fences_off_the_old_one(seen: int, late: int) -> None:
    checker = SequenceChecker()
    for seq in range(seen):
        assert checker.accept(message(1, seq))
    checker.begin_attempt(2)
    assert not checker.accept(message(1, late))
    assert checker.accept(message(2, 0))
