"""Every Delta file through the chat encoder, as stream and as body."""

from pathlib import Path

import orjson
import pytest

from ingress.dialects.chat import Chat
from schemas.delta import Failed
from tests.unit.dialects.transcripts import (
    DATA,
    DELTA_FILES,
    play,
    read_deltas,
    scenario,
    transcript,
)

every_delta_file = pytest.mark.parametrize("path", DELTA_FILES, ids=scenario)

# The transcripts that the public documentation prints, with our ids.
DOCUMENTED_COUNT = """\
data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{"content":"1, 2, 3, 4, 5"},"finish_reason":null}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":10,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}

data: [DONE]

"""  # noqa: E501 - a record is one line

DOCUMENTED_CALL = """\
data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{"tool_calls":[{"id":"call_5d14c21099380f72374535f1","index":0,"type":"function","function":{"name":"get_weather","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\": "}}]},"finish_reason":null}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\"Paris\\"}"}}]},"finish_reason":null}]}

data: {"id":"c3a7ac6de84a4e9eade77ab63a27a1ca","object":"chat.completion.chunk","created":1790793243,"model":"GLM-5.3","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

"""  # noqa: E501 - a record is one line

DOCUMENTED_BODY = {
    "id": "c3a7ac6de84a4e9eade77ab63a27a1ca",
    "object": "chat.completion",
    "created": 1790793243,
    "model": "GLM-5.3",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Wafer Serverless is pay-per-token access to Wafer-hosted models.",
                "reasoning_content": None,
                "tool_calls": None,
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 22,
        "completion_tokens": 16,
        "total_tokens": 38,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
}


def documented(stream: bytes) -> str:
    """The stream without the fields that the printed transcripts leave out."""
    text = stream.decode()
    for field in (',"logprobs":null', ',"matched_stop":null'):
        text = text.replace(field, "")
    return text


def delta_file(name: str) -> Path:
    return DATA / "deltas" / f"{name}.deltas.jsonl"


@every_delta_file
def test_the_stream_is_the_committed_transcript(path: Path) -> None:
    stream, _ = play(Chat(), read_deltas(path))
    assert stream.decode() == transcript("chat", path, ".sse").read_bytes().decode()


@every_delta_file
def test_the_body_is_the_committed_transcript(path: Path) -> None:
    _, body = play(Chat(), read_deltas(path))
    assert orjson.loads(body) == orjson.loads(transcript("chat", path, ".json").read_bytes())


@pytest.mark.rule("chat.stream-failure", "chat.stream-done")
@every_delta_file
def test_only_a_success_looks_like_one(path: Path) -> None:
    deltas = read_deltas(path)
    stream, _ = play(Chat(), deltas)
    records = stream.decode().removesuffix("\n\n").split("\n\n")
    if isinstance(deltas[-1], Failed):
        assert [record.startswith('data: {"error":') for record in records].count(True) == 1
        assert records[-1].startswith('data: {"error":')
        assert '"usage"' not in stream.decode()
        assert '"finish_reason":"' not in stream.decode()
    else:
        assert records[-1] == "data: [DONE]"
        assert '"choices":[],"usage":{' in records[-2]


@pytest.mark.rule("chat.stream-example", "chat.stream-records")
def test_counting_streams_as_documented() -> None:
    stream, _ = play(Chat(), read_deltas(delta_file("docs__count_to_five")))
    assert documented(stream) == DOCUMENTED_COUNT


@pytest.mark.rule(
    "chat.stream-tool-example", "chat.stream-tool-opening", "chat.stream-tool-fragments"
)
def test_a_tool_call_streams_as_documented() -> None:
    stream, _ = play(Chat(), read_deltas(delta_file("docs__weather_call")))
    assert DOCUMENTED_CALL in documented(stream)


@pytest.mark.rule("chat.body", "chat.usage")
def test_an_answer_looks_as_documented() -> None:
    _, body = play(Chat(), read_deltas(delta_file("docs__one_sentence")))
    answer = orjson.loads(body)
    choice = answer["choices"][0]
    assert (choice.pop("logprobs"), choice.pop("matched_stop")) == (None, None)
    assert choice["message"].pop("refusal") is None
    assert answer == DOCUMENTED_BODY


@pytest.mark.rule("chat.reasoning-hidden")
def test_hidden_reasoning_is_output_and_nothing_else() -> None:
    stream, body = play(Chat(), read_deltas(delta_file("any__hidden_reasoning")))
    answer = orjson.loads(body)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Pick B.", None)
    assert answer["usage"]["completion_tokens"] == 11
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert b"reasoning_content" not in stream


@pytest.mark.rule("chat.several-calls", "chat.stream-tool-fragments")
def test_calls_of_one_choice_count_from_nought_in_each_choice() -> None:
    stream, _ = play(Chat(), read_deltas(delta_file("agent__calls_of_two_choices")))
    chunks = [orjson.loads(record[6:]) for record in stream.split(b"\n\n")[:-2]]
    joined: dict[tuple[int, int], str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                key = choice["index"], call["index"]
                joined[key] = joined.get(key, "") + call["function"]["arguments"]
    assert joined == {(0, 0): '{"sides":6}', (1, 0): '{"sides":20}', (0, 1): '{"sides":8}'}


@pytest.mark.rule("chat.logprobs")
def test_log_probabilities_come_with_their_tokens() -> None:
    stream, body = play(Chat(), read_deltas(delta_file("any__log_probabilities")))
    (choice,) = orjson.loads(body)["choices"]
    entries = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    text = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert text == choice["message"]["content"]
    others = [other for entry in entries for other in entry["top_logprobs"]]
    for entry in (*entries, *others):
        assert entry.keys() - {"top_logprobs"} == {"token", "bytes", "logprob"}
        assert -9999 <= entry["logprob"] <= 0
    chunks = [orjson.loads(record[6:]) for record in stream.split(b"\n\n")[:-2]]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"]]
    assert [entry for part in streamed if part for entry in part["content"]] == entries
