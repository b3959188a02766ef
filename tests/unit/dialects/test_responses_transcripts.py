"""Every Delta file of one choice through the Responses encoder, as stream and as body."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from ingress.dialects.responses import Responses
from schemas.delta import (
    Completed,
    Failed,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
)
from tests.unit.dialects.responses_fixtures import encoder, events, stream
from tests.unit.dialects.transcripts import (
    delta_files,
    play,
    read_deltas,
    scenario,
    transcript,
)

every_delta_file = pytest.mark.parametrize("path", delta_files("responses"), ids=scenario)

# What the public documentation prints, with our ids.
RESPONSE_ID = "resp_c3a7ac6de84a4e9eade77ab63a27a1ca"
MESSAGE_ID = "msg_86a5f9a6bd26f2b892d7c5aab23f822c"
RESPONSE = {
    "id": RESPONSE_ID,
    "object": "response",
    "created_at": 1790793243,
    "model": "GLM-5.3",
    "parallel_tool_calls": True,
}
PART = {"type": "output_text", "text": "Four", "annotations": []}
MESSAGE = {
    "type": "message",
    "id": MESSAGE_ID,
    "status": "completed",
    "role": "assistant",
    "content": [PART],
}
DOCUMENTED_STREAM = [
    {
        "type": "response.created",
        "response": {
            **RESPONSE,
            "status": "in_progress",
            "output": [],
            "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        },
    },
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**MESSAGE, "status": "in_progress", "content": []},
    },
    {
        "type": "response.content_part.added",
        "item_id": MESSAGE_ID,
        "output_index": 0,
        "content_index": 0,
        "part": {**PART, "text": ""},
    },
    {
        "type": "response.output_text.delta",
        "item_id": MESSAGE_ID,
        "output_index": 0,
        "content_index": 0,
        "delta": "Four",
    },
    {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
    {
        "type": "response.completed",
        "response": {
            **RESPONSE,
            "status": "completed",
            "output": [MESSAGE],
            "usage": {"input_tokens": 22, "output_tokens": 36, "total_tokens": 58},
        },
    },
]
ADDED_EVENTS = {
    "response.in_progress",
    "response.output_text.done",
    "response.content_part.done",
}
"""Which the documentation leaves out and both kinds of client take."""

FOUR = (
    Started("w", 22, 0),
    TextDelta(0, "Four"),
    Finished(0, FinishReason.STOP),
    Completed(Usage(22, 0, 36, 0)),
)


def includes(found: Any, documented: Any) -> None:
    """All that is documented is there, with the documented value."""
    if isinstance(documented, dict):
        assert isinstance(found, dict)
        for name, value in documented.items():
            includes(found[name], value)
    elif isinstance(documented, list):
        assert len(found) == len(documented)
        for one, other in zip(found, documented, strict=True):
            includes(one, other)
    else:
        assert found == documented


@every_delta_file
def test_the_stream_is_the_committed_transcript(path: Path) -> None:
    streamed, _ = play(Responses(), read_deltas(path))
    assert streamed.decode() == transcript("responses", path, ".sse").read_bytes().decode()


@every_delta_file
def test_the_body_is_the_committed_transcript(path: Path) -> None:
    _, body = play(Responses(), read_deltas(path))
    committed = transcript("responses", path, ".json").read_bytes()
    assert orjson.loads(body) == orjson.loads(committed)


@pytest.mark.rule("responses.completed-last", "responses.failed", "responses.no-done-line")
@every_delta_file
def test_only_a_success_looks_like_one(path: Path) -> None:
    deltas = read_deltas(path)
    streamed, _ = play(Responses(), deltas)
    found = [event["type"] for event in events([streamed])]
    last = "response.failed" if isinstance(deltas[-1], Failed) else "response.completed"
    assert found[-1] == last
    assert sum(kind in ("response.failed", "response.completed") for kind in found) == 1
    assert b"[DONE]" not in streamed


@pytest.mark.rule("responses.documented-stream")
def test_an_answer_streams_as_documented() -> None:
    found = [event for event in stream(encoder(), *FOUR) if event["type"] not in ADDED_EVENTS]
    includes(found, DOCUMENTED_STREAM)


@pytest.mark.rule("responses.documented-body")
def test_an_answer_looks_as_documented() -> None:
    fed = encoder()
    stream(fed, *FOUR)
    includes(orjson.loads(fed.body()), DOCUMENTED_STREAM[-1]["response"])


@pytest.mark.rule("responses.stream-equals-body")
@every_delta_file
def test_the_last_event_carries_the_body(path: Path) -> None:
    deltas = read_deltas(path)
    streamed, body = play(Responses(), deltas)
    last = events([streamed])[-1]
    if not isinstance(deltas[-1], Failed):
        assert last["response"] == orjson.loads(body)
