"""LiteLLM, LangChain, Pydantic AI and OpenAI's agents library against a running Headrace.

usage: python frameworks.py PROFILE BASE_URL; prints one JSON object.
"""

from __future__ import annotations

import sys
from typing import Any

import agents
import litellm
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import TOOL_PROMPT, WEATHER, report

PROFILE, BASE = sys.argv[1:]
URL = f"{BASE}/v1"


class Person(BaseModel):
    name: str
    age: int


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# --- LiteLLM ---

OPENAI_ROUTE = {"model": "openai/demo-model", "api_base": URL, "api_key": "any", "num_retries": 0}
ANTHROPIC_ROUTE = {**OPENAI_ROUTE, "model": "anthropic/demo-model", "api_base": BASE}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]


def _litellm(route: dict[str, Any]) -> Any:
    answer = litellm.completion(**route, messages=say("[[say:Two words.]]"))
    stream = litellm.completion(**route, messages=say("[[say:one two]]"), stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    called = litellm.completion(**route, messages=say(TOOL_PROMPT), tools=TOOLS)
    [call] = called.choices[0].message.tool_calls
    return [
        answer.choices[0].message.content,
        text,
        call.function.name,
        called.choices[0].finish_reason,
    ]


def litellm_openai() -> Any:
    return _litellm(OPENAI_ROUTE)


def litellm_anthropic() -> Any:
    return _litellm(ANTHROPIC_ROUTE)


def litellm_responses() -> Any:
    answer = litellm.responses(
        **OPENAI_ROUTE,
        input=[{"type": "message", "role": "user", "content": "[[say:Two words.]]"}],
    )
    return answer.output[0].content[0].text


def litellm_error() -> Any:
    try:
        litellm.completion(**{**OPENAI_ROUTE, "model": "openai/nobody"}, messages=say("hi"))
    except litellm.exceptions.NotFoundError as error:
        return [type(error).__name__, error.status_code]
    return None


# --- LangChain ---


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    return f"18C and sunny in {city}"


def _langchain(model: Any) -> Any:
    answer = model.invoke("[[say:Two words.]]").text
    streamed = "".join(chunk.text for chunk in model.stream("[[say:one two]]"))
    called = model.bind_tools([get_weather]).invoke(TOOL_PROMPT)
    history = [("user", TOOL_PROMPT), called, get_weather.invoke(called.tool_calls[0])]
    final = model.bind_tools([get_weather]).invoke(history)
    return [answer, streamed, called.tool_calls[0]["args"], final.text != ""]


def langchain_openai() -> Any:
    return _langchain(ChatOpenAI(model="demo-model", base_url=URL, api_key="any", max_retries=0))


def langchain_openai_structured() -> Any:
    model = ChatOpenAI(model="demo-model", base_url=URL, api_key="any", max_retries=0)
    person = model.with_structured_output(Person, method="json_schema").invoke("Invent a person.")
    return sorted(person.model_dump())


def langchain_anthropic() -> Any:
    return _langchain(
        ChatAnthropic(model="demo-model", base_url=BASE, api_key="any", max_retries=0)
    )


# --- Pydantic AI ---


def _pydantic_ai(model: Any) -> Any:
    cities = []
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        cities.append(city)
        return "18C and sunny"

    answer = agent.run_sync(TOOL_PROMPT)
    person = Agent(model, output_type=Person).run_sync("Invent a person.").output
    return [cities, answer.output != "", sorted(person.model_dump())]


def pydantic_ai_chat() -> Any:
    return _pydantic_ai(
        OpenAIChatModel("demo-model", provider=OpenAIProvider(base_url=URL, api_key="any"))
    )


def pydantic_ai_anthropic() -> Any:
    return _pydantic_ai(
        AnthropicModel("demo-model", provider=AnthropicProvider(base_url=BASE, api_key="any"))
    )


def pydantic_ai_responses() -> Any:
    return _pydantic_ai(
        OpenAIResponsesModel("demo-model", provider=OpenAIProvider(base_url=URL, api_key="any"))
    )


# --- OpenAI's agents library ---


def _agents(model: Any, prompt: Any) -> Any:
    cities = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather for a city."""
        cities.append(city)
        return "18C and sunny"

    agents.set_tracing_disabled(True)
    agent = agents.Agent(
        name="Forecaster", instructions="Be brief.", model=model, tools=[get_weather]
    )
    result = agents.Runner.run_sync(agent, prompt)
    return [cities, result.final_output != ""]


def agents_chat() -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="any", max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model="demo-model", openai_client=client)
    return _agents(model, TOOL_PROMPT)


def agents_responses() -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="any", max_retries=0)
    model = agents.OpenAIResponsesModel(model="demo-model", openai_client=client)
    # Profile `wafer` wants items with a type.
    return _agents(model, [{"type": "message", "role": "user", "content": TOOL_PROMPT}])


scenarios = [
    litellm_openai,
    litellm_anthropic,
    litellm_responses,
    litellm_error,
    langchain_openai,
    langchain_openai_structured,
    langchain_anthropic,
    pydantic_ai_chat,
    pydantic_ai_anthropic,
    agents_chat,
    agents_responses,
]
if PROFILE == "official":  # its Responses model writes items without a type
    scenarios.append(pydantic_ai_responses)
report(*scenarios)
