"""Whatever JSON is sent: a Job that survives the broker, or an error of the caller's."""

from typing import Any

import msgspec
import orjson
from hypothesis import given
from hypothesis import strategies as st

from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from ingress.dialects.responses import Responses
from ingress.dialects.responses_builtins import BUILTINS
from ingress.dialects.responses_items import SKIPPED
from ingress.dialects.responses_request import ResponsesBody
from schemas.codec import decode_job, encode_job
from schemas.delta import Completed, Finished, FinishReason, Usage
from schemas.errors import RequestError
from tests.unit.dialects.transcripts import CARD, CONTEXT, STAMP

# What a JSON decoder yields, with the words of the dialect as likely as any other.
words = st.sampled_from(
    [
        *("system", "user", "assistant", "developer", "message", "input_text", "input_image"),
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("function", "custom", "namespace", "web_search", "allowed_tools", "grammar", "client"),
        *("none", "low", "minimal", "auto", "required", "json_schema", "json_object", "text", ""),
        *(item for builtin in BUILTINS.values() for item in (builtin.item_type, builtin.spec.name)),
        *(f"{builtin.item_type}_output" for builtin in BUILTINS.values()),
        *sorted(SKIPPED),
    ]
)
keys = st.sampled_from(
    [
        *("role", "content", "type", "text", "image_url", "call_id", "id", "name", "arguments"),
        *("output", "input", "action", "operation", "namespace", "tools", "mode", "format"),
        *("schema", "effort", "summary", "parameters", "definition", "execution", "environment"),
    ]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | words, inner, max_size=4),
    max_leaves=12,
)
items = st.fixed_dictionaries(
    {"type": words | values},
    optional=dict.fromkeys(
        ("role", "content", "call_id", "name", "arguments", "output", "input", "action"), values
    ),
)
tools = st.fixed_dictionaries(
    {"type": words | values, "name": st.sampled_from(["f", "g"]) | values},
    optional=dict.fromkeys(("tools", "parameters", "format", "description", "execution"), values),
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.lists(items, min_size=1, max_size=3) | values},
    optional={
        "tools": st.lists(tools, max_size=2) | values,
        "tool_choice": tools | values,
        **{
            name: values
            for name in sorted(ResponsesBody.model_fields)
            if name not in ("model", "input", "tools", "tool_choice")
        },
    },
)
profiles = st.sampled_from([WAFER, OFFICIAL])


def answer(body: Any, profile: Profile) -> bytes | RequestError:
    """An empty answer to the request, or why it is refused."""
    dialect = Responses()
    try:
        request = dialect.parse(body)
        context = msgspec.structs.replace(CONTEXT, profile=profile)
        job = dialect.normalise(request, CARD, context).job
    except RequestError as error:
        return error
    assert decode_job(encode_job(job)) == job
    encoder = dialect.encoder(request, job, STAMP)
    encoder.open()
    for delta in (Finished(0, FinishReason.STOP), Completed(Usage())):
        encoder.feed(delta)
    return encoder.body()


def check(body: Any, profile: Profile) -> None:
    found = answer(body, profile)
    if isinstance(found, RequestError):
        assert found.status == 400
        assert found.param or found.code == "invalid_json_request"
    else:
        assert orjson.loads(found)["status"] == "completed"


@given(bodies | values, profiles)
def test_any_body(body: Any, profile: Profile) -> None:
    check(body, profile)


@given(st.sampled_from(sorted(ResponsesBody.model_fields)), values, profiles)
def test_any_value_of_one_field(field: str, value: Any, profile: Profile) -> None:
    check({"model": "m", "input": "x", field: value}, profile)


@given(items, profiles)
def test_any_item(item: Any, profile: Profile) -> None:
    check({"model": "m", "input": [item]}, profile)


@given(tools, tools | words, profiles)
def test_any_tool_and_choice(tool: Any, choice: Any, profile: Profile) -> None:
    check({"model": "m", "input": "x", "tools": [tool], "tool_choice": choice}, profile)
