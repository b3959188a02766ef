"""SDKs and frameworks, each in its own process, against one service: what they make of its answers.

Every script prints what came of each scenario; a scenario that raised prints the exception, which
the comparison then shows.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.clients import HERE, Service, node, python, run_script
from tests.fixtures.stack import MODEL

PARIS = {"city": "Paris"}

OPENAI_SDK: dict[str, Any] = {
    "chat_text": ["Two words.", "stop"],
    "chat_stream": "one two three",
    "chat_helper": ["one two", "stop", 2],
    "chat_tools": ["get_weather", PARIS, "tool_calls", "stop", True],
    "chat_tools_stream": ["get_weather", PARIS, "tool_calls"],
    "chat_forced_tool": ["get_weather"],
    "chat_schema": ["string", "number", 2],
    "chat_reasoning": ["Hmm, well.", "Yes."],
    "chat_vision": "A square.",
    "responses_text": ["Two words.", "completed"],
    "responses_helper": ["one two", "completed", 2],
    "responses_tools": ["get_weather", PARIS, "completed", True],
    "responses_schema": ["name", "age"],
    "completions": ["text_completion", "raw text"],
    "models": [[MODEL, "demo-vision-model"], MODEL],
    "error_model": ["NotFoundError", 404, "model_not_found", True],
    "error_value": ["BadRequestError", 400, "unsupported_parameter"],
    "error_in_stream": ["APIError", "generation_failed"],
}


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_openai_for_node(service: Service, package: str) -> None:
    told = await run_script(service, node(), HERE / "node/openai_sdk.mjs", package, service.url)
    assert told == OPENAI_SDK


ANTHROPIC_SDK: dict[str, Any] = {
    "text": [[["text", "Two words."]], "end_turn"],
    "stream": [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ],
    "helper": ["one two", "end_turn", 2],
    "tools": ["get_weather", PARIS, "tool_use", "end_turn", True],
    "tools_stream": ["get_weather", PARIS, "tool_use"],
    "forced_tool": ["get_weather"],
    "thinking": [["thinking", "Hmm, well."], ["text", "Yes."]],
    "stop_sequence": ["one two ", "stop_sequence", "three"],
    "vision": "A square.",
    "counting": True,
    "beta": "ok",
    "models": [MODEL, "demo-vision-model"],
    "error_model": ["NotFoundError", 404, "not_found_error", "model_not_found"],
    "error_in_stream": ["APIError", True],
}


@pytest.mark.parametrize("package", ["@anthropic-ai/sdk", "anthropic-sdk-0"])
async def test_anthropic_for_node(service: Service, package: str) -> None:
    script = HERE / "node/anthropic_sdk.mjs"
    told = await run_script(service, node(), script, package, service.url)
    assert told == ANTHROPIC_SDK


async def test_ai_sdk(service: Service) -> None:
    script = HERE / "node/ai_sdk.mjs"
    told = await run_script(service, node(), script, service.profile, service.url)
    providers = ["compatible", "chat", "anthropic"]
    if service.profile == "official":
        providers.append("responses")
    expected: dict[str, Any] = {"error": ["AI_APICallError", 404]}
    for provider in providers:
        expected |= {
            f"{provider}_text": ["Two words.", "stop"],
            f"{provider}_stream": ["one two three", "stop"],
            f"{provider}_tools": [["Paris"], 2, "stop"],
            f"{provider}_object": ["age", "name"],
        }
    if service.profile == "wafer":
        # It gets objects by `tool_choice: any`, which this profile takes for `auto`.
        assert "NoObjectGeneratedError" in told.pop("anthropic_object")
        del expected["anthropic_object"]
    assert told == expected


async def test_agents_and_langchain_for_node(service: Service) -> None:
    script = HERE / "node/agents_and_langchain.mjs"
    told = await run_script(service, node(), script, service.profile, service.url)
    call = [["get_weather", PARIS]]
    expected: dict[str, Any] = {
        "agents_chat": [["Paris"], True],
        "langchain_openai": ["Two words.", call, "one two"],
        "langchain_anthropic": ["Two words.", call],
    }
    if service.profile == "official":
        expected["agents_responses"] = [["Paris"], True]
    assert told == expected


async def test_frameworks_for_python(service: Service) -> None:
    script = HERE / "python/frameworks.py"
    told = await run_script(service, python(".venv-clients"), script, service.profile, service.url)
    litellm = ["Two words.", "one two", "get_weather", "tool_calls"]
    langchain = ["Two words.", "one two", PARIS, True]
    pydantic_ai = [["Paris"], True, ["age", "name"]]
    expected: dict[str, Any] = {
        "litellm_openai": litellm,
        "litellm_anthropic": litellm,
        "litellm_responses": "Two words.",
        "litellm_error": ["NotFoundError", 404],
        "langchain_openai": langchain,
        "langchain_openai_structured": ["age", "name"],
        "langchain_anthropic": langchain,
        "pydantic_ai_chat": pydantic_ai,
        "pydantic_ai_anthropic": pydantic_ai,
        "agents_chat": [["Paris"], True],
        "agents_responses": [["Paris"], True],
    }
    if service.profile == "official":
        expected["pydantic_ai_responses"] = pydantic_ai
    else:
        # Typed output comes by `tool_choice: any`, which this profile takes for `auto`.
        assert "UnexpectedModelBehavior" in told.pop("pydantic_ai_anthropic")
        del expected["pydantic_ai_anthropic"]
    assert told == expected
