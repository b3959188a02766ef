"""What the transcripts cannot show: options, profiles, failures and silence."""

from typing import Any

import orjson
import pytest

from ingress.dialects.profile import OFFICIAL, WAFER, Profile
from schemas.delta import (
    ArgumentsDelta,
    Completed,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallStarted,
    TopLogprob,
    Usage,
)
from schemas.errors import (
    ContextLengthExceeded,
    GenerationTimeout,
    InsufficientCredits,
    InvalidGrammar,
    ModelOverloaded,
    ProtocolViolation,
    RateLimitExceeded,
    ServerShuttingDown,
    ServingError,
    WorkerFailed,
)
from tests.unit.dialects.responses_fixtures import encoder, events, kinds, stream

USAGE = Usage(7, 3, 5, 2)
STOP = (Finished(0, FinishReason.STOP), Completed(USAGE))
CUT = (Finished(0, FinishReason.LENGTH), Completed(USAGE))
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


def call(name: str, *arguments: str, number: int = 0) -> list[Any]:
    deltas = [ArgumentsDelta(0, number, text) for text in arguments]
    return [ToolCallStarted(0, number, name), *deltas]


# --- Order of events -----------------------------------------------------------------------------


@pytest.mark.rule(
    "responses.created-first",
    "responses.item-added",
    "responses.part-added",
    "responses.text-delta",
    "responses.item-done",
    "responses.extra-events",
)
def test_the_events_of_text() -> None:
    found = stream(encoder(), Started("w", 7, 3), TextDelta(0, "a"), TextDelta(0, "b"), *STOP)
    assert kinds(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["delta"] for event in found[4:6]] == ["a", "b"]
    assert found[6]["text"] == found[7]["part"]["text"] == "ab"
    assert found[8]["item"] == found[9]["response"]["output"][0]


@pytest.mark.rule("responses.arguments-delta", "responses.arguments-done")
def test_the_events_of_a_call() -> None:
    found = stream(encoder(), *call("stock", '{"part":', '"bolt"}'), *STOP)
    assert kinds(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert found[2]["item"]["arguments"] == ""
    assert [event["delta"] for event in found[3:5]] == ['{"part":', '"bolt"}']
    assert (found[5]["arguments"], found[5]["name"]) == ('{"part":"bolt"}', "stock")


@pytest.mark.rule("responses.sequence-number")
def test_every_event_has_the_next_number() -> None:
    found = stream(encoder(), TextDelta(0, "a"), *call("f", "{}"), TextDelta(0, "b"), *STOP)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.rule("responses.items-do-not-overlap")
def test_an_item_is_done_before_the_next_is_added() -> None:
    deltas = (TextDelta(0, "a"), *call("f", "{}"), *call("g", "{}", number=1), TextDelta(0, "b"))
    found = stream(encoder(), *deltas, *STOP)
    changes = [
        (kind, event["output_index"])
        for kind, event in zip(kinds(found), found, strict=True)
        if kind.startswith("output_item")
    ]
    assert changes == [(f"output_item.{what}", n) for n in range(4) for what in ("added", "done")]


@pytest.mark.rule("responses.one-identity")
def test_an_item_keeps_its_ids() -> None:
    found = stream(encoder(), *call("stock", '{"part":"bolt"}'), *STOP)
    items = [e["item"] for e in found if "item" in e] + found[-1]["response"]["output"]
    (item_id,) = {item["id"] for item in items} | {e["item_id"] for e in found if "item_id" in e}
    (call_id,) = {item["call_id"] for item in items}
    assert item_id.startswith("fc_")
    assert len(item_id) == 3 + 32
    assert call_id.startswith("call_")
    assert len(call_id) == 5 + 24
    assert len({event["response"]["id"] for event in found if "response" in event}) == 1


def test_ids_differ_between_items_and_are_the_same_again() -> None:
    def ids() -> list[str]:
        body = stream(encoder(), TextDelta(0, "a"), *call("f"), *call("f", number=1), *STOP)
        output = body[-1]["response"]["output"]
        return [value for item in output for name, value in item.items() if name.endswith("id")]

    assert ids() == ids()
    assert len(set(ids())) == 5


# --- Calls ---------------------------------------------------------------------------------------


@pytest.mark.rule("responses.parallel-calls")
def test_parallel_calls_are_items_of_their_own() -> None:
    deltas = (*call("stock", '{"symbol":"KO"}'), *call("fx", '{"pair":"EURJPY"}', number=1))
    output = stream(encoder(), *deltas, *STOP)[-1]["response"]["output"]
    assert [(item["name"], item["arguments"]) for item in output] == [
        ("stock", '{"symbol":"KO"}'),
        ("fx", '{"pair":"EURJPY"}'),
    ]
    assert output[0]["call_id"] != output[1]["call_id"]


@pytest.mark.rule("responses.no-arguments")
def test_a_call_without_arguments_has_an_empty_object() -> None:
    found = stream(encoder(), *call("get_clock"), *STOP)
    assert found[-1]["response"]["output"][0]["arguments"] == "{}"
    assert [e["arguments"] for e in found if e["type"].endswith("arguments.done")] == ["{}"]


@pytest.mark.rule("responses.whitespace-around-calls")
def test_line_breaks_around_a_call_are_no_message() -> None:
    found = stream(encoder(), TextDelta(0, "\n\n"), *call("ping", "{}"), TextDelta(0, "\n"), *STOP)
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["function_call"]
    assert found[2]["output_index"] == 0


@pytest.mark.rule("responses.cut-call")
def test_a_call_that_was_cut_off_is_not_called_done() -> None:
    found = stream(encoder(), *call("save_doc", '{"title":"Q3","body":"The f'), *CUT)
    response = found[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    (item,) = response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"title":"Q3","body":"The f')
    assert "function_call_arguments.done" not in kinds(found)
    assert found[-2]["item"] == item


CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}


@pytest.mark.rule("responses.custom-call")
def test_a_custom_call_carries_raw_text() -> None:
    arguments = ('{"inp', 'ut": "*** Begin\\n', "+caf\\u00", 'e9\\n"}')
    found = stream(encoder(tools=[CUSTOM]), *call("apply_patch", *arguments), *STOP)
    assert kinds(found)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    text = "*** Begin\n+caf\u00e9\n"
    assert "".join(event["delta"] for event in found[3:6]) == text
    assert found[6]["input"] == text
    (item,) = found[-1]["response"]["output"]
    assert found[2]["item"] == {**item, "status": "in_progress", "input": ""}
    assert item == {
        "type": "custom_tool_call",
        "id": item["id"],
        "call_id": item["call_id"],
        "name": "apply_patch",
        "input": text,
        "status": "completed",
    }
    assert item["id"].startswith("ctc_")


@pytest.mark.rule("responses.cut-call")
def test_a_custom_call_that_was_cut_off_keeps_what_there_is() -> None:
    found = stream(encoder(tools=[CUSTOM]), *call("apply_patch", '{"input":"half\\u00'), *CUT)
    (item,) = found[-1]["response"]["output"]
    assert (item["status"], item["input"]) == ("incomplete", "half")
    assert "custom_tool_call_input.done" not in kinds(found)


@pytest.mark.rule("responses.custom-call")
def test_input_that_is_certain_only_at_the_end_is_sent_then() -> None:
    arguments = ('{"why":"so",', '"input":"late"}')
    found = stream(encoder(tools=[CUSTOM]), *call("apply_patch", *arguments), *STOP)
    deltas = [e["delta"] for e in found if e["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["late"]
    assert found[-1]["response"]["output"][0]["input"] == "late"


@pytest.mark.rule("responses.namespace-call")
def test_a_call_within_a_group_has_its_own_name_and_the_group() -> None:
    inner = [{"type": "function", "name": "find"}, {"type": "custom", "name": "edit"}]
    group = {"type": "namespace", "name": "crm", "description": "Customers", "tools": inner}
    deltas = (*call("crm__find", "{}"), *call("crm__edit", '{"input":"x"}', number=1))
    found = stream(encoder(tools=[group]), *deltas, *STOP)
    for items in (found[-1]["response"]["output"], [e["item"] for e in found if "item" in e]):
        assert {item["namespace"] for item in items} == {"crm"}
    function, custom = found[-1]["response"]["output"]
    assert (function["type"], function["name"]) == ("function_call", "find")
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "edit", "x")
    done = next(e for e in found if e["type"] == "response.function_call_arguments.done")
    assert done["name"] == "find"


BUILTIN_CALLS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "local_shell",
        '{"command":["ls","-a"],"timeout_ms":5}',
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "env": {}, "command": ["ls", "-a"], "timeout_ms": 5},
        },
    ),
    (
        "shell",
        '{"commands":["ls"]}',
        {"type": "shell_call", "action": {"commands": ["ls"]}, "environment": None},
    ),
    (
        "apply_patch",
        '{"type":"delete_file","path":"a.txt"}',
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.txt"}},
    ),
    (
        "tool_search",
        '{"query":"mail"}',
        {"type": "tool_search_call", "arguments": {"query": "mail"}, "execution": "client"},
    ),
]


@pytest.mark.rule("responses.client-tools")
@pytest.mark.parametrize(("name", "arguments", "fields"), BUILTIN_CALLS)
def test_a_tool_of_the_client_has_an_item_type_of_its_own(
    name: str, arguments: str, fields: dict[str, Any]
) -> None:
    tool = {"type": name, "execution": "client"}
    found = stream(encoder(tools=[tool]), *call(name, arguments[:9], arguments[9:]), *STOP)
    assert kinds(found)[2:] == ["output_item.added", "output_item.done", "completed"]
    (item,) = found[-1]["response"]["output"]
    own = {"id": item["id"], "call_id": item["call_id"], "status": "completed"}
    assert item == {**fields, **own}
    assert found[3]["item"] == item
    assert found[2]["item"] == {**item, "status": "in_progress"}


@pytest.mark.rule("responses.client-tools")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", '{"commands":"ls"}'),
        ("shell", '["ls"]'),
        ("shell", "ls"),
        ("apply_patch", '{"type":"update_file","path":"a.txt"}'),
        ("local_shell", "{}"),
        ("tool_search", '{"query":' + "[" * 300 + "]" * 300 + "}"),
    ],
)
def test_a_call_that_fits_its_type_badly_is_told_as_it_is(name: str, arguments: str) -> None:
    tool = {"type": name, "execution": "client"}
    found = stream(encoder(tools=[tool]), *call(name, arguments), *STOP)
    (item,) = found[-1]["response"]["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", name, arguments)
    assert kinds(found)[2:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.rule("responses.cut-call")
def test_a_cut_call_of_the_clients_own_tool_is_never_shown_as_one_to_run() -> None:
    found = stream(encoder(tools=[{"type": "shell"}]), *call("shell", '{"commands":["ls"]}'), *CUT)
    (item,) = found[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")


# --- Ends ----------------------------------------------------------------------------------------


@pytest.mark.rule("responses.incomplete", "responses.incomplete-completed")
@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.LENGTH, "max_output_tokens"),
        (FinishReason.CONTENT_FILTER, "content_filter"),
    ],
)
def test_an_answer_that_was_cut_short_says_why(reason: FinishReason, word: str) -> None:
    fed = encoder()
    found = stream(fed, TextDelta(0, "one two"), Finished(0, reason), Completed(USAGE))
    last = found[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": word}
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert last["response"]["usage"]["output_tokens"] == 5
    assert orjson.loads(fed.body()) == last["response"]


@pytest.mark.rule("responses.official-incomplete")
def test_profile_official_ends_a_cut_answer_with_its_own_event() -> None:
    assert stream(encoder(OFFICIAL), TextDelta(0, "a"), *CUT)[-1]["type"] == "response.incomplete"
    assert stream(encoder(OFFICIAL), TextDelta(0, "a"), *STOP)[-1]["type"] == "response.completed"


@pytest.mark.rule("responses.budget-spent")
def test_a_budget_spent_on_reasoning_leaves_no_output() -> None:
    response = stream(encoder(), ReasoningDelta(0, "Let x"), *CUT)[-1]["response"]
    assert (response["status"], response["output"]) == ("incomplete", [])
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.rule("responses.usage")
def test_usage_has_the_totals_and_their_details() -> None:
    found = stream(encoder(), TextDelta(0, "a"), *STOP)
    assert found[-1]["response"]["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }
    assert found[0]["response"]["usage"]["total_tokens"] == 0


@pytest.mark.rule("responses.full-object")
def test_the_clock_says_when_it_was_complete() -> None:
    found = stream(encoder(), *STOP)
    times = [event["response"]["completed_at"] for event in found]
    assert times == [None, None, 1790793300]
    cut = stream(encoder(), TextDelta(0, "a"), *CUT)[-1]["response"]
    assert cut["completed_at"] is None, "officially only what is complete has this time"


def test_a_cancelled_choice_is_never_told_as_a_success() -> None:
    with pytest.raises(ProtocolViolation):
        encoder().feed(Finished(0, FinishReason.CANCELLED))


def test_there_is_no_body_before_the_end() -> None:
    fed = encoder()
    fed.feed(Finished(0, FinishReason.STOP))
    with pytest.raises(RuntimeError):
        fed.body()


# --- Failures ------------------------------------------------------------------------------------


@pytest.mark.rule("responses.failed")
def test_a_failure_shows_what_had_ended_and_what_was_open() -> None:
    fed = encoder()
    found = stream(fed, TextDelta(0, "Look."), *call("save", '{"ti'))
    found += events(fed.fail(WorkerFailed("The worker was lost.").info()))
    response = found[-1]["response"]
    assert found[-1]["type"] == "response.failed"
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "The worker was lost."}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["output"][1]["arguments"] == '{"ti'
    assert response["usage"] is None
    assert kinds(found).count("output_item.done") == 1
    assert found[-1]["sequence_number"] == len(found) - 1


@pytest.mark.rule("responses.failed")
def test_a_failure_in_a_call_of_the_clients_own_tool_shows_it_as_a_function_call() -> None:
    fed = encoder(tools=[{"type": "shell"}])
    stream(fed, *call("shell", '{"comm'))
    (failed,) = events(fed.fail(WorkerFailed("Lost.").info()))
    (item,) = failed["response"]["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")


@pytest.mark.rule("responses.failed")
def test_a_failed_reply_tells_what_had_been_used() -> None:
    error, usage = WorkerFailed("Lost.").info(), Usage(6, 0, 2, 0)
    for frames in (encoder().feed(Failed(error, usage)), encoder().fail(error, usage)):
        assert events(frames)[-1]["response"]["usage"]["total_tokens"] == 8
    assert events(encoder().fail(error, Usage()))[-1]["response"]["usage"] is None


@pytest.mark.rule("responses.error-codes")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelOverloaded("x"), "server_error"),
        (WorkerFailed("x"), "server_error"),
        (GenerationTimeout("x"), "server_error"),
        (ServerShuttingDown("x"), "server_error"),
        (RateLimitExceeded("x"), "rate_limit_exceeded"),
        (InsufficientCredits("x"), "insufficient_quota"),
        (ContextLengthExceeded(), "context_length_exceeded"),
        (InvalidGrammar("x"), "invalid_prompt"),
    ],
)
def test_failures_have_the_codes_that_clients_know(error: ServingError, code: str) -> None:
    (failed,) = events(encoder().fail(error.info()))
    assert failed["response"]["error"]["code"] == code


# --- Silence -------------------------------------------------------------------------------------


@pytest.mark.rule("responses.keep-alive")
def test_silence_is_broken_by_comments_and_once_a_minute_by_an_event() -> None:
    fed = encoder()
    stream(fed, TextDelta(0, "a"))
    silence = [b"".join(fed.keep_alive()) for _ in range(8)]
    assert silence[:3] == silence[4:7] == [b": keep-alive\n\n"] * 3
    for frame, number in ((silence[3], 5), (silence[7], 6)):
        (event,) = events([frame])
        assert event["type"] == "response.in_progress"
        assert event["response"]["status"] == "in_progress"
        assert event["sequence_number"] == number


@pytest.mark.rule("responses.keep-alive")
def test_any_event_starts_the_minute_anew() -> None:
    fed = encoder()
    fed.open()
    for text in ("a", "b"):
        for _ in range(3):
            assert fed.keep_alive() == (b": keep-alive\n\n",)
        fed.feed(TextDelta(0, text))
    assert fed.keep_alive() == (b": keep-alive\n\n",)


# --- Structured output, reasoning, log probabilities ---------------------------------------------


@pytest.mark.rule("responses.json-one-delta", "responses.json-raw")
def test_json_of_a_schema_comes_in_one_delta_right_before_the_item_ends() -> None:
    deltas = [TextDelta(0, piece) for piece in ('{"na', 'me":', '"Ada"}')]
    found = stream(encoder(text={"format": SCHEMA}), *deltas, *STOP)
    assert kinds(found)[2:] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert found[4]["delta"] == '{"name":"Ada"}'
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == '{"name":"Ada"}'


@pytest.mark.rule("responses.official-json")
@pytest.mark.parametrize(
    ("profile", "form"), [(OFFICIAL, SCHEMA), (WAFER, {"type": "json_object"})]
)
def test_other_json_streams_as_it_comes(profile: Profile, form: Any) -> None:
    deltas = [TextDelta(0, piece) for piece in ('{"na', 'me":', '"Ada"}')]
    found = stream(encoder(profile, text={"format": form}), *deltas, *STOP)
    assert kinds(found).count("output_text.delta") == 3


@pytest.mark.rule("responses.reasoning-not-returned")
@pytest.mark.parametrize("options", [{}, {"reasoning": {"effort": "high", "summary": "auto"}}])
def test_profile_wafer_shows_no_reasoning(options: Any) -> None:
    found = stream(encoder(**options), ReasoningDelta(0, "2+2"), TextDelta(0, "4"), *STOP)
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["message"]
    assert found[2]["output_index"] == 0
    assert "2+2" not in str(found)


REASONING_WISHES = [
    {"reasoning": {"effort": "high", "summary": "auto"}},
    {"include": ["reasoning.encrypted_content"]},
]


@pytest.mark.rule("responses.official-reasoning")
@pytest.mark.parametrize("wish", REASONING_WISHES)
def test_profile_official_shows_reasoning_if_asked(wish: dict[str, Any]) -> None:
    deltas = (ReasoningDelta(0, "2+2 "), ReasoningDelta(0, "is 4"), TextDelta(0, "4"), *STOP)
    found = stream(encoder(OFFICIAL, **wish), *deltas)
    assert kinds(found)[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    item, message = found[-1]["response"]["output"]
    assert item == {
        "type": "reasoning",
        "id": item["id"],
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "2+2 is 4"}],
        "encrypted_content": None,
        "status": "completed",
    }
    assert item["id"].startswith("rs_")
    assert message["type"] == "message"


@pytest.mark.rule("responses.official-reasoning")
def test_profile_official_shows_none_unasked() -> None:
    wish = {"reasoning": {"effort": "high"}, "include": []}
    found = stream(encoder(OFFICIAL, **wish), ReasoningDelta(0, "2+2"), TextDelta(0, "4"), *STOP)
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["message"]


TOKEN = TokenLogprob(
    1, "a", b"a", -0.5, (TopLogprob(1, "a", b"a", -0.5), TopLogprob(2, "b", b"b", -2))
)


@pytest.mark.rule("responses.logprobs")
def test_log_probabilities_come_only_if_asked_for() -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    for fields, expected in ((asked, 1), ({"top_logprobs": 1}, 0)):
        found = stream(encoder(**fields), TextDelta(0, "a", (TOKEN,)), *STOP)
        (part,) = found[-1]["response"]["output"][0]["content"]
        assert len(part["logprobs"]) == expected
        assert found[4]["logprobs"] == found[5]["logprobs"] == part["logprobs"]
        if expected:
            assert part["logprobs"][0] == {
                "token": "a",
                "bytes": [97],
                "logprob": -0.5,
                "top_logprobs": [{"token": "a", "bytes": [97], "logprob": -0.5}],
            }


# --- Echoes --------------------------------------------------------------------------------------


@pytest.mark.rule("responses.full-object")
def test_the_object_echoes_the_request() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 64,
        "max_tool_calls": 3,
        "top_logprobs": 2,
        "metadata": {"trace": "7"},
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }
    fed = encoder(
        **fields,
        text={"format": {**SCHEMA, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "ultra", "summary": "auto"},
        store=True,
        background=True,
        truncation="auto",
        service_tier="flex",
    )
    for event in stream(fed, *STOP):
        response = event["response"]
        assert {name: response[name] for name in fields} == fields
        assert response["text"] == {"format": {**SCHEMA, "strict": True}, "verbosity": "low"}
        assert response["reasoning"] == {"effort": "ultra", "summary": "auto"}
        assert (response["store"], response["background"]) == (False, False)
        assert (response["truncation"], response["service_tier"]) == ("disabled", "default")
        assert response["previous_response_id"] is None


@pytest.mark.rule("responses.full-object")
def test_the_object_has_every_field_without_a_request_for_it() -> None:
    response = stream(encoder(), *STOP)[-1]["response"]
    assert response == {
        "id": "resp_c3a7ac6de84a4e9eade77ab63a27a1ca",
        "object": "response",
        "created_at": 1790793243,
        "completed_at": 1790793300,
        "model": "GLM-5.3",
        "status": "completed",
        "output": [],
        "usage": response["usage"],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "top_logprobs": 0,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
        "metadata": {},
        "previous_response_id": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "user": None,
        "prompt_cache_key": None,
        "safety_identifier": None,
    }
