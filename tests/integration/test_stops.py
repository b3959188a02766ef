"""Where stop strings end an answer, in every dialect, streamed and not, however its text is cut.

They act on answer text only: not on reasoning, not on tool calls, and not on the white space that
parts them from the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.fixtures.answers import CONVERSATIONS, read_body, read_stream, values
from tests.fixtures.player import GO, Player, request_to_play, tool
from tests.fixtures.requests import ALL, path_of, request_body
from tests.fixtures.stack import MODEL, memory_stack, sse_data
from workers.engines.scripted import End, ScriptedEngine, Step, Text

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call>'
LOOKED = (("look", '{"city": "Paris"}'),)


class Row(NamedTuple):
    """What the model writes with which stop strings, and what of it is read."""

    written: tuple[str, ...]
    stop: tuple[str, ...]
    text: str
    matched: str | None = None
    end: End = End()
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] | None = None

    @property
    def finish(self) -> str:
        if self.calls:
            return "calls"
        return "length" if self.end.reason == "length" and self.matched is None else "stop"


ROWS: dict[str, Row] = {
    "over many tokens": Row(
        ("42", "</", "ans", "wer", ">", " tail"), ("</answer>",), "42", "</answer>"
    ),
    "almost": Row(("42", "</", "ans", "ible>"), ("</answer>",), "42</ansible>"),
    "begun at the end": Row(("I logged an ", "Obs"), ("Observation:",), "I logged an Obs"),
    "begun at the limit": Row(
        ("I logged an ", "Obs"), ("Observation:",), "I logged an Obs", end=End("length")
    ),
    "whole at the limit": Row(("a STO", "P"), ("STOP",), "a ", "STOP", End("length")),
    "the whole answer": Row(("DO", "NE"), ("DONE",), "", "DONE"),
    "at the start": Row(("DO", "NE and more"), ("DONE",), "", "DONE"),
    "longer than the answer": Row(("abc",), ("abcd" * 500,), "abc"),
    "its beginning twice": Row(("x ##", "##END y"), ("##END",), "x ##", "##END"),
    "one inside another": Row(("x abcdef",), ("abcdef", "cd"), "x ab", "cd"),
    "one the end of another": Row(("a foo", "bar"), ("bar", "foobar"), "a ", "foobar"),
    "one the beginning of another": Row(("abc",), ("abc", "ab"), "", "ab"),
    "overlapping": Row(("aab", "ab!"), ("aba", "bab"), "a", "aba"),
    "given twice": Row(("a END b",), ("END", "END"), "a ", "END"),
    "as many as may be": Row(
        ("a <63> b",), tuple(f"<{number}>" for number in range(64)), "a ", "<63>"
    ),
    "of many bytes": Row(("Es ist ", "ďaleko 🧪", "🔬!"), ("🧪🔬",), "Es ist ďaleko ", "🧪🔬"),
    "of parts of one sign": Row(("family: 👩‍", "👧 end"), ("👧",), "family: 👩‍", "👧"),
    "white space": Row(("one", "\n", "\ntwo"), ("\n\n",), "one", "\n\n"),
    "a line separator": Row(("one\u2028", "two"), ("\u2028",), "one", "\u2028"),
    "a NUL": Row(("one\x00", "two"), ("\x00",), "one", "\x00"),
    "an escape, not a line": Row(("one\\n", "two\nthree"), ("\n",), "one\\ntwo", "\n"),
    "special characters": Row(("a.b", "*c[d] e"), ("*c[d]",), "a.b", "*c[d]"),
    "told by the engine": Row(
        ("one two ",), ("###END",), "one two ", "###END", End(matched="###END")
    ),
    "a token ended it": Row(("one two",), ("###END",), "one two", None, End(matched=151_336)),
}

SPLIT_ROWS: dict[str, Row] = {
    "in reasoning": Row(
        ("<think>5+2 is ", "7 so", "</think>The sum is ", "7."),
        ("7",),
        "The sum is ",
        "7",
        reasoning="5+2 is 7 so",
    ),
    "begun in reasoning": Row(
        (
            "<think>so ST",
            "</think>OP or not",
        ),
        ("STOP",),
        "OP or not",
        reasoning="so ST",
    ),
    "like the end of reasoning": Row(
        ("<think>hm</", "think>42</", "answer> tail"),
        ("</answer>",),
        "42",
        "</answer>",
        reasoning="hm",
    ),
    "the end of reasoning itself": Row(
        ("<think>hm</think>", "42"), ("</think>", "<think>"), "42", reasoning="hm"
    ),
    "white space after reasoning": Row(
        ("<think>hm</think>\n", "\nfour", "\nfive"), ("\n",), "four", "\n", reasoning="hm"
    ),
    "at once after reasoning": Row(
        ("<think>hm</think>", "DO", "NE"), ("DONE",), "", "DONE", reasoning="hm"
    ),
    "none, and a second end of reasoning": Row(
        ("<think>They want alpha.", "</think>alpha </think> beta"),
        (),
        "alpha </think> beta",
        reasoning="They want alpha.",
    ),
    "in a call": Row(("Look. ", CALL), ("Paris",), "Look. ", calls=LOOKED),
    "the markup of a call": Row(
        (CALL,), ("<tool_call>", "</tool_call>", "{", "look"), "", calls=LOOKED
    ),
    "before a call": Row(("Look: STOP ", CALL), ("STOP",), "Look: ", "STOP", calls=()),
    "across held-back white space": Row(
        ("one", "\n\n", "two three"), ("e\n\nt",), "on", "e\n\nt", calls=()
    ),
    "begun before a call": Row(("Look at ST", CALL), ("STOP",), "Look at ST", calls=LOOKED),
    "begun like a call": Row(
        ("one <tool", "box> two"), ("<toolbox>",), "one ", "<toolbox>", calls=()
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def player() -> Player:
    return Player()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(player: Player) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        memory_stack(ScriptedEngine(served_id=MODEL, script=lambda _: player.steps)) as stack,
        httpx.AsyncClient(base_url=stack.url) as client,
    ):
        yield client


def cuts(row: Row) -> Iterator[list[Step]]:
    """The same text as it stands, one character at a time, and all at once."""
    whole = "".join(row.written)
    for pieces in (row.written, tuple(whole), (whole,)):
        yield [*map(Text, pieces), row.end]


STOP = {"messages": "stop_sequences"}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def body_of(row: Row, dialect: str) -> dict[str, Any]:
    if dialect == "completions":
        body = request_body(dialect, GO, max_tokens=10_000)
    else:
        body = request_to_play(dialect, tools=False, think=row.reasoning is not None)
    if row.calls is not None:
        body["tools"] = [tool(dialect, "look", _SCHEMA)]
    return {**body, STOP.get(dialect, "stop"): list(row.stop)}


def matched_of(dialect: str, stream: bool, content: bytes) -> Any:
    """The stop string that the dialect names; None where it names none."""
    if dialect == "messages":
        last = orjson.loads(sse_data(content)[-2])["delta"] if stream else orjson.loads(content)
        assert (last["stop_sequence"] is not None) == (last["stop_reason"] == "stop_sequence")
        return last["stop_sequence"]
    if dialect == "completions":
        records = [orjson.loads(data) for data in sse_data(content)[:-1]] if stream else None
        last = records[-1] if records else orjson.loads(content)
        return last["choices"][0]["matched_stop"]
    return None


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@pytest.mark.parametrize("name", [*ROWS, *SPLIT_ROWS])
@pytest.mark.rule("chat.stop", "messages.stop-sequences", "messages.stop-sequence-reported")
async def test_an_answer_ends_before_it(
    http: httpx.AsyncClient, player: Player, name: str, dialect: str
) -> None:
    row = {**ROWS, **SPLIT_ROWS}[name]
    for player.steps in cuts(row):
        for stream in (False, True):
            body = body_of(row, dialect) | {"stream": stream}
            response = await http.post(path_of(dialect), json=body)
            assert response.status_code == 200, response.text
            answer = (read_stream if stream else read_body)(dialect, response.content)
            assert answer.text == row.text
            assert answer.end == row.finish
            if dialect != "responses":  # tells no reasoning
                assert answer.reasoning == (row.reasoning or "")
            assert values(answer.calls) == values(row.calls or ())
            if dialect == "messages" and not row.calls:
                assert matched_of(dialect, stream, response.content) == row.matched


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.rule("completions.stop", "completions.matched-stop")
async def test_a_completion_ends_before_it(
    http: httpx.AsyncClient, player: Player, name: str
) -> None:
    row = ROWS[name]
    for player.steps in cuts(row):
        for stream in (False, True):
            body = body_of(row, "completions") | {"stream": stream}
            response = await http.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            records = (
                [orjson.loads(data) for data in sse_data(response.content)[:-1]]
                if stream
                else [response.json()]
            )
            choices = [choice for record in records for choice in record["choices"]]
            assert "".join(choice["text"] for choice in choices) == row.text
            assert choices[-1]["finish_reason"] == row.finish
            told = matched_of("completions", stream, response.content)
            assert told == (row.matched if row.matched is not None else row.end.matched)


@pytest.mark.parametrize("dialect", ALL)
async def test_every_choice_ends_by_itself(
    http: httpx.AsyncClient, player: Player, dialect: str
) -> None:
    if dialect not in ("chat", "completions"):
        assert (await http.post(path_of(dialect), json=request_body(dialect, n=3))).is_success
        return
    player.steps = [Text("a S"), Text("TOP b")]
    body = request_body(dialect, GO, n=3, stop="STOP")
    choices = (await http.post(path_of(dialect), json=body)).json()["choices"]
    texts = [choice.get("text", choice.get("message", {}).get("content")) for choice in choices]
    assert texts == ["a "] * 3
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * 3


@pytest.mark.rule("completions.min-tokens")
async def test_nothing_ends_before_the_minimum(http: httpx.AsyncClient, player: Player) -> None:
    player.steps = [Text(piece) for piece in ("STOP", " a ", "ST", "OP", " b")]
    for minimum, text in ((0, ""), (1, ""), (2, "STOP a "), (4, "STOP a "), (5, "STOP a STOP b")):
        for stream in (False, True):
            body = request_body("completions", stop="STOP", min_tokens=minimum, stream=stream)
            response = await http.post("/v1/completions", json=body)
            data = sse_data(response.content)[:-1] if stream else [response.content]
            choices = [choice for record in data for choice in orjson.loads(record)["choices"]]
            assert "".join(choice["text"] for choice in choices) == text, minimum


@pytest.mark.parametrize("dialect", ALL)
async def test_no_bad_stop_strings(http: httpx.AsyncClient, player: Player, dialect: str) -> None:
    player.steps = [Text("fine")]
    field = STOP.get(dialect, "stop")
    bads: list[Any] = [[""], ["a", ""], ["a"] * 65, [5], [None], [["a"]], 5, {"a": 1}, True]
    for bad in bads if dialect == "messages" else ["", *bads]:
        response = await http.post(path_of(dialect), json=request_body(dialect, **{field: bad}))
        assert response.status_code == 400, bad
        assert response.json()["error"]["param"].startswith(field)
    for good in (None, [], ["a" * 100_000], ["\\"], ["\u2028", "\x00"]):
        response = await http.post(path_of(dialect), json=request_body(dialect, **{field: good}))
        assert response.status_code == 200, good
