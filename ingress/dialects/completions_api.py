"""Token completions, described for the OpenAPI document.

Source: Tokenized completions, sections 2 and 3 (fields), 4 (answer) and 5 (stream).
"""

from __future__ import annotations

from ingress.dialects.api import (
    COUNT,
    EXAMPLE_MODEL,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
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
from ingress.dialects.completions_request import CompletionRequest

_IDS: Schema = {**array(COUNT), "minItems": 1}
_GRAMMAR = 'root ::= "A" | "B"'
_A_TO_C = [65, 66, 67]

_USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
        "completion_tokens_details": record({"reasoning_tokens": COUNT}),
        "reasoning_tokens": COUNT,
    }
)
_LOGPROBS = nullable(
    record(
        {
            "tokens": array(STRING),
            "token_logprobs": array(nullable(NUMBER)),
            "top_logprobs": nullable(array(nullable(OBJECT))),
            "text_offset": array(COUNT),
        }
    )
)
_MORE = {
    "token_ids": array(COUNT),
    "prompt_token_ids": array(COUNT),
    "meta_info": {**OBJECT, "description": "Log probabilities in the engine's own shape."},
    "hidden_states": {},
    "sglext": OBJECT,
}


def _answer(finish_reason: Schema, usage: Schema, *, usage_may_lack: bool) -> Schema:
    choice = record(
        {
            "index": COUNT,
            "text": STRING,
            "logprobs": _LOGPROBS,
            "finish_reason": finish_reason,
            "matched_stop": nullable({"type": ["string", "integer"]}),
        },
        _MORE,
    )
    fields = {
        "id": STRING,
        "object": const("text_completion"),
        "created": INTEGER,
        "model": STRING,
        "choices": array(choice),
    }
    if usage_may_lack:
        return record(fields, {"usage": usage})
    return record({**fields, "usage": usage})


_FINISH = enum("stop", "length", "content_filter")
_ENGINE_ONLY = "Needs the operator's leave."

_HEAD = (
    'data: {"id":"724b7b08675f40d7aa75c80d5fe51cf5","object":"text_completion",'
    '"created":1790793243,"model":"demo-model",'
)
_STREAM = (
    _HEAD + '"choices":[{"index":0,"text":" D E","logprobs":null,"finish_reason":null,'
    '"matched_stop":null}]}\n\n'
    + _HEAD
    + '"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length",'
    '"matched_stop":null}]}\n\n'
    "data: [DONE]\n\n"
)

API = ApiDescription(
    prefix="Completions",
    summary="Complete prompts of token ids",
    description=(
        "Goes on with one prompt or several, given as token ids; text goes to "
        "`/v1/chat/completions`. Only for models with the capability `completions`. At most one of "
        "`ebnf`, `regex`, `json_schema`, `structural_tag` and `response_format` may constrain the "
        "answer. A stream that did not fail ends with `data: [DONE]`."
    ),
    request=CompletionRequest,
    fields={
        "model": "Id or alias of a model of `/v1/models`, in any case.",
        "prompt": "Token ids of one prompt, or of several.",
        "suffix": "Must be absent or null.",
        "max_tokens": "Most tokens to generate. Default: 16.",
        "min_tokens": "Tokens to generate before anything but a grammar may stop it.",
        "temperature": "Sampling temperature; 0 is greedy. Default: 1.",
        "top_p": "Nucleus sampling.",
        "top_k": "Sample from so many likeliest tokens; -1 for all.",
        "min_p": "Least probability, relative to the likeliest token's.",
        "frequency_penalty": "Penalty on tokens by how often they have appeared.",
        "presence_penalty": "Penalty on tokens that have appeared.",
        "repetition_penalty": "Factor on tokens that have appeared; 1 has no effect.",
        "seed": "Makes sampling repeatable, as far as the engine can.",
        "logit_bias": "What to add to the logits of tokens, by token id.",
        "n": "Completions of each prompt.",
        "best_of": "Must be absent or equal to `n`.",
        "stop": "One or several strings at which to stop.",
        "stop_token_ids": "Token ids at which to stop.",
        "stop_regex": "One or several regular expressions at which to stop.",
        "ignore_eos": "Generate to the limit.",
        "no_stop_trim": "Keep the stop string in the text.",
        "stream": "Answer with a stream of server-sent events.",
        "stream_options": "`include_usage`: a last record with the usage.",
        "echo": "Put the prompt's text before the answer.",
        "return_token_ids": "Return the ids of prompt and answer.",
        "skip_special_tokens": "Leave special tokens out of the text. Default: true.",
        "spaces_between_special_tokens": "Default: true.",
        "ebnf": "A grammar for the answer in XGrammar's EBNF, from the rule `root`.",
        "regex": "A regular expression for the answer.",
        "json_schema": "A JSON schema for the answer, as an object or as its text.",
        "structural_tag": "Constrains parts of the answer.",
        "response_format": "As in Chat Completions.",
        "logprobs": "How many alternatives to return with the log probability of each token.",
        "return_logprob": "Return log probabilities in the engine's own shape.",
        "logprob_start_len": "First prompt position with log probabilities; -1 for none.",
        "top_logprobs_num": "How many alternatives to return in the engine's own shape.",
        "token_ids_logprob": "Tokens whose log probability to return at every position.",
        "return_text_in_logprobs": "Return the tokens' text in the engine's own shape.",
        "custom_params": "Data for a logit processor.",
        "custom_logit_processor": _ENGINE_ONLY,
        "lora_path": "Name of an adapter that the operator offers.",
        "priority": "Rank in the engine's queue, within the operator's bounds.",
        "return_hidden_states": _ENGINE_ONLY,
        "return_routed_experts": _ENGINE_ONLY,
        "rid": "A label.",
    },
    schemas={
        "prompt": {"anyOf": [_IDS, {**array(_IDS), "minItems": 1}]},
        "suffix": NULL,
        "logit_bias": {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                },
                NULL,
            ]
        },
        "json_schema": {"anyOf": [OBJECT, STRING, NULL]},
        "structural_tag": {"anyOf": [OBJECT, STRING, NULL]},
        "return_hidden_states": {"anyOf": [{"type": "boolean"}, const("last"), NULL]},
    },
    examples={
        "plain": Example(
            summary="One prompt with a grammar",
            body={
                "model": EXAMPLE_MODEL,
                "prompt": _A_TO_C,
                "max_tokens": 2,
                "temperature": 0,
                "ebnf": _GRAMMAR,
            },
        ),
        "stream": Example(
            summary="A stream",
            body={
                "model": EXAMPLE_MODEL,
                "prompt": _A_TO_C,
                "max_tokens": 16,
                "temperature": 0.2,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
        "batch": Example(
            summary="Two prompts, with log probabilities",
            body={
                "model": EXAMPLE_MODEL,
                "prompt": [_A_TO_C, [68, 69]],
                "max_tokens": 4,
                "logprobs": 1,
            },
        ),
    },
    answer=_answer(_FINISH, _USAGE, usage_may_lack=False),
    record=one_of(_answer(nullable(_FINISH), nullable(_USAGE), usage_may_lack=True), OPENAI_ERROR),
    stream=_STREAM,
    done=True,
    errors=(
        "unsupported_parameter",
        "invalid_prompt",
        "endpoint_not_supported",
        "json_schema_refs_remote",
        "json_schema_refs_unresolvable",
        "json_schema_refs_recursive",
        "json_schema_refs_too_large",
        "invalid_json_schema",
        "invalid_grammar",
    ),
)
