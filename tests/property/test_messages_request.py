"""Whatever JSON is sent: a Job that survives the broker, or an error of the caller's."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ingress.dialects.messages import Messages
from ingress.dialects.messages_request import CountRequest, MessagesRequest
from ingress.dialects.profile import OFFICIAL
from schemas.codec import decode_job, encode_job
from schemas.errors import RequestError
from schemas.job import ChatPrompt, Job
from schemas.message import ToolCall
from schemas.model_card import Capabilities
from tests.unit.dialects.transcripts import CARD, CONTEXT

SEES = msgspec.structs.replace(CARD, capabilities=Capabilities(vision=True, tools=True))
PROFILED = msgspec.structs.replace(CONTEXT, profile=OFFICIAL)

# What a JSON decoder yields, with the words of the dialect as likely as any other.
words = st.sampled_from(
    [
        *("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document"),
        *("search_result", "server_tool_use", "web_search_tool_result", "mcp_tool_use", "object"),
        *("tool_reference", "container_upload", "compaction", "base64", "url", "file", "content"),
        *(
            "enabled",
            "adaptive",
            "disabled",
            "auto",
            "any",
            "tool",
            "none",
            "json_schema",
            "custom",
        ),
        *("bash_20250124", "computer_20250124", "mcp_toolset", "image/png", "high", "omitted", ""),
    ]
)
keys = st.sampled_from(
    [
        *("type", "text", "id", "name", "input", "tool_use_id", "content", "is_error", "thinking"),
        *("source", "data", "media_type", "url", "title", "tool_name", "file_id", "input_schema"),
        *("strict", "description", "disable_parallel_tool_use", "effort", "format", "schema"),
        *("display", "display_width_px", "display_height_px"),
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
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["a", "b", "clock"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


# Blocks that are right, so that whole conversations come about.
good_blocks = {
    "user": block("text", text=texts)
    | block("tool_result", tool_use_id=names, content=texts, is_error=st.booleans())
    | block("web_search_tool_result", tool_use_id=names, content=values),
    "assistant": block("text", text=texts)
    | block("thinking", thinking=texts)
    | block("tool_use", id=names, name=names, input=st.dictionaries(keys, values, max_size=2))
    | block("server_tool_use", id=names, name=names, input=st.just({})),
    "system": block("text", text=texts),
}


@st.composite
def good_turns(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(sorted(good_blocks)))
    if draw(st.booleans()):
        return {"role": role, "content": draw(texts)}
    content = []
    for inner in draw(st.lists(good_blocks[role], max_size=4)):
        content.append(inner)
        if inner["type"] == "server_tool_use" and draw(st.booleans()):
            kind = "web_search_tool_result"
            content.append({"type": kind, "tool_use_id": inner["id"], "content": draw(values)})
    return {"role": role, "content": content}


any_turns = good_turns() | st.fixed_dictionaries(
    {"role": words | st.just("user"), "content": values}
)
bodies = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "max_tokens": st.integers(1, 200_000) | values,
        "messages": st.lists(any_turns, min_size=1, max_size=4) | values,
    },
    optional={
        name: values
        for name in sorted(MessagesRequest.model_fields)
        if name not in ("model", "max_tokens", "messages")
    },
)


def outcome(body: Any, *, sees: bool) -> Job | RequestError:
    messages = Messages()
    try:
        request = messages.parse(body)
        return messages.normalise(
            request, SEES if sees else CARD, PROFILED if sees else CONTEXT
        ).job
    except RequestError as error:
        return error


@given(bodies | values, st.booleans())
def test_every_body_is_a_job_or_the_callers_error(body: Any, sees: bool) -> None:
    found = outcome(body, sees=sees)
    if isinstance(found, Job):
        assert decode_job(encode_job(found)) == found
    else:
        assert found.status == 400
        assert found.param or found.code == "invalid_json_request"


@given(bodies)
def test_counting_takes_every_body_that_generating_takes_to_the_same_prompt(body: Any) -> None:
    found = outcome(body, sees=False)
    if isinstance(found, Job):
        counted = Messages().parse_count({**body, "max_tokens": None})
        assert isinstance(counted, CountRequest)
        assert Messages().normalise(counted, CARD, CONTEXT).job.prompt == found.prompt


@given(st.lists(good_turns(), min_size=1, max_size=6))
def test_nothing_is_lost_and_the_order_is_one_that_templates_know(turns: list[Any]) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [*turns, {"role": "user", "content": "Go."}]}
    found = outcome(body, sees=False)
    assert isinstance(found, Job)
    prompt = found.prompt
    assert isinstance(prompt, ChatPrompt)
    blocks = [
        inner for turn in turns if isinstance(turn["content"], list) for inner in turn["content"]
    ]
    calls = [b["id"] for b in blocks if b["type"] in ("tool_use", "server_tool_use")]
    told: list[ToolCall] = [call for message in prompt.messages for call in message.tool_calls]
    assert [call.id for call in told] == calls
    results = [b for b in blocks if b["type"].endswith("tool_result")]
    assert sum(message.role == "tool" for message in prompt.messages) == len(results)
    said = "".join(message.text for message in prompt.messages)
    for inner in blocks:
        if inner["type"] == "text":
            assert inner["text"] in said
    for message, following in zip(prompt.messages, prompt.messages[1:], strict=False):
        # A result never comes after the free text of its own turn.
        assert not (message.role == "user" and following.role == "tool")
        assert (message.role, following.role) != ("user", "user")
    assert not prompt.continue_last
