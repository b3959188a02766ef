"""Custom tools: what the model is offered, and its arguments unwrapped."""

from itertools import pairwise

import pytest

from ingress.dialects.custom_tools import InputUnwrapper, custom_tool


def unwrap(arguments: str, at: list[int] | None = None) -> str:
    unwrapper = InputUnwrapper()
    edges = sorted({0, len(arguments), *(cut for cut in at or () if cut < len(arguments))})
    said = [unwrapper.feed(arguments[a:b]) for a, b in pairwise(edges)]
    return "".join([*said, unwrapper.finish()])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a\\nb"}', "a\nb"),
        ('{"input":"a\nb"}', "a\nb"),
        (' { "input" : "\\ud83d\\ude00" } ', "😀"),
        ('{"input":"x\\ud83d!"}', "x\ufffd!"),
        ('{"input":"x\\ud83d\\u0041"}', "x\ufffdA"),
        ('{"why":"so","input":"late"}', "late"),
        ('{"patch":"*** Begin"}', "*** Begin"),
        ('"*** Begin"', "*** Begin"),
        ('{"a":"x","b":"y"}', '{"a":"x","b":"y"}'),
        ('{"other":1}', '{"other":1}'),
        ('{"input":1}', '{"input":1}'),
        ('{"input":{"a":"b"}}', '{"input":{"a":"b"}}'),
        ("plain words", "plain words"),
        ("{}", ""),
        ("", ""),
        # cut off
        ('{"input":"half a wo', "half a wo"),
        ('{"input":"half \\u00', "half "),
        ('{"input":"half \\ud83d\\ud', "half "),
        ('{"input":"half \\', "half "),
        ('{"inp', '{"inp'),
        # no JSON string
        ('{"input":"a\\qb"}', 'a\\qb"}'),
    ],
)
def test_unwrapped(arguments: str, text: str) -> None:
    assert unwrap(arguments) == text
    assert unwrap(arguments, list(range(len(arguments)))) == text


def test_text_comes_before_its_string_ends() -> None:
    unwrapper = InputUnwrapper()
    assert unwrapper.feed('{"input":"*** Begin') == "*** Begin"
    assert unwrapper.feed(" Patch\\") == " Patch"
    assert unwrapper.feed('n+a"}') == "\n+a"
    assert unwrapper.finish() == ""


def test_the_model_is_told_of_a_grammar() -> None:
    plain = custom_tool("apply", "Applies.")
    assert (plain.name, plain.description, plain.strict) == ("apply", "Applies.", True)
    assert plain.parameters is not None
    assert plain.parameters["required"] == ["input"]
    told = custom_tool("apply", None, "start: LINE+").description
    assert told == "`input` must follow this grammar:\nstart: LINE+"
    both = custom_tool("apply", "Applies.", "start: LINE+").description
    assert both == f"Applies.\n\n{told}"
