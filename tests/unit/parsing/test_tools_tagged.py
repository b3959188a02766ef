"""Calls whose arguments stand between tags, some of which the model left out."""

from __future__ import annotations

import pytest

from schemas.message import ToolSpec
from tests.unit.parsing.reading import Part, read, tool_parser

RUN = ToolSpec(
    name="run",
    parameters={
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}},
    },
)


@pytest.mark.parametrize(
    ("format", "inside", "arguments"),
    [
        (
            "qwen3_coder",
            "<parameter=cmd>\nls -l\n<parameter=n>\n3\n</parameter>\n",
            '{"cmd": "ls -l", "n": 3}',
        ),
        (
            "qwen3_coder",
            "<parameter=n>\n3\n<parameter=cmd>\nls\n",
            '{"n": 3, "cmd": "ls"}',
        ),
        # what only looks like such tags belongs to the value
        (
            "qwen3_coder",
            "<parameter=cmd>\na\n<parameter=b>\n</function> <parameter=n>\n</parameter>\n",
            '{"cmd": "a\\n<parameter=b>\\n</function> <parameter=n>"}',
        ),
        ("glm47", "<arg_key>cmd</arg_key>how many</arg_value>", '{"cmd": "how many"}'),
        (
            "glm47",
            "<arg_key>n</arg_key>\n3</arg_value>\n<arg_key>cmd</arg_key><arg_value>ls</arg_value>",
            '{"n": 3, "cmd": "ls"}',
        ),
        ("glm47", "<arg_key>cmd</arg_key>", "{}"),
        (
            "glm47",
            "<arg_key>cmd</arg_key><arg_key>n</arg_key><arg_value>3</arg_value>",
            '{"n": 3}',
        ),
    ],
)
def test_tags_may_be_missing_where_that_leaves_no_doubt(
    format: str, inside: str, arguments: str
) -> None:
    around = {"qwen3_coder": ("<function=run>\n", "</function>\n"), "glm47": ("run", "")}[format]
    text = f"<tool_call>{around[0]}{inside}{around[1]}</tool_call>"
    for chunks in ([text], list(text)):
        parts = read(tool_parser(format, [RUN]), chunks)
        assert parts == [Part("call", arguments, "run")]
