"""Texts as models write them in each format of tool calls, and what they say.

`WELL_FORMED` says the same in every format: text, a call with values of several types and with
characters that need care, a call without arguments. `DAMAGED` holds texts that only look like calls
or go wrong on the way; together they feed the law of chunk boundaries.
"""

from __future__ import annotations

from typing import Any, Final

from schemas.message import ToolSpec

TOOLS: Final = (
    ToolSpec(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "celsius": {"type": "boolean"},
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

SAID: Final = "I look it up."
ARGUMENTS: Final[dict[str, Any]] = {
    "city": 'Zürich "<b>" }{ \\ 5 😀',
    "days": 3,
    "celsius": True,
    "tags": ["a", "b"],
    "where": {"x": {"y": [1.5, None]}},
    "note": None,
}
_JSON: Final = (
    '{"city": "Zürich \\"<b>\\" }{ \\\\ 5 \\ud83d\\ude00", "days": 3, "celsius": true, '
    '"tags": ["a", "b"], "where": {"x": {"y": [1.5, null]}}, "note": null}'
)
_BARE: Final = {
    "city": 'Zürich "<b>" }{ \\ 5 😀',
    "days": "3",
    "celsius": "true",
    "tags": '["a", "b"]',
    "where": '{"x": {"y": [1.5, null]}}',
    "note": "null",
}


def _tagged(before: str, between: str, after: str) -> str:
    return "".join(f"{before}{key}{between}{value}{after}" for key, value in _BARE.items())


_DSML = "｜DSML｜"  # noqa: RUF001 - the model's own spelling
_DSML_ARGUMENTS = "".join(
    f'<{_DSML}parameter name="{key}" string="{str(key == "city").lower()}">{value}'
    f"</{_DSML}parameter>\n"
    for key, value in _BARE.items()
)
_GLM_ARGUMENTS = _tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_MINIMAX_ARGUMENTS = _tagged('<parameter name="', '">', "</parameter>\n")
_QWEN_ARGUMENTS = _tagged("<parameter=", ">\n", "\n</parameter>\n")
_DS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
_DS_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")  # noqa: RUF001

WELL_FORMED: dict[str, str] = {
    "hermes": (
        f'{SAID}\n<tool_call>\n{{"name": "get_weather", "arguments": {_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_clock", "arguments": {}}\n</tool_call>'
    ),
    "llama3": (
        f'{SAID}<|python_tag|>{{"name": "get_weather", "parameters": {_JSON}}}; '
        '{"name": "get_clock", "parameters": {}}'
    ),
    "mistral": (f"{SAID}[TOOL_CALLS]get_weather[ARGS]{_JSON}[TOOL_CALLS]get_clock[ARGS]{{}}"),
    "kimi_k2": (
        f"{SAID}<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{_JSON}<|tool_call_end|>"
        "<|tool_call_begin|>functions.get_clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "deepseekv3": (
        f"{SAID}{_DS[0]}{_DS_CALL[0]}function{_DS_CALL[1]}get_weather\n```json\n{_JSON}\n```"
        f"{_DS_CALL[2]}\n{_DS_CALL[0]}function{_DS_CALL[1]}get_clock\n```json\n{{}}\n```"
        f"{_DS_CALL[2]}{_DS[1]}"
    ),
    "deepseekv31": (
        f"{SAID}{_DS[0]}{_DS_CALL[0]}get_weather{_DS_CALL[1]}{_JSON}{_DS_CALL[2]}"
        f"{_DS_CALL[0]}get_clock{_DS_CALL[1]}{{}}{_DS_CALL[2]}{_DS[1]}"
    ),
    "deepseekv32": (
        f"{SAID}\n\n<{_DSML}function_calls>\n"
        f'<{_DSML}invoke name="get_weather">\n{_DSML_ARGUMENTS}</{_DSML}invoke>\n'
        f'<{_DSML}invoke name="get_clock">\n</{_DSML}invoke>\n</{_DSML}function_calls>'
    ),
    "deepseekv4": (
        f"{SAID}\n\n<{_DSML}tool_calls>\n"
        f'<{_DSML}invoke name="get_weather">\n{_DSML_ARGUMENTS}</{_DSML}invoke>\n'
        f'<{_DSML}invoke name="get_clock">\n</{_DSML}invoke>\n</{_DSML}tool_calls>'
    ),
    "deepseekv41": (
        f"{SAID}\n\n<{_DSML} calls>\n"
        f'<{_DSML} invoke name="get_weather">\n'
        f"{_DSML_ARGUMENTS.replace(f'{_DSML}parameter', f'{_DSML} parameter')}</{_DSML} invoke>\n"
        f'<{_DSML} invoke name="get_clock">\n</{_DSML} invoke>\n</{_DSML} calls>'
    ),
    "glm45": (
        f"{SAID}\n<tool_call>get_weather\n"
        f"{_GLM_ARGUMENTS}</tool_call>\n"
        "<tool_call>get_clock\n</tool_call>"
    ),
    "glm47": (
        f"{SAID}<tool_call>get_weather"
        f"{_tagged('<arg_key>', '</arg_key><arg_value>', '</arg_value>')}</tool_call>"
        "<tool_call>get_clock</tool_call>"
    ),
    "qwen3_coder": (
        f"{SAID}\n<tool_call>\n<function=get_weather>\n{_QWEN_ARGUMENTS}</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_clock>\n</function>\n</tool_call>"
    ),
    "minimax-m2": (
        f'{SAID}\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        f"{_MINIMAX_ARGUMENTS}</invoke>\n"
        '<invoke name="get_clock">\n</invoke>\n</minimax:tool_call>'
    ),
    "dots": (
        f'{SAID}<dots_function_call>\n<invoke name="get_weather">\n'
        f"{_MINIMAX_ARGUMENTS}</invoke>\n"
        '<invoke name="get_clock">\n</invoke>\n</dots_function_call>'
    ),
    "interns1": (
        f"{SAID}<|action_start|> <|plugin|>\n"
        f'{{"name": "get_weather", "parameters": {_JSON}}}<|action_end|>\n'
        '<|action_start|> <|plugin|>\n{"name": "get_clock", "parameters": {}}<|action_end|>'
    ),
    "pythonic": (
        f"{SAID}\n[get_weather(city='Zürich \"<b>\" }}{{ \\\\ 5 😀', days=3, celsius=True, "
        "tags=['a', 'b'], where={'x': {'y': [1.5, None]}}, note=None), get_clock()]"
    ),
    "gpt-oss": (
        f"<|channel|>commentary<|message|>{SAID}<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{_JSON}<|call|>"
        "<|start|>assistant to=functions.get_clock<|channel|>commentary json<|message|>{}<|call|>"
    ),
}

_DAMAGED: Final[dict[str, tuple[str, ...]]] = {
    "hermes": (
        '<tool_call>{"arguments": {"city": "Bern"}, "name": "get_weather"}</tool_call> END ',
        '<tool_call>\n[{"name": "no-schema.v2", "arguments": "{\\"a\\": 1}"}, '
        '{"name": "get_clock", "arguments": null}]\n</tool_call>',
        '<tool_call>\n{"city": "Paris"}\n</tool_call>a < b <tool_ca',
        '<tool_call>{"name": "get_clock", "arguments": {"a": 1</tool_call> so',
    ),
    "llama3": (
        '{"name": "get_clock", "parameters": {}}',
        '{"name": "unknown", "parameters": {"a": [1, {}]}} END',
        '<|python_tag|>print("hello")',
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "get_clock", "arguments": {}}, '
        '{"name": "no-schema.v2", "arguments": {"a": 1}}] END',
        "[TOOL_CALLS]get_clock[CALL_ID]x7[ARGS]{}[TOOL_CALLS]get_clock{}",
        "[TOOL_CALLS] [1, 2] [TOOL_CALLS]",
    ),
    "kimi_k2": (
        "<|tool_call_begin|>get_clock<|tool_call_argument_begin|>{}<|tool_call_end|> END",
        "<|tool_calls_section_begin|> nothing <|tool_calls_section_end|>",
        "<|tool_call_begin|>3<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    "deepseekv3": (f"{_DS[0]}nothing{_DS[1]}", f"{_DS_CALL[0]}function{_DS_CALL[1]}f\n```json\n"),
    "deepseekv31": (f"{_DS[0]}nothing{_DS[1]}", f"{_DS_CALL[0]}f{_DS_CALL[1]}no json{_DS_CALL[2]}"),
    "deepseekv32": (
        f'<{_DSML}invoke name="get_clock"/>',
        f'<{_DSML}invoke name="get_weather">\n{{"city": "Bern"}}\n</{_DSML}invoke> END',
    ),
    "deepseekv4": (),
    "deepseekv41": (),
    "glm45": (
        "<tool_call>no-schema.v2\n<arg_key>a</arg_key>\n<arg_value>[1]</arg_value></tool_call>",
        "<tool_call>two words</tool_call> END <tool_call>get_clock\n<arg_key>a</arg_key>?",
    ),
    "glm47": (),
    "qwen3_coder": (
        "<function=get_weather><parameter=city>Bern</parameter></function> END",
        "<tool_call>nothing</tool_call> a < b",
        "<tool_call>\n<function=get_weather>\nodd</function>\n</tool_call>",
    ),
    "minimax-m2": ('<minimax:tool_call>\n<invoke name="f">odd</invoke>\n</minimax:tool_call>',),
    "pythonic": (
        "a[0] and [1, 2] END [get_clock(), get_clock(1, b=x)] [get_clock",
        '[{"name": "get_clock", "parameters": {}}]',
        "<|python_start|>[no-schema.v2(a=(1, 2), b='it\\'s')]<|python_end|>",
    ),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Think < hard.<|end|><|start|>assistant",
        "<|channel|>final<|message|>Done. END<|return|>",
        "plain text <|channel|>odd",
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
    ),
}
WELL_FORMED["lfm2"] = (
    WELL_FORMED["pythonic"].replace("\n[", "<|tool_call_start|>[") + "<|tool_call_end|>"
)
_MIMO_ARGUMENTS = _tagged("<parameter=", ">", "</parameter>\n")
WELL_FORMED["mimo"] = WELL_FORMED["qwen3_coder"].replace(_QWEN_ARGUMENTS, _MIMO_ARGUMENTS)
WELL_FORMED["spark25"] = WELL_FORMED["glm45"].replace("</arg_key>\n", "</arg_key>")
# Formats that differ in name only, or in white space that says nothing.
_AS: Final = {
    "glm": "glm45",
    "ling3": "glm45",
    "nanbeige": "qwen3_coder",
    "poolside_v1": "glm45",
    "qwen": "hermes",
    "qwen25": "hermes",
    "step3p5": "qwen3_coder",
    "trinity": "hermes",
}
WELL_FORMED |= {name: WELL_FORMED[same] for name, same in _AS.items()}
RECORDED: Final = {
    format: (text, *_DAMAGED.get(format, ()))
    for format, text in WELL_FORMED.items()
    if format not in _AS
}
