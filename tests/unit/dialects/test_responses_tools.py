"""Tools and the choice among them: what is offered to the model, and what is refused."""

from typing import Any

import pytest

from ingress.dialects.profile import OFFICIAL, WAFER
from schemas.errors import RequestError
from schemas.message import ToolChoice, ToolSpec
from schemas.model_card import Capabilities
from tests.unit.dialects.responses_fixtures import card, normalise, prompt

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": PARAMETERS}
OTHER = {"type": "function", "name": "g"}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits."}
GROUP = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**FUNCTION, "name": "find", "description": "Finds."}, {**CUSTOM, "name": "edit"}],
}
HOSTED = [
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer",
    "computer_use_preview",
    "programmatic_tool_calling",
]


def specs(*tools: Any, **fields: Any) -> tuple[ToolSpec, ...]:
    return prompt(tools=list(tools), **fields).tools


def choice(value: Any, *tools: Any, **fields: Any) -> ToolChoice:
    return prompt(tools=list(tools), tool_choice=value, **fields).tool_choice


def refusal(**fields: Any) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        prompt(**fields)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


@pytest.mark.rule("responses.function-tools")
def test_functions() -> None:
    strict = {**FUNCTION, "description": "Weather.", "strict": True}
    assert specs(strict, OTHER) == (
        ToolSpec(name="f", description="Weather.", parameters=PARAMETERS, strict=True),
        ToolSpec(name="g"),
    )
    assert specs({**FUNCTION, "strict": None, "description": None, "defer_loading": True}) == (
        ToolSpec(name="f", parameters=PARAMETERS),
    )


@pytest.mark.rule("responses.web-search")
@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_preview", "web_search_preview_2025_03_11", "web_search_2025_08_26"],
)
def test_web_search_is_a_function_for_the_client_to_run(kind: str) -> None:
    (spec,) = specs({"type": kind, "external_web_access": True, "filters": {}})
    assert spec.name == "web_search"
    assert spec.parameters is not None
    assert spec.parameters["properties"]["query"]["type"] == "string"
    assert spec.parameters["required"] == ["query"]


@pytest.mark.rule("responses.hosted-tools")
@pytest.mark.parametrize("kind", [*HOSTED, "tool_search", "wish"])
def test_other_hosted_tools_are_refused(kind: str) -> None:
    assert refusal(tools=[FUNCTION, {"type": kind}]) == ("invalid_tool", "tools[1].type")


@pytest.mark.rule("responses.hosted-tools")
def test_a_shell_in_the_providers_container_is_hosted() -> None:
    shell = {"type": "shell", "environment": {"type": "container_auto"}}
    assert refusal(tools=[shell]) == ("invalid_tool", "tools[0].type")
    assert len(specs({"type": "shell", "environment": {"type": "local"}})) == 1


@pytest.mark.rule("responses.official-hosted-tools")
@pytest.mark.parametrize("kind", HOSTED)
def test_profile_official_leaves_hosted_tools_out_and_says_so(kind: str) -> None:
    found = normalise(profile=OFFICIAL, tools=[FUNCTION, {"type": kind}])
    assert found.ignored == ("tools[1]",)
    assert [spec.name for spec in specs(FUNCTION, {"type": kind}, profile=OFFICIAL)] == ["f"]
    assert refusal(profile=OFFICIAL, tools=[{"type": "wish"}]) == ("invalid_tool", "tools[0].type")


@pytest.mark.rule("responses.custom-tools")
def test_custom_tools_are_functions_of_one_string() -> None:
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"}
    plain, ruled = specs(CUSTOM, {**CUSTOM, "name": "ruled", "format": lark})
    assert plain.name == "patch"
    assert plain.description == "Edits."
    assert plain.parameters is not None
    assert plain.parameters["required"] == ["input"]
    assert ruled.description is not None
    assert ruled.description.startswith("Edits.")
    assert "start: LINE+" in ruled.description


@pytest.mark.rule("responses.namespace-tools")
def test_grouped_tools_are_offered_under_joined_names() -> None:
    found = specs(GROUP)
    assert [(spec.name, spec.description) for spec in found] == [
        ("crm__find", "Finds.\n\nCustomers."),
        ("crm__edit", "Edits.\n\nCustomers."),
    ]


@pytest.mark.rule("responses.client-tools")
def test_tools_that_the_client_runs_are_functions() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
    kinds = ("local_shell", "shell", "apply_patch")
    found = specs(*({"type": kind} for kind in kinds), search)
    assert [spec.name for spec in found] == [*kinds, "tool_search"]
    assert found[3].description == "Finds tools."
    assert all(spec.parameters and spec.parameters["type"] == "object" for spec in found)


BAD_TOOLS: list[tuple[Any, str, str]] = [
    ("f", "schema_validation_failed", "tools[0]"),
    ({}, "schema_validation_failed", "tools[0].type"),
    ({"type": 5}, "schema_validation_failed", "tools[0].type"),
    ({"type": "function"}, "schema_validation_failed", "tools[0].name"),
    (
        {"type": "function", "function": {"name": "f"}},
        "schema_validation_failed",
        "tools[0].name",
    ),
    ({**FUNCTION, "name": "a b"}, "invalid_tool", "tools[0].name"),
    ({**FUNCTION, "name": ""}, "invalid_tool", "tools[0].name"),
    ({**FUNCTION, "name": "a" * 129}, "invalid_tool", "tools[0].name"),
    ({**FUNCTION, "parameters": 5}, "tool_schema_invalid", "tools[0].parameters"),
    (
        {**FUNCTION, "parameters": {"type": "string"}},
        "tool_schema_invalid",
        "tools[0].parameters",
    ),
    ({**FUNCTION, "strict": "yes"}, "schema_validation_failed", "tools[0].strict"),
    (
        {**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}},
        "schema_validation_failed",
        "tools[0].format.definition",
    ),
    ({**CUSTOM, "format": {"type": "poem"}}, "unsupported_value", "tools[0].format.type"),
    ({**GROUP, "tools": None}, "schema_validation_failed", "tools[0].tools"),
    ({**GROUP, "tools": [{"type": "mcp"}]}, "invalid_tool", "tools[0].tools[0].type"),
    ({**GROUP, "tools": [GROUP]}, "invalid_tool", "tools[0].tools[0].type"),
    ({**GROUP, "name": "a" * 126}, "invalid_tool", "tools[0].tools[0].name"),
]


@pytest.mark.rule("responses.bad-tools")
@pytest.mark.parametrize(("tool", "code", "param"), BAD_TOOLS)
def test_definitions_that_are_refused(tool: Any, code: str, param: str) -> None:
    for profile in (WAFER, OFFICIAL):
        assert refusal(profile=profile, tools=[tool]) == (code, param)


@pytest.mark.rule("responses.bad-tools")
def test_names_are_unique_as_the_model_sees_them() -> None:
    taken = {**FUNCTION, "name": "crm__find"}
    for tools, profile, param in (
        ([FUNCTION, FUNCTION], WAFER, "tools[1]"),
        ([GROUP, taken], WAFER, "tools[1]"),
        ([taken, GROUP], WAFER, "tools[1].tools[0]"),
        ([{"type": "mcp"}, FUNCTION, FUNCTION], OFFICIAL, "tools[2]"),
    ):
        assert refusal(profile=profile, tools=tools) == ("invalid_tool", param)


def test_a_model_without_tools_gets_none() -> None:
    unable = card(capabilities=Capabilities())
    assert prompt(unable, tools=[]).tools == ()
    with pytest.raises(RequestError) as caught:
        prompt(unable, tools=[FUNCTION])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")


# --- The choice ----------------------------------------------------------------------------------


@pytest.mark.rule("responses.tool-choice", "responses.parallel")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "name": "f"}, ToolChoice(mode="named", name="f")),
        ({"type": "custom", "name": "patch"}, ToolChoice(mode="named", name="patch")),
        ({"type": "function", "name": "web_search"}, ToolChoice(mode="named", name="web_search")),
        ({"type": "web_search_preview"}, ToolChoice(mode="named", name="web_search")),
        ({"type": "function", "name": "find"}, ToolChoice(mode="named", name="crm__find")),
        ({"type": "function", "name": "crm__find"}, ToolChoice(mode="named", name="crm__find")),
        (
            {"type": "function", "name": "find", "namespace": "crm"},
            ToolChoice(mode="named", name="crm__find"),
        ),
        ({"type": "shell"}, ToolChoice(mode="named", name="shell")),
    ],
)
def test_choices(value: Any, expected: ToolChoice) -> None:
    tools = (FUNCTION, CUSTOM, GROUP, {"type": "web_search"}, {"type": "shell"})
    assert choice(value, *tools) == expected
    single = choice(value, *tools, parallel_tool_calls=False)
    assert (single.mode, single.name, single.parallel) == (expected.mode, expected.name, False)
    assert choice(value, *tools, parallel_tool_calls=None).parallel


@pytest.mark.rule("responses.allowed-tools")
def test_only_the_allowed_tools_are_offered() -> None:
    entries = [
        {"type": "function", "name": "f"},
        {"type": "namespace", "name": "crm"},
        {"type": "shell"},
        {"type": "web_search"},
    ]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": entries}
    offered = [FUNCTION, OTHER, GROUP, {"type": "shell"}, {"type": "web_search"}]
    found = prompt(tools=offered, tool_choice=allowed)
    names = ["f", "crm__find", "crm__edit", "shell", "web_search"]
    assert [spec.name for spec in found.tools] == names
    assert found.tool_choice.mode == "required"


BAD_CHOICES: list[tuple[Any, str, str]] = [
    ("perhaps", "unsupported_value", "tool_choice"),
    (5, "schema_validation_failed", "tool_choice"),
    ({}, "schema_validation_failed", "tool_choice.type"),
    ({"type": "function"}, "schema_validation_failed", "tool_choice.name"),
    ({"type": "function", "name": "h"}, "tool_choice_unknown_tool", "tool_choice"),
    ({"type": "shell"}, "tool_choice_unknown_tool", "tool_choice"),
    ({"type": "namespace", "name": "crm"}, "invalid_tool", "tool_choice.type"),
    ({"type": "file_search"}, "invalid_tool", "tool_choice.type"),
    ({"type": "web_search_preview"}, "invalid_tool", "tool_choice.type"),
    ({"type": "mcp", "server_label": "x"}, "invalid_tool", "tool_choice.type"),
    ({"type": "allowed_tools", "tools": 5}, "schema_validation_failed", "tool_choice.tools"),
    (
        {"type": "allowed_tools", "mode": "none", "tools": []},
        "unsupported_value",
        "tool_choice.mode",
    ),
    (
        {"type": "allowed_tools", "tools": [{"type": "function", "name": "h"}]},
        "tool_choice_unknown_tool",
        "tool_choice.tools[0]",
    ),
    ({"type": "allowed_tools", "tools": ["f"]}, "schema_validation_failed", "tool_choice.tools[0]"),
]


@pytest.mark.rule("responses.bad-choices")
@pytest.mark.parametrize(("value", "code", "param"), BAD_CHOICES)
def test_choices_that_are_refused(value: Any, code: str, param: str) -> None:
    assert refusal(tools=[FUNCTION, GROUP], tool_choice=value) == (code, param)


@pytest.mark.rule("responses.bad-choices")
@pytest.mark.parametrize("value", ["required", {"type": "function", "name": "f"}])
def test_a_call_cannot_be_forced_without_tools(value: Any) -> None:
    assert refusal(tool_choice=value) == ("unsupported_value", "tool_choice")
