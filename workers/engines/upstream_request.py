"""The request of the `upstream` engine: a Job's conversation as a Chat Completions body.

Fields beyond the API are sent only where a request uses them.

Source: the Chat Completions API; names of vLLM and SGLang for what goes beyond it.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from schemas.errors import UnsupportedParameter, UnsupportedValue
from schemas.job import ChatPrompt
from schemas.message import ImageLink, ImagePart, Message, TextPart, ToolSpec
from schemas.sampling import JsonObject, JsonSchema, SamplingParams
from workers.engines.base import EngineRequest

_MAX_STOP_STRINGS: Final = 4  # what the API allows; further ones are found by us alone


def request_body(request: EngineRequest, model: str) -> dict[str, Any]:
    """The body for one choice.

    Raises:
        UnsupportedParameter: The API has no words for what is asked.
    """
    job = request.job
    if not isinstance(job.prompt, ChatPrompt):
        raise UnsupportedParameter("This model does not take token ids.", param="prompt")
    chat = job.prompt
    if chat.continue_last:
        raise UnsupportedValue(
            "This model cannot continue a turn of the assistant.", param="messages"
        )
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in chat.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
    }
    if chat.tools:
        body["tools"] = [_tool(tool) for tool in chat.tools]
        match chat.tool_choice.mode:
            case "named":
                function = {"name": chat.tool_choice.name}
                body["tool_choice"] = {"type": "function", "function": function}
            case "none" | "required" as mode:
                body["tool_choice"] = mode
        if not chat.tool_choice.parallel:
            body["parallel_tool_calls"] = False
    if chat.reasoning.effort is not None:
        body["reasoning_effort"] = chat.reasoning.effort
    if chat.template_options:
        body["chat_template_kwargs"] = chat.template_options
    body |= _sampling(job.sampling, request.choice)
    stop = job.sampling.stop
    # Such servers look for stop strings in reasoning too, and never keep them in the text. Where
    # either matters only our own scan finds them; otherwise theirs ends the work with exact usage.
    if stop.strings and not chat.reasoning.enabled and not stop.include_in_text:
        body["stop"] = list(stop.strings[:_MAX_STOP_STRINGS])
    return body


def _message(message: Message) -> dict[str, Any]:
    content: str | list[dict[str, Any]] | None = message.text
    if any(isinstance(part, ImagePart) for part in message.parts):
        content = [_part(part) for part in message.parts if not isinstance(part, ImageLink)]
    elif not message.parts and message.tool_calls:
        content = None
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _sampling(sampling: SamplingParams, choice: int) -> dict[str, Any]:
    """The fields that are set; those beyond the API only where a request uses them."""
    body: dict[str, Any] = {
        name: value
        for name, value in (
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
            ("top_k", sampling.top_k),
            ("min_p", sampling.min_p),
            ("frequency_penalty", sampling.frequency_penalty),
            ("presence_penalty", sampling.presence_penalty),
            ("repetition_penalty", sampling.repetition_penalty),
        )
        if value is not None
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed + choice
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.logprobs:
        body["logprobs"] = True
        body["top_logprobs"] = sampling.top_logprobs
    if sampling.limit.min_tokens and sampling.constraint is None:
        body["min_tokens"] = sampling.limit.min_tokens
    if sampling.stop.token_ids:
        body["stop_token_ids"] = list(sampling.stop.token_ids)
    if sampling.stop.ignore_eos:
        body["ignore_eos"] = True
    match sampling.constraint:
        case None:
            pass
        case JsonObject():
            body["response_format"] = {"type": "json_object"}
        case JsonSchema(schema=schema):
            named = {"name": "answer", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        case constraint:
            raise UnsupportedParameter(
                "This model does not support grammars.",
                param=str(constraint.__struct_config__.tag),
            )
    return body
