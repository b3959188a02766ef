"""Which bodies are refused, with which code and param, and what is made of the others."""

from typing import Any

import orjson
import pytest

from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from ingress.dialects.responses import Responses
from ingress.dialects.responses_request import ResponsesBody
from schemas.errors import RequestError
from schemas.job import Reasoning
from schemas.model_card import Capabilities, ModelCard
from schemas.sampling import JsonObject, JsonSchema, OutputLimit, StopConditions
from tests.unit.dialects.responses_fixtures import (
    card,
    job,
    messages,
    normalise,
    prompt,
    said,
    thinker,
)
from tests.unit.dialects.transcripts import CARD

SHAPE = "schema_validation_failed"
VALUE = "unsupported_value"
PARAMETER = "unsupported_parameter"
ITEM = "unsupported_input_item"

USER = {"type": "message", "role": "user", "content": "secret words"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "secret words"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def part(**fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "a"}, fields]
    return {"input": [{"type": "message", "role": "user", "content": content}]}


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    # shape of the body
    ({"model": 5}, SHAPE, "model"),
    ({"model": None}, SHAPE, "model"),
    ({"input": None}, SHAPE, "input"),
    ({"input": 5}, SHAPE, "input"),
    ({"input": {}}, SHAPE, "input"),
    ({"input": []}, VALUE, "input"),
    ({"input": [{"type": "reasoning"}]}, VALUE, "input"),
    ({"instructions": ["x"]}, SHAPE, "instructions"),
    ({"stream": "yes"}, SHAPE, "stream"),
    ({"parallel_tool_calls": "no"}, SHAPE, "parallel_tool_calls"),
    ({"include": "all"}, SHAPE, "include"),
    # what is not stored
    ({"previous_response_id": "resp_1"}, PARAMETER, "previous_response_id"),
    ({"conversation": "conv_1"}, PARAMETER, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, PARAMETER, "prompt"),
    # items
    ({"input": ["hi"]}, SHAPE, "input[0]"),
    ({"input": [None]}, SHAPE, "input[0]"),
    (item(role="user", content="x"), ITEM, "input[1].type"),
    (item(content="x"), ITEM, "input[1].type"),
    (item(type=None, content="x"), ITEM, "input[1].type"),
    (item(type=5), ITEM, "input[1].type"),
    (item(type="wish"), ITEM, "input[1].type"),
    (item(type="message", content="x"), SHAPE, "input[1].role"),
    (item(type="message", role="wizard", content="x"), VALUE, "input[1].role"),
    (item(type="message", role="tool", content="x"), VALUE, "input[1].role"),
    (item(type="message", role="user"), SHAPE, "input[1].content"),
    (item(type="message", role="user"), SHAPE, "input[1].content"),
    (item(type="message", role="user", content=5), SHAPE, "input[1].content"),
    (item(**{**CALL, "call_id": None}), SHAPE, "input[1].call_id"),
    (item(**{**CALL, "name": 5}), SHAPE, "input[1].name"),
    (item(**{**CALL, "arguments": 5}), SHAPE, "input[1].arguments"),
    (item(**{**CALL, "namespace": 5}), SHAPE, "input[1].namespace"),
    (item(type="function_call_output", output="x"), SHAPE, "input[1].call_id"),
    (item(type="function_call_output", call_id="c"), SHAPE, "input[1].output"),
    (item(**{**RESULT, "output": None}), SHAPE, "input[1].output"),
    (item(**{**RESULT, "output": 5}), SHAPE, "input[1].output"),
    (item(**{**RESULT, "output": {"content": 5}}), SHAPE, "input[1].output.content"),
    (item(**{**RESULT, "output": [{"type": "input_file"}]}), ITEM, "input[1].output[0].type"),
    (item(type="custom_tool_call", call_id="c", name="f"), SHAPE, "input[1].input"),
    (item(type="shell_call", call_id="c"), SHAPE, "input[1].action"),
    (item(type="shell_call", action={}), SHAPE, "input[1].call_id"),
    (item(type="shell_call_output", call_id="c", output=5), SHAPE, "input[1].output"),
    (item(type="local_shell_call_output", output="x"), SHAPE, "input[1].call_id"),
    (item(type="apply_patch_call", call_id="c", operation=5), SHAPE, "input[1].operation"),
    # parts
    (part(text="x"), SHAPE, "input[0].content[1].type"),
    (part(type="input_text"), SHAPE, "input[0].content[1].text"),
    (part(type="input_text", text=5), SHAPE, "input[0].content[1].text"),
    (part(type="refusal"), SHAPE, "input[0].content[1].refusal"),
    (part(type="input_file", file_id="x"), ITEM, "input[0].content[1].type"),
    (part(type="input_audio"), ITEM, "input[0].content[1].type"),
    (part(type="wish"), ITEM, "input[0].content[1].type"),
    (part(type=5), ITEM, "input[0].content[1].type"),
    ({"input": [{**USER, "content": ["x"]}]}, SHAPE, "input[0].content[0]"),
    # numbers
    ({"max_output_tokens": 0}, VALUE, "max_output_tokens"),
    ({"max_output_tokens": -5}, VALUE, "max_output_tokens"),
    ({"max_output_tokens": 5.5}, VALUE, "max_output_tokens"),
    ({"max_output_tokens": "5"}, SHAPE, "max_output_tokens"),
    ({"max_output_tokens": True}, SHAPE, "max_output_tokens"),
    ({"temperature": "hot"}, SHAPE, "temperature"),
    ({"temperature": 2.1}, VALUE, "temperature"),
    ({"temperature": float("nan")}, VALUE, "temperature"),
    ({"top_p": 0}, VALUE, "top_p"),
    ({"top_k": 0}, VALUE, "top_k"),
    ({"min_p": 1.5}, VALUE, "min_p"),
    ({"repetition_penalty": 0}, VALUE, "repetition_penalty"),
    ({"seed": 2**63}, VALUE, "seed"),
    ({"seed": "1"}, SHAPE, "seed"),
    ({"top_logprobs": 21}, VALUE, "top_logprobs"),
    ({"stop": ""}, VALUE, "stop"),
    ({"stop": ["a"] * 65}, VALUE, "stop"),
    ({"stop": 5}, SHAPE, "stop"),
    # reasoning and form
    ({"reasoning": "high"}, SHAPE, "reasoning"),
    ({"reasoning": {"effort": 5}}, SHAPE, "reasoning.effort"),
    ({"text": "json"}, SHAPE, "text"),
    ({"text": {"format": "json"}}, SHAPE, "text.format"),
    ({"text": {"format": {}}}, SHAPE, "text.format.type"),
    ({"text": {"format": {"type": "poem"}}}, VALUE, "text.format.type"),
    ({"text": {"format": {"type": "grammar"}}}, VALUE, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, VALUE, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "schema": 5}}},
        "invalid_json_schema",
        "text.format.schema",
    ),
]


@pytest.mark.rule(
    "responses.input",
    "responses.previous-response",
    "responses.conversation",
    "responses.item-needs-type",
    "responses.unsupported-items",
    "responses.unsupported-parts",
)
@pytest.mark.parametrize(("fields", "code", "param"), BAD_FIELDS)
def test_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        job(**fields)
    error = caught.value.info()
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"`{param}`" in error.message
    assert "secret" not in error.message
    assert caught.value.__context__ is None, "pydantic's error quotes the input"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", 3, "`temperature` must be at most 2."),
        ("top_p", 0, "`top_p` must be greater than 0."),
        ("seed", 2**63, "`seed` must be less than 9223372036854775808."),
    ],
)
def test_limits_are_told_in_plain_numbers(field: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        job(**{field: value})
    assert caught.value.message == message


@pytest.mark.parametrize("body", [None, [], "text", 5, True])
def test_a_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Responses().parse(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json_request")


@pytest.mark.rule("responses.required")
def test_required_fields() -> None:
    for body, param in (({"input": "x"}, "model"), ({"model": "m"}, "input")):
        with pytest.raises(RequestError) as caught:
            normalise(body=body)
        assert (caught.value.code, caught.value.param) == (SHAPE, param)


@pytest.mark.rule("responses.no-effect", "responses.unknown-fields")
@pytest.mark.parametrize(
    "fields",
    [
        {"store": True, "background": True, "truncation": "auto", "metadata": {"a": "b"}},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"include": [], "tools": [], "tool_choice": "auto", "reasoning": None},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"text": {}, "stream_options": {"include_obfuscation": False}},
        {
            "prompt_cache_key": "k",
            "prompt_cache_options": {},
            "user": "u",
            "safety_identifier": "s",
            "service_tier": "flex",
            "client_metadata": {"x": "y"},
            "max_tool_calls": 3,
            "context_management": [],
            "moderation": {},
            "top_logprobs": 3,
            "some_future_field": [1],
        },
    ],
)
def test_fields_without_effect_are_accepted(fields: dict[str, Any]) -> None:
    assert job(**fields) == job()


def test_null_is_absent_for_every_optional_field() -> None:
    nulls: dict[str, Any] = dict.fromkeys(ResponsesBody.model_fields.keys() - {"model", "input"})
    assert job(**nulls) == job()


@pytest.mark.parametrize(
    "field", ["input", "tools", "tool_choice", "metadata", "user", "prompt_cache_key", "text"]
)
def test_deep_json_is_refused_without_recursion(field: str) -> None:
    deep = orjson.loads(b'{"a":' * 900 + b"1" + b"}" * 900)
    value = [deep] if field in ("input", "tools") else deep
    if field == "text":
        value = {"format": {"type": "json_schema", "schema": deep}}
    with pytest.raises(RequestError) as caught:
        job(**{field: value})
    assert (caught.value.status, caught.value.code) == (400, VALUE)


# --- Reasoning -----------------------------------------------------------------------------------


def reasoning(card: ModelCard, profile: Profile = WAFER, **fields: Any) -> Reasoning:
    return prompt(card, profile, **fields).reasoning


THINKER = thinker("none", "low", "medium", "high", "max", default="medium")


@pytest.mark.rule("responses.effort")
@pytest.mark.parametrize(
    ("effort", "tier"),
    [("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "max"), ("max", "max")],
)
def test_an_effort_turns_reasoning_on(effort: str, tier: str) -> None:
    for profile in (WAFER, OFFICIAL):
        found = reasoning(THINKER, profile, reasoning={"effort": effort})
        assert (found.effort, found.visible) == (tier, True)


@pytest.mark.rule("responses.effort-off", "responses.effort-unknown")
@pytest.mark.parametrize(
    "options",
    [
        {"effort": "none"},
        {"effort": "minimal"},
        {"effort": "ultra"},
        {"effort": ""},
        {"effort": None},
        {"summary": "auto"},
        {},
    ],
)
def test_anything_else_turns_reasoning_off(options: Any) -> None:
    assert not reasoning(THINKER, reasoning=options).enabled


@pytest.mark.rule("responses.effort-default")
@pytest.mark.parametrize("fields", [{}, {"reasoning": None}])
def test_without_a_word_the_model_decides(fields: Any) -> None:
    assert reasoning(THINKER, **fields).effort == "medium"


@pytest.mark.rule("responses.official-effort")
def test_profile_official_knows_minimal_and_refuses_the_unknown() -> None:
    assert reasoning(THINKER, OFFICIAL, reasoning={"effort": "minimal"}).effort == "low"
    assert not reasoning(THINKER, OFFICIAL, reasoning={"summary": "auto"}).enabled
    with pytest.raises(RequestError) as caught:
        reasoning(THINKER, OFFICIAL, reasoning={"effort": "ultra"})
    assert (caught.value.code, caught.value.param) == (VALUE, "reasoning.effort")


def test_a_model_that_always_reasons_does_so_unseen() -> None:
    found = reasoning(thinker("low", "high", default="high"), reasoning={"effort": "none"})
    assert (found.effort, found.visible) == ("low", False)


def test_efforts_mean_nothing_to_a_model_that_does_not_reason() -> None:
    plain = card(capabilities=Capabilities())
    assert reasoning(plain, reasoning={"effort": "high"}) == Reasoning()


# --- The form of the answer ----------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "name": "person", "strict": True, "schema": SCHEMA}


@pytest.mark.rule("responses.text-format")
def test_the_form_restricts_the_answer() -> None:
    assert job(text={"format": {"type": "text"}}).sampling.constraint is None
    assert job(text={"format": {"type": "json_object"}}).sampling.constraint == JsonObject()
    found = job(text={"format": FORMAT}).sampling.constraint
    assert found == JsonSchema(schema=SCHEMA)


@pytest.mark.rule("responses.text-format-and-tools")
@pytest.mark.parametrize(
    ("choice", "restricted"),
    [
        (None, True),
        ("auto", True),
        ("none", True),
        ("required", False),
        ({"type": "function", "name": "f"}, False),
    ],
)
def test_a_forced_call_wins_over_the_form(choice: Any, restricted: bool) -> None:
    found = job(tools=[FUNCTION], tool_choice=choice, text={"format": FORMAT})
    assert (found.sampling.constraint is not None) is restricted


@pytest.mark.parametrize("form", [{"type": "json_object"}, FORMAT])
def test_a_form_that_the_model_cannot_keep_is_refused(form: Any) -> None:
    unable = card(capabilities=Capabilities(json_object=False, json_schema=False))
    with pytest.raises(RequestError) as caught:
        job(unable, text={"format": form})
    # As in the other dialects.
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "text.format")


# --- Sampling and output length ------------------------------------------------------------------


@pytest.mark.rule("responses.sampling", "responses.extensions")
def test_sampling_reaches_the_job() -> None:
    sampling = job(
        temperature=1,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        seed=-7,
        stop=["a", "b"],
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.9, 40)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.05, 1.1, -7)
    assert sampling.stop == StopConditions(strings=("a", "b"))
    assert sampling.n == 1
    assert job(stop="x").sampling.stop.strings == ("x",)
    assert job(top_k=-1).sampling.top_k == -1
    assert job(top_k=10**6).sampling.top_k == CARD.vocab_size


@pytest.mark.rule("responses.fixed-sampling")
def test_fixed_sampling_of_a_model_stays() -> None:
    own = card(honors_sampling=False)
    assert job(own, temperature=1, top_p=0.5, seed=4, top_k=3) == job(own, seed=4, top_k=3)
    assert normalise(own, temperature=1).ignored == ()
    assert normalise(own, OFFICIAL, temperature=1, top_p=0.5).ignored == ("temperature", "top_p")


@pytest.mark.rule("responses.output-limit")
def test_the_limit_is_not_dropped_when_it_does_not_fit() -> None:
    assert job(max_output_tokens=64).sampling.limit == OutputLimit(max_tokens=64)
    default = card().default_output_tokens
    assert job().sampling.limit == OutputLimit(
        max_tokens=default, fallback_tokens=default, by_default=True
    )
    capped = card(max_output_tokens=32)
    assert job(capped, max_output_tokens=64).sampling.limit == OutputLimit(max_tokens=32)


@pytest.mark.rule("responses.logprobs")
def test_log_probabilities_have_to_be_included() -> None:
    include = ["message.output_text.logprobs"]
    asked = job(include=include, top_logprobs=3).sampling
    assert (asked.logprobs, asked.top_logprobs) == (True, 3)
    bare = job(include=include).sampling
    assert (bare.logprobs, bare.top_logprobs) == (True, 0)
    unasked = job(top_logprobs=3).sampling
    assert (unasked.logprobs, unasked.top_logprobs) == (False, 0)
    with pytest.raises(RequestError) as caught:
        job(card(capabilities=Capabilities(logprobs=False)), include=include)
    assert (caught.value.code, caught.value.param) == (VALUE, "include")


# --- Beginnings and counting ---------------------------------------------------------------------


@pytest.mark.rule("responses.instructions")
def test_instructions_come_first() -> None:
    (first, second) = prompt(instructions="Be brief.", input="Hi").messages
    assert (first.role, first.parts) == ("system", said("Be brief."))
    assert (second.role, second.parts) == ("user", said("Hi"))
    developer = {"type": "message", "role": "developer", "content": "Say TEAPOT."}
    found = messages(developer, USER, instructions="Be brief.")
    assert [(message.role, message.text) for message in found] == [
        ("system", "Be brief."),
        ("system", "Say TEAPOT."),
        ("user", "secret words"),
    ]


def test_empty_texts_are_served() -> None:
    (empty,) = prompt(input="").messages
    assert (empty.role, empty.parts) == ("user", ())
    assert prompt(input="x", instructions="").messages == prompt(input="x").messages


@pytest.mark.rule("responses.count")
def test_counting_takes_the_same_body_and_answers_with_a_number() -> None:
    dialect = Responses()
    body = {"model": "m", "input": "Hi", "tools": [FUNCTION]}
    assert dialect.parse_count(body) == dialect.parse(body)
    assert orjson.loads(dialect.count_body(11)) == {
        "object": "response.input_tokens",
        "input_tokens": 11,
    }
