"""Calls written as JSON between markers."""

from __future__ import annotations

import pytest

from schemas.delta import ArgumentsDelta, ToolCallStarted
from tests.unit.parsing.reading import Part, calls, read, text, tool_parser

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def hermes(output: str, *, stops: tuple[str, ...] = ()) -> list[Part]:
    return read(tool_parser("hermes", stops=stops), [output])


def test_calls_are_numbered_and_stand_where_they_were_made() -> None:
    parts = hermes(f"Let me see.\n{CALL}\n{CALL}\nDone.")
    assert [part.kind for part in parts] == ["text", "call", "text", "call", "text"]
    assert calls(parts) == [("get_weather", '{"city": "Paris"}')] * 2
    assert (parts[0].text, parts[-1].text) == ("Let me see.\n", "\nDone.")


def test_the_name_comes_first_and_arguments_as_they_are_generated() -> None:
    parser = tool_parser("hermes")
    assert not parser.feed('<tool_call>\n{"name": "get_we')
    assert list(parser.feed('ather", "argu')) == [ToolCallStarted(0, 0, "get_weather")]
    assert list(parser.feed('ments": {"ci')) == [ArgumentsDelta(0, 0, '{"ci')]
    assert list(parser.feed('ty": "Par')) == [ArgumentsDelta(0, 0, 'ty": "Par')]
    assert list(parser.feed('is"}}\n</tool_call>')) == [ArgumentsDelta(0, 0, 'is"}')]
    assert not parser.finish()


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {}}', "{}"),
        ('{"name": "f"}', ""),
        ('{"name": "f", "arguments": null}', ""),
        ('{"name": "f", "arguments": ""}', ""),
        ('{"name": " f\\n", "arguments": {}}', "{}"),
        ('{"arguments": " ", "name": "f"}', ""),
        ('{"arguments": {"a": [1, {"b": 2}]}, "name": "f"}', '{"a": [1, {"b": 2}]}'),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"id": 7, "name": "f", "arguments": {"a": "}]<"}}', '{"a": "}]<"}'),
        (r'{"name": "f", "arguments": "{\"a\": 1}"}', '{"a": 1}'),
        (
            r'{"name": "f", "arguments": {"a": "\ud83d\ude00 \\ \" }"}}',
            r'{"a": "\ud83d\ude00 \\ \" }"}',
        ),
        ('[{"name": "f", "arguments": {"a": 1}}]', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
    ],
)
def test_arguments_are_passed_on_as_written(written: str, arguments: str) -> None:
    parts = hermes(f"<tool_call>{written}</tool_call>")
    assert calls(parts) == [("f", arguments)]
    assert text(parts) == ""


def test_several_calls_between_one_pair_of_markers() -> None:
    one, two = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
    for separator in ("\n", ", ", ""):
        parts = hermes(f"<tool_call>\n{one}{separator}{two}\n</tool_call>")
        assert calls(parts) == [("f", '{"a": 1}'), ("g", "{}")]
        assert text(parts) == ""


def test_a_missing_closing_marker_does_not_swallow_what_follows() -> None:
    parts = hermes(CALL.replace("</tool_call>", "") + CALL + " So far.")
    assert len(calls(parts)) == 2
    assert text(parts) == " So far."


@pytest.mark.parametrize(
    "output",
    [
        "<tool_call>\nI would call it.\n</tool_call>",
        '<tool_call>{"city": "Paris"}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_we',
        "<tool_call>",
        "<tool_ca",
        "a < b and <tool_calls> </tool_call>",
        "{'name': 'f'}",
    ],
)
def test_what_is_no_call_stays_text(output: str) -> None:
    assert hermes(output) == [Part("text", output)]


def test_text_after_a_broken_call_is_read_again() -> None:
    broken = '<tool_call>{"nam'
    parts = hermes(broken + CALL)
    assert calls(parts) == [("get_weather", '{"city": "Paris"}')]
    assert text(parts) == broken


def test_a_call_that_was_cut_off_has_the_arguments_so_far() -> None:
    cut = CALL[: CALL.index("ris")]
    assert hermes(cut) == [Part("call", '{"city": "Pa', "get_weather")]


def test_markup_ends_arguments_that_were_left_open() -> None:
    parts = hermes('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> And so on.')
    assert parts == [Part("call", '{"a": 1', "f"), Part("text", " And so on.")]


def test_stop_strings_act_between_calls_and_never_inside() -> None:
    parts = hermes(f"{CALL} END {CALL}", stops=("Paris", "END"))
    assert calls(parts) == [("get_weather", '{"city": "Paris"}')]
    assert text(parts) == " "


def test_a_stop_string_does_not_span_a_call() -> None:
    parts = hermes(f"E{CALL}ND", stops=("END",))
    assert [part.kind for part in parts] == ["text", "call", "text"]
    assert text(parts) == "END"
