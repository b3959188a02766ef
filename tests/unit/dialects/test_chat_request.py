"""Which bodies are refused, with which code and param, and what is made of the others."""

from typing import Any

import msgspec
import orjson
import pytest

from ingress.dialects.base import JobContext
from ingress.dialects.chat import Chat
from ingress.dialects.chat_request import ChatRequest
from ingress.dialects.profile import OFFICIAL as OFFICIAL_PROFILE
from schemas.codec import decode_job, encode_job
from schemas.errors import RequestError
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.message import ImageLink, Message, TextPart, ToolCall
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from schemas.sampling import OutputLimit
from tests.unit.dialects.transcripts import CARD, CONTEXT

USER = {"role": "user", "content": "secret words"}
CALL = {"id": "call_9", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def normalise(body: Any, card: ModelCard = CARD, context: JobContext = CONTEXT) -> Job:
    chat = Chat()
    job = chat.normalise(chat.parse(body), card, context).job
    assert decode_job(encode_job(job)) == job, "every Job must survive the broker"
    return job


def chat(card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any) -> Job:
    return normalise({"model": "glm-5.3", "messages": [USER], **fields}, card, context)


def messages(*turns: Any, card: ModelCard = CARD) -> tuple[Message, ...]:
    prompt = chat(card, messages=list(turns)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def reasoning(card: ModelCard = CARD, context: JobContext = CONTEXT, **fields: Any) -> Reasoning:
    prompt = chat(card, context, **fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.reasoning


def card(**changes: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, **changes)


def thinker(*efforts: Any, default: Any) -> ModelCard:
    support = ReasoningSupport(efforts=efforts, default=default)
    return card(capabilities=Capabilities(reasoning=support))


SHAPE = "schema_validation_failed"
VALUE = "unsupported_value"
PARAMETER = "unsupported_parameter"
TOOL = "invalid_tool"
SCHEMA = "tool_schema_invalid"
UNKNOWN = "tool_choice_unknown_tool"

ALLOWED = "tool_choice.allowed_tools.tools"
SCHEMA_FIELD = "response_format.json_schema.schema"
DEEP: dict[str, Any] = orjson.loads(
    b'{"type":"object","properties":{"a":' * 400 + b"{}" + b"}}" * 400
)


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, fields]}


def part(role: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}, fields]
    return {"messages": [{"role": role, "content": content, "tool_call_id": "c"}]}


def tool(*, type: str = "function", **function: Any) -> dict[str, Any]:
    return {"type": type, "function": {"name": "f", **function}}


def custom(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "note", **fields}}


def chosen(name: str, type: str = "function") -> dict[str, Any]:
    return {"type": type, type: {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [chosen(name) for name in names]},
    }


def form(type: str, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": type, **fields}}


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


@pytest.mark.parametrize(("fields", "code", "param"), BAD_FIELDS)
def test_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    error = caught.value.info()
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"`{param}`" in error.message
    assert "secret" not in error.message
    assert caught.value.__context__ is None, "pydantic's error quotes the input"


@pytest.mark.parametrize("body", [None, [], "text", 5, True])
def test_a_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(RequestError) as caught:
        normalise(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json_request")


def test_required_fields() -> None:
    for body, param in (({"messages": [USER]}, "model"), ({"model": "m"}, "messages")):
        with pytest.raises(RequestError) as caught:
            normalise(body)
        assert (caught.value.code, caught.value.param) == (SHAPE, param)


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


# --- Messages ------------------------------------------------------------------------------------


def said(text: str) -> tuple[TextPart, ...]:
    return (TextPart(text=text),)


def test_roles_and_parts() -> None:
    turns = messages(
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        {"role": "system", "content": "And kind.", "name": "boss"},
        {"role": "user", "content": "a\x00b"},
        {"role": "user", "content": ""},
        {
            "role": "assistant",
            "content": "hm",
            "reasoning_content": "thought",
            "audio": {"id": "x"},
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "Never.", "tool_calls": None},
    )
    assert turns == (
        Message(role="system", parts=said("Be brief.")),
        Message(role="system", parts=said("And kind."), name="boss"),
        Message(role="user", parts=said("a\x00b")),
        Message(role="user"),
        Message(role="assistant", parts=said("hm"), reasoning="thought"),
        Message(role="assistant", parts=said("No.")),
        Message(role="assistant", parts=said("Never.")),
    )


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_any_single_turn_is_served(role: Any) -> None:
    assert messages({"role": role, "content": "x"}) == (Message(role=role, parts=said("x")),)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_every_spelling_of_no_content_beside_calls(content: dict[str, Any]) -> None:
    turns = messages(
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "call_9", "content": [{"type": "text", "text": "up"}]},
    )
    assert turns == (
        Message(
            role="assistant", tool_calls=(ToolCall(id="call_9", name="probe", arguments="{}"),)
        ),
        Message(role="tool", parts=said("up"), tool_call_id="call_9"),
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":1}', '{"a":1}'), ({"a": [1]}, '{"a":[1]}'), ("", "{}"), (None, "{}"), ("{cut", "{cut")],
)
def test_arguments_sent_back(arguments: Any, text: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    (only,) = messages({"role": "assistant", "tool_calls": [call]})
    assert only.tool_calls == (ToolCall(id="c", name="f", arguments=text),)


def test_images_are_left_out_on_a_model_without_vision() -> None:
    text = {"type": "text", "text": "What is this?"}
    assert messages({"role": "user", "content": [text, IMAGE]}) == (
        Message(role="user", parts=said("What is this?")),
    )
    assert messages({"role": "user", "content": [IMAGE]}) == (Message(role="user"),)


SEEING = card(capabilities=Capabilities(vision=True))


def test_images_keep_their_places_on_a_model_with_vision() -> None:
    def text(text: str) -> dict[str, str]:
        return {"type": "text", "text": text}

    photo = {
        "type": "image_url",
        "image_url": {"url": "https://pics.example/a.png", "detail": "high"},
    }
    content = [text("One "), text("two"), IMAGE, photo, text("three"), text("")]
    assert messages(USER, {"role": "user", "content": content}, card=SEEING)[1].parts == (
        TextPart(text="One two"),
        ImageLink(url="data:image/png;base64,AA==", param="messages[1].content[2].image_url.url"),
        ImageLink(url="https://pics.example/a.png", param="messages[1].content[3].image_url.url"),
        TextPart(text="three"),
    )


def test_an_image_file_cannot_be_used_where_it_would_be_seen() -> None:
    filed = {"type": "image_url", "image_url": {"file_id": "file-1"}}
    with pytest.raises(RequestError) as caught:
        messages({"role": "user", "content": [filed]}, card=SEEING)
    assert (caught.value.code, caught.value.param) == (
        VALUE,
        "messages[0].content[0].image_url.file_id",
    )
    assert messages({"role": "user", "content": [filed]}) == (Message(role="user"),)


# --- Sampling and output length ------------------------------------------------------------------


def test_sampling_reaches_the_job() -> None:
    sampling = chat(
        n=2,
        temperature=1,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        seed=-7,
        logit_bias={"5": -100, "17": 3.5},
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=20,
    ).sampling
    assert (sampling.n, sampling.seed, sampling.top_k, sampling.min_p) == (2, -7, 40, 0.05)
    assert (sampling.temperature, sampling.top_p) == (1.0, 0.9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 0.5)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((5, -100.0), (17, 3.5))
    assert sampling.stop.strings == ("a", "b")
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 20)


def test_four_fields_are_dropped_where_the_model_sets_them_itself() -> None:
    own = card(honors_sampling=False)
    dropped: dict[str, Any] = {
        "temperature": 1,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": 1,
    }
    kept: dict[str, Any] = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 4,
        "stop": "x",
    }
    assert chat(own, **dropped, **kept) == chat(own, **kept)
    sampling = chat(own, **kept).sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (3, 0.1, 1.2)
    assert (sampling.seed, sampling.stop.strings) == (4, ("x",))


def test_a_top_k_beyond_the_vocabulary_is_the_vocabulary() -> None:
    assert chat(top_k=10**18).sampling.top_k == CARD.vocab_size
    assert chat(card(vocab_size=0), top_k=10**18).sampling.top_k == 2**30
    assert chat(top_k=-1).sampling.top_k == -1


@pytest.mark.parametrize(
    ("fields", "capabilities", "param"),
    [
        ({"n": 2}, Capabilities(n=False), "n"),
        ({"logprobs": True}, Capabilities(logprobs=False), "logprobs"),
    ],
)
def test_capabilities_gate(fields: dict[str, Any], capabilities: Capabilities, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(card(capabilities=capabilities), **fields)
    assert (caught.value.code, caught.value.param) == (VALUE, param)
    assert chat(card(capabilities=capabilities), n=1, logprobs=False) is not None


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, OutputLimit(max_tokens=65_536, fallback_tokens=65_536)),
        ({"max_tokens": 5}, OutputLimit(max_tokens=5, fallback_tokens=65_536)),
        ({"max_completion_tokens": 9}, OutputLimit(max_tokens=9, fallback_tokens=65_536)),
        (
            {"max_tokens": 5, "max_completion_tokens": 9},
            OutputLimit(max_tokens=5, fallback_tokens=65_536),
        ),
        ({"max_tokens": 10**18}, OutputLimit(max_tokens=65_536, fallback_tokens=65_536)),
        ({"max_tokens": 1e30}, OutputLimit(max_tokens=65_536, fallback_tokens=65_536)),
        ({"max_tokens": 131_073}, OutputLimit(max_tokens=65_536, fallback_tokens=65_536)),
        ({"max_tokens": 131_072}, OutputLimit(max_tokens=131_072, fallback_tokens=65_536)),
    ],
)
def test_output_length(fields: dict[str, Any], limit: OutputLimit) -> None:
    assert chat(**fields).sampling.limit == limit


# --- Reasoning -----------------------------------------------------------------------------------

OFFICIAL = msgspec.structs.replace(CONTEXT, profile=OFFICIAL_PROFILE)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Reasoning(effort="low")),
        ({"reasoning_effort": "high"}, Reasoning(effort="high")),
        ({"reasoning": {"effort": "high"}}, Reasoning(effort="high")),
        ({"reasoning": {"summary": "auto"}}, Reasoning(effort="low")),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, Reasoning(effort="low")),
        ({"thinking": {"type": "adaptive"}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, Reasoning(effort="low")),
        *(
            (off, Reasoning(effort="none", visible=False))
            for off in (
                {"reasoning_effort": "none"},
                {"reasoning": {"effort": "none"}},
                {"thinking": {"type": "disabled"}},
                {"chat_template_kwargs": {"enable_thinking": False}},
            )
        ),
        # precedence
        (
            {
                "reasoning_effort": "high",
                "reasoning": {"effort": "none"},
                "thinking": {"type": "disabled"},
            },
            Reasoning(effort="high"),
        ),
        (
            {"reasoning": {"effort": "high"}, "thinking": {"type": "disabled"}},
            Reasoning(effort="high"),
        ),
        (
            {
                "thinking": {"type": "disabled"},
                "chat_template_kwargs": {"enable_thinking": True},
            },
            Reasoning(effort="none", visible=False),
        ),
    ],
)
def test_reasoning_controls(fields: dict[str, Any], expected: Reasoning) -> None:
    assert reasoning(**fields) == expected


def test_minimal_effort_is_a_matter_of_profile() -> None:
    assert reasoning(context=OFFICIAL, reasoning_effort="minimal") == Reasoning(effort="low")
    assert reasoning(context=OFFICIAL, reasoning={"effort": "minimal"}) == Reasoning(effort="low")


def test_a_model_without_reasoning_ignores_the_controls() -> None:
    plain = card(capabilities=Capabilities())
    assert reasoning(plain, reasoning_effort="high") == Reasoning()
    assert reasoning(plain, thinking={"type": "disabled"}) == Reasoning()


def test_headroom_is_added_while_reasoning_is_on() -> None:
    roomy = card(reasoning_headroom=24_576)
    assert chat(roomy, max_tokens=100).sampling.limit.max_tokens == 24_676
    assert chat(roomy, max_tokens=100, reasoning_effort="none").sampling.limit.max_tokens == 100


def test_the_effort_replaces_the_templates_own_switch() -> None:
    job = chat(
        reasoning_effort="high", chat_template_kwargs={"enable_thinking": False, "style": "x"}
    )
    assert isinstance(job.prompt, ChatPrompt)
    assert job.prompt.template_options == {"style": "x"}
    plain = chat(card(capabilities=Capabilities()), chat_template_kwargs={"enable_thinking": False})
    assert isinstance(plain.prompt, ChatPrompt)
    assert plain.prompt.template_options == {"enable_thinking": False}


def test_identity_and_clock_come_from_the_context() -> None:
    job = chat()
    assert (job.job_id, job.request_id, job.model) == ("job-1", "req_a1b2c3d4e5f6", "GLM-5.3")
    assert (job.created_at, job.deadline, job.queue_deadline) == (1.0, 61.0, 31.0)
    assert job.attempt == 1
