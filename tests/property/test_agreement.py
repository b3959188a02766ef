"""One reply in every dialect: they agree on text, calls, end and usage, streamed and not.

Each dialect is read by a few plain lines of its own, below, and not through its client (the
dialects' own tests do that), so that what is compared is what is on the wire.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given

from ingress.dialects.base import Dialect, Stamp
from ingress.dialects.profile import PROFILES, Profile
from ingress.dialects.registry import DIALECTS
from schemas.delta import Completed, Delta, Finished, FinishReason, TextDelta, Usage
from tests.property.strategies import completed_replies
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Go."}]},
    "responses": {"input": [{"type": "message", "role": "user", "content": "Go."}]},
    "messages": {
        "messages": [{"role": "user", "content": "Go."}],
        "max_tokens": 100,
        "thinking": {"type": "enabled"},
    },
}
CONVERSATIONS = sorted(PROMPTS)

ENDS = {
    FinishReason.STOP: "stop",
    FinishReason.TOOL_CALLS: "stop",
    FinishReason.LENGTH: "length",
}


class Answer(NamedTuple):
    """What every dialect must say alike."""

    text: str
    calls: list[tuple[str, str]]
    end: str
    usage: Usage


def joined(text: str) -> str:
    """Compared without white space, of which some only separates calls from text."""
    return "".join(text.split())


def chat_body(body: Any) -> Answer:
    [choice] = body["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message["tool_calls"] or ()]
    return Answer(
        joined(message["content"]),
        [(call["name"], call["arguments"]) for call in calls],
        _chat_end(choice["finish_reason"], calls),
        _chat_usage(body["usage"]),
    )


def chat_stream(records: Sequence[Any]) -> Answer:
    text, end, usage = "", "", None
    calls: list[dict[str, str]] = []
    for record in records:
        usage = record.get("usage") or usage
        for choice in record["choices"]:
            text += choice["delta"].get("content") or ""
            end = choice["finish_reason"] or end
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return Answer(
        joined(text),
        [(call["name"], call["arguments"]) for call in calls],
        _chat_end(end, calls),
        _chat_usage(usage),
    )


def _chat_end(reason: str, calls: Sequence[Any]) -> str:
    assert reason != "tool_calls" or calls
    return {"tool_calls": "stop"}.get(reason, reason)


def _chat_usage(usage: Any) -> Usage:
    return Usage(
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


def responses_body(body: Any) -> Answer:
    items = body["output"]
    texts = [
        part["text"] for item in items if item["type"] == "message" for part in item["content"]
    ]
    calls = [item for item in items if item["type"] == "function_call"]
    reason = (body["incomplete_details"] or {}).get("reason")
    end = {None: "stop", "max_output_tokens": "length"}.get(reason, reason)
    assert body["status"] == ("completed" if reason is None else "incomplete")
    usage = body["usage"]
    return Answer(
        joined("".join(texts)),
        [(item["name"], item["arguments"]) for item in calls],
        end,
        Usage(
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        ),
    )


def responses_stream(records: Sequence[Any]) -> Answer:
    """From the deltas, all but the end and the usage."""
    assert [record["sequence_number"] for record in records] == list(range(len(records)))
    texts = [r["delta"] for r in records if r["type"] == "response.output_text.delta"]
    calls: dict[str, list[str]] = {}
    for record in records:
        if record["type"] == "response.output_item.added":
            if record["item"]["type"] == "function_call":
                calls[record["item"]["id"]] = [record["item"]["name"], ""]
        elif record["type"] == "response.function_call_arguments.delta":
            calls[record["item_id"]][1] += record["delta"]
    whole = responses_body(records[-1]["response"])
    return Answer(
        joined("".join(texts)), [(n, a) for n, a in calls.values()], whole.end, whole.usage
    )


def messages_body(body: Any) -> Answer:
    blocks = body["content"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return Answer(
        joined("".join(block["text"] for block in blocks if block["type"] == "text")),
        [(block["name"], block["input"]) for block in calls],
        _messages_end(body["stop_reason"], calls),
        _messages_usage(body["usage"]),
    )


def messages_stream(records: Sequence[Any]) -> Answer:
    text, blocks, end, usage = "", [], "", None
    for record in records:
        match record["type"]:
            case "content_block_start":
                assert record["index"] == len(blocks)
                blocks.append([record["content_block"], ""])
            case "content_block_delta":
                assert record["index"] == len(blocks) - 1
                text += record["delta"].get("text", "")
                blocks[-1][1] += record["delta"].get("partial_json", "")
            case "message_delta":
                end, usage = record["delta"]["stop_reason"], record["usage"]
    calls = [(block["name"], json) for block, json in blocks if block["type"] == "tool_use"]
    return Answer(joined(text), calls, _messages_end(end, calls), _messages_usage(usage))


def _messages_end(reason: str, calls: Sequence[Any]) -> str:
    assert reason != "tool_use" or calls
    return {"max_tokens": "length"}.get(reason, "stop")


def _messages_usage(usage: Any) -> Usage:
    cached = usage["cache_read_input_tokens"]
    return Usage(usage["input_tokens"], cached, usage["output_tokens"], 0)


READERS: Mapping[str, tuple[Callable[[Any], Answer], Callable[[Any], Answer]]] = {
    "chat": (chat_body, chat_stream),
    "responses": (responses_body, responses_stream),
    "messages": (messages_body, messages_stream),
}


def encode(dialect: Dialect, deltas: Sequence[Delta], profile: Profile) -> tuple[Answer, Answer]:
    """What the body and what the stream say."""
    request = dialect.parse({"model": CARD.id, "stream": True, **PROMPTS[dialect.name]})
    if dialect.name == "chat":
        request = dialect.parse(
            {
                "model": CARD.id,
                "stream": True,
                "stream_options": {"include_usage": True},
                **PROMPTS["chat"],
            }
        )
    job = dialect.normalise(request, CARD, CONTEXT).job
    stamp = Stamp(
        response_id=STAMP.response_id,
        created=1,
        model=CARD.id,
        request_id="req_1",
        profile=profile,
    )
    encoder = dialect.encoder(request, job, stamp)
    frames = [*encoder.open()]
    for delta in deltas:
        frames += encoder.feed(delta)
    records = [
        orjson.loads(line[len(b"data: ") :])
        for line in b"".join(frames).split(b"\n")
        if line.startswith(b"data: ") and line != b"data: [DONE]"
    ]
    read_body, read_stream = READERS[dialect.name]
    return read_body(orjson.loads(encoder.body())), read_stream(records)


def expected(deltas: Sequence[Delta]) -> tuple[str, str, Usage]:
    """Text, end and usage, from the Deltas themselves."""
    [finished] = [delta for delta in deltas if isinstance(delta, Finished)]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    completed = deltas[-1]
    assert isinstance(completed, Completed)
    return joined(text), ENDS[finished.reason], completed.usage


def ended_well(deltas: list[Delta]) -> list[Delta]:
    """The same reply with an end that every dialect has a word for."""
    return [
        Finished(delta.choice, FinishReason.STOP, None)
        if isinstance(delta, Finished) and delta.reason not in ENDS
        else delta
        for delta in deltas
    ]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@given(completed_replies(1).map(ended_well))
def test_every_dialect_says_the_same(profile: Profile, deltas: list[Delta]) -> None:
    text, end, usage = expected(deltas)
    names: dict[str, Any] = {}
    for name in CONVERSATIONS:
        body, stream = encode(DIALECTS[name], deltas, profile)
        assert body.text == stream.text == text, name
        assert body.end == stream.end == end, name
        assert [call for call, _ in body.calls] == [call for call, _ in stream.calls]
        names[name] = stream.calls
        for answer in (body, stream):
            assert answer.usage.output_tokens == usage.output_tokens
            assert answer.usage.cached_tokens == usage.cached_tokens
            if profile.input_includes_cached or name != "messages":
                assert answer.usage.input_tokens == usage.input_tokens
            if name != "messages":
                assert answer.usage.reasoning_tokens == usage.reasoning_tokens
    # Calls arrive with the same argument text, character for character.
    assert names["chat"] == names["responses"] == names["messages"]
