"""Input items and the messages they become."""

from typing import Any

import orjson
import pytest

from ingress.dialects.profile import OFFICIAL, WAFER
from schemas.errors import RequestError
from schemas.message import ImageLink, Message, TextPart, ToolCall
from tests.unit.dialects.responses_fixtures import SEEING, messages, prompt, said

USER = {"type": "message", "role": "user", "content": "Go."}
OWN = {"type": "function", "name": "own"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}


def call(call_id: str, name: str = "look", arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content)}


def text(value: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": value}


# --- Messages ------------------------------------------------------------------------------------


@pytest.mark.rule("responses.item-types")
def test_the_documented_conversation() -> None:
    found = messages(
        {"type": "message", "role": "user", "content": "What's the weather in Paris?"},
        call("call_1", "get_weather", '{"city":"Paris"}'),
        result("call_1", "18C and sunny"),
    )
    made = ToolCall(id="call_1", name="get_weather", arguments='{"city":"Paris"}')
    assert found == (
        Message(role="user", parts=said("What's the weather in Paris?")),
        Message(role="assistant", tool_calls=(made,)),
        Message(role="tool", parts=said("18C and sunny"), tool_call_id="call_1"),
    )


@pytest.mark.rule("responses.roles", "responses.developer")
def test_roles() -> None:
    found = messages(
        *(
            {"type": "message", "role": role, "content": "x", "id": "m", "status": "completed"}
            for role in ("system", "developer", "user", "user", "assistant")
        )
    )
    assert [turn.role for turn in found] == ["system", "system", "user", "user", "assistant"]
    assert {turn.parts for turn in found} == {said("x")}


@pytest.mark.rule("responses.content")
def test_content_is_a_string_or_parts() -> None:
    parts = (text("a\x00"), text("b", "output_text"), text("c", "text"))
    assert messages(message("user", *parts)) == (Message(role="user", parts=said("a\x00bc")),)
    nothing = {"type": "message", "role": "user", "content": None}
    assert messages(message("user")) == messages(nothing) == (Message(role="user"),)
    shown = ({"type": "refusal", "refusal": "No."}, text("hm", "reasoning_text"))
    assert messages(message("assistant", *shown)) == (Message(role="assistant", parts=said("No.")),)


@pytest.mark.rule("responses.short-form", "responses.official-short-form")
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_the_short_form_is_for_the_profile_to_allow(role: str) -> None:
    short = {"role": role, "content": [text("Hi")]}
    typed = {"type": "message", **short}
    assert messages(short, profile=OFFICIAL) == messages(typed)
    with pytest.raises(RequestError) as caught:
        messages(USER, short)
    assert (caught.value.code, caught.value.param) == ("unsupported_input_item", "input[1].type")
    for advice in ('{"type": "message"', "Chat Completions", "profile: official"):
        assert advice in caught.value.message


@pytest.mark.rule("responses.official-short-form")
def test_an_item_without_type_and_role_is_refused_by_both_profiles() -> None:
    for profile in (WAFER, OFFICIAL):
        with pytest.raises(RequestError) as caught:
            messages({"content": "x"}, profile=profile)
        assert caught.value.code == "unsupported_input_item"


# --- Skipped and refused -------------------------------------------------------------------------


@pytest.mark.rule("responses.skipped-items")
@pytest.mark.parametrize(
    "kind",
    [
        "reasoning",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "configuration_update",
        "additional_tools",
        "agent_reasoning",
        "ghost_snapshot",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "other",
    ],
)
def test_what_says_nothing_to_the_model_is_skipped(kind: str) -> None:
    skipped = {"type": kind, "id": "x", "summary": [], "content": None, "status": "completed"}
    assert messages(USER, skipped) == messages(USER)
    # nor does it come between the calls of one turn
    turn = [call("a"), call("b"), result("a", "1"), result("b", "2")]
    assert messages(USER, turn[0], skipped, *turn[1:]) == messages(USER, *turn)


@pytest.mark.rule("responses.additional-tools")
def test_tools_among_the_items_are_offered() -> None:
    group = {
        "type": "namespace",
        "name": "functions",
        "tools": [{"type": "custom", "name": "exec"}],
    }
    more = {"type": "additional_tools", "role": "developer", "tools": [OWN, group]}
    turn = [call("a"), more, call("b"), result("a", "1"), result("b", "2")]
    found = prompt(input=[more, USER, *turn], tools=[OWN])
    assert [tool.name for tool in found.tools] == ["own", "functions__exec"]
    assert found.messages == messages(USER, turn[0], *turn[2:])
    assert prompt(input=[USER, more], tool_choice="required").tool_choice.mode == "required"


@pytest.mark.rule("responses.additional-tools")
def test_bad_tools_among_the_items_are_refused_with_their_path() -> None:
    for tools, param in (("own", "input[0].tools"), ([OWN, {}], "input[0].tools[1].type")):
        with pytest.raises(RequestError) as caught:
            messages({"type": "additional_tools", "tools": tools}, USER)
        assert caught.value.param == param


@pytest.mark.rule("responses.agent-message")
def test_what_another_agent_says_is_a_users_turn() -> None:
    heard = {
        "type": "agent_message",
        "author": "/root",
        "recipient": "/root/b",
        "content": [{"type": "encrypted_content", "encrypted_content": "x"}, text("Look.")],
    }
    assert messages(heard) == (Message(role="user", parts=said("Look.")),)


@pytest.mark.rule("responses.unsupported-items")
@pytest.mark.parametrize(
    "kind",
    [
        "item_reference",
        "file_search_call",
        "computer_call",
        "computer_call_output",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "program",
        "function",
    ],
)
def test_other_types_are_refused(kind: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages(USER, {"type": kind, "id": "x", "call_id": "c"})
    assert (caught.value.code, caught.value.param) == ("unsupported_input_item", "input[1].type")


# --- Calls and results ---------------------------------------------------------------------------


@pytest.mark.rule("responses.one-turn", "responses.results-by-id")
def test_adjacent_calls_are_one_turn_and_results_keep_their_ids() -> None:
    found = messages(
        USER,
        call("call_a", arguments='{"k":"A"}'),
        call("call_b", arguments='{"k":"B"}'),
        result("call_b", "2"),
        result("call_a", "1"),
    )
    _, turn, *results = found
    assert [made.id for made in turn.tool_calls] == ["call_a", "call_b"]
    assert {answer.tool_call_id: answer.text for answer in results} == {
        "call_a": "1",
        "call_b": "2",
    }
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "tool"]


@pytest.mark.rule("responses.one-turn")
def test_what_the_assistant_said_beside_its_calls_is_in_the_same_turn() -> None:
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    look = message("assistant", text("Let me look.", "output_text"))
    both = message("assistant", text("And there.", "output_text"))
    found = messages(USER, thought, look, call("a"), thought, call("b"), both, result("a", "1"))
    assert found[1] == Message(
        role="assistant",
        parts=said("Let me look.\n\nAnd there."),
        tool_calls=(
            ToolCall(id="a", name="look", arguments="{}"),
            ToolCall(id="b", name="look", arguments="{}"),
        ),
    )
    assert [turn.role for turn in found] == ["user", "assistant", "tool"]


@pytest.mark.rule("responses.one-turn")
def test_results_end_a_turn() -> None:
    found = messages(USER, call("a"), result("a", "1"), call("b"), result("b", "2"))
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [('{"a":1}', '{"a":1}'), ({"a": [1]}, '{"a":[1]}'), ("", "{}"), (None, "{}"), ("{cut", "{cut")],
)
def test_arguments_sent_back(arguments: Any, made: str) -> None:
    (turn,) = messages(call("c", "f", arguments))
    assert turn.tool_calls == (ToolCall(id="c", name="f", arguments=made),)


@pytest.mark.rule("responses.outputs")
@pytest.mark.parametrize(
    ("output", "read"),
    [
        ("18C", "18C"),
        ("", ""),
        ([text("18"), text("C")], "18C"),
        ({"content": "18C", "success": True}, "18C"),
        ({"content": [text("18C")]}, "18C"),
        ([text("18C"), IMAGE], "18C"),
    ],
)
def test_outputs(output: Any, read: str) -> None:
    (turn,) = messages(result("c", output))
    assert (turn.role, turn.text, turn.tool_call_id) == ("tool", read, "c")


@pytest.mark.rule("responses.custom-replay")
def test_a_custom_call_comes_back_as_the_call_of_its_function() -> None:
    patch = '*** Begin\n+"x"\n'
    found = messages(
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"},
    )
    (made,) = found[0].tool_calls
    assert (made.name, orjson.loads(made.arguments)) == ("apply_patch", {"input": patch})
    assert (found[1].tool_call_id, found[1].text) == ("c", "Done")


@pytest.mark.rule("responses.namespace-replay")
def test_a_call_within_a_group_comes_back_under_the_name_that_the_model_knows() -> None:
    grouped = {**call("c", "find"), "namespace": "crm"}
    custom = {"type": "custom_tool_call", "call_id": "d", "name": "edit", "input": "x"}
    (turn,) = messages(grouped, {**custom, "namespace": "crm"})
    assert [made.name for made in turn.tool_calls] == ["crm__find", "crm__edit"]


BUILTIN_TURNS: list[tuple[dict[str, Any], dict[str, Any], str, str, str]] = [
    (
        {
            "type": "local_shell_call",
            "call_id": "c",
            "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None},
        },
        {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
        "local_shell",
        '{"command":["ls"]}',
        "a.txt",
    ),
    (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": 5}},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a.txt"}]},
        "shell",
        '{"commands":["ls"],"timeout_ms":5}',
        '[{"stdout":"a.txt"}]',
    ),
    (
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "delete_file", "path": "a.txt"},
        },
        {
            "type": "apply_patch_call_output",
            "call_id": "c",
            "status": "failed",
            "output": "No such file",
        },
        "apply_patch",
        '{"type":"delete_file","path":"a.txt"}',
        "failed\nNo such file",
    ),
]


@pytest.mark.rule("responses.client-tools-replay")
@pytest.mark.parametrize(("made", "answer", "name", "arguments", "read"), BUILTIN_TURNS)
def test_calls_of_the_clients_own_tools_come_back(
    made: Any, answer: Any, name: str, arguments: str, read: str
) -> None:
    found = messages(made, answer)
    assert found == (
        Message(role="assistant", tool_calls=(ToolCall(id="c", name=name, arguments=arguments),)),
        Message(role="tool", parts=said(read), tool_call_id="c"),
    )


@pytest.mark.rule("responses.client-tools-replay")
def test_tool_searches_are_turns_only_if_the_client_runs_them() -> None:
    search = {
        "type": "tool_search_call",
        "call_id": "c",
        "execution": "client",
        "arguments": {"query": "mail"},
    }
    send = {"type": "function", "name": "send", "description": "Sends mail."}
    group = {"type": "namespace", "name": "mail", "description": "Mail.", "tools": [send]}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [group, OWN]}
    assert messages(USER, search, found) == messages(USER)
    assert prompt(input=[USER, search, {**found, "tools": ["odd"]}]).tools == ()
    tools = [{"type": "tool_search", "execution": "client"}, OWN]
    asked = prompt(input=[USER, search, found, found], tools=tools)
    assert asked.messages[1].tool_calls == (
        ToolCall(id="c", name="tool_search", arguments='{"query":"mail"}'),
    )
    assert asked.messages[2].tool_call_id == "c"
    assert orjson.loads(asked.messages[2].text) == [group, OWN]
    # What was found can be called from then on.
    assert [tool.name for tool in asked.tools] == ["tool_search", "own", "mail__send"]
    with pytest.raises(RequestError) as caught:
        prompt(input=[USER, search, {**found, "tools": ["odd"]}], tools=tools)
    assert caught.value.param == "input[2].tools[0]"


# --- Images --------------------------------------------------------------------------------------


@pytest.mark.rule("responses.images")
@pytest.mark.parametrize("image", [IMAGE, {"type": "input_image"}, {**IMAGE, "image_url": 5}])
def test_profile_wafer_removes_images_without_a_word(image: dict[str, Any]) -> None:
    found = prompt(SEEING, input=[message("user", text("What?"), image)]).messages
    assert found == (Message(role="user", parts=said("What?")),)


@pytest.mark.rule("responses.official-images")
def test_profile_official_shows_images_to_models_that_see() -> None:
    content = (text("a"), text("b"), IMAGE, text("c"))
    (turn,) = prompt(SEEING, OFFICIAL, input=[message("user", *content)]).messages
    link = ImageLink(url=IMAGE["image_url"], param="input[0].content[2].image_url")
    assert turn.parts == (TextPart(text="ab"), link, TextPart(text="c"))


@pytest.mark.rule("responses.official-images")
def test_profile_official_refuses_images_that_cannot_be_shown() -> None:
    blind = {"input": [message("user", IMAGE)]}
    with pytest.raises(RequestError) as caught:
        prompt(profile=OFFICIAL, **blind)
    assert (caught.value.status, caught.value.code) == (400, "model_request_rejected")
    assert caught.value.param == "input[0].content[0].image_url"
    unnamed = {"input": [message("user", {"type": "input_image", "file_id": "f"})]}
    with pytest.raises(RequestError) as caught:
        prompt(SEEING, OFFICIAL, **unnamed)
    assert "is required" in caught.value.message
    assert caught.value.param == "input[0].content[0].image_url"
