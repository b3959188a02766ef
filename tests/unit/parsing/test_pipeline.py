"""The stages put together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.delta import ReasoningDelta, TextDelta
from schemas.sampling import StopConditions
from workers.parsing.base import ChoiceParser, PartDelta, PlainText
from workers.parsing.pipeline import build_parser


def parser(
    *stop: str,
    reasoning_format: str | None = "qwen3",
    starts_inside: bool = False,
    visible: bool = True,
    template_stops: tuple[str, ...] = (),
    hidden_when_off: bool = False,
) -> ChoiceParser:
    return build_parser(
        3,
        reasoning_format=reasoning_format,
        starts_inside=starts_inside,
        visible=visible,
        stop=StopConditions(strings=stop),
        template_stops=template_stops,
        hidden_when_off=hidden_when_off,
    )


def run(parser: ChoiceParser, *chunks: str) -> list[PartDelta]:
    parts: list[PartDelta] = []
    for chunk in chunks:
        parts += parser.feed(chunk)
    return [*parts, *parser.finish()]


def texts(parts: Sequence[PartDelta], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def test_nothing_to_parse_costs_one_delta_per_chunk() -> None:
    plain = parser(reasoning_format=None)
    assert isinstance(plain, PlainText)
    assert run(plain, "a", "", "b") == [TextDelta(3, "a"), TextDelta(3, "b")]
    assert (plain.stopped, plain.matched, plain.in_reasoning) == (False, None, False)


def test_stop_strings_act_on_the_answer_only() -> None:
    parse = parser("7")
    parts = run(parse, "<think>5+2 is ", "7 so", "</think>The sum is ", "7.")
    assert texts(parts, ReasoningDelta) == "5+2 is 7 so"
    assert texts(parts, TextDelta) == "The sum is "
    assert (parse.stopped, parse.matched) == (True, "7")


def test_stop_string_hold_back_does_not_cut_the_marker() -> None:
    parts = run(parser("</answer>"), "<think>hm</", "think>42</", "answer> tail")
    assert texts(parts, ReasoningDelta) == "hm"
    assert texts(parts, TextDelta) == "42"


def test_both_kinds_of_text_in_one_chunk_keep_their_order() -> None:
    assert run(parser(), "<think>a</think>b") == [ReasoningDelta(3, "a"), TextDelta(3, "b")]


def test_invisible_reasoning_is_dropped() -> None:
    parts = run(parser(visible=False, starts_inside=True), "hm", "</think>", "Pick B.")
    assert parts == [TextDelta(3, "Pick B.")]


def test_thought_although_reasoning_is_off_is_dropped() -> None:
    parts = run(
        parser(visible=False, hidden_when_off=True), "Hmm, weigh both.", "</think>", "Pick B."
    )
    assert parts == [TextDelta(3, "Pick B.")]


def test_both_stages_release_what_they_hold_at_the_end() -> None:
    # `<thi` is held for the opening marker first, and would then be held for the stop string.
    assert texts(run(parser("<thick>"), "<thi"), TextDelta) == "<thi"


def test_stop_string_completed_by_what_is_released_at_the_end_stops() -> None:
    parse = parser("<th")
    assert texts(run(parse, "<thi"), TextDelta) == ""
    assert parse.matched == "<th"


def test_template_stops_alone_stop_without_a_match() -> None:
    parse = parser(reasoning_format=None, template_stops=("\nUser:",))
    assert texts(run(parse, "Paris.\nUs", "er: more"), TextDelta) == "Paris."
    assert (parse.stopped, parse.matched) == (True, None)


def test_after_a_stop_nothing_comes() -> None:
    parse = parser("END", reasoning_format=None)
    parse.feed("x END")
    assert list(parse.feed("y")) == []
    assert list(parse.finish()) == []


def test_stops_can_be_disarmed() -> None:
    parse = parser("7", reasoning_format=None)
    parse.stops_armed = False
    assert not parse.stops_armed
    assert texts(parse.feed("7"), TextDelta) == "7"
    parse.stops_armed = True
    assert texts(parse.feed("8 7"), TextDelta) == "8 "


def test_unknown_format_is_an_error() -> None:
    with pytest.raises(KeyError):
        parser(reasoning_format="no-such-format")
