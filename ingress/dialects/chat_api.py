"""Chat Completions, described for the OpenAPI document.

Source: Chat Completions, sections 2 (fields), 6 (answer) and 7 (stream).
"""

from __future__ import annotations

from ingress.dialects.api import (
    COUNT,
    EXAMPLE_MODEL,
    INTEGER,
    NUMBER,
    OPENAI_ERROR,
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
from ingress.dialects.chat_request import ChatRequest

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

USAGE: Schema = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
        "completion_tokens_details": record({"reasoning_tokens": COUNT}),
    }
)

_ALTERNATIVE = {"token": STRING, "logprob": NUMBER, "bytes": nullable(array(COUNT))}
_LOGPROBS = nullable(
    record(
        {
            "content": nullable(
                array(record({**_ALTERNATIVE, "top_logprobs": array(record(_ALTERNATIVE))}))
            )
        },
        {"refusal": nullable(array({}))},
    )
)
_FINISH = enum("stop", "length", "tool_calls", "content_filter", "function_call")
_MATCHED = nullable({"type": ["string", "integer"], "description": "The stop string or token met."})
_FUNCTION_CALL = record({"name": STRING, "arguments": STRING})
_CALL = one_of(
    record({"id": STRING, "type": const("function"), "function": _FUNCTION_CALL}),
    record(
        {
            "id": STRING,
            "type": const("custom"),
            "custom": record({"name": STRING, "input": STRING}),
        }
    ),
)
_ANSWER = record(
    {
        "id": STRING,
        "object": const("chat.completion"),
        "created": INTEGER,
        "model": STRING,
        "choices": array(
            record(
                {
                    "index": COUNT,
                    "message": record(
                        {
                            "role": const("assistant"),
                            "content": STRING,
                            "reasoning_content": nullable(STRING),
                            "tool_calls": nullable(array(_CALL)),
                        },
                        {"refusal": nullable(STRING), "function_call": nullable(_FUNCTION_CALL)},
                    ),
                    "finish_reason": _FINISH,
                },
                {"logprobs": _LOGPROBS, "matched_stop": _MATCHED},
            )
        ),
        "usage": USAGE,
    },
    {"service_tier": STRING},
)
_CALL_FRAGMENT = record(
    {"index": COUNT},
    {
        "id": STRING,
        "type": enum("function", "custom"),
        "function": record({}, {"name": STRING, "arguments": STRING}),
        "custom": record({}, {"name": STRING, "input": STRING}),
    },
)
_CHUNK = record(
    {
        "id": STRING,
        "object": const("chat.completion.chunk"),
        "created": INTEGER,
        "model": STRING,
        "choices": array(
            record(
                {
                    "index": COUNT,
                    "delta": record(
                        {},
                        {
                            "role": const("assistant"),
                            "content": STRING,
                            "reasoning_content": STRING,
                            "tool_calls": array(_CALL_FRAGMENT),
                            "function_call": record({}, {"name": STRING, "arguments": STRING}),
                        },
                    ),
                    "finish_reason": nullable(_FINISH),
                },
                {"logprobs": _LOGPROBS, "matched_stop": _MATCHED},
            )
        ),
    },
    {"usage": nullable(USAGE), "service_tier": STRING},
)

_HEAD = (
    'data: {"id":"724b7b08675f40d7aa75c80d5fe51cf5","object":"chat.completion.chunk",'
    '"created":1790793243,"model":"demo-model",'
)
_STREAM = (
    _HEAD + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    '"finish_reason":null,"logprobs":null}]}\n\n'
    + _HEAD
    + '"choices":[{"index":0,"delta":{"content":"1, 2"},"finish_reason":null,"logprobs":null}]}\n\n'
    + _HEAD
    + '"choices":[{"index":0,"delta":{},"finish_reason":"stop","logprobs":null}]}\n\n'
    + _HEAD
    + '"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":4,"total_tokens":15,'
    '"prompt_tokens_details":{"cached_tokens":0},'
    '"completion_tokens_details":{"reasoning_tokens":0}}}\n\n'
    "data: [DONE]\n\n"
)

API = ApiDescription(
    prefix="Chat",
    summary="Create a chat completion",
    description=(
        "Answers a conversation, whole or as a stream. Fields that are not described here are "
        "ignored. With `stream` the answer is a stream of `chat.completion.chunk` objects; one "
        "with an empty `choices` array carries the usage, and `data: [DONE]` ends a stream that "
        "did not fail. A failure after the first record is told by a record with an `error` "
        "object, and nothing follows it."
    ),
    request=ChatRequest,
    fields={
        "model": "Id or alias of a model of `/v1/models`, in any case.",
        "messages": "The conversation.",
        "max_tokens": "Most tokens to generate, reasoning included. Wins over "
        "`max_completion_tokens`. Lowered to the model's cap; ignored if above the whole window.",
        "max_completion_tokens": "The same under its newer name.",
        "temperature": "Sampling temperature. Has an effect if the model's `honors_sampling` says.",
        "top_p": "Nucleus sampling. Has an effect if the model's `honors_sampling` says.",
        "top_k": "Sample from so many likeliest tokens; -1 for all.",
        "min_p": "Least probability, relative to the likeliest token's.",
        "presence_penalty": "Penalty on tokens that have appeared.",
        "frequency_penalty": "Penalty on tokens by how often they have appeared.",
        "repetition_penalty": "Factor on tokens that have appeared; 1 has no effect.",
        "seed": "Makes sampling repeatable, as far as the engine can.",
        "logit_bias": "What to add to the logits of tokens, by token id.",
        "stop": "One or several strings at which to stop; they are not part of the answer.",
        "n": "Number of choices. More than one needs the capability `chat_completions.n`.",
        "logprobs": "Return the log probability of each token.",
        "top_logprobs": "How many alternatives to return with it; needs `logprobs`.",
        "stream": "Answer with a stream of server-sent events.",
        "stream_options": "`include_usage` matters in the profile `official` only; in the profile "
        "`wafer` the usage is sent always.",
        "tools": "What the model may call.",
        "tool_choice": "`auto`, `none`, `required`, one tool by name, or a set of allowed ones.",
        "parallel_tool_calls": "Whether several calls in one answer are allowed. Default: true.",
        "functions": "The older form of `tools`.",
        "function_call": "The older form of `tool_choice`.",
        "response_format": "JSON mode, a JSON schema, or a grammar for the answer.",
        "regex": "A regular expression for the answer; needs the capability `regex`.",
        "reasoning_effort": "How much to reason: one of the model's efforts, or one near it.",
        "reasoning": "`effort` is the same as `reasoning_effort`, which comes before it; `enabled` "
        "is a switch.",
        "thinking": "Switches reasoning on or off.",
        "chat_template_kwargs": "Variables for the model's chat template.",
        "service_tier": "Answered with `default`.",
    },
    schemas={
        "logit_bias": {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                },
                {"type": "null"},
            ],
        },
    },
    examples={
        "plain": Example(
            summary="A question",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [
                    {"role": "system", "content": "Answer in one sentence."},
                    {"role": "user", "content": "What is a headrace?"},
                ],
                "max_tokens": 1024,
            },
        ),
        "stream": Example(
            summary="A stream",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [{"role": "user", "content": "Count from 1 to 5."}],
                "max_tokens": 256,
                "stream": True,
            },
        ),
        "tools": Example(
            summary="A tool that must be called",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "get_weather",
                            "description": "Get the current weather for a city.",
                            "parameters": _WEATHER,
                        },
                    }
                ],
                "tool_choice": "required",
            },
        ),
        "tool_result": Example(
            summary="The result of a call",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [
                    {"role": "user", "content": "What is the weather in Paris?"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {
                                    "name": "get_weather",
                                    "arguments": '{"city":"Paris"}',
                                },
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": "18C and sunny"},
                ],
                "stream": True,
            },
        ),
        "json_schema": Example(
            summary="An answer that obeys a schema",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [{"role": "user", "content": "Invent a fictional person."}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "person", "strict": True, "schema": _PERSON},
                },
            },
        ),
        "reasoning": Example(
            summary="Reasoning before the answer, and log probabilities",
            body={
                "model": EXAMPLE_MODEL,
                "messages": [{"role": "user", "content": "Is 391 prime?"}],
                "reasoning_effort": "high",
                "logprobs": True,
                "top_logprobs": 1,
                "stream": True,
            },
        ),
    },
    answer=_ANSWER,
    record=one_of(_CHUNK, OPENAI_ERROR),
    stream=_STREAM,
    done=True,
    errors=(
        "unsupported_parameter",
        "invalid_tool",
        "tool_schema_invalid",
        "tool_choice_unknown_tool",
        "json_schema_refs_remote",
        "json_schema_refs_unresolvable",
        "json_schema_refs_recursive",
        "json_schema_refs_too_large",
        "invalid_json_schema",
        "invalid_grammar",
        "model_request_rejected",
    ),
)
