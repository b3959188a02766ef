"""The law of output parsers: any re-chunking of the text gives the same answer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from schemas.delta import ReasoningDelta, TextDelta
from schemas.sampling import StopConditions
from workers.parsing.pipeline import build_parser

MARKERS = "<think> </think> <thi nk> </ < th > <mm:think> </mm:think>"
WORDS = "a bc END EN D [[ ] ab abab! !"
PIECES = st.sampled_from([*MARKERS.split(), *WORDS.split(), "\n", "\r\n", " "])
TEXTS = st.lists(PIECES, max_size=14).map("".join)
STOPS = st.lists(st.sampled_from(["END", "ND", "abab!", "ab", "</th", "\n\n", "]"]), max_size=3)


def parse(
    chunks: list[str],
    format: str | None,
    starts_inside: bool,
    hidden: bool,
    stops: list[str],
    include: bool,
) -> tuple[str, str, bool, str | None]:
    parser = build_parser(
        0,
        reasoning_format=format,
        starts_inside=starts_inside,
        visible=True,
        stop=StopConditions(strings=tuple(stops[1:]), include_in_text=include),
        template_stops=tuple(stops[:1]),
        hidden_when_off=hidden,
    )
    parts = [part for chunk in chunks for part in parser.feed(chunk)]
    parts += parser.finish()
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    answer = "".join(part.text for part in parts if isinstance(part, TextDelta))
    assert all(part.text for part in parts if isinstance(part, ReasoningDelta | TextDelta))
    return reasoning, answer, parser.stopped, parser.matched


def cut(text: str, at: list[int]) -> list[str]:
    bounds = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(
    text=TEXTS,
    format=st.sampled_from([None, "qwen3", "deepseek-r1", "minimax-m3"]),
    starts_inside=st.booleans(),
    hidden=st.booleans(),
    stops=STOPS,
    include=st.booleans(),
    at=st.lists(st.integers(0, 80), max_size=8),
)
@example(
    text="We need 17*3=51</think>\n\n51",
    format="qwen3",
    starts_inside=True,
    hidden=False,
    stops=[],
    include=False,
    at=[12, 20],
)
def test_chunk_boundaries_carry_no_meaning(
    text: str,
    format: str | None,
    starts_inside: bool,
    hidden: bool,
    stops: list[str],
    include: bool,
    at: list[int],
) -> None:
    whole = parse([text], format, starts_inside, hidden, stops, include)
    assert parse(list(text), format, starts_inside, hidden, stops, include) == whole
    assert parse(cut(text, at), format, starts_inside, hidden, stops, include) == whole


@given(text=TEXTS, stops=STOPS.filter(bool))
def test_no_stop_string_is_left_in_the_answer(text: str, stops: list[str]) -> None:
    _, answer, stopped, _ = parse(list(text), None, False, False, stops, include=False)
    assert not any(stop in answer for stop in stops)
    assert stopped == any(stop in text for stop in stops)
    assert text.startswith(answer)
    assert stopped or answer == text


@given(reasoning=TEXTS, answer=TEXTS)
def test_a_well_formed_text_comes_apart_where_it_was_put_together(
    reasoning: str, answer: str
) -> None:
    reasoning = reasoning.replace("</think>", "").strip()
    answer = answer.lstrip("\r\n")
    assume("</think>" not in reasoning)  # put together anew by the removal
    assume(not answer.lstrip().startswith("</think>"))  # closes nothing, and is left out
    text = f"<think>\n{reasoning}\n</think>\n\n{answer}"
    assert parse(list(text), "qwen3", False, False, [], False)[:2] == (reasoning, answer)
