"""Whatever JSON is sent: a Job that survives the broker, or an error of the caller's."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ingress.dialects.chat import Chat
from ingress.dialects.chat_messages import AssistantMessage, ToolMessage
from ingress.dialects.chat_request import ChatRequest
from schemas.codec import decode_job, encode_job
from schemas.errors import RequestError
from schemas.job import Job
from schemas.model_card import Capabilities, ModelCard
from tests.unit.dialects.transcripts import CARD, CONTEXT

# What a JSON decoder yields, with the words of the dialect as likely as any other.
words = st.sampled_from(
    [
        *("system", "user", "assistant", "tool", "developer", "text", "image_url", "refusal"),
        *("none", "low", "high", "enabled", "auto", "function", "enable_thinking", "5", ""),
        *("custom", "required", "allowed_tools", "grammar", "json_schema", "json_object", "object"),
    ]
)
keys = st.sampled_from(
    [
        *("role", "content", "type", "text", "image_url", "url", "id", "function", "name"),
        *("arguments", "effort", "include_usage", "refusal", "tool_calls", "tool_call_id"),
        *("parameters", "custom", "input", "format", "grammar", "definition", "json_schema"),
        *("schema", "allowed_tools", "mode", "tools", "structures", "triggers", "properties"),
    ]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-3, 30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | words, inner, max_size=4),
    max_leaves=12,
)
turns = st.fixed_dictionaries(
    {"role": words | values, "content": st.just("x") | values},
    optional=dict.fromkeys(
        (AssistantMessage.model_fields.keys() | ToolMessage.model_fields.keys())
        - {"role", "content"},
        values,
    ),
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(turns, min_size=1, max_size=3) | values},
    optional={
        name: values
        for name in sorted(ChatRequest.model_fields)
        if name not in ("model", "messages")
    },
)


# A model that can do everything, so that nothing is refused for that reason.
ABLE = msgspec.structs.replace(
    CARD, capabilities=Capabilities(vision=True, tools=True, regex=True, grammar=True)
)


def outcome(body: Any, card: ModelCard) -> Job | RequestError:
    chat = Chat()
    try:
        return chat.normalise(chat.parse(body), card, CONTEXT).job
    except RequestError as error:
        return error


def check(body: Any) -> None:
    for card in (CARD, ABLE):
        found = outcome(body, card)
        if isinstance(found, Job):
            assert decode_job(encode_job(found)) == found
        else:
            assert found.status == 400
            assert found.param or found.code == "invalid_json_request"


@given(bodies | values)
def test_any_body(body: Any) -> None:
    check(body)


@given(st.sampled_from(sorted(ChatRequest.model_fields)), values)
def test_any_value_of_one_field(field: str, value: Any) -> None:
    check({"model": "m", "messages": [{"role": "user", "content": "x"}], field: value})


tools = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom"])},
    optional={
        kind: st.fixed_dictionaries(
            {"name": st.sampled_from(["f", "g"]) | values},
            optional={"parameters": values, "format": values, "strict": values},
        )
        for kind in ("function", "custom")
    },
)


@given(st.lists(tools | values, min_size=1, max_size=3), values, values)
def test_any_tools(offered: list[Any], choice: Any, form: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": offered}
    check({**body, "tool_choice": choice, "response_format": form})


@given(turns)
def test_any_turn(turn: Any) -> None:
    check({"model": "m", "messages": [turn]})
