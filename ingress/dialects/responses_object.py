"""The response object, and what else both the stream and the body are made of: ids, usage, errors.

All that the request decides about the object is encoded once; each of the three or more copies in a
stream adds only what has changed.

Source: Responses, sections 5 (response object) and 8 (errors); error catalogue, section 3
("Capacity and generation").
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from ingress.dialects import wire_json
from ingress.dialects.base import Stamp
from ingress.dialects.responses_request import ResponsesBody, ResponsesRequest, TextFormat
from schemas.delta import FinishReason, Usage
from schemas.errors import ErrorInfo, ErrorKind, ProtocolViolation

_REASONS: Final = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}

_ERROR_CODES: Final = {
    ErrorKind.RATE_LIMIT: "rate_limit_exceeded",
    ErrorKind.BILLING: "insufficient_quota",
    ErrorKind.INVALID_REQUEST: "invalid_prompt",
    ErrorKind.TOO_LARGE: "invalid_prompt",
}


class ResponseObject:
    """Writes the response object of one request.

    Args:
        request: What is echoed.
        stamp: Ids and clock.
    """

    def __init__(self, request: ResponsesRequest, stamp: Stamp) -> None:
        head = {
            "id": f"resp_{stamp.response_id}",
            "object": "response",
            "created_at": stamp.created,
            "model": stamp.model,
        }
        self._head = wire_json.encode(head)[:-1]
        self._echo = wire_json.encode(_echo(request.body, request.text_format))[1:]

    def in_progress(self) -> bytes:
        """As it is before the end."""
        return self._write("in_progress", (), usage=Usage())

    def finished(
        self,
        output: Sequence[bytes],
        *,
        reason: FinishReason,
        usage: Usage,
        completed_at: int | None,
    ) -> bytes:
        """As it is after a reply that was not a failure. One that was cut short has no time."""
        status = status_of(reason)
        return self._write(
            status,
            output,
            usage=usage,
            incomplete=_REASONS.get(reason),
            completed_at=completed_at if status == "completed" else None,
        )

    def failed(self, output: Sequence[bytes], *, error: ErrorInfo, usage: Usage | None) -> bytes:
        """As it is after a failure. `usage` is None or without tokens if it is not known."""
        known = usage if usage is not None and usage.input_tokens else None
        return self._write("failed", output, usage=known, error=error)

    def _write(
        self,
        status: str,
        output: Sequence[bytes],
        *,
        usage: Usage | None,
        error: ErrorInfo | None = None,
        incomplete: str | None = None,
        completed_at: int | None = None,
    ) -> bytes:
        ending = {
            "usage": usage_object(usage) if usage is not None else None,
            "error": _error_object(error) if error is not None else None,
            "incomplete_details": {"reason": incomplete} if incomplete is not None else None,
            "completed_at": completed_at,
        }
        return b'%b,"status":"%b","output":[%b],%b,%b' % (
            self._head,
            status.encode(),
            b",".join(output),
            wire_json.encode(ending)[1:-1],
            self._echo,
        )


def status_of(reason: FinishReason) -> str:
    """The status of a response whose generation ended so."""
    if reason is FinishReason.CANCELLED:
        raise ProtocolViolation(
            "The answer was cut short.", diagnostic="a cancelled choice in a successful reply"
        )
    return "incomplete" if reason in _REASONS else "completed"


def _echo(body: ResponsesBody, form: TextFormat | None) -> dict[str, Any]:
    reasoning = body.reasoning
    parallel = body.parallel_tool_calls
    return {
        "parallel_tool_calls": True if parallel is None else parallel,
        "instructions": body.instructions,
        "tools": body.tools or [],
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "text": _text_echo(body, form),
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": reasoning.summary if reasoning is not None else None,
        },
        "metadata": {} if body.metadata is None else body.metadata,
        "previous_response_id": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "user": body.user,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
    }


def _text_echo(body: ResponsesBody, form: TextFormat | None) -> dict[str, Any]:
    echo: dict[str, Any] = {"format": {"type": "text"}}
    if form is not None:
        echo["format"] = form.model_dump(by_alias=True, exclude_none=True)
    if body.text is not None and body.text.verbosity is not None:
        echo["verbosity"] = body.text.verbosity
    return echo


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage in this dialect's words."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _error_object(error: ErrorInfo) -> dict[str, Any]:
    """What a client sees of a failure. Some decide by the code whether to try again."""
    code = _ERROR_CODES.get(error.kind, "server_error")
    if error.code == "context_length_exceeded":
        code = error.code
    return {"code": code, "message": error.message}


# --- Ids -----------------------------------------------------------------------------------------


def item_id(prefix: str, response_id: str, output_index: int) -> str:
    """The id of an output item: the same in the stream and in the body."""
    name = f"{response_id}/item/{output_index}".encode()
    return prefix + hashlib.blake2b(name, digest_size=16).hexdigest()


def call_id(response_id: str, call: int) -> str:
    """What links a result to its call."""
    name = f"{response_id}/call/{call}".encode()
    return "call_" + hashlib.blake2b(name, digest_size=12).hexdigest()
