"""What named clients send to Chat Completions beyond its field list, and what they need back.

The bodies have the shape of what those clients were seen to send, as JSON rather than through any
one client. Source: real clients, musts 10 to 12 and "Chat Completions".
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from tests.fixtures.stack import MODEL, Stack, memory_stack
from workers.engines.scripted import CAPABILITIES, IMAGE_TOKENS, ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/chat/completions"
SAY = {"role": "user", "content": "[[say:Done.]]"}
FAIL = {"role": "user", "content": "[[fail:start]]"}
SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command.",
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"],
            "additionalProperties": False,
        },
        "strict": False,
    },
}
CALL = {
    "id": "call_9",
    "type": "function",
    "function": {"name": "shell", "arguments": '{"command":["ls"]}'},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with memory_stack() as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.v1) as client:
        yield client


async def ask(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(PATH, json={"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.rule("chat.client-fields", "chat.roles")
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {
                "messages": [{"role": "developer", "content": "Be brief."}, SAY],
                "store": False,
                "max_completion_tokens": 32_000,
                "reasoning_effort": "none",
                "tools": [{**SHELL, "function": {**SHELL["function"], "strict": True}}],  # type: ignore[dict-item]  # a mapping
            },
            id="pi",
        ),
        pytest.param(
            {
                "messages": [SAY],
                "tools": [SHELL],
                "tool_choice": "auto",
                "parallel_tool_calls": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            id="ai-sdk",
        ),
        pytest.param(
            {
                "messages": [{"role": "user", "content": "one"}, SAY],
                "tools": [SHELL],
                "max_completion_tokens": 4096,
                "parallel_tool_calls": False,
                "metadata": {"a": "b"},
                "user": "u",
                "service_tier": "auto",
                "prompt_cache_key": "k",
                "safety_identifier": "s",
                "verbosity": "low",
            },
            id="langchain",
        ),
        pytest.param(
            {"messages": [SAY], "temperature": 0, "max_tokens": None, "tools": None, "n": 1},
            id="aider",
        ),
    ],
)
async def test_fields(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    response = await http.post(PATH, json={"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    assert b"Done." in response.content


@pytest.mark.rule("chat.client-content", "chat.content")
@pytest.mark.parametrize("content", [None, "", []])
async def test_content_in_every_form_on_every_role(http: httpx.AsyncClient, content: Any) -> None:
    answer = await ask(
        http,
        messages=[
            {"role": "system", "content": parts("You are ", "an agent.")},
            {"role": "user", "content": parts("1", "2", "3", "4", "[[say:Done.]]")},
            {
                "role": "assistant",
                "content": content,
                "reasoning_content": "Let me look.",
                "tool_calls": [CALL],
            },
            {"role": "tool", "tool_call_id": "call_9", "content": parts('{"output":"a.txt"}')},
            {"role": "assistant", "content": parts("There is ", "a.txt."), "tool_calls": None},
            {"role": "user", "content": "And now?"},
            {"role": "user", "content": parts("[[say:Done.]]")},
        ],
        tools=[SHELL],
    )
    assert answer["choices"][0]["message"]["content"] == "Done."


@pytest.mark.rule("chat.no-content")
async def test_no_content_renders_the_same_however_it_is_spelled(http: httpx.AsyncClient) -> None:
    async def prompt_tokens(**content: Any) -> int:
        answer = await ask(
            http,
            messages=[
                {"role": "user", "content": "check"},
                {"role": "assistant", "tool_calls": [CALL], **content},
                {"role": "tool", "tool_call_id": "call_9", "content": "up"},
            ],
            tools=[SHELL],
        )
        return int(answer["usage"]["prompt_tokens"])

    absent = await prompt_tokens()
    empty: tuple[Any, ...] = (None, "", [])
    for content in empty:
        assert await prompt_tokens(content=content) == absent
    assert await prompt_tokens(content="None") == absent + len("None")


@pytest.mark.rule("chat.client-errors")
async def test_errors_are_json_and_the_connection_stays_open(stack: Stack) -> None:
    bad: list[tuple[int, dict[str, Any]]] = [
        (400, {"content": b"{"}),
        (400, {"json": {"model": MODEL}}),
        (400, {"json": {"model": MODEL, "messages": [SAY], "stream": True, "n": 0}}),
        (404, {"json": {"model": "nobody", "messages": [SAY]}}),
        (415, {"content": b"x", "headers": {"content-type": "text/plain"}}),
        (
            500,
            {"json": {"model": MODEL, "messages": [{"role": "user", "content": "[[fail:start]]"}]}},
        ),
        (
            500,
            {
                "json": {
                    "model": MODEL,
                    "stream": True,
                    "messages": [{"role": "user", "content": "[[fail:start]]"}],
                }
            },
        ),
    ]
    ports = set()
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=stack.v1, limits=limits) as http:
        for status, request in [*bad, (200, {"json": {"model": MODEL, "messages": [SAY]}})]:
            response = await http.post(PATH, **request)
            assert response.status_code == status, response.text
            assert response.headers["content-type"] == "application/json"
            stream = response.extensions["network_stream"]
            ports.add(stream.get_extra_info("client_addr")[1])
            if status != 200:
                error = response.json()["error"]
                assert isinstance(error["message"], str)
                assert error["message"]
                assert error["request_id"] == response.headers["x-request-id"]
    assert len(ports) == 1


ODD: list[tuple[Any, int, str | None]] = [
    ([], 400, "messages"),
    ([{"role": "assistant", "content": "x"}], 200, None),
    ([{"role": "system", "content": "x"}], 200, None),
    ([{"role": "wizard", "content": "x"}], 400, "messages[0].role"),
    ([{"content": "x"}], 400, "messages[0].role"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], 200, None),
    ([{"role": "tool", "tool_call_id": "call_1", "content": "x"}], 200, None),
    ([{"role": "user", "content": 5}], 400, "messages[0].content"),
    ([{"role": "user", "content": [{"type": "spell"}]}], 400, "messages[0].content[0].type"),
    ([{"role": "user", "content": "a\x00b"}], 200, None),
    ([{"role": "user", "content": ""}], 200, None),
    ([{"role": "user", "content": []}], 200, None),
    ([{"role": "assistant", "content": None, "reasoning_content": "hm"}], 200, None),
    ([{"role": "function", "name": "f", "content": "x"}], 200, None),
]


@pytest.mark.rule("chat.odd-conversations")
async def test_odd_conversations(http: httpx.AsyncClient) -> None:
    for messages, status, param in ODD:
        for stream in (False, True):
            response = await http.post(
                PATH, json={"model": MODEL, "messages": messages, "stream": stream}
            )
            assert response.status_code == status, (messages, response.text)
            if status != 200:
                error = response.json()["error"]
                assert error["param"] == param
                assert f"`{param}`" in error["message"]


# --- Length and reasoning, as a client meets them ------------------------------------------------


@pytest.mark.rule("chat.limit-retried", "chat.prompt-too-long", "chat.limit-ignored")
async def test_a_limit_that_does_not_fit() -> None:
    engine = ScriptedEngine(served_id=MODEL, context_length=100)
    long = {"role": "user", "content": "[[k=90]]" + "x" * 60}
    longer = {"role": "user", "content": "x" * 100}
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.v1) as http,
    ):
        for limit in (None, 60, 100, 101):
            answer = await ask(http, messages=[long], max_tokens=limit)
            used = answer["usage"]
            assert answer["choices"][0]["finish_reason"] == "length"
            assert used["prompt_tokens"] + used["completion_tokens"] == 100
        fitting = await ask(http, messages=[long], max_tokens=5)
        assert fitting["usage"]["completion_tokens"] == 5
        response = await http.post(
            PATH, json={"model": MODEL, "messages": [longer], "max_tokens": 1}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        assert "maximum context length" in response.json()["error"]["message"]


SPELLINGS: list[tuple[dict[str, Any], bool]] = [
    ({"reasoning_effort": "max"}, True),
    ({"reasoning": {"effort": "low"}}, True),
    ({"thinking": {"type": "enabled"}}, True),
    ({"thinking": {"type": "adaptive"}}, True),
    ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ({}, False),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning": {"effort": "none"}}, False),
    ({"thinking": {"type": "disabled"}}, False),
    ({"reasoning_effort": "none", "thinking": {"type": "enabled"}}, False),
]


@pytest.mark.rule("chat.reasoning-equivalent", "chat.reasoning-off", "chat.reasoning-default")
async def test_reasoning_in_every_spelling(http: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "[[think:Hm.]][[say:Yes.]]"}
    for fields, reasons in SPELLINGS:
        answer = await ask(http, messages=[message], **fields)
        said = answer["choices"][0]["message"]
        expected = ("Yes.", "Hm." if reasons else None)
        assert (said["content"], said["reasoning_content"]) == expected, fields
        tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert (tokens > 0) is reasons


# --- Vision --------------------------------------------------------------------------------------

PIXELS = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGM4IScHRAwQCgAfJg"
    "QRoo8irwAAAABJRU5ErkJggg=="
)


def looking(url: str) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": url, "detail": "high"}}
    return {"role": "user", "content": [*parts("What is this?", "[[say:Dots.]]"), image]}


def without_image(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"][:-1]}


@pytest.mark.rule("chat.images", "vision.tokens-count", "vision.private-urls")
async def test_a_model_with_vision_sees_the_image() -> None:
    seeing = msgspec.structs.replace(CAPABILITIES, vision=True)
    engine = ScriptedEngine(served_id=MODEL, capabilities=seeing)
    async with (
        memory_stack(engine) as stack,
        httpx.AsyncClient(base_url=stack.v1) as http,
    ):
        message = looking(PIXELS)
        seen = await ask(http, messages=[message])
        unseen = await ask(http, messages=[without_image(message)])
        assert seen["choices"][0]["message"]["content"] == "Dots."
        difference = seen["usage"]["prompt_tokens"] - unseen["usage"]["prompt_tokens"]
        assert difference == IMAGE_TOKENS
        for url, code in REFUSED_IMAGES:
            response = await http.post(PATH, json={"model": MODEL, "messages": [looking(url)]})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, code), url
            assert error["param"] == "messages[0].content[2].image_url.url"


REFUSED_IMAGES = [
    ("http://pics.example/a.png", "unsupported_value"),
    ("https://127.0.0.1/a.png", "unsupported_value"),
    ("file:///etc/passwd", "unsupported_value"),
    ("/etc/passwd", "unsupported_value"),
]


@pytest.mark.rule("chat.images-dropped")
async def test_a_model_without_vision_gets_the_request_without_the_image(
    http: httpx.AsyncClient,
) -> None:
    message = looking("https://127.0.0.1/never-fetched.png")
    answer = await ask(http, messages=[message])
    assert answer["choices"][0]["message"]["content"] == "Dots."
    plain = await ask(http, messages=[without_image(message)])
    assert answer["usage"] == plain["usage"]
    only = await ask(http, messages=[{**message, "content": message["content"][-1:]}])
    empty = await ask(http, messages=[{"role": "user", "content": ""}])
    assert only["usage"] == empty["usage"]
