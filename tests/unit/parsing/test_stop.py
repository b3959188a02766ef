"""The stop scanner."""

from __future__ import annotations

import pytest

from schemas.sampling import StopConditions
from workers.parsing.stop import StopScanner


def scanner(*strings: str, include: bool = False, template: tuple[str, ...] = ()) -> StopScanner:
    return StopScanner(StopConditions(strings=strings, include_in_text=include), template)


def test_string_across_chunks_is_cut_with_all_that_follows() -> None:
    scan = scanner("</answer>")
    out = [scan.feed(chunk) for chunk in ("42", "</", "ans", "wer", ">", " tail")]
    assert out == ["42", "", "", "", "", ""]
    assert scan.finish() == ""
    assert (scan.stopped, scan.matched) == (True, "</answer>")


def test_text_is_released_once_it_cannot_become_the_string() -> None:
    scan = scanner("</answer>")
    out = [scan.feed(chunk) for chunk in ("42", "</", "ans", "ible>")]
    assert out == ["42", "", "", "</ansible>"]
    assert not scan.stopped


def test_held_back_text_is_flushed_at_the_end() -> None:
    scan = scanner("Observation:")
    assert scan.feed("I logged an ") + scan.feed("Obs") == "I logged an "
    assert scan.finish() == "Obs"
    assert scan.matched is None


def test_no_more_is_held_back_than_could_begin_the_string() -> None:
    scan = scanner("abab!")
    assert scan.feed("xabaab") == "xaba"


@pytest.mark.parametrize(
    ("strings", "text", "kept", "matched"),
    [
        (("late", "soon"), "so soon or late", "so ", "soon"),
        (("abcdef", "cd"), "abcdef", "ab", "cd"),  # complete first, though it begins later
        (("bar", "foobar"), "a foobar", "a ", "foobar"),  # complete together: the longest
        (("ab", "abc"), "abc", "", "ab"),  # one is complete before the other
    ],
)
def test_the_string_that_is_complete_first_wins(
    strings: tuple[str, ...], text: str, kept: str, matched: str
) -> None:
    for chunks in ([text], list(text)):
        scan = scanner(*strings)
        assert "".join(map(scan.feed, chunks)) == kept
        assert scan.matched == matched


def test_callers_string_can_be_kept() -> None:
    scan = scanner("END", include=True)
    assert scan.feed("the END of") == "the END"
    assert scan.matched == "END"


class TestTemplateStrings:
    def test_are_a_natural_end(self) -> None:
        scan = scanner(template=("\nUser:",))
        assert scan.feed("Paris.\nUser: and") == "Paris."
        assert (scan.stopped, scan.matched) == (True, None)

    def test_are_never_kept(self) -> None:
        scan = scanner("X", include=True, template=("\nUser:",))
        assert scan.feed("Paris.\nUser: X") == "Paris."

    def test_that_the_caller_gave_too_are_the_callers(self) -> None:
        scan = scanner("\nUser:", template=("\nUser:",))
        scan.feed("Paris.\nUser:")
        assert scan.matched == "\nUser:"


def test_unarmed_strings_are_text() -> None:
    scan = scanner("7")
    scan.armed = False
    assert scan.feed("a 7 ") == "a 7 "
    scan.armed = True
    assert scan.feed("b 7 c") == "b "


@pytest.mark.parametrize(
    ("strings", "before", "after", "kept"),
    [
        (("STOP",), "a ST", "OP b", "a "),  # complete once it counts
        (("STOP",), "a STOP", " b", "a STOP b"),
        (("ab", "xabc"), "xab", "q", "xabq"),  # one is held back, but another was complete
        (("ab", "xabc"), "xab", "cq", ""),
        (("aa",), "aa", "a", "a"),
    ],
)
def test_what_counts_is_where_a_string_is_complete(
    strings: tuple[str, ...], before: str, after: str, kept: str
) -> None:
    scan = scanner(*strings)
    scan.armed = False
    said = scan.feed(before)
    scan.armed = True
    assert said + scan.feed(after) + scan.finish() == kept
    assert scan.stopped == (kept != before + after)


def test_empty_string_stops_nothing() -> None:
    scan = scanner("")
    assert scan.feed("text") == "text"
    assert not scan.stopped
