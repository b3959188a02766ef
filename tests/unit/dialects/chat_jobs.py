"""Chat requests and the Jobs they become, for the tests of each matter."""

from typing import Any

import msgspec
import orjson
import pytest

from ingress.dialects.base import JobContext
from ingress.dialects.chat import Chat
from ingress.dialects.profile import OFFICIAL as OFFICIAL_PROFILE
from schemas.codec import decode_job, encode_job
from schemas.errors import RequestError
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import Message, TextPart
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from tests.unit.dialects.transcripts import CARD, CONTEXT

USER = {"role": "user", "content": "secret words"}
CALL = {"id": "call_9", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def normalise(body: Any, card: ModelCard = CARD, context: JobContext = CONTEXT) -> Job:
    chat = Chat()
    job = chat.normalise(chat.parse(body), card, context).job
    assert decode_job(encode_job(job)) == job, "every Job must survive the broker"
    return job


def chat(card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any) -> Job:
    return normalise({"model": "glm-5.3", "messages": [USER], **fields}, card, context)


def messages(*turns: Any, card: ModelCard = CARD) -> tuple[Message, ...]:
    prompt = chat(card, messages=list(turns)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def reasoning(card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any) -> Reasoning:
    prompt = chat(card, context, **fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.reasoning


def card(**changes: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, **changes)


def thinker(*efforts: Any, default: Any) -> ModelCard:
    support = ReasoningSupport(efforts=efforts, default=default)
    return card(capabilities=Capabilities(reasoning=support))


SHAPE = "schema_validation_failed"
VALUE = "unsupported_value"
PARAMETER = "unsupported_parameter"
TOOL = "invalid_tool"
SCHEMA = "tool_schema_invalid"
UNKNOWN = "tool_choice_unknown_tool"

ALLOWED = "tool_choice.allowed_tools.tools"
SCHEMA_FIELD = "response_format.json_schema.schema"
DEEP: dict[str, Any] = orjson.loads(
    b'{"type":"object","properties":{"a":' * 400 + b"{}" + b"}}" * 400
)


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, fields]}


def part(role: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}, fields]
    return {"messages": [{"role": role, "content": content, "tool_call_id": "c"}]}


def tool(*, type: str = "function", **function: Any) -> dict[str, Any]:
    return {"type": type, "function": {"name": "f", **function}}


def custom(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "note", **fields}}


def chosen(name: str, type: str = "function") -> dict[str, Any]:
    return {"type": type, type: {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [chosen(name) for name in names]},
    }


def form(type: str, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": type, **fields}}


OFFICIAL = msgspec.structs.replace(CONTEXT, profile=OFFICIAL_PROFILE)

SEEING = card(capabilities=Capabilities(vision=True))


def said(text: str) -> tuple[TextPart, ...]:
    return (TextPart(text=text),)


def refusal(
    card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any
) -> tuple[str, str | None]:
    """Code and param of the error that these fields lead to."""
    with pytest.raises(RequestError) as caught:
        chat(card, context, **fields)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param
