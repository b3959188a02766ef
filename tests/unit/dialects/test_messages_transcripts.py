"""Every Delta file of one choice through the Messages encoder, as stream and as body."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from ingress.dialects.messages import Messages
from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from tests.unit.dialects.transcripts import (
    delta_files,
    play,
    read_deltas,
    scenario,
    transcript,
)

every_delta_file = pytest.mark.parametrize("path", delta_files("messages"), ids=scenario)

# What the public documentation prints, with our ids; `null` fields of the official API besides.
DOCUMENTED_CALL = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_c3a7ac6de84a4e9eade77ab63a27a1ca","type":"message","role":"assistant","content":[],"model":"GLM-5.3","usage":{"input_tokens":0,"output_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_kJGY83cqutzA0PZLVcnoeb1A","name":"get_weather","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"\\"city\\": \\"Paris\\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":278,"output_tokens":54,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501 - a record is one line

DOCUMENTED_BODY = {
    "id": "msg_c3a7ac6de84a4e9eade77ab63a27a1ca",
    "type": "message",
    "role": "assistant",
    "model": "GLM-5.3",
    "content": [{"type": "text", "text": "It's 18C and sunny in Paris."}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 338,
        "output_tokens": 29,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 256,
    },
}


def records(stream: str) -> list[tuple[str, dict[str, Any]]]:
    """Event names and data of a stream."""
    found = []
    for record in stream.removesuffix("\n\n").split("\n\n"):
        event, data = record.split("\n")
        found.append((event.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return found


@every_delta_file
def test_the_stream_is_the_committed_transcript(path: Path) -> None:
    stream, _ = play(Messages(), read_deltas(path))
    assert stream.decode() == transcript("messages", path, ".sse").read_bytes().decode()


@every_delta_file
def test_the_body_is_the_committed_transcript(path: Path) -> None:
    _, body = play(Messages(), read_deltas(path))
    assert orjson.loads(body) == orjson.loads(transcript("messages", path, ".json").read_bytes())


@every_delta_file
@pytest.mark.rule("messages.failed-stream", "messages.stream-end")
def test_only_a_success_looks_like_one(path: Path) -> None:
    deltas = read_deltas(path)
    events = records(play(Messages(), deltas)[0].decode())
    names = [name for name, _ in events]
    if isinstance(deltas[-1], Failed):
        assert names[-1] == "error"
        assert names.count("error") == 1
        assert not {"message_delta", "message_stop"} & set(names)
    else:
        assert names[-2:] == ["message_delta", "message_stop"]
        assert "error" not in names


@every_delta_file
@pytest.mark.rule("messages.stream-events", "messages.no-ping", "messages.no-signature-delta")
def test_blocks_open_and_close_one_after_the_other(path: Path) -> None:
    open_block, blocks = None, 0
    for number, (name, data) in enumerate(records(play(Messages(), read_deltas(path))[0].decode())):
        assert data["type"] == name
        assert (name == "message_start") == (number == 0)
        match name:
            case "content_block_start":
                assert open_block is None
                assert data["index"] == blocks
                open_block, blocks = data, blocks + 1
            case "content_block_delta":
                assert open_block is not None
                assert data["index"] == open_block["index"]
                fits = {
                    "text": "text_delta",
                    "thinking": "thinking_delta",
                    "tool_use": "input_json_delta",
                }
                assert data["delta"]["type"] == fits[open_block["content_block"]["type"]]
            case "content_block_stop":
                assert open_block is not None
                assert data["index"] == open_block["index"]
                open_block = None
            case "message_delta":
                assert open_block is None
            case _:
                assert name in ("message_start", "message_stop", "error")


@pytest.mark.rule(
    "messages.stream-events",
    "messages.tool-input-deltas",
    "messages.start-usage-zero",
    "messages.final-usage",
)
def test_a_tool_call_streams_as_documented() -> None:
    deltas: list[Delta] = [
        Accepted("w", 278),
        Started("w", 278, 0),
        ToolCallStarted(0, 0, "get_weather"),
        ArgumentsDelta(0, 0, "{"),
        ArgumentsDelta(0, 0, '"city": "Paris"}'),
        Finished(0, FinishReason.TOOL_CALLS),
        Completed(Usage(278, 0, 54, 0)),
    ]
    stream, _ = play(Messages(), deltas)
    expected, seen = records(DOCUMENTED_CALL), records(stream.decode())
    start, end = seen[0][1]["message"], seen[-2][1]["delta"]
    assert (start.pop("stop_reason"), start.pop("stop_sequence")) == (None, None)
    assert end.pop("stop_sequence", "absent") is None
    assert seen == expected


@pytest.mark.rule("messages.body", "messages.input-includes-cached")
def test_an_answer_looks_as_documented() -> None:
    deltas: list[Delta] = [
        Accepted("w", 338),
        Started("w", 338, 256),
        TextDelta(0, "It's 18C and sunny"),
        TextDelta(0, " in Paris."),
        Finished(0, FinishReason.STOP),
        Completed(Usage(338, 256, 29, 0)),
    ]
    _, body = play(Messages(), deltas)
    answer = orjson.loads(body)
    assert answer.pop("stop_sequence", "absent") is None
    assert answer == DOCUMENTED_BODY
