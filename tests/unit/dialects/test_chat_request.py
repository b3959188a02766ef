"""Which bodies are refused, with which code and param, and which fields have no effect."""

from typing import Any

import orjson
import pytest

from ingress.dialects.chat_request import ChatRequest
from schemas.errors import RequestError
from tests.unit.dialects.chat_jobs import (
    ALLOWED,
    CALL,
    DEEP,
    PARAMETER,
    SCHEMA,
    SCHEMA_FIELD,
    SHAPE,
    TOOL,
    UNKNOWN,
    USER,
    VALUE,
    allowed,
    chat,
    chosen,
    custom,
    form,
    messages,
    normalise,
    part,
    tool,
    turn,
)

BAD_FIELDS = [
    # shape of the body
    ({"model": 5}, SHAPE, "model"),
    ({"model": None}, SHAPE, "model"),
    ({"messages": None}, SHAPE, "messages"),
    ({"messages": "hi"}, SHAPE, "messages"),
    ({"messages": {}}, SHAPE, "messages"),
    ({"messages": []}, VALUE, "messages"),
    ({"messages": ["hi"]}, SHAPE, "messages[0]"),
    ({"messages": [None]}, SHAPE, "messages[0]"),
    # messages
    (turn(content="x"), SHAPE, "messages[1].role"),
    (turn(role=5, content="x"), SHAPE, "messages[1].role"),
    (turn(role="wizard", content="x"), VALUE, "messages[1].role"),
    (turn(role=["user"], content="x"), SHAPE, "messages[1].role"),
    (turn(role="user"), SHAPE, "messages[1].content"),
    (turn(role="user", content=None), SHAPE, "messages[1].content"),
    (turn(role="user", content=5), SHAPE, "messages[1].content"),
    (turn(role="user", content={}), SHAPE, "messages[1].content"),
    (turn(role="user", content="x", name=5), SHAPE, "messages[1].name"),
    (turn(role="system", content=None), SHAPE, "messages[1].content"),
    (turn(role="assistant"), SHAPE, "messages[1].content"),
    (turn(role="assistant", content=None, tool_calls=[]), SHAPE, "messages[1].content"),
    (turn(role="assistant", content=True), SHAPE, "messages[1].content"),
    (turn(role="tool", content="x"), SHAPE, "messages[1].tool_call_id"),
    (turn(role="tool", content=None, tool_call_id="c"), SHAPE, "messages[1].content"),
    # parts
    (turn(role="user", content=["x"]), SHAPE, "messages[1].content[0]"),
    (part("user", type="text", text=7), SHAPE, "messages[0].content[1].text"),
    (part("user", type="text"), SHAPE, "messages[0].content[1].text"),
    (part("user", text="x"), SHAPE, "messages[0].content[1].type"),
    (part("user", type="spell"), VALUE, "messages[0].content[1].type"),
    (part("user", type="input_audio", input_audio={}), VALUE, "messages[0].content[1].type"),
    (part("user", type="file", file={}), VALUE, "messages[0].content[1].type"),
    (part("user", type="refusal", refusal="no"), VALUE, "messages[0].content[1].type"),
    (part("user", type="image_url"), SHAPE, "messages[0].content[1].image_url"),
    (part("user", type="image_url", image_url="u"), SHAPE, "messages[0].content[1].image_url"),
    (
        part("user", type="image_url", image_url={"detail": "low"}),
        SHAPE,
        "messages[0].content[1].image_url.url",
    ),
    (
        part("user", type="image_url", image_url={"url": 5}),
        SHAPE,
        "messages[0].content[1].image_url.url",
    ),
    (part("assistant", type="refusal"), SHAPE, "messages[0].content[1].refusal"),
    (part("tool", type="video_url"), VALUE, "messages[0].content[1].type"),
    # calls in the history
    (turn(role="assistant", tool_calls={}), SHAPE, "messages[1].tool_calls"),
    (turn(role="assistant", tool_calls=[5]), SHAPE, "messages[1].tool_calls[0]"),
    (
        turn(role="assistant", tool_calls=[{**CALL, "id": None}]),
        SHAPE,
        "messages[1].tool_calls[0].id",
    ),
    (
        turn(role="assistant", tool_calls=[{**CALL, "type": "computer"}]),
        VALUE,
        "messages[1].tool_calls[0].type",
    ),
    (
        turn(role="assistant", tool_calls=[{**CALL, "type": "custom"}]),
        SHAPE,
        "messages[1].tool_calls[0].custom",
    ),
    (
        turn(role="assistant", tool_calls=[{"id": "c"}]),
        SHAPE,
        "messages[1].tool_calls[0].function",
    ),
    (
        turn(role="assistant", tool_calls=[{"id": "c", "function": {"arguments": "{}"}}]),
        SHAPE,
        "messages[1].tool_calls[0].function.name",
    ),
    (
        turn(role="assistant", tool_calls=[{"id": "c", "function": {"name": "f", "arguments": 5}}]),
        SHAPE,
        "messages[1].tool_calls[0].function.arguments",
    ),
    # numbers
    ({"temperature": "hot"}, SHAPE, "temperature"),
    ({"temperature": True}, SHAPE, "temperature"),
    ({"temperature": [1]}, SHAPE, "temperature"),
    ({"temperature": -0.1}, VALUE, "temperature"),
    ({"temperature": 2.1}, VALUE, "temperature"),
    ({"temperature": float("nan")}, VALUE, "temperature"),
    ({"top_p": 0}, VALUE, "top_p"),
    ({"top_p": 1.1}, VALUE, "top_p"),
    ({"min_p": -0.1}, VALUE, "min_p"),
    ({"presence_penalty": 2.5}, VALUE, "presence_penalty"),
    ({"frequency_penalty": -2.5}, VALUE, "frequency_penalty"),
    ({"repetition_penalty": 0}, VALUE, "repetition_penalty"),
    ({"repetition_penalty": 2.5}, VALUE, "repetition_penalty"),
    ({"top_k": 0}, VALUE, "top_k"),
    ({"top_k": -2}, VALUE, "top_k"),
    ({"top_k": 1.5}, VALUE, "top_k"),
    ({"seed": "1"}, SHAPE, "seed"),
    ({"seed": 1e30}, VALUE, "seed"),
    ({"seed": 2**63}, VALUE, "seed"),
    ({"max_tokens": 0}, VALUE, "max_tokens"),
    ({"max_tokens": -5}, VALUE, "max_tokens"),
    ({"max_tokens": 5.5}, VALUE, "max_tokens"),
    ({"max_tokens": "5"}, SHAPE, "max_tokens"),
    ({"max_tokens": True}, SHAPE, "max_tokens"),
    ({"max_tokens": -1e30}, VALUE, "max_tokens"),
    ({"max_completion_tokens": 0}, VALUE, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 0}, VALUE, "max_completion_tokens"),
    ({"n": 0}, VALUE, "n"),
    ({"n": 17}, VALUE, "n"),
    ({"n": True}, SHAPE, "n"),
    ({"logprobs": 1}, SHAPE, "logprobs"),
    ({"top_logprobs": 3}, VALUE, "top_logprobs"),
    ({"top_logprobs": 0, "logprobs": False}, VALUE, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, VALUE, "top_logprobs"),
    ({"logit_bias": []}, SHAPE, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, SHAPE, "logit_bias"),
    ({"logit_bias": {"5": True}}, SHAPE, "logit_bias"),
    ({"logit_bias": {"5": 101}}, VALUE, "logit_bias"),
    ({"logit_bias": {"5": float("nan")}}, VALUE, "logit_bias"),
    ({"logit_bias": {"secret": 1}}, VALUE, "logit_bias"),
    ({"logit_bias": {"-3": 5}}, VALUE, "logit_bias"),
    ({"logit_bias": {"\u0663": 5}}, VALUE, "logit_bias"),
    ({"logit_bias": {"9999999": 5}}, VALUE, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 5}}, VALUE, "logit_bias"),
    # strings and switches
    ({"stop": 5}, SHAPE, "stop"),
    ({"stop": ""}, VALUE, "stop"),
    ({"stop": ["a", ""]}, VALUE, "stop[1]"),
    ({"stop": [5]}, SHAPE, "stop[0]"),
    ({"stop": ["a"] * 65}, VALUE, "stop"),
    ({"stream": "yes"}, SHAPE, "stream"),
    ({"stream_options": []}, SHAPE, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, SHAPE, "stream_options.include_usage"),
    # reasoning
    ({"reasoning_effort": "ultra"}, VALUE, "reasoning_effort"),
    ({"reasoning_effort": 5}, VALUE, "reasoning_effort"),
    ({"reasoning_effort": "minimal"}, VALUE, "reasoning_effort"),
    ({"reasoning": "high"}, SHAPE, "reasoning"),
    ({"reasoning": {"effort": "ultra"}}, VALUE, "reasoning.effort"),
    ({"reasoning": {"effort": "minimal"}}, VALUE, "reasoning.effort"),
    ({"thinking": {}}, SHAPE, "thinking.type"),
    ({"thinking": {"type": "sometimes"}}, VALUE, "thinking.type"),
    ({"chat_template_kwargs": []}, SHAPE, "chat_template_kwargs"),
    (
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        PARAMETER,
        "chat_template_kwargs.chat_template",
    ),
    # tools
    ({"tools": 5}, SHAPE, "tools"),
    ({"tools": ["f"]}, SHAPE, "tools[0]"),
    ({"tools": [{"type": "function"}]}, SHAPE, "tools[0].function"),
    ({"tools": [{}]}, SHAPE, "tools[0].function"),
    ({"tools": [{"type": 5}]}, SHAPE, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, TOOL, "tools[0].type"),
    ({"tools": [tool(), tool(name="g", type="mcp")]}, TOOL, "tools[1].type"),
    ({"tools": [tool(name=None)]}, SHAPE, "tools[0].function.name"),
    ({"tools": [tool(name="")]}, TOOL, "tools[0].function.name"),
    ({"tools": [tool(name="get weather")]}, TOOL, "tools[0].function.name"),
    ({"tools": [tool(name="f" * 129)]}, TOOL, "tools[0].function.name"),
    ({"tools": [tool(), tool(name="g"), tool()]}, TOOL, "tools[2]"),
    ({"tools": [tool(description=5)]}, SHAPE, "tools[0].function.description"),
    ({"tools": [tool(strict="yes")]}, SHAPE, "tools[0].function.strict"),
    ({"tools": [tool(parameters={"type": "string"})]}, SCHEMA, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"properties": {}})]}, SCHEMA, "tools[0].function.parameters"),
    ({"tools": [tool(parameters=[])]}, SCHEMA, "tools[0].function.parameters"),
    ({"tools": [tool(), tool(name="g", parameters=True)]}, SCHEMA, "tools[1].function.parameters"),
    ({"tools": [tool(parameters=DEEP)]}, VALUE, "tools[0].function.parameters"),
    ({"tools": [{"type": "custom"}]}, SHAPE, "tools[0].custom"),
    ({"tools": [custom(name="a b")]}, TOOL, "tools[0].custom.name"),
    ({"tools": [custom(format={"type": "poem"})]}, VALUE, "tools[0].custom.format.type"),
    ({"tools": [custom(format={"type": "grammar"})]}, SHAPE, "tools[0].custom.format.grammar"),
    # the choice among them
    ({"tool_choice": "required"}, VALUE, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, VALUE, "tool_choice"),
    ({"tool_choice": chosen("f")}, VALUE, "tool_choice"),
    ({"tool_choice": "perhaps"}, VALUE, "tool_choice"),
    ({"tool_choice": 5}, SHAPE, "tool_choice"),
    ({"tool_choice": {}}, SHAPE, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, VALUE, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}}, SHAPE, "tool_choice.function"),
    ({"tool_choice": {"type": "function", "function": {}}}, SHAPE, "tool_choice.function.name"),
    ({"tools": [tool()], "tool_choice": chosen("g")}, UNKNOWN, "tool_choice"),
    ({"tools": [tool()], "tool_choice": "perhaps"}, VALUE, "tool_choice"),
    ({"tools": [tool()], "parallel_tool_calls": 1}, SHAPE, "parallel_tool_calls"),
    ({"tools": [tool()], "tool_choice": allowed("auto")}, VALUE, ALLOWED),
    ({"tools": [tool()], "tool_choice": allowed("auto", "f", "g")}, UNKNOWN, f"{ALLOWED}[1]"),
    ({"tool_choice": allowed("auto", "f")}, UNKNOWN, f"{ALLOWED}[0]"),
    (
        {"tools": [tool()], "tool_choice": allowed("none", "f")},
        VALUE,
        "tool_choice.allowed_tools.mode",
    ),
    # legacy functions
    ({"functions": 5}, SHAPE, "functions"),
    ({"functions": [{}]}, SHAPE, "functions[0].name"),
    ({"functions": [{"name": "a b"}]}, TOOL, "functions[0].name"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, TOOL, "functions[1]"),
    ({"functions": [{"name": "f", "parameters": []}]}, SCHEMA, "functions[0].parameters"),
    ({"functions": [{"name": "f"}], "tools": [tool()]}, VALUE, "functions"),
    ({"functions": [{"name": "f"}], "tool_choice": "required"}, VALUE, "tool_choice"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, UNKNOWN, "function_call"),
    ({"functions": [{"name": "f"}], "function_call": "required"}, VALUE, "function_call"),
    ({"functions": [{"name": "f"}], "function_call": {}}, SHAPE, "function_call.name"),
    ({"functions": [{"name": "f"}], "function_call": 5}, SHAPE, "function_call"),
    ({"function_call": {"name": "f"}}, VALUE, "function_call"),
    ({"tools": [tool()], "function_call": {"name": "f"}}, VALUE, "function_call"),
    (turn(role="assistant", function_call={}), SHAPE, "messages[1].function_call.name"),
    (turn(role="function", content="x"), SHAPE, "messages[1].name"),
    # the form of the answer
    ({"response_format": "json_object"}, SHAPE, "response_format"),
    ({"response_format": {}}, SHAPE, "response_format.type"),
    ({"response_format": {"type": "poem"}}, VALUE, "response_format.type"),
    (form("json_schema"), SHAPE, "response_format.json_schema"),
    (form("json_schema", json_schema={}), VALUE, SCHEMA_FIELD),
    (form("json_schema", json_schema={"schema": None}), VALUE, SCHEMA_FIELD),
    (form("json_schema", json_schema={"schema": "x"}), "invalid_json_schema", SCHEMA_FIELD),
    (form("json_schema", json_schema={"schema": DEEP}), VALUE, SCHEMA_FIELD),
    (form("grammar"), SHAPE, "response_format.grammar"),
    (form("grammar", grammar=5), SHAPE, "response_format.grammar"),
    (form("grammar", grammar=""), VALUE, "response_format.grammar"),
    (form("grammar", grammar={}), SHAPE, "response_format.grammar.definition"),
    (
        form("grammar", grammar={"syntax": "lark", "definition": "x"}),
        VALUE,
        "response_format.grammar.syntax",
    ),
    (form("structural_tag"), SHAPE, "response_format.format"),
    (form("structural_tag", structures=[]), SHAPE, "response_format.format"),
    (form("structural_tag", format=[]), SHAPE, "response_format.format"),
    (form("structural_tag", format=DEEP), VALUE, "response_format.format"),
    ({"regex": 5}, SHAPE, "regex"),
    ({"regex": ""}, VALUE, "regex"),
    # flags of this model that are off
    (form("grammar", grammar="root ::= x"), PARAMETER, "response_format"),
    (form("structural_tag", format={}), PARAMETER, "response_format"),
    ({"regex": "a+"}, PARAMETER, "regex"),
]


@pytest.mark.rule("chat.tool-types", "chat.reasoning-unknown", "chat.odd-conversations")
@pytest.mark.parametrize(("fields", "code", "param"), BAD_FIELDS)
def test_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    error = caught.value.info()
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"`{param}`" in error.message
    assert "secret" not in error.message
    assert caught.value.__context__ is None, "pydantic's error quotes the input"


@pytest.mark.rule("chat.other-parts")
def test_a_part_that_is_not_supported_is_named() -> None:
    for found, named in (("input_audio", "is `input_audio`, which"), ("<b> secret", "must be one")):
        with pytest.raises(RequestError) as caught:
            chat(**part("user", type=found))
        assert caught.value.message.startswith(f"`messages[0].content[1].type` {named}")


@pytest.mark.parametrize("body", [None, [], "text", 5, True])
def test_a_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(RequestError) as caught:
        normalise(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json_request")


@pytest.mark.rule("chat.model", "chat.messages")
def test_required_fields() -> None:
    for body, param in (({"messages": [USER]}, "model"), ({"model": "m"}, "messages")):
        with pytest.raises(RequestError) as caught:
            normalise(body)
        assert (caught.value.code, caught.value.param) == (SHAPE, param)


@pytest.mark.rule("chat.unknown-fields")
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none", "function_call": "none", "functions": []},
        {"response_format": {"type": "text"}},
        {"response_format": None, "regex": None, "tools": None, "tool_choice": None},
        {
            "user": "u",
            "metadata": {"a": "b"},
            "store": False,
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "prompt_cache_options": {},
            "prompt_cache_retention": "24h",
            "service_tier": "auto",
            "verbosity": "low",
            "prediction": {"type": "content", "content": "x"},
            "moderation": {},
            "web_search_options": {},
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy"},
            "stream_options": {"include_obfuscation": False},
            "some_future_field": [1],
        },
    ],
)
def test_fields_without_effect_are_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.rule("chat.null-is-absent")
def test_null_is_absent_for_every_optional_field() -> None:
    nulls: dict[str, Any] = dict.fromkeys(ChatRequest.model_fields.keys() - {"model", "messages"})
    assert chat(**nulls) == chat()


def test_deep_template_options_are_refused_without_recursion() -> None:
    deep = orjson.loads(b'{"a":' * 900 + b"1" + b"}" * 900)
    with pytest.raises(RequestError) as caught:
        chat(chat_template_kwargs=deep)
    assert (caught.value.code, caught.value.param) == (VALUE, "chat_template_kwargs")
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    with pytest.raises(RequestError) as caught:
        messages(USER, {"role": "assistant", "tool_calls": [call]})
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_identity_and_clock_come_from_the_context() -> None:
    job = chat()
    assert (job.job_id, job.request_id, job.model) == ("job-1", "req_a1b2c3d4e5f6", "GLM-5.3")
    assert (job.created_at, job.deadline, job.queue_deadline) == (1.0, 61.0, 31.0)
    assert job.attempt == 1
