"""The reasoning splitter, format by format and rule by rule."""

from __future__ import annotations

import pytest

from workers.parsing.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningSplitter

THINK = ReasoningFormat()


def split(
    *chunks: str,
    format: ReasoningFormat = THINK,
    starts_inside: bool = False,
    turned_off: bool = False,
    hidden_when_off: bool = False,
) -> tuple[str, str]:
    splitter = ReasoningSplitter(
        format,
        starts_inside=starts_inside,
        turned_off=turned_off,
        hidden_when_off=hidden_when_off,
    )
    outputs = [splitter.feed(chunk) for chunk in chunks]
    outputs.append(splitter.finish())
    return "".join(r for r, _ in outputs), "".join(a for _, a in outputs)


def test_prompt_that_opened_reasoning_needs_no_opening_marker() -> None:
    assert split("We need 17*3", "=51</thi", "nk>\n\n51", starts_inside=True) == (
        "We need 17*3=51",
        "51",
    )


@pytest.mark.parametrize("name", ["deepseek-r1", "minimax", "qwen3-thinking"])
def test_an_answer_is_an_answer_where_reasoning_was_turned_off(name: str) -> None:
    format = REASONING_FORMATS[name]
    assert split("It is 51.", format=format) == ("It is 51.", "")
    assert split("It is", " 51.", format=format, turned_off=True) == ("", "It is 51.")
    assert split("<think>hm</think>51", format=format, turned_off=True) == ("hm", "51")
    assert split("hm</think>51", format=format, turned_off=True, starts_inside=True) == ("hm", "51")


def test_opening_marker_is_swallowed_even_when_the_prompt_had_opened_it() -> None:
    assert split("<think>\nhm</think>ok", starts_inside=True) == ("hm", "ok")


def test_opening_marker_may_follow_white_space() -> None:
    assert split("\n\n <think>hm</think>ok") == ("hm", "ok")


def test_opening_marker_later_on_is_text() -> None:
    assert split("Use <think>tags</think> here") == ("", "Use <think>tags</think> here")


def test_only_the_first_closing_marker_splits() -> None:
    assert split("<think>They want both.", "</think>alpha </think> beta") == (
        "They want both.",
        "alpha </think> beta",
    )


def test_without_a_closing_marker_everything_is_reasoning() -> None:
    assert split("Let x be a number", " such that", starts_inside=True) == (
        "Let x be a number such that",
        "",
    )


def test_cut_off_marker_is_released_at_the_end() -> None:
    assert split("<think>a </thi") == ("a </thi", "")
    assert split("<thi") == ("", "<thi")


def test_drafted_call_stays_in_the_reasoning_word_for_word() -> None:
    draft = 'I could do <tool_call>{"name":"delete"}</tool_call> but first look.'
    assert split(f"<think>{draft}</think><tool_call>x</tool_call>") == (
        draft,
        "<tool_call>x</tool_call>",
    )


def test_answer_without_reasoning_keeps_its_white_space() -> None:
    assert split("\n  Hello\n") == ("", "\n  Hello\n")


def test_white_space_round_the_markers_is_trimmed_and_inside_it_is_kept() -> None:
    assert split("<think>\n\n  a\n\nb \n </think>\r\n\n c ") == ("  a\n\nb", " c ")


def test_empty_reasoning_yields_none() -> None:
    assert split("<think>\n\n</think>\n\nHi") == ("", "Hi")


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_every_format_splits_its_own_markers(name: str) -> None:
    format = REASONING_FORMATS[name]
    text = f"{format.opening}why{format.closing}\nbecause"
    assert split(text, format=format) == ("why", "because")


@pytest.mark.parametrize("name", ["deepseek-r1", "minimax", "qwen3-thinking"])
def test_formats_that_always_reason_start_inside(name: str) -> None:
    assert split("why</think>because", format=REASONING_FORMATS[name]) == ("why", "because")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_a_closing_marker_that_closes_nothing_is_nothing(name: str, inside: bool) -> None:
    format = REASONING_FORMATS[name]
    closing = format.closing
    for stray in (closing, f"\n{closing}\n\n", f"{closing}\n\n{closing}\n{closing}"):
        text = f"{stray}Hi {closing}"
        for chunks in ([text], list(text)):
            assert split(*chunks, format=format, starts_inside=inside) == ("", f"Hi {closing}")


def test_reasoning_closed_twice() -> None:
    assert split("<think>hm</think>\n\n</think>\n\nHi </think>") == ("hm", "Hi </think>")
    assert split("<think>hm</think>", "\n\n", " </thi") == ("hm", " </thi")
    assert split("<think>hm</think>", "\n\n", "  Hi") == ("hm", "  Hi")


class TestModelThatThinksAlthoughReasoningIsOff:
    def test_text_before_the_closing_marker_is_reasoning(self) -> None:
        assert split("Hmm, weigh both.", "</think>", "Pick B.", hidden_when_off=True) == (
            "Hmm, weigh both.",
            "Pick B.",
        )

    def test_nothing_is_let_out_before_that_is_known(self) -> None:
        splitter = ReasoningSplitter(THINK, starts_inside=False, hidden_when_off=True)
        assert splitter.feed("Hmm, weigh both.") == ("", "")

    def test_without_a_closing_marker_it_was_the_answer(self) -> None:
        assert split("Pick ", "B.", hidden_when_off=True) == ("", "Pick B.")


class TestWhereTextFedNowWouldGo:
    def test_from_reasoning_to_answer(self) -> None:
        splitter = ReasoningSplitter(THINK, starts_inside=True)
        seen = []
        for chunk in ("hm", "</think>", "\n\n", "51", "!"):
            seen.append(splitter.in_answer)
            splitter.feed(chunk)
        assert seen == [False, False, True, True, True]

    def test_answer_until_an_opening_marker_shows_otherwise(self) -> None:
        splitter = ReasoningSplitter(THINK, starts_inside=False)
        assert splitter.in_answer
        splitter.feed("<think>")
        assert not splitter.in_answer


CALL = '<tool_call>\n{"name": "f"}\n</tool_call>'


def split_with_calls(text: str, size: int) -> tuple[str, str]:
    splitter = ReasoningSplitter(
        REASONING_FORMATS["qwen3"],
        starts_inside=True,
        call_markers=("<tool_call>", "</tool_call>"),
    )
    pieces = [splitter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(splitter.finish())
    return "".join(piece[0] for piece in pieces), "".join(piece[1] for piece in pieces)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        pytest.param(f"So:\n{CALL}", "So:", f"\n{CALL}", id="the closing marker was forgotten"),
        pytest.param(f"{CALL}\n{CALL}\n", "", f"{CALL}\n{CALL}\n", id="nothing but calls"),
        pytest.param(f"So:\n{CALL}\nNo.", f"So:\n{CALL}\nNo.", "", id="a draft and more"),
        pytest.param(f"So:\n{CALL}</think>No.", f"So:\n{CALL}", "No.", id="a draft at the end"),
        pytest.param(f"Say {CALL}", f"Say {CALL}", "", id="only talked about"),
        pytest.param(
            f"So:\n{CALL}\nNo.\n{CALL}", f"So:\n{CALL}\nNo.", f"\n{CALL}", id="draft, call"
        ),
        pytest.param("So:\n<tool_call>\n{", "So:\n<tool_call>\n{", "", id="cut off"),
    ],
)
def test_calls_in_reasoning_that_was_not_closed(
    text: str, reasoning: str, answer: str, size: int
) -> None:
    assert split_with_calls(text, size) == (reasoning, answer)
