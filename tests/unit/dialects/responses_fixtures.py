"""Responses requests in short, for the tests of that dialect."""

from typing import Any, cast

import msgspec
import orjson

from ingress.dialects.base import Normalised, Stamp
from ingress.dialects.profile import WAFER, Profile
from ingress.dialects.responses import Responses
from ingress.dialects.responses_encoder import ResponsesEncoder
from schemas.codec import decode_job, encode_job
from schemas.delta import Delta
from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

SEEING = msgspec.structs.replace(CARD, capabilities=Capabilities(tools=True, vision=True))


def card(**changes: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, **changes)


def thinker(*efforts: Any, default: Any) -> ModelCard:
    support = ReasoningSupport(efforts=efforts, default=default)
    return card(capabilities=Capabilities(tools=True, reasoning=support))


def normalise(
    card: ModelCard = CARD, profile: Profile = WAFER, *, body: Any = None, **fields: Any
) -> Normalised:
    dialect = Responses()
    context = msgspec.structs.replace(CONTEXT, profile=profile)
    wanted = {"model": "glm-5.3", "input": "secret words", **fields} if body is None else body
    found = dialect.normalise(dialect.parse(wanted), card, context)
    assert decode_job(encode_job(found.job)) == found.job, "every Job must survive the broker"
    return found


def job(card: ModelCard = CARD, profile: Profile = WAFER, **fields: Any) -> Job:
    return normalise(card, profile, **fields).job


def prompt(card: ModelCard = CARD, profile: Profile = WAFER, **fields: Any) -> ChatPrompt:
    return cast(ChatPrompt, job(card, profile, **fields).prompt)


def messages(*items: Any, **fields: Any) -> tuple[Message, ...]:
    return prompt(input=list(items), **fields).messages


def said(text: str) -> tuple[TextPart, ...]:
    return (TextPart(text=text),)


def encoder(profile: Profile = WAFER, **fields: Any) -> ResponsesEncoder:
    dialect = Responses()
    context = msgspec.structs.replace(CONTEXT, profile=profile)
    request = dialect.parse({"model": "glm-5.3", "input": "Go.", **fields})
    stamp = Stamp(
        response_id=STAMP.response_id,
        created=STAMP.created,
        model=STAMP.model,
        request_id=STAMP.request_id,
        profile=profile,
        clock=lambda: 1790793300.5,
    )
    return dialect.encoder(request, dialect.normalise(request, CARD, context).job, stamp)


def events(frames: Any) -> list[Any]:
    """The JSON of each event; comments are left out."""
    found = []
    for record in b"".join(frames).split(b"\n\n"):
        if not record or record.startswith(b":"):
            continue
        name, data = record.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        found.append(value)
    return found


def stream(encoder: ResponsesEncoder, *deltas: Delta) -> list[Any]:
    frames = [*encoder.open()]
    for delta in deltas:
        frames += encoder.feed(delta)
    return events(frames)


def kinds(found: list[Any]) -> list[str]:
    """The types of events, without their common beginning."""
    return [event["type"].removeprefix("response.") for event in found]
