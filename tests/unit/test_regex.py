"""Regular expressions: what decoding can enforce, and how they read within a JSON string."""

from __future__ import annotations

import json  # noqa: TID251 - how others write strings
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.regex import UnsupportedRegex, json_text_of_length, parse, rows_in_json, whole_rows
from schemas.regex_length import rows_of_length

TEXTS = st.text('ab1 "\\\n/é', max_size=6)


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "a", "a|", "|", "^a$", "^a|b$", "(a)", "(?:a|b)*", "(?<name>a)", "(?P<name>a)"),
        *(
            "a{2}",
            "a{2,}",
            "a{2,5}?",
            "a+?",
            "[a-z]",
            "[^a]",
            "[a\\-z\\]]",
            "[\\b]",
            "[-a]",
            "[a-]",
        ),
        *("\\d\\w\\s\\D\\W\\S", "\\x41\\u0042\\u{43}", "\\.", "\\/", ".", "a{", "a{,3}", "}", "]"),
        *("(a?){40}a{40}", "\\0", "\\n"),
    ],
)
def test_what_is_regular_is_accepted(pattern: str) -> None:
    parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?i)a", "(?>a)", "(a)\\1", "\\k<a>", "\\bword"),
        *("\\Bword", "\\p{L}", "\\Aa", "a^b", "a$b", "(^a)", "(a$)", "(a", "a)", "[a", "[]", "[^]"),
        *("*a", "a**", "a*+", "a{2}{3}", "a{3,2}", "[z-a]", "[a-\\d]", "\\", "(?", "{2}", "\\01"),
        *("(" * 50 + "a" + ")" * 50, "(" * 100_000, "a{1000000}", "\\u{110000}", "\\ud800"),
    ],
)
def test_what_is_not_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedRegex):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("a", "^a", "a$", "^a$", "^a|b$", ".", "^.*$", '^"$', "^\\\\$", '^[a"]+$', "^[^a]*$"),
        *("^\\s+$", "^(a|\\n)*b?$", "^[ -~]*$", "^[^é]$", "^\\u00e9{1,2}$", "^\\W$"),
    ],
)
@given(text=TEXTS)
def test_within_a_json_string_the_same_values_match(pattern: str, text: str) -> None:
    written = json.dumps(text, ensure_ascii=False)[1:-1]

    found = re.fullmatch(rows_in_json(whole_rows(pattern)), written) is not None

    # Python's `$` also matches before a last line break; ECMAScript's does not.
    assert found == (re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None)


@given(TEXTS, st.integers(0, 4), st.none() | st.integers(0, 4))
def test_lengths_count_characters_and_not_escapes(text: str, least: int, most: int | None) -> None:
    written = json.dumps(text, ensure_ascii=False)[1:-1]

    pattern = json_text_of_length(least, None if most is None else least + most)

    fits = least <= len(text) and (most is None or len(text) <= least + most)
    assert (re.fullmatch(pattern, written) is not None) == fits


@pytest.mark.parametrize(
    "pattern",
    [
        *("a", "^a", "a$", "^a*$", "^a+b*$", "^[ab]{2,4}$", "^a?b?1?$", "^(ab)+$", "^a|b$", ""),
        *("^(?:ab|1a)*b?$", "^.*b.*$", "^(a{0}b)+$", "^a{3}$"),
    ],
)
@given(text=st.text("ab1", max_size=8), least=st.integers(0, 9), most=st.none() | st.integers(0, 9))
def test_a_pattern_takes_a_length_into_itself(
    pattern: str, text: str, least: int, most: int | None
) -> None:
    narrowed = rows_in_json(rows_of_length(pattern, least, most)) or "(?!)"

    found = re.fullmatch(narrowed, text) is not None

    fits = least <= len(text) and (most is None or len(text) <= most)
    assert found == (fits and re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("^[a-z]+(-[a-z]+)*$", 0, 20),
        ("^(a|bb)*$", 3, None),
        ("^a*b*c*d*$", 0, 200),
        ("^a+$", 0, 10_000),
        ("^a+b*c$", 10**9, None),
        ("^a+b?$", 10**12, 10**12),
        ("^" + "(aa)?" * 40 + "$", 21, 21),
        ("^" + "a?" * 5_000 + "$", 20, 21),
    ],
)
def test_a_length_that_would_take_too_much_is_refused_at_once(
    pattern: str, least: int, most: int | None
) -> None:
    with pytest.raises(UnsupportedRegex):
        rows_of_length(pattern, least, most)
