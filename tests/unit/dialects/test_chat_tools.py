"""Which tools the model is offered, and the choice among them, in every spelling of the request."""

from typing import Any

import pytest

from schemas.job import ChatPrompt
from schemas.message import Message, ToolCall, ToolChoice, ToolSpec
from schemas.model_card import Capabilities
from tests.unit.dialects.chat_jobs import (
    PARAMETER,
    SCHEMA,
    USER,
    allowed,
    card,
    chat,
    chosen,
    custom,
    messages,
    refusal,
    said,
    tool,
)

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def prompt(**fields: Any) -> ChatPrompt:
    found = chat(**fields).prompt
    assert isinstance(found, ChatPrompt)
    return found


def named(*names: str) -> list[dict[str, Any]]:
    return [tool(name=name) for name in names]


def test_a_definition_reaches_the_job() -> None:
    described = tool(name="get_weather", description="Weather.", parameters=WEATHER, strict=True)
    assert prompt(tools=[described]).tools == (
        ToolSpec(name="get_weather", description="Weather.", parameters=WEATHER, strict=True),
    )


@pytest.mark.parametrize(
    "definition",
    [
        tool(),
        {"function": {"name": "f"}},
        tool(parameters=None, strict=None, description=None),
        {**tool(), "cache_control": {"type": "ephemeral"}},
        tool(some_future_field=[1]),
    ],
)
def test_a_function_may_have_no_parameters_and_fields_of_the_future(definition: Any) -> None:
    assert prompt(tools=[definition]).tools == (ToolSpec(name="f"),)


@pytest.mark.parametrize("name", ["f", "get_weather", "mcp.server-1", "F" * 128])
def test_names(name: str) -> None:
    assert prompt(tools=[tool(name=name)]).tools[0].name == name


@pytest.mark.rule("chat.tools-object-schema")
@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "array"}, {"a": 1}, [], "x"])
def test_parameters_must_be_an_object_schema(parameters: Any) -> None:
    tools = [*named("first"), tool(parameters=parameters)]
    assert refusal(tools=tools) == (SCHEMA, "tools[1].function.parameters")


@pytest.mark.parametrize("parameters", [WEATHER, {"type": "object"}, {}, {"type": ["object"]}])
def test_object_schemas(parameters: Any) -> None:
    assert prompt(tools=[tool(parameters=parameters)]).tools[0].parameters == parameters


@pytest.mark.rule(
    "chat.tool-choice-auto",
    "chat.tool-choice-none",
    "chat.tool-choice-required",
    "chat.tool-choice-named",
)
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (chosen("g"), ToolChoice(mode="named", name="g")),
    ],
)
def test_the_choice(choice: Any, expected: ToolChoice) -> None:
    found = prompt(tools=named("f", "g"), tool_choice=choice)
    assert [spec.name for spec in found.tools] == ["f", "g"]
    assert found.tool_choice == expected


@pytest.mark.rule("chat.allowed-tools")
def test_only_the_allowed_tools_are_offered() -> None:
    tools = named("f", "g", "h")
    some = prompt(tools=tools, tool_choice=allowed("auto", "h", "f"))
    assert [spec.name for spec in some.tools] == ["f", "h"]
    assert some.tool_choice == ToolChoice()
    forced = prompt(tools=tools, tool_choice=allowed("required", "g"), parallel_tool_calls=False)
    assert [spec.name for spec in forced.tools] == ["g"]
    assert forced.tool_choice == ToolChoice(mode="required", parallel=False)


@pytest.mark.rule("chat.parallel-tool-calls")
@pytest.mark.parametrize(
    ("sent", "parallel"), [({}, True), (None, True), (True, True), (False, False)]
)
def test_parallel_calls(sent: Any, parallel: bool) -> None:
    fields = sent if sent == {} else {"parallel_tool_calls": sent}
    for choice in ("auto", "none", "required", chosen("f")):
        found = prompt(tools=named("f"), tool_choice=choice, **fields)
        assert found.tool_choice.parallel is parallel


def test_a_model_without_tools_refuses_them_but_not_their_absence() -> None:
    plain = card(capabilities=Capabilities())
    assert refusal(plain, tools=named("f")) == (PARAMETER, "tools")
    assert refusal(plain, functions=[{"name": "f"}]) == (PARAMETER, "functions")
    assert chat(plain, tools=[], tool_choice="auto") == chat(plain)


# --- Custom tools --------------------------------------------------------------------------------


@pytest.mark.rule("chat.custom-tools")
def test_a_custom_tool_is_offered_as_a_function_of_one_string() -> None:
    found = prompt(
        tools=[
            custom(description="Notes.", format={"type": "text"}),
            custom(
                name="patch",
                format={"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: A"}},
            ),
        ],
        tool_choice=chosen("patch", "custom"),
    )
    note, patch = found.tools
    assert (note.name, note.description) == ("note", "Notes.")
    assert note.parameters is not None
    assert note.parameters["properties"] == {"input": {"type": "string"}}
    assert note.parameters["required"] == ["input"]
    assert patch.description is not None
    assert "start: A" in patch.description
    assert found.tool_choice == ToolChoice(mode="named", name="patch")


@pytest.mark.rule("chat.custom-tools")
def test_a_custom_call_sent_back_is_a_call_of_that_function() -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "note", "input": 'say "hi"\n'}}
    assert messages({"role": "assistant", "content": None, "tool_calls": [call]}) == (
        Message(
            role="assistant",
            tool_calls=(
                ToolCall(id="call_1", name="note", arguments='{"input":"say \\"hi\\"\\n"}'),
            ),
        ),
    )


# --- Legacy functions ----------------------------------------------------------------------------


@pytest.mark.rule("chat.legacy-functions")
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, ToolChoice(parallel=False)),
        ({"function_call": "auto"}, ToolChoice(parallel=False)),
        ({"function_call": "none"}, ToolChoice(mode="none", parallel=False)),
        ({"function_call": {"name": "g"}}, ToolChoice(mode="named", name="g", parallel=False)),
        ({"tools": [], "tool_choice": "auto"}, ToolChoice(parallel=False)),
    ],
)
def test_functions_are_tools_of_which_one_may_be_called(
    choice: dict[str, Any], expected: ToolChoice
) -> None:
    found = prompt(
        functions=[{"name": "f", "description": "F.", "parameters": WEATHER}, {"name": "g"}],
        parallel_tool_calls=True,
        **choice,
    )
    assert found.tools == (
        ToolSpec(name="f", description="F.", parameters=WEATHER),
        ToolSpec(name="g"),
    )
    assert found.tool_choice == expected


@pytest.mark.rule("chat.legacy-history")
def test_legacy_calls_and_results_sent_back_belong_together() -> None:
    turns = messages(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "18C"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":1}'}},
        {"role": "function", "name": "f", "content": None},
        {"role": "function", "name": "orphan", "content": "x"},
    )[1:]
    first, first_result, second, second_result, orphan = turns
    assert first.tool_calls == (ToolCall(id="function_call_1", name="f", arguments="{}"),)
    assert first_result == Message(
        role="tool", parts=said("18C"), tool_call_id="function_call_1", name="f"
    )
    assert second.tool_calls == (ToolCall(id="function_call_3", name="f", arguments='{"a":1}'),)
    assert second_result == Message(role="tool", tool_call_id="function_call_3", name="f")
    assert orphan.tool_call_id not in ("function_call_1", "function_call_3", None)
