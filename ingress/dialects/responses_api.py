"""Responses and the counting of its tokens, described for the OpenAPI document.

Source: Responses, sections 1 (endpoints), 2 to 4 (fields, items, tools), 5 (answer), 7 (stream).
"""

from __future__ import annotations

import msgspec

from ingress.dialects.api import (
    ANY,
    BOOLEAN,
    COUNT,
    EXAMPLE_MODEL,
    INTEGER,
    NULL,
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
from ingress.dialects.responses_request import ResponsesBody

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
_QUESTION = {"type": "message", "role": "user", "content": "What is the weather in Paris?"}

# --- What a request holds that its typed body reads freely ---------------------------------------

_PART = record(
    {"type": enum("input_text", "output_text", "input_image", "refusal")},
    {"text": STRING, "image_url": STRING, "refusal": STRING},
)
_CONTENT: Schema = {"anyOf": [STRING, array(_PART)]}
_ITEM: Schema = {
    "anyOf": [
        record(
            {
                "type": const("message"),
                "role": enum("user", "assistant", "system", "developer"),
                "content": _CONTENT,
            }
        ),
        record(
            {
                "type": const("function_call"),
                "call_id": STRING,
                "name": STRING,
                "arguments": STRING,
            },
            {"namespace": nullable(STRING)},
        ),
        record({"type": const("function_call_output"), "call_id": STRING, "output": _CONTENT}),
        record(
            {"type": const("custom_tool_call"), "call_id": STRING, "name": STRING, "input": STRING}
        ),
        record({"type": const("custom_tool_call_output"), "call_id": STRING, "output": _CONTENT}),
        {
            "type": "object",
            "description": "Items of client-side tools are given to the model; those of a client's "
            "own affairs, such as `reasoning`, are skipped; others are refused.",
            "properties": {"type": STRING},
            "required": ["type"],
        },
    ]
}
_TOOL: Schema = {
    "anyOf": [
        record(
            {"type": const("function"), "name": STRING},
            {
                "description": nullable(STRING),
                "parameters": nullable(OBJECT),
                "strict": nullable(BOOLEAN),
            },
        ),
        record(
            {"type": const("custom"), "name": STRING},
            {"description": nullable(STRING), "format": nullable(OBJECT)},
        ),
        record({"type": const("namespace"), "name": STRING, "tools": array(OBJECT)}),
        {
            "type": "object",
            "description": "`web_search` and tools that the client runs become functions; other "
            "hosted tools are refused.",
            "properties": {"type": STRING},
            "required": ["type"],
        },
    ]
}

# --- What an answer holds ------------------------------------------------------------------------

_STATUS = enum("in_progress", "completed", "incomplete", "failed")
_TEXT_PART = record(
    {
        "type": const("output_text"),
        "text": STRING,
        "annotations": array(ANY),
        "logprobs": array(OBJECT),
    }
)
_REASONING_PART = record({"type": const("reasoning_text"), "text": STRING})
_CALLED = {"id": STRING, "call_id": STRING, "name": STRING, "status": _STATUS}
_OUTPUT = one_of(
    record(
        {
            "type": const("message"),
            "id": STRING,
            "status": _STATUS,
            "role": const("assistant"),
            "content": array(_TEXT_PART),
        }
    ),
    record({"type": const("function_call"), **_CALLED, "arguments": STRING}, {"namespace": STRING}),
    record({"type": const("custom_tool_call"), **_CALLED, "input": STRING}, {"namespace": STRING}),
    record(
        {
            "type": const("reasoning"),
            "id": STRING,
            "summary": array(ANY),
            "content": array(_REASONING_PART),
            "encrypted_content": NULL,
            "status": _STATUS,
        }
    ),
    record(
        {
            "type": enum("local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"),
            "id": STRING,
            "call_id": STRING,
            "status": _STATUS,
        },
        {
            "action": OBJECT,
            "operation": OBJECT,
            "arguments": ANY,
            "environment": ANY,
            "execution": STRING,
        },
    ),
)
_USAGE = record(
    {
        "input_tokens": COUNT,
        "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": record({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
_ECHOED = (
    "instructions",
    "tool_choice",
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "text",
    "reasoning",
    "metadata",
    "user",
    "prompt_cache_key",
    "safety_identifier",
)
_RESPONSE = record(
    {
        "id": STRING,
        "object": const("response"),
        "created_at": INTEGER,
        "completed_at": nullable(INTEGER),
        "model": STRING,
        "status": _STATUS,
        "output": array(_OUTPUT),
        "usage": nullable(_USAGE),
        "error": nullable(record({"code": STRING, "message": STRING})),
        "incomplete_details": nullable(
            record({"reason": enum("max_output_tokens", "content_filter")})
        ),
        "parallel_tool_calls": BOOLEAN,
        "tools": array(OBJECT),
        "top_logprobs": COUNT,
        "truncation": const("disabled"),
        "previous_response_id": NULL,
        "store": const(False),
        "background": const(False),
        "service_tier": const("default"),
        **{name: {"description": f"`{name}` of the request."} for name in _ECHOED},
    }
)


def _event(kind: str, **fields: Schema) -> Schema:
    return record({"type": const(kind), **fields, "sequence_number": COUNT})


def _within(kind: str, **fields: Schema) -> Schema:
    """An event about an item."""
    return _event(kind, item_id=STRING, output_index=COUNT, **fields)


_EVENT = one_of(
    *(
        _event(f"response.{kind}", response=_RESPONSE)
        for kind in ("created", "in_progress", "completed", "incomplete", "failed")
    ),
    _event("response.output_item.added", output_index=COUNT, item=_OUTPUT),
    _event("response.output_item.done", output_index=COUNT, item=_OUTPUT),
    *(
        _within(
            f"response.content_part.{kind}",
            content_index=COUNT,
            part=one_of(_TEXT_PART, _REASONING_PART),
        )
        for kind in ("added", "done")
    ),
    _within(
        "response.output_text.delta", content_index=COUNT, delta=STRING, logprobs=array(OBJECT)
    ),
    _within("response.output_text.done", content_index=COUNT, text=STRING, logprobs=array(OBJECT)),
    _within("response.reasoning_text.delta", content_index=COUNT, delta=STRING),
    _within("response.reasoning_text.done", content_index=COUNT, text=STRING),
    _within("response.function_call_arguments.delta", delta=STRING),
    _within("response.function_call_arguments.done", arguments=STRING, name=STRING),
    _within("response.custom_tool_call_input.delta", delta=STRING),
    _within("response.custom_tool_call_input.done", input=STRING),
)

_ITEM_ID = '"item_id":"msg_fb3a72729c7d446497a00184c346b811","output_index":0'
_STREAM = (
    "event: response.output_item.added\ndata: "
    '{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":'
    '"msg_fb3a72729c7d446497a00184c346b811","status":"in_progress","role":"assistant",'
    '"content":[]},"sequence_number":2}\n\n'
    "event: response.output_text.delta\ndata: "
    '{"type":"response.output_text.delta",' + _ITEM_ID + ',"content_index":0,"delta":"Four",'
    '"logprobs":[],"sequence_number":4}\n\n'
)
"""From the middle: the first and the last events carry the whole response object."""

_STORED = "Must be absent or null: nothing is stored here."

API = ApiDescription(
    prefix="Responses",
    summary="Create a response",
    description=(
        "Answers a conversation in the form of the OpenAI Responses clients, whole or as a stream. "
        "Nothing is stored, so every request carries the whole conversation. `store`, "
        "`background`, `truncation` and fields that are not described here have no effect. A "
        "stream ends with `response.completed`, also when the token limit cut it short (then with "
        "the status `incomplete`; in the profile `official` as `response.incomplete`), or with "
        "`response.failed`."
    ),
    request=ResponsesBody,
    fields={
        "model": "Id or alias of a model of `/v1/models`, in any case.",
        "input": "A text, or the items of the conversation. Each item needs its `type`; the "
        "profile `official` takes one without for a message.",
        "instructions": "Instructions, placed first.",
        "max_output_tokens": "Most tokens to generate, reasoning included. With the prompt it must "
        "fit the window.",
        "temperature": "Sampling temperature. Has an effect if the model's `honors_sampling` says.",
        "top_p": "Nucleus sampling. Has an effect if the model's `honors_sampling` says.",
        "top_k": "Sample from so many likeliest tokens; -1 for all.",
        "min_p": "Least probability, relative to the likeliest token's.",
        "repetition_penalty": "Factor on tokens that have appeared; 1 has no effect.",
        "seed": "Makes sampling repeatable, as far as the engine can.",
        "stop": "One or several strings at which to stop; they are not part of the answer.",
        "top_logprobs": "How many alternatives to return with each token, if `include` has "
        "`message.output_text.logprobs`.",
        "stream": "Answer with a stream of server-sent events.",
        "tools": "What the model may call. The client runs every call.",
        "tool_choice": "`auto`, `none`, `required`, one tool by name, or a set of allowed ones.",
        "parallel_tool_calls": "Whether several calls in one answer are allowed. Default: true.",
        "text": "`format`: plain text, JSON mode, or a JSON schema.",
        "reasoning": "`effort`: how much to reason.",
        "include": "`message.output_text.logprobs` for log probabilities; in the profile "
        "`official` `reasoning.encrypted_content` for reasoning items. Others have no effect.",
        "previous_response_id": _STORED,
        "conversation": _STORED,
        "prompt": _STORED,
        "max_tool_calls": "Echoed.",
        "metadata": "Echoed.",
        "prompt_cache_key": "Echoed.",
        "safety_identifier": "Echoed.",
        "user": "Echoed.",
    },
    schemas={
        "input": {"anyOf": [STRING, {**array(_ITEM), "minItems": 1}]},
        "tools": nullable(array(_TOOL)),
        "tool_choice": {"anyOf": [enum("auto", "none", "required"), OBJECT, NULL]},
        "previous_response_id": NULL,
        "conversation": NULL,
        "prompt": NULL,
    },
    examples={
        "plain": Example(
            summary="A question",
            body={
                "model": EXAMPLE_MODEL,
                "instructions": "Answer in one sentence.",
                "input": "What is a headrace?",
                "max_output_tokens": 1024,
            },
        ),
        "stream": Example(
            summary="A stream",
            body={
                "model": EXAMPLE_MODEL,
                "input": [{"type": "message", "role": "user", "content": "Count from 1 to 5."}],
                "stream": True,
            },
        ),
        "tools": Example(
            summary="A tool that must be called",
            body={
                "model": EXAMPLE_MODEL,
                "input": [_QUESTION],
                "tools": [_WEATHER],
                "tool_choice": "required",
                "stream": True,
            },
        ),
        "tool_result": Example(
            summary="The result of a call",
            body={
                "model": EXAMPLE_MODEL,
                "input": [
                    _QUESTION,
                    {
                        "type": "function_call",
                        "call_id": "call_1",
                        "name": "get_weather",
                        "arguments": '{"city":"Paris"}',
                    },
                    {
                        "type": "function_call_output",
                        "call_id": "call_1",
                        "output": "18C and sunny",
                    },
                ],
                "tools": [_WEATHER],
            },
        ),
        "json_schema": Example(
            summary="An answer that obeys a schema",
            body={
                "model": EXAMPLE_MODEL,
                "input": "Invent a fictional person.",
                "reasoning": {"effort": "none"},
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "person",
                        "strict": True,
                        "schema": {
                            "type": "object",
                            "properties": {
                                "name": {"type": "string"},
                                "age": {"type": "integer"},
                            },
                            "required": ["name", "age"],
                            "additionalProperties": False,
                        },
                    }
                },
            },
        ),
    },
    answer=_RESPONSE,
    record=_EVENT,
    stream=_STREAM,
    named_records=True,
    errors=(
        "unsupported_parameter",
        "unsupported_input_item",
        "invalid_tool",
        "tool_schema_invalid",
        "tool_choice_unknown_tool",
        "json_schema_refs_remote",
        "json_schema_refs_unresolvable",
        "json_schema_refs_recursive",
        "json_schema_refs_too_large",
        "invalid_json_schema",
        "model_request_rejected",
    ),
)

COUNT_API = msgspec.structs.replace(
    API,
    summary="Count the tokens of a response's prompt",
    description="Takes the body of `/v1/responses` and tells how many input tokens it has.",
    examples={"plain": API.examples["plain"], "tool_result": API.examples["tool_result"]},
    answer=record({"object": const("response.input_tokens"), "input_tokens": COUNT}),
    record=None,
    stream="",
    named_records=False,
    headers={"x-wafer-input-tokens-estimated": "`true` if the figure is an estimate."},
)
