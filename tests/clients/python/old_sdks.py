"""The official Python SDKs of an older major version.

usage: python old_sdks.py BASE_URL; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
import openai
from scenarios import IMAGE, TOOL_PROMPT, WEATHER, report

BASE = sys.argv[1]
OPENAI = openai.OpenAI(base_url=f"{BASE}/v1", api_key="any", max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=BASE, api_key="any", max_retries=0)
MODEL = "demo-model"


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat() -> Any:
    answer = OPENAI.chat.completions.create(model=MODEL, messages=say("[[say:Two words.]]"))
    stream = OPENAI.chat.completions.create(
        model=MODEL, messages=say("[[say:one two]]"), stream=True
    )
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    return [answer.choices[0].message.content, text]


def chat_tools() -> Any:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
    messages = say(TOOL_PROMPT)
    message = OPENAI.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    call = message.choices[0].message.tool_calls[0]
    messages += [
        message.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "18C and sunny"},
    ]
    final = OPENAI.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    return [call.function.name, json.loads(call.function.arguments), final.choices[0].finish_reason]


def chat_vision() -> Any:
    parts = [
        {"type": "text", "text": "[[say:A square.]]"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
    ]
    answer = OPENAI.chat.completions.create(
        model="demo-vision-model", messages=[{"role": "user", "content": parts}]
    )
    return answer.choices[0].message.content


def responses_helper() -> Any:
    with OPENAI.responses.stream(model=MODEL, input="[[say:one two]]") as stream:
        final = stream.get_final_response()
    return [final.output_text, final.status]


def messages() -> Any:
    answer = ANTHROPIC.messages.create(
        model=MODEL, max_tokens=64, messages=say("[[say:Two words.]]")
    )
    with ANTHROPIC.messages.stream(
        model=MODEL, max_tokens=64, messages=say("[[say:one two]]")
    ) as stream:
        final = stream.get_final_message()
    return [answer.content[0].text, final.content[0].text, final.stop_reason]


def messages_tools() -> Any:
    tools: Any = [{"name": "get_weather", "input_schema": WEATHER}]
    turns = say(TOOL_PROMPT)
    called = ANTHROPIC.messages.create(model=MODEL, max_tokens=64, messages=turns, tools=tools)
    [call] = [block for block in called.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18C and sunny"}
    turns += [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    final = ANTHROPIC.messages.create(model=MODEL, max_tokens=64, messages=turns, tools=tools)
    return [call.name, call.input, called.stop_reason, final.stop_reason]


def counting() -> Any:
    counted = ANTHROPIC.messages.count_tokens(model=MODEL, messages=say("[[say:one]]"))
    answer = ANTHROPIC.messages.create(model=MODEL, max_tokens=9, messages=say("[[say:one]]"))
    return counted.input_tokens == answer.usage.input_tokens


def errors() -> Any:
    found = []
    try:
        OPENAI.chat.completions.create(model="nobody", messages=say("hi"))
    except openai.APIStatusError as error:
        found.append([type(error).__name__, error.status_code, error.code])
    try:
        ANTHROPIC.messages.create(model="claude-nobody", max_tokens=9, messages=say("hi"))
    except anthropic.APIStatusError as error:
        found.append([type(error).__name__, error.status_code])
    return found


report(
    chat,
    chat_tools,
    chat_vision,
    responses_helper,
    messages,
    messages_tools,
    counting,
    errors,
)
