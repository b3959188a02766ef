"""Stop patterns: what may be written, and where a text ends because of one."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sampling import StopConditions
from schemas.stop_pattern import MAX_POSITIONS, StopAutomaton, StopPatternError
from workers.parsing.pipeline import build_parser
from workers.parsing.stop_pattern import StopPatternScanner


def scan(
    text: str, *patterns: str, strings: tuple[str, ...] = (), include: bool = False, size: int = 1
) -> tuple[str, str | None]:
    """What passes of a text fed in chunks of `size`, and what ended it."""
    stop = StopConditions(strings=strings, patterns=patterns, include_in_text=include)
    scanner = StopPatternScanner(stop)
    passed = "".join(scanner.feed(text[i : i + size]) for i in range(0, len(text), size))
    return passed + scanner.finish(), scanner.matched


@pytest.mark.parametrize(
    ("pattern", "text", "passed"),
    [
        ("END", "the END.", "the "),
        (r"\d{3}", "a12b1234", "a12b"),
        ("[.!?]", "Well? No.", "Well"),
        (r"[^a-z ]", "ab cD", "ab c"),
        ("colou?r", "my color", "my "),
        ("colou?r", "my colour", "my "),
        ("(?:yes|no) ?sir", "oh nosir", "oh "),
        ("(?P<x>ab){2}", "abxabab", "abx"),
        ("a{2,3}b", "aab aaab", ""),
        (r"\x41\u0042\n", "..AB\n.", ".."),
        (r"\[\[x]", "a[[x]", "a"),
        ("[]a]", "b]", "b"),
        ("[[&|~]", "b&", "b"),
        ("a{}", "a{}", ""),
        ("(?i)stop", "go StOp", "go "),
        ("(?s)a.b", "xa\nb", "x"),
        ("a.b", "xa\nb", "xa\nb"),
        ("()a", "ba", "b"),
        ("a{0}b", "cab", "ca"),
        ("x?", "", ""),
    ][:-1],
)
@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_text_ends_before_its_first_match(
    pattern: str, text: str, passed: str, size: int
) -> None:
    found = scan(text, pattern, size=size)
    assert found == (passed, None if passed == text else pattern)


def test_no_match_passes_everything() -> None:
    assert scan("one tw", "two") == ("one tw", None)


def test_what_may_become_a_match_is_held_back_and_released() -> None:
    scanner = StopPatternScanner(StopConditions(patterns=(r"<\w{1,8}>",)))
    assert scanner.feed("a <b") == "a "
    assert scanner.feed("c d") == "<bc d"
    assert scanner.feed("<x") == ""
    assert scanner.finish() == "<x"


def test_the_match_that_is_complete_first_wins() -> None:
    assert scan("abcd", "bcd", "abc") == ("", "abc")
    assert scan("abcd", "bc", "abc") == ("", "abc")  # the longer of two that end together
    assert scan("abcd", "cd", "b") == ("a", "b")


def test_strings_and_patterns_together() -> None:
    assert scan("a1 END", r"\d", strings=("END",)) == ("a", r"\d")
    assert scan("a END 1", r"\d", strings=("END",)) == ("a ", "END")


def test_the_match_stays_on_request() -> None:
    assert scan("a END b", "E.D", include=True) == ("a END", "E.D")


def test_nothing_ends_before_the_minimum() -> None:
    parser = build_parser(
        0,
        reasoning_format=None,
        starts_inside=False,
        visible=True,
        stop=StopConditions(patterns=("x{2}",)),
        template_stops=(),
    )
    parser.stops_armed = False
    assert [part.text for part in parser.feed("axxb")] == ["axxb"]  # type: ignore[union-attr]
    parser.stops_armed = True
    assert [part.text for part in parser.feed("cxxd")] == ["c"]  # type: ignore[union-attr]
    assert parser.stopped
    assert parser.matched == "x{2}"


def test_what_counts_is_where_a_match_is_complete() -> None:
    scanner = StopPatternScanner(StopConditions(patterns=("x{2}",)))
    scanner.armed = False
    said = scanner.feed("axx") + scanner.feed("x")
    scanner.armed = True
    assert said + scanner.feed("xb") == "axx"
    assert scanner.stopped


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a*", "upper bound"),
        ("a+", "upper bound"),
        ("(ab)+", "upper bound"),
        ("a{2,}", "upper bound"),
        ("a{,}", "upper bound"),
        ("^a", "anchors"),
        ("a$", "anchors"),
        (r"\bend", "anchors"),
        (r"(a)\1", "anchors"),
        ("(?=a)b", "anchors"),
        ("(?<!a)b", "anchors"),
        ("a?", "empty text"),
        ("", "empty text"),
        ("a|", "empty text"),
        ("(a", "never closed"),
        ("a)", "never opened"),
        ("[a", "never closed"),
        ("[z-a]", "no sense"),
        ("a{3,2}", "no sense"),
        ("?a", "repeat of nothing"),
        ("a{2}{2}", "repeat of a repeat"),
        (r"\q", "unknown escape"),
        ("a\\", "unknown escape"),
        ("a{300}", "characters"),
        ("(a{20}){20}", "characters"),
        ("a" * 257, "longer than"),
        ("(" * 100 + "a" + ")" * 100, "deeper"),
        ("(((){9999}){9999}){9999}", "empty text"),
    ],
)
@pytest.mark.rule("completions.stop-regex-bounded")
def test_what_cannot_be_honoured_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(StopPatternError, match=why) as caught:
        StopAutomaton([pattern])
    assert len(pattern) < 5 or pattern not in str(caught.value)


def test_the_limit_is_for_all_patterns_together() -> None:
    StopAutomaton(["a{128}", "b{128}"])
    with pytest.raises(StopPatternError):
        StopAutomaton(["a{128}", "b{129}"])


@pytest.mark.rule("completions.stop-regex-bounded")
def test_no_pattern_takes_long() -> None:
    """Backtracking would need longer than the universe has for these."""
    half = MAX_POSITIONS // 2
    for pattern in (
        f"(a?){{{half}}}a{{{half}}}",
        f"(a|ab|b){{{half // 4}}}c",
        f"[ab]{{1,{half}}}c",
    ):
        started = time.perf_counter()
        assert scan("ab" * 200, pattern)[1] is None or pattern.startswith("(a?)")
        assert time.perf_counter() - started < 2


ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", "(ab|c)", "(a|)"])
PATTERNS = st.lists(
    st.tuples(ATOMS, st.sampled_from(["", "?", "{2}", "{0,2}", "{1,3}?"])).map("".join),
    min_size=1,
    max_size=4,
).map("".join)


@given(st.lists(PATTERNS, min_size=1, max_size=2), st.text("abc\n", max_size=12), st.integers(1, 5))
def test_the_end_is_where_the_re_module_says(patterns: list[str], text: str, size: int) -> None:
    try:
        StopAutomaton(patterns)
    except StopPatternError:
        return
    ends = [
        (end, start)
        for pattern in patterns
        for end in range(1, len(text) + 1)
        for start in range(end)
        if re.compile(pattern).fullmatch(text, start, end)
    ]
    passed, matched = scan(text, *patterns, size=size)
    if ends:
        assert passed == text[: min(ends)[1]]
        assert matched in patterns
    else:
        assert (passed, matched) == (text, None)
