"""Tools of a Messages request: which are refused, and what the model is offered."""

from typing import Any

import pytest

from ingress.dialects.profile import OFFICIAL
from schemas.errors import RequestError
from schemas.message import ToolChoice, ToolSpec
from tests.unit.dialects.test_messages_request import SHAPE, VALUE, prompt, refused

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}


def offered(*tools: Any, **fields: Any) -> tuple[ToolSpec, ...]:
    return prompt(tools=list(tools), **fields).tools


def choice(*tools: Any, **fields: Any) -> ToolChoice:
    return prompt(tools=list(tools), **fields).tool_choice


@pytest.mark.rule("messages.tools")
def test_a_tool_of_the_clients() -> None:
    spec = ToolSpec(name="get_weather", description="The weather.", parameters=SCHEMA)
    assert offered(WEATHER) == (spec,)
    assert offered({**WEATHER, "type": "custom"}) == (spec,)
    assert offered({**WEATHER, "strict": True})[0].strict
    extra = {
        "defer_loading": True,
        "eager_input_streaming": True,
        "input_examples": [{"city": "Lima"}],
        "allowed_callers": ["direct"],
        "cache_control": {"type": "ephemeral"},
    }
    assert offered({**WEATHER, **extra}) == (spec,)
    assert offered() == ()


@pytest.mark.rule("messages.tools")
@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        ({**WEATHER, "name": None}, SHAPE, "tools[0].name"),
        ({**WEATHER, "name": ""}, "invalid_tool", "tools[0].name"),
        ({**WEATHER, "name": "a b"}, "invalid_tool", "tools[0].name"),
        ({**WEATHER, "name": 5}, SHAPE, "tools[0].name"),
        ({**WEATHER, "description": 5}, SHAPE, "tools[0].description"),
        ({"name": "f"}, SHAPE, "tools[0].input_schema"),
        ({**WEATHER, "input_schema": "x"}, "tool_schema_invalid", "tools[0].input_schema"),
        (
            {**WEATHER, "input_schema": {"type": "string"}},
            "tool_schema_invalid",
            "tools[0].input_schema",
        ),
        ({"type": "teleport_20990101", "name": "t"}, "invalid_tool", "tools[0].type"),
        ({"type": "function", **WEATHER}, "invalid_tool", "tools[0].type"),
        ({"type": "", **WEATHER}, "invalid_tool", "tools[0].type"),
    ],
)
def test_bad_tools(tool: Any, code: str, param: str) -> None:
    error = refused(tools=[tool])
    assert (error.info().code, error.param) == (code, param)


def test_two_tools_of_one_name() -> None:
    assert refused(tools=[WEATHER, CLOCK, WEATHER]).info().code == "invalid_tool"


@pytest.mark.rule("messages.server-tools")
@pytest.mark.parametrize(
    ("tool", "name", "arguments"),
    [
        ({"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, None, {"query"}),
        ({"type": "web_search_20260318", "name": "web_search"}, None, {"query"}),
        ({"type": "web_fetch_20250910", "name": "web_fetch"}, None, {"url"}),
        ({"type": "bash_20250124", "name": "bash"}, None, {"command", "restart"}),
        ({"type": "text_editor_20250124", "name": "str_replace_editor"}, None, {"command", "path"}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            None,
            {"command", "path", "old_str", "new_str", "file_text", "insert_line", "view_range"},
        ),
        ({"type": "computer_20250124", "name": "computer"}, None, {"action", "coordinate", "text"}),
        ({"type": "computer_toolset_20260801"}, "computer", {"action"}),
        ({"type": "browser_toolset_20260801"}, "browser", {"action"}),
        ({"type": "code_execution_20250825", "name": "code_execution"}, None, {"code"}),
        ({"type": "memory_20250818", "name": "memory"}, None, {"command", "path", "old_path"}),
        (
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            None,
            {"pattern"},
        ),
        ({"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"}, None, {"query"}),
        ({"type": "advisor_20260301", "name": "advisor", "model": "m"}, None, {"question"}),
    ],
)
def test_server_tools_are_tools_with_a_schema_of_ours(
    tool: Any, name: str | None, arguments: set[str]
) -> None:
    (spec,) = offered(tool)
    assert spec.name == (name or tool["name"])
    assert spec.description
    assert spec.parameters is not None
    assert spec.parameters["type"] == "object"
    assert arguments <= set(spec.parameters["properties"])
    assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])


def test_a_computer_tells_the_size_of_its_screen() -> None:
    tool = {
        "type": "computer_20250124",
        "name": "computer",
        "display_width_px": 1024,
        "display_height_px": 768,
    }
    (spec,) = offered(tool)
    assert spec.description is not None
    assert "1024 x 768" in spec.description


def test_a_set_of_tools_that_only_its_server_knows_is_left_out() -> None:
    unknown = {"type": "mcp_toolset", "mcp_server_name": "x"}
    assert offered(unknown, CLOCK) == offered(CLOCK)
    with pytest.raises(RequestError) as caught:
        offered(unknown, CLOCK, CLOCK)
    assert (caught.value.code, caught.value.param) == ("invalid_tool", "tools[2]")


@pytest.mark.rule("messages.tool-choice", "messages.parallel-calls")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "tool", "name": "clock"}, ToolChoice(mode="named", name="clock")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "auto", "disable_parallel_tool_use": None}, ToolChoice()),
        (
            {"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
            ToolChoice(mode="named", name="clock", parallel=False),
        ),
    ],
)
def test_choices(asked: Any, expected: ToolChoice) -> None:
    assert choice(WEATHER, CLOCK, tool_choice=asked) == expected
    assert len(offered(WEATHER, CLOCK, tool_choice=asked)) == 2


@pytest.mark.rule("messages.tool-choice-any", "messages.official-any")
def test_any_is_auto_or_enforced_by_profile() -> None:
    fields: dict[str, Any] = {"tool_choice": {"type": "any"}}
    assert choice(CLOCK, **fields) == ToolChoice()
    assert choice(CLOCK, profile=OFFICIAL, **fields) == ToolChoice(mode="required")
    fields["tool_choice"]["disable_parallel_tool_use"] = True
    assert choice(CLOCK, **fields) == ToolChoice(parallel=False)
    assert choice(CLOCK, profile=OFFICIAL, **fields) == (
        ToolChoice(mode="required", parallel=False)
    )
    assert choice(**fields) == ToolChoice(parallel=False)


@pytest.mark.rule("messages.tool-choice")
def test_a_choice_of_what_is_not_there() -> None:
    unknown = refused(tools=[CLOCK], tool_choice={"type": "tool", "name": "nobody"})
    assert unknown.info().code == "tool_choice_unknown_tool"
    assert unknown.param == "tool_choice.name"
    nameless = refused(tools=[CLOCK], tool_choice={"type": "tool"})
    assert (nameless.info().code, nameless.param) == (SHAPE, "tool_choice.name")
    nothing = refused(tool_choice={"type": "tool", "name": "clock"})
    assert nothing.info().code == VALUE
    assert refused(profile=OFFICIAL, tool_choice={"type": "any"}).info().code == VALUE
    assert prompt(tool_choice={"type": "none"}).tools == ()
