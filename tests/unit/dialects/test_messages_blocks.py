"""What a chat template is given for the blocks of a Messages conversation."""

from typing import Any

import pytest

from schemas.message import ImageLink, ImagePart, Message, Role, TextPart, ToolCall
from schemas.model_card import Capabilities
from tests.unit.dialects.test_messages_request import card, prompt, refused

SEES = card(capabilities=Capabilities(vision=True, tools=True))
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def said(role: Role, value: str = "", **fields: Any) -> Message:
    return Message(role=role, parts=(TextPart(text=value),) if value else (), **fields)


def read(*turns: Any, sees: bool = False, **fields: Any) -> tuple[Message, ...]:
    if sees:
        return prompt(SEES, messages=list(turns), **fields).messages
    return prompt(messages=list(turns), **fields).messages


HI = user(text("hi"))
ASK = said("user", "hi")


@pytest.mark.rule("messages.turns", "messages.blocks")
def test_strings_and_text_blocks_are_the_same() -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "go"},
    ]
    expected = (ASK, said("assistant", "yes?"), said("user", "go"))
    assert read(*turns) == expected
    assert read(HI, assistant(text("yes?")), user(text("go"))) == expected
    assert read(HI, assistant(text("yes"), text("?")), user(text(""), text("go"))) == expected


@pytest.mark.rule("messages.system")
def test_the_system_prompt_is_a_string_or_text_blocks() -> None:
    assert read(HI, system="Be terse.") == (said("system", "Be terse."), ASK)
    blocks = [text("You are terse."), text(""), text("Use metric.")]
    assert read(HI, system=blocks) == (said("system", "You are terse.\nUse metric."), ASK)
    for nothing in (None, "", [], [text("")]):
        assert read(HI, system=nothing) == (ASK,)


@pytest.mark.rule("messages.billing-header")
def test_a_line_that_differs_per_request_is_left_out_of_the_system_prompt_only() -> None:
    line = "x-anthropic-billing-header: cc_version=9.9.9; cc_entrypoint=cli; cch=aa11;"
    system = [text(line), text("The long fixed text.")]
    assert read(HI, system=system) == (said("system", "The long fixed text."), ASK)
    assert read(HI, system=[text(f"Note: {line}")])[0].text == f"Note: {line}"
    assert read(user(text(line)), assistant(text(line)), HI) == (
        said("user", line),
        said("assistant", line),
        ASK,
    )


@pytest.mark.rule("messages.system-turns")
def test_system_turns_stay_where_they_are() -> None:
    system = {"role": "system", "content": [text("Answer in French.")]}
    assert read(HI, system, assistant(text("oui")), user(text("go"))) == (
        ASK,
        said("system", "Answer in French."),
        said("assistant", "oui"),
        said("user", "go"),
    )
    plain = {"role": "system", "content": "Answer in French."}
    assert read(HI, plain, user(text("go")))[1] == said("system", "Answer in French.")
    assert read(plain, HI, system="Be brief.")[0] == said("system", "Be brief.\nAnswer in French.")


@pytest.mark.rule("messages.merged-turns")
def test_neighbouring_turns_of_one_role_are_one() -> None:
    assert read(user(text("a")), user(text("b")), HI) == (said("user", "a\nb\nhi"),)
    assert read(HI, assistant(text("a")), assistant(text("b")), HI) == (
        ASK,
        said("assistant", "a\nb"),
        ASK,
    )
    turns = [HI, assistant(call("t", "f")), user(text("late")), user(result("t", "1"))]
    assert [message.role for message in read(*turns)] == ["user", "assistant", "tool", "user"]


def test_a_system_turn_that_says_nothing_is_no_turn() -> None:
    for content in ("", [], [text("")]):
        silent = {"role": "system", "content": content}
        assert read(HI, silent, user(text("go"))) == (said("user", "hi\ngo"),)
        assert prompt(messages=[HI, assistant(text("So")), silent]).continue_last
        assert read(silent, system="Be brief.") == (said("system", "Be brief."),)
        error = refused(messages=[silent])
        assert (error.info().code, error.param) == ("unsupported_value", "messages")


def test_a_turn_without_text_is_served() -> None:
    assert read(user(text(""))) == (said("user"),)
    assert read({"role": "user", "content": ""}) == (said("user"),)
    assert read(HI, {"role": "assistant", "content": ""}, HI)[1] == said("assistant")


# --- Calls and results ---------------------------------------------------------------------------


@pytest.mark.rule("messages.tool-result", "messages.results-first")
def test_results_come_right_after_the_call_and_before_the_rest_of_their_turn() -> None:
    turns = [
        user(text("temp in Lima?")),
        assistant(text("Let me see."), call("toolu_21", "get_temp", city="Lima")),
        user(text("in Fahrenheit please"), result("toolu_21", "19")),
    ]
    assert read(*turns) == (
        said("user", "temp in Lima?"),
        said(
            "assistant",
            "Let me see.",
            tool_calls=(ToolCall(id="toolu_21", name="get_temp", arguments='{"city":"Lima"}'),),
        ),
        said("tool", "19", tool_call_id="toolu_21"),
        said("user", "in Fahrenheit please"),
    )


def test_a_turn_of_results_alone_has_no_empty_user_turn_after_it() -> None:
    turns = [HI, assistant(call("a", "f"), call("b", "g")), user(result("b", "2"), result("a"))]
    assert [(m.role, m.tool_call_id, m.text) for m in read(*turns)[2:]] == [
        ("tool", "b", "2"),
        ("tool", "a", ""),
    ]


def test_a_result_without_its_call_is_served() -> None:
    assert read(user(result("gone", "1"))) == (said("tool", "1", tool_call_id="gone"),)


@pytest.mark.rule("messages.result-images", "messages.vision")
def test_a_picture_in_a_result_stays_a_picture_in_its_place() -> None:
    turns = [
        user(text("look")),
        assistant(call("toolu_7", "shot")),
        user(result("toolu_7", [text("screen 1"), PNG, text("done")])),
    ]
    assert read(*turns, sees=True)[2] == Message(
        role="tool",
        parts=(
            TextPart(text="screen 1"),
            ImageLink(
                url="data:image/png;base64,AA==",
                param="messages[2].content[0].content[1].source.data",
            ),
            TextPart(text="done"),
        ),
        tool_call_id="toolu_7",
    )
    error = refused(messages=turns)
    assert error.info().code == "model_request_rejected"
    assert error.param == "messages[2].content[0].content[1].source"


@pytest.mark.rule("messages.result-errors")
def test_a_result_that_is_an_error_says_so() -> None:
    turns = [HI, assistant(call("t", "f"))]
    assert read(*turns, user(result("t", "no such file", is_error=True)))[2].text == (
        "Error: no such file"
    )
    blocks = [text("no"), text("file")]
    assert read(*turns, user(result("t", blocks, is_error=True)))[2].text == "Error: no\nfile"
    assert read(*turns, user(result("t", "fine", is_error=False)))[2].text == "fine"
    assert read(*turns, user(result("t", is_error=True)))[2].text == "Error: "


def test_what_a_result_may_hold() -> None:
    found = {
        "type": "search_result",
        "title": "Mills",
        "source": "https://x/mills",
        "content": [text("They grind."), text("Slowly.")],
    }
    content = [
        found,
        {"type": "tool_reference", "tool_name": "grind"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
    ]
    turns = [HI, assistant(call("t", "f")), user(result("t", content))]
    assert read(*turns)[2].text == "Mills\nhttps://x/mills\nThey grind.\nSlowly.\ngrind\nD"


# --- Images and documents ------------------------------------------------------------------------


@pytest.mark.rule("messages.vision", "messages.text-model-image")
def test_images_are_links_until_they_are_read() -> None:
    link = {"type": "image", "source": {"type": "url", "url": "https://pics.example/cat.png"}}
    turns = [HI, user(text("a"), PNG, text("b"), link)]
    assert read(*turns, sees=True) == (
        Message(
            role="user",
            parts=(
                TextPart(text="hi\na"),
                ImageLink(
                    url="data:image/png;base64,AA==", param="messages[1].content[1].source.data"
                ),
                TextPart(text="b"),
                ImageLink(
                    url="https://pics.example/cat.png", param="messages[1].content[3].source.url"
                ),
            ),
        ),
    )
    for block in (PNG, link):
        error = refused(messages=[user(block)])
        assert (error.info().status, error.info().code) == (400, "model_request_rejected")
        assert error.param == "messages[0].content[0].source"


@pytest.mark.rule("messages.plain-documents")
def test_documents_of_text_are_text() -> None:
    def document(**source: Any) -> dict[str, Any]:
        return {"type": "document", "title": "T", "context": "C", "source": source}

    plain = document(type="text", media_type="text/plain", data="Once.")
    assert read(user(plain, text("hi"))) == (said("user", "Once.\nhi"),)
    assert read(user(document(type="content", content="Once."))) == (said("user", "Once."),)
    mixed = document(type="content", content=[text("Once."), PNG])
    parts = read(user(mixed), sees=True)[0].parts
    assert parts[0] == TextPart(text="Once.")
    assert isinstance(parts[1], ImageLink | ImagePart)
    param = "messages[0].content[0].source.content[1].source"
    assert isinstance(parts[1], ImageLink)
    assert parts[1].param == f"{param}.data"
    assert refused(messages=[user(mixed)]).param == param


# --- Thinking ------------------------------------------------------------------------------------


@pytest.mark.rule("messages.thinking-back")
@pytest.mark.parametrize("signature", [{"signature": ""}, {"signature": "abc"}, {}])
@pytest.mark.parametrize("thinking", [{"thinking": {"type": "enabled"}}, {}])
def test_earlier_thinking_is_that_turns_reasoning(signature: Any, thinking: Any) -> None:
    turns = [
        user(text("roll")),
        assistant(
            {"type": "thinking", "thinking": "A d20 fits.", **signature},
            text("Rolling."),
            call("toolu_d", "roll", sides=20),
        ),
        user(result("toolu_d", "14")),
    ]
    turn = read(*turns, **thinking)[1]
    assert turn.reasoning == "A d20 fits."
    assert turn.text == "Rolling."
    assert [tool_call.name for tool_call in turn.tool_calls] == ["roll"]


def test_thinking_that_cannot_be_read_is_left_out() -> None:
    hidden = {"type": "redacted_thinking", "data": "b2s="}
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    turns = [HI, assistant(hidden, empty, text("ok")), HI]
    assert read(*turns)[1] == said("assistant", "ok")


# --- The beginning of the answer -----------------------------------------------------------------


@pytest.mark.rule("messages.prefill")
def test_a_last_turn_of_the_assistant_begins_the_answer() -> None:
    begun = prompt(messages=[HI, assistant(text("The answer is "))], thinking={"type": "enabled"})
    assert begun.continue_last
    assert begun.messages == (ASK, said("assistant", "The answer is "))
    assert not begun.reasoning.enabled
    assert not prompt(messages=[HI]).continue_last
    alone = prompt(messages=[assistant(text("Once"))])
    assert alone.continue_last
    assert alone.messages == (said("assistant", "Once"),)


def test_an_empty_last_turn_of_the_assistant_is_no_turn() -> None:
    for content in ("", [], [text("")]):
        begun = prompt(messages=[HI, {"role": "assistant", "content": content}])
        assert begun.messages == (ASK,)
        assert not begun.continue_last


@pytest.mark.rule("messages.prefill")
def test_what_cannot_be_continued_is_refused() -> None:
    for last in (
        assistant(call("t", "f")),
        assistant(text("a"), call("t", "f")),
        assistant({"type": "thinking", "thinking": "so far"}),
        assistant({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}),
    ):
        error = refused(messages=[HI, last])
        assert (error.info().code, error.param) == ("unsupported_value", "messages[1]")
    error = refused(messages=[assistant(text(""))], system="x")
    assert (error.info().code, error.param) == ("unsupported_value", "messages[0]")
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    error = refused(messages=[HI, assistant(text("{"))], output_config=form)
    assert error.param == "output_config.format"


# --- Tools that another service ran itself -------------------------------------------------------


@pytest.mark.rule("messages.server-history")
def test_calls_of_server_tools_are_told_as_calls_and_results() -> None:
    turns = [
        HI,
        assistant(
            text("Searching."),
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s1",
                "content": [
                    {
                        "type": "web_search_result",
                        "title": "Mills",
                        "url": "https://x",
                        "encrypted_content": "AAAA",
                        "page_age": "1 day",
                    }
                ],
            },
            text("They "),
            text("grind."),
        ),
        user(text("more")),
    ]
    assert read(*turns) == (
        ASK,
        said(
            "assistant",
            "Searching.",
            tool_calls=(ToolCall(id="s1", name="web_search", arguments='{"query":"q"}'),),
        ),
        said(
            "tool",
            '{"title":"Mills","url":"https://x","page_age":"1 day"}',
            tool_call_id="s1",
        ),
        said("assistant", "They grind."),
        said("user", "more"),
    )


@pytest.mark.rule("messages.server-history")
def test_several_calls_of_server_tools_are_one_message() -> None:
    def search(call_id: str) -> dict[str, Any]:
        return {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}

    def found(call_id: str) -> dict[str, Any]:
        return {"type": "web_search_tool_result", "tool_use_id": call_id, "content": "x"}

    together = [HI, assistant(search("1"), search("2"), found("1"), found("2")), HI]
    assert [m.role for m in read(*together)] == ["user", "assistant", "tool", "tool", "user"]
    in_turn = [HI, assistant(search("1"), found("1"), search("2"), found("2"), text("So.")), HI]
    assert [m.role for m in read(*in_turn)] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "user"),
    ]
    last = prompt(messages=together[:2])
    assert [m.role for m in last.messages] == ["user", "assistant", "tool", "tool"]
    assert not last.continue_last


@pytest.mark.rule("messages.server-history")
@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("mcp_tool_result", [{"type": "text", "text": "found"}], "found"),
        ("mcp_tool_result", "found", "found"),
        ("mcp_tool_result", None, ""),
        ("web_search_tool_result", {"type": "e", "error_code": "x"}, '{"error_code":"x"}'),
        (
            "code_execution_tool_result",
            {"type": "code_execution_result", "stdout": "1\n", "return_code": 0, "content": []},
            '{"stdout":"1\\n","return_code":0,"content":[]}',
        ),
        (
            "web_fetch_tool_result",
            {
                "type": "web_fetch_result",
                "url": "https://x",
                "content": {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "Page."},
                },
            },
            '{"url":"https://x","content":{"source":"Page."}}',
        ),
        (
            "web_fetch_tool_result",
            {"content": {"source": {"type": "base64", "media_type": "x", "data": "JVBERg=="}}},
            '{"content":{"source":{}}}',
        ),
        ("anything_tool_result", 5, "5"),
        ("anything_tool_result", {"type": "x"}, ""),
    ],
)
def test_results_of_server_tools_are_text(kind: str, content: Any, expected: str) -> None:
    block = {"type": kind, "tool_use_id": "s", "content": content}
    use = {"type": "mcp_tool_use", "id": "s", "name": "find", "server_name": "m", "input": {}}
    for turns in ([HI, assistant(use, block), HI], [HI, assistant(use), user(block)]):
        told = read(*turns)[2]
        assert (told.role, told.text, told.tool_call_id) == ("tool", expected, "s")
    failed = {**block, "is_error": True}
    assert read(HI, assistant(use, failed), HI)[2].text == f"Error: {expected}"


def test_other_history_never_fails() -> None:
    upload = {"type": "container_upload", "file_id": "file_1"}
    turns = [
        user(upload, text("hi")),
        assistant(
            {"type": "compaction", "content": "Earlier: mills."},
            {"type": "fallback", "from": {}, "to": {}},
            {"type": "mcp_tool_listing", "tools": []},
            text(" And so."),
        ),
        HI,
    ]
    assert read(*turns) == (
        said("user", "[uploaded file file_1]\nhi"),
        said("assistant", "Earlier: mills. And so."),
        ASK,
    )
    compacted = assistant({"type": "compaction", "content": None}, text("x"))
    assert read(HI, compacted, HI)[1] == said("assistant", "x")
