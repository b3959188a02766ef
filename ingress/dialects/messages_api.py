"""Messages and the counting of its tokens, described for the OpenAPI document.

Source: Messages, sections 2 (fields), 6 (answer), 7 (stream) and 8 (counting).
"""

from __future__ import annotations

from ingress.dialects.api import (
    ANTHROPIC_ERROR,
    COUNT,
    EXAMPLE_MODEL,
    OBJECT,
    STRING,
    ApiDescription,
    Example,
    Schema,
    array,
    const,
    enum,
    nullable,
    one_of,
    record,
)
from ingress.dialects.messages_request import CountRequest, MessagesRequest

_WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}

_STOP = enum("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal")
_USAGE = record(
    {
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
    }
)
_BLOCK = one_of(
    record({"type": const("text"), "text": STRING}),
    record({"type": const("thinking"), "thinking": STRING, "signature": STRING}),
    record({"type": const("tool_use"), "id": STRING, "name": STRING, "input": OBJECT}),
)


def _message(stop_reason: Schema) -> Schema:
    return record(
        {
            "id": STRING,
            "type": const("message"),
            "role": const("assistant"),
            "model": STRING,
            "content": array(_BLOCK),
            "stop_reason": stop_reason,
            "stop_sequence": nullable(STRING),
            "usage": _USAGE,
        }
    )


_EVENT = one_of(
    record({"type": const("message_start"), "message": _message({"type": "null"})}),
    record({"type": const("content_block_start"), "index": COUNT, "content_block": _BLOCK}),
    record(
        {
            "type": const("content_block_delta"),
            "index": COUNT,
            "delta": one_of(
                record({"type": const("text_delta"), "text": STRING}),
                record({"type": const("thinking_delta"), "thinking": STRING}),
                record({"type": const("input_json_delta"), "partial_json": STRING}),
            ),
        }
    ),
    record({"type": const("content_block_stop"), "index": COUNT}),
    record(
        {
            "type": const("message_delta"),
            "delta": record({"stop_reason": _STOP, "stop_sequence": nullable(STRING)}),
            "usage": _USAGE,
        }
    ),
    record({"type": const("message_stop")}),
    record({"type": const("ping")}),
    ANTHROPIC_ERROR,
)

_PROMPT_FIELDS = {
    "model": "Id or alias of a model of `/v1/models`, in any case.",
    "messages": "The turns. Turns of one role that follow each other are one turn. A last turn of "
    "the assistant is the beginning of the answer.",
    "system": "Instructions.",
    "tools": "Tools of the client. Server tools are shown to the model as tools that the client "
    "must run.",
    "tool_choice": "Whether and what to call. In the profile `wafer`, `any` is as `auto`.",
    "thinking": "Switches reasoning on; without it there is none. A budget is ignored.",
    "output_config": "`effort` of the reasoning, and `format` of the answer.",
    "output_format": "The older place of `output_config.format`.",
}
_PROMPT_ERRORS = (
    "unsupported_parameter",
    "invalid_tool",
    "tool_schema_invalid",
    "tool_choice_unknown_tool",
    "json_schema_refs_remote",
    "json_schema_refs_unresolvable",
    "json_schema_refs_recursive",
    "json_schema_refs_too_large",
    "invalid_json_schema",
    "model_request_rejected",
)
_TAGS = {
    "call": enum("tool_use", "server_tool_use", "mcp_tool_use"),
    "server_result": {"type": "string", "pattern": "^[a-z0-9_]+_tool_result$"},
    "silent": enum("redacted_thinking", "fallback", "mcp_tool_listing"),
}

_STREAM = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":'
    '"msg_b9f3b97e1c8a43439bf3c8ccd73e4205","type":"message","role":"assistant","model":'
    '"demo-model","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,'
    '"output_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}}\n\n'
    'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    '"content_block":{"type":"text","text":""}}\n\n'
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"Yes."}}\n\n'
    'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
    '"stop_sequence":null},"usage":{"input_tokens":27,"output_tokens":2,'
    '"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)

API = ApiDescription(
    prefix="Messages",
    summary="Create a message",
    description=(
        "Answers a conversation in the form of the Anthropic clients, whole or as a stream. "
        "`anthropic-version`, `anthropic-beta` and the query string are ignored, and so are fields "
        "that are not described here. A stream that did not fail ends with `message_stop`; a "
        "failure after the first record is told by an `error` event, and nothing follows it."
    ),
    request=MessagesRequest,
    fields={
        **_PROMPT_FIELDS,
        "max_tokens": "Most tokens to generate, reasoning included. With the prompt it must fit "
        "the window.",
        "stop_sequences": "Strings at which to stop; they are not part of the answer.",
        "temperature": "Sampling temperature. Has an effect if the model's `honors_sampling` says.",
        "top_p": "Nucleus sampling. Has an effect if the model's `honors_sampling` says.",
        "top_k": "Sample from so many likeliest tokens.",
        "stream": "Answer with a stream of server-sent events.",
    },
    tags=_TAGS,
    examples={
        "plain": Example(
            summary="A question",
            body={
                "model": EXAMPLE_MODEL,
                "max_tokens": 1024,
                "system": "Answer in one sentence.",
                "messages": [{"role": "user", "content": "What is a headrace?"}],
            },
        ),
        "stream": Example(
            summary="A stream, with thinking",
            body={
                "model": EXAMPLE_MODEL,
                "max_tokens": 4096,
                "thinking": {"type": "enabled", "budget_tokens": 2048},
                "output_config": {"effort": "high"},
                "messages": [{"role": "user", "content": "Is 391 prime?"}],
                "stream": True,
            },
        ),
        "tools": Example(
            summary="A tool that must be called",
            body={
                "model": EXAMPLE_MODEL,
                "max_tokens": 1024,
                "tools": [_WEATHER],
                "tool_choice": {"type": "tool", "name": "get_weather"},
                "messages": [_QUESTION],
            },
        ),
        "tool_result": Example(
            summary="The result of a call",
            body={
                "model": EXAMPLE_MODEL,
                "max_tokens": 1024,
                "tools": [_WEATHER],
                "messages": [
                    _QUESTION,
                    {
                        "role": "assistant",
                        "content": [
                            {
                                "type": "tool_use",
                                "id": "toolu_1",
                                "name": "get_weather",
                                "input": {"city": "Paris"},
                            }
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "toolu_1",
                                "content": "18C and sunny",
                            }
                        ],
                    },
                ],
                "stream": True,
            },
        ),
    },
    answer=_message(_STOP),
    record=_EVENT,
    stream=_STREAM,
    named_records=True,
    errors=_PROMPT_ERRORS,
)

COUNT_API = ApiDescription(
    prefix="Count",
    summary="Count the tokens of a message's prompt",
    description=(
        "Takes the body of `/v1/messages` without `max_tokens` and tells how many input tokens it "
        "has, rendered as it would be for an answer."
    ),
    request=CountRequest,
    fields=_PROMPT_FIELDS,
    tags=_TAGS,
    examples={
        "plain": Example(
            summary="A greeting",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [{"role": "user", "content": "Hello there"}],
            },
        ),
        "tools": Example(
            summary="With a tool",
            body={"model": EXAMPLE_MODEL, "tools": [_WEATHER], "messages": [_QUESTION]},
        ),
    },
    answer=record({"input_tokens": COUNT}),
    headers={"x-wafer-input-tokens-estimated": "`true` if the figure is an estimate."},
    errors=_PROMPT_ERRORS,
)
