"""Every example of the Responses page, sent to a live server; answers are read as JSON.

What the page prints is abridged, so an answer may have more fields and a stream more events, but
never fewer, and never one of another type.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from tests.fixtures.stack import MODEL, memory_stack

TEXT = {"type": "output_text", "text": "It's 18C and sunny in Paris.", "annotations": []}
MESSAGE = {
    "type": "message",
    "id": "msg_22a75da7bd1148af9d9e6a99c39e8255",
    "status": "completed",
    "role": "assistant",
    "content": [TEXT],
}
USAGE = {"input_tokens": 336, "output_tokens": 17, "total_tokens": 353}
ANSWER = {
    "id": "resp_606be8bc5a4c4b0ea3a8a597d4f78c31",
    "object": "response",
    "created_at": 1790793623,
    "model": MODEL,
    "status": "completed",
    "output": [MESSAGE],
    "usage": USAGE,
    "parallel_tool_calls": True,
}
EVENTS = {
    "response.created": {"response": {**ANSWER, "output": []}},
    "response.output_item.added": {"output_index": 0, "item": {**MESSAGE, "content": []}},
    "response.content_part.added": {
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "part": TEXT,
    },
    "response.output_text.delta": {
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "Four",
    },
    "response.output_item.done": {"output_index": 0, "item": MESSAGE},
    "response.completed": {"response": ANSWER},
}
QUESTION = {
    "instructions": "Answer in one sentence.",
    "input": "What is Wafer Serverless?",
    "max_output_tokens": 1024,
}
CONVERSATION = {
    "input": [
        {"type": "message", "role": "user", "content": "What's the weather in Paris?"},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Paris"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "18C and sunny"},
    ]
}
PERSON = {
    "input": "Invent a fictional person.",
    "reasoning": {"effort": "none"},
    "text": {
        "format": {
            "type": "json_schema",
            "name": "person",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        }
    },
    "max_output_tokens": 256,
}
EXAMPLES: list[dict[str, Any]] = [QUESTION, CONVERSATION, PERSON]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer any"}
    async with (
        memory_stack() as stack,
        httpx.AsyncClient(base_url=stack.v1, headers=headers) as client,
    ):
        yield client


def check_shape(found: Any, documented: Any, where: str = "answer") -> None:
    """Every documented field is there, with the documented type."""
    assert type(found) is type(documented), where
    if isinstance(documented, dict):
        for name, value in documented.items():
            assert name in found, f"{where}.{name}"
            check_shape(found[name], value, f"{where}.{name}")
    elif isinstance(documented, list):
        assert len(found) == len(documented), where
        for item, value in zip(found, documented, strict=True):
            check_shape(item, value, f"{where}[]")


@pytest.mark.rule("responses.documented-body", "responses.json-raw")
async def test_the_examples_are_answered_as_documented(http: httpx.AsyncClient) -> None:
    for fields in EXAMPLES:
        response = await http.post("/responses", json={"model": MODEL, **fields})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        answer = response.json()
        check_shape(answer, ANSWER)
        assert (answer["object"], answer["status"]) == ("response", "completed")
        assert len(answer["id"]) == len(ANSWER["id"])
        (message,) = answer["output"]
        assert len(message["id"]) == len(MESSAGE["id"])
        if fields is PERSON:
            person = orjson.loads(message["content"][0]["text"])
            assert {name: type(value) for name, value in person.items()} == {
                "name": str,
                "age": int,
            }


@pytest.mark.rule("responses.documented-stream", "responses.event-names")
async def test_the_examples_stream_as_documented(http: httpx.AsyncClient) -> None:
    for fields in EXAMPLES:
        response = await http.post("/responses", json={"model": MODEL, "stream": True, **fields})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        seen: dict[str, None] = {}
        for record in response.content.removesuffix(b"\n\n").split(b"\n\n"):
            name, data = record.split(b"\n")
            event = orjson.loads(data.removeprefix(b"data: "))
            assert name == b"event: " + event["type"].encode()
            check_shape(event, EVENTS.get(event["type"], {}), event["type"])
            if event["type"] in EVENTS:
                seen.setdefault(event["type"])
        assert [*seen] == [*EVENTS]
        assert event["type"] == "response.completed"
