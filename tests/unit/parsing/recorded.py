"""Texts as models write them in each format of tool calls, well formed and not.

Every format shows: a call among text, two calls, a call without arguments, values of several types,
characters that need escaping, and markup that is no call.
"""

from __future__ import annotations

from schemas.message import ToolSpec

TOOLS = (
    ToolSpec(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "celsius": {"type": "boolean"},
                "limit": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["city"],
        },
    ),
    ToolSpec(name="get_clock", parameters={"type": "object", "properties": {}}),
    ToolSpec(name="no-schema.v2"),
)

_HERMES = (
    'I look it up.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Paris \\"<b>\\" }{", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_clock", "arguments": {}}\n</tool_call>',
    '<tool_call>{"arguments": {"city": "Zürich\\u00e9\\ud83d\\ude00"}, "name": "get_weather"}'
    '</tool_call> END <tool_call>{"name":"get_clock"}</tool_call>',
    '<tool_call>\n[{"name": "no-schema.v2", "arguments": "{\\"a\\": 1}"}, '
    '{"name": "get_clock", "arguments": null}]\n</tool_call>',
    '<tool_call>\n{"city": "Paris"}\n</tool_call>a < b <tool_ca',
)

RECORDED = {
    "hermes": _HERMES,
}
