"""Which Messages bodies are refused, with which code and param, and what is made of the others."""

from typing import Any

import msgspec
import pytest

from ingress.dialects.messages import Messages
from ingress.dialects.profile import OFFICIAL, Profile
from schemas.codec import decode_job, encode_job
from schemas.errors import RequestError
from schemas.job import ChatPrompt, Job, Reasoning
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from schemas.sampling import JsonSchema
from tests.unit.dialects.transcripts import CARD, CONTEXT

USER = {"role": "user", "content": "secret words"}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
PNG = {"type": "base64", "media_type": "image/png", "data": "AA=="}

SHAPE = "schema_validation_failed"
VALUE = "unsupported_value"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "glm-5.3", "max_tokens": 100, "messages": [USER], **fields}


def job(card: ModelCard = CARD, profile: Profile | None = None, **fields: Any) -> Job:
    messages = Messages()
    context = msgspec.structs.replace(CONTEXT, profile=profile) if profile else CONTEXT
    made = messages.normalise(messages.parse(body(**fields)), card, context).job
    assert decode_job(encode_job(made)) == made, "every Job must survive the broker"
    return made


def prompt(card: ModelCard = CARD, profile: Profile | None = None, **fields: Any) -> ChatPrompt:
    made = job(card, profile, **fields).prompt
    assert isinstance(made, ChatPrompt)
    return made


def reasoning(card: ModelCard = CARD, **fields: Any) -> Reasoning:
    return prompt(card, **fields).reasoning


def card(**changes: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, **changes)


def thinker(*efforts: Any, default: Any) -> ModelCard:
    support = ReasoningSupport(efforts=efforts, default=default)
    return card(capabilities=Capabilities(tools=True, reasoning=support))


def refused(card: ModelCard = CARD, profile: Profile | None = None, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        job(card, profile, **fields)
    assert "secret" not in raised.value.message
    return raised.value


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.rule("messages.required-fields", "messages.max-tokens")
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, SHAPE, "model"),
        ({"model": 5}, SHAPE, "model"),
        ({"messages": None}, SHAPE, "messages"),
        ({"messages": "hi"}, SHAPE, "messages"),
        ({"messages": []}, VALUE, "messages"),
        ({"messages": ["hi"]}, SHAPE, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, SHAPE, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, VALUE, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, SHAPE, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, SHAPE, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, SHAPE, "messages[0].content[0]"),
        ({"max_tokens": None}, SHAPE, "max_tokens"),
        ({"max_tokens": "5"}, SHAPE, "max_tokens"),
        ({"max_tokens": True}, SHAPE, "max_tokens"),
        ({"max_tokens": 1.5}, VALUE, "max_tokens"),
        ({"max_tokens": 0}, VALUE, "max_tokens"),
        ({"max_tokens": -5}, VALUE, "max_tokens"),
        ({"system": 5}, SHAPE, "system"),
        ({"system": [5]}, SHAPE, "system[0]"),
        ({"system": [{"type": "image", "source": PNG}]}, VALUE, "system[0].type"),
        ({"temperature": "hot"}, SHAPE, "temperature"),
        ({"temperature": -0.1}, VALUE, "temperature"),
        ({"temperature": 2.1}, VALUE, "temperature"),
        ({"top_p": 0}, VALUE, "top_p"),
        ({"top_p": 1.1}, VALUE, "top_p"),
        ({"top_k": -2}, VALUE, "top_k"),
        ({"top_k": 1.5}, VALUE, "top_k"),
        ({"stop_sequences": "END"}, SHAPE, "stop_sequences"),
        ({"stop_sequences": [5]}, SHAPE, "stop_sequences[0]"),
        ({"stop_sequences": [""]}, VALUE, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 65}, VALUE, "stop_sequences"),
        ({"stream": "yes"}, SHAPE, "stream"),
        ({"thinking": "on"}, SHAPE, "thinking"),
        ({"thinking": {}}, SHAPE, "thinking.type"),
        ({"thinking": {"type": "sometimes"}}, VALUE, "thinking.type"),
        ({"output_config": 5}, SHAPE, "output_config"),
        ({"output_config": {"format": {"type": "xml"}}}, VALUE, "output_config.format.type"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            SHAPE,
            "output_config.format.schema",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": nested(200)}}},
            VALUE,
            "output_config.format.schema",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": "x"}},
            "invalid_json_schema",
            "output_format.schema",
        ),
        (
            turn("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": nested(200)}),
            VALUE,
            "messages[1].content[0].input",
        ),
        (
            turn(
                "assistant", {"type": "x_tool_result", "tool_use_id": "t", "content": nested(200)}
            ),
            VALUE,
            "messages[1].content[0].content",
        ),
        ({"tools": {}}, SHAPE, "tools"),
        ({"tools": ["f"]}, SHAPE, "tools[0]"),
        ({"tools": [{**TOOL, "input_schema": nested(200)}]}, VALUE, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": "auto"}, SHAPE, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, VALUE, "tool_choice.type"),
    ],
)
def test_bad_fields(fields: Any, code: str, param: str) -> None:
    error = refused(**fields)
    assert (error.info().code, error.info().param) == (code, param)
    assert error.info().status == 400


@pytest.mark.parametrize("missing", ["model", "max_tokens", "messages"])
@pytest.mark.rule("messages.required-fields", "messages.max-tokens")
def test_missing_fields(missing: str) -> None:
    fields = body()
    del fields[missing]
    with pytest.raises(RequestError) as raised:
        Messages().parse(fields)
    assert (raised.value.info().code, raised.value.param) == (SHAPE, missing)


@pytest.mark.rule("messages.unknown-block", "messages.pdf-refused", "messages.blocks")
@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {"type": "banana"}, "type"),
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}, "type"),
        ("user", {"type": "thinking", "thinking": "x"}, "type"),
        ("assistant", {"type": "image", "source": PNG}, "type"),
        ("assistant", {"type": "tool_result", "tool_use_id": "t"}, "type"),
        ("assistant", {"type": "document"}, "type"),
        ("system", {"type": "image", "source": PNG}, "type"),
        ("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}, "source.type"),
        ("user", {"type": "image", "source": {**PNG, "media_type": "text/html"}},
         "source.media_type"),
        ("user", {"type": "document", "source": {**PNG, "media_type": "application/pdf"}},
         "source.type"),
        ("user", {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
         "source.type"),
        ("user", {"type": "document", "source": {"type": "file", "file_id": "f"}}, "source.type"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "video"}]},
         "content[0].type"),
        ("user",
         {"type": "tool_result", "tool_use_id": "t",
          "content": [{"type": "document", "source": {"type": "url", "url": "https://x"}}]},
         "content[0].source.type"),
    ],
)  # fmt: skip
def test_blocks_that_are_not_supported(role: str, block: Any, param: str) -> None:
    error = refused(**turn(role, {"type": "text", "text": "a"}, block))
    assert (error.info().code, error.param) == (VALUE, f"messages[1].content[1].{param}")


@pytest.mark.rule("messages.unknown-block")
def test_an_unknown_block_is_named() -> None:
    assert "`banana`" in refused(**turn("user", {"type": "banana"})).message
    strange = refused(**turn("user", {"type": "secret <b>"})).message
    assert "<b>" not in strange


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {}, "type"),
        ("user", {"type": 5}, "type"),
        ("user", {"type": "text"}, "text"),
        ("user", {"type": "image"}, "source"),
        ("user", {"type": "image", "source": {"type": "base64", "data": "AA=="}},
         "source.media_type"),
        ("user", {"type": "image", "source": {"type": "url"}}, "source.url"),
        ("user", {"type": "tool_result"}, "tool_use_id"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": 5}, "content"),
        ("assistant", {"type": "tool_use", "name": "f", "input": {}}, "id"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "{}"}, "input"),
    ],
)  # fmt: skip
def test_blocks_of_a_wrong_shape(role: str, block: Any, param: str) -> None:
    error = refused(**turn(role, block))
    assert (error.info().code, error.param) == (SHAPE, f"messages[1].content[0].{param}")


@pytest.mark.rule("messages.ignored-fields")
def test_what_has_no_effect_is_ignored() -> None:
    cache = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    text = {"type": "text", "text": "secret words", "citations": None, **cache}
    made = job(
        messages=[{"role": "user", "content": [text]}],
        metadata={"user_id": "u"},
        service_tier="auto",
        container=None,
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        mcp_servers=[{"type": "url", "url": "https://x", "name": "x"}],
        inference_geo="eu",
        speed="fast",
        safeguards={},
        anything=[1],
        tools=[{**TOOL, **cache, "defer_loading": True, "eager_input_streaming": True}],
    )
    assert made == job(tools=[TOOL])


# --- Sampling and limits -------------------------------------------------------------------------


@pytest.mark.rule("messages.sampling", "messages.stop-sequences", "messages.max-tokens")
def test_sampling_reaches_models_that_honor_it() -> None:
    sampling = job(
        temperature=0.3, top_p=0.9, top_k=40, stop_sequences=["###END", "\n\n"], max_tokens=7
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.9, 40)
    assert sampling.stop.strings == ("###END", "\n\n")
    assert sampling.limit.max_tokens == 7
    assert job(top_k=0).sampling.top_k is None


@pytest.mark.rule("messages.sampling")
def test_fixed_sampling_keeps_top_k_and_stop_sequences() -> None:
    messages, fixed = Messages(), card(honors_sampling=False)
    asked: dict[str, Any] = {"temperature": 0.3, "top_p": 0.9, "top_k": 40, "stop_sequences": ["x"]}
    sampling = job(fixed, **asked).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (None, None, 40)
    assert sampling.stop.strings == ("x",)
    context = msgspec.structs.replace(CONTEXT, profile=OFFICIAL)
    made = messages.normalise(messages.parse(body(**asked)), fixed, context)
    assert made.ignored == ("temperature", "top_p")


@pytest.mark.rule("messages.no-retry-without-limit")
def test_a_limit_that_does_not_fit_beside_the_prompt_fails_the_request() -> None:
    assert job().sampling.limit.fallback_tokens is None


# --- Thinking ------------------------------------------------------------------------------------

OFF = Reasoning(effort="none", visible=False)


@pytest.mark.rule("messages.thinking-off-by-default")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"thinking": None},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "high"}},
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
    ],
)
def test_thinking_is_off_whatever_the_models_default(fields: Any) -> None:
    assert reasoning(thinker("none", "low", "high", default="high"), **fields) == OFF


@pytest.mark.rule("messages.thinking-enabled", "messages.budget-ignored")
@pytest.mark.parametrize(
    "thinking",
    [
        {"type": "enabled", "budget_tokens": 2048},
        {"type": "enabled", "budget_tokens": 1},
        {"type": "enabled", "budget_tokens": "lots"},
        {"type": "enabled"},
        {"type": "adaptive"},
        {"type": "adaptive", "display": "summarized"},
        {"type": "between_tools"},
    ],
)
def test_thinking_is_on_with_the_models_own_effort(thinking: Any) -> None:
    assert reasoning(thinking=thinking) == Reasoning(effort="low")
    assert reasoning(thinker("none", "low", "high", default="none"), thinking=thinking) == (
        Reasoning(effort="high")
    )


@pytest.mark.rule("messages.effort")
@pytest.mark.parametrize(
    ("effort", "used"),
    [
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("max", "max"),
        ("xhigh", "max"),
        ("minimal", "medium"),
        ("none", "medium"),
        ("ultra", "medium"),
        (None, "medium"),
        (7, "medium"),
        (["high"], "medium"),
    ],
)
def test_the_effort_is_a_tier_and_other_values_are_ignored(effort: Any, used: str) -> None:
    model = thinker("none", "low", "medium", "high", "max", default="medium")
    enabled = {"type": "enabled"}
    assert reasoning(model, thinking=enabled, output_config={"effort": effort}).effort == used


@pytest.mark.rule("messages.hidden-reasoning")
def test_a_model_that_cannot_stop_thinks_as_little_as_it_can_and_unseen() -> None:
    always = thinker("low", "high", default="high")
    assert reasoning(always) == Reasoning(effort="low", visible=False)
    assert reasoning(always, thinking={"type": "enabled"}) == Reasoning(effort="high")


def test_tools_need_a_model_that_calls_them() -> None:
    mute = card(capabilities=Capabilities())
    error = refused(mute, tools=[TOOL])
    assert (error.info().code, error.param) == ("unsupported_parameter", "tools")
    assert prompt(mute, tools=[]).tools == ()


def test_thinking_on_a_model_that_does_not_reason_has_no_effect() -> None:
    assert reasoning(card(capabilities=Capabilities()), thinking={"type": "enabled"}) == Reasoning()


@pytest.mark.rule("messages.forced-call-without-thinking")
def test_a_forced_call_turns_thinking_off() -> None:
    fields: dict[str, Any] = {"thinking": {"type": "enabled"}, "tools": [TOOL]}
    assert reasoning(**fields, tool_choice={"type": "tool", "name": "f"}) == OFF
    assert reasoning(**fields, tool_choice={"type": "auto"}).effort == "low"
    assert reasoning(**fields, tool_choice={"type": "any"}).effort == "low"
    assert prompt(profile=OFFICIAL, **fields, tool_choice={"type": "any"}).reasoning == OFF


# --- The form of the answer ----------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.rule("messages.output-format")
def test_a_schema_constrains_the_answer() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        constraint = job(**fields).sampling.constraint
        assert isinstance(constraint, JsonSchema)
        assert constraint.schema["properties"] == SCHEMA["properties"]
    assert job(output_config={"format": None, "effort": "low"}).sampling.constraint is None
    forced = {"type": "tool", "name": "f"}
    made = job(output_config={"format": form}, tools=[TOOL], tool_choice=forced)
    assert made.sampling.constraint is None


def test_a_schema_needs_a_model_that_can_be_constrained() -> None:
    plain = card(capabilities=Capabilities(json_schema=False))
    error = refused(plain, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert (error.info().code, error.param) == ("unsupported_parameter", "output_config.format")


def test_a_schema_cannot_be_obeyed_by_an_answer_that_is_begun() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    begun = [USER, {"role": "assistant", "content": "{"}]
    for fields, param in (
        ({"output_config": {"format": form}}, "output_config.format"),
        ({"output_format": form}, "output_format"),
    ):
        error = refused(messages=begun, **fields)
        assert (error.info().code, error.param) == (VALUE, param)


# --- Counting ------------------------------------------------------------------------------------


@pytest.mark.rule("messages.count-body")
def test_counting_takes_the_same_body_without_max_tokens_to_the_same_prompt() -> None:
    messages = Messages()
    fields = body(
        system="Be brief.",
        tools=[TOOL],
        thinking={"type": "enabled"},
        output_config={"effort": "high"},
    )
    asked = job(**fields).prompt
    for limit in (100, 0, "many", None):
        counted = messages.parse_count({**fields, "max_tokens": limit})
        assert messages.normalise(counted, CARD, CONTEXT).job.prompt == asked
    del fields["max_tokens"]
    counted = messages.parse_count(fields)
    made = messages.normalise(counted, CARD, CONTEXT).job
    assert decode_job(encode_job(made)) == made
    assert made.prompt == asked
    assert not counted.stream
    assert messages.count_body(6) == b'{"input_tokens":6}'


def test_counting_checks_the_rest_of_the_body() -> None:
    with pytest.raises(RequestError) as raised:
        Messages().parse_count({"model": "m", "messages": []})
    assert raised.value.param == "messages"
