"""What an answer comes to, once ids, times and the borders between its chunks are taken away.

Two answers to one request are equal if their transcripts are. On the way everything is checked that
a strict client checks: a stream that is whole has its end marker, one that failed says so, and
nothing follows an end.
"""

from __future__ import annotations

import json  # noqa: TID251 - keeps numbers exact
from typing import Any, NamedTuple

from tests.fixtures.answers import KEEP_ALIVE, read_body, read_stream


class Transcript(NamedTuple):
    """An answer without what may differ.

    Attributes:
        content: Everything that was said, by choice, with the reasons of the ends.
        usage: As told.
        failed: The error's code, if it ended in one.
    """

    content: Any
    usage: Any
    failed: str | None = None

    @property
    def text(self) -> str:
        """What the first choice says, for checks of constraints."""
        first = self.content[0] if isinstance(self.content, list) else self.content
        return str(first["text"])

    @property
    def calls(self) -> list[Any]:
        first = self.content[0] if isinstance(self.content, list) else self.content
        return list(first["calls"])

    @property
    def ends(self) -> list[str]:
        """Why each choice ended."""
        choices = self.content if isinstance(self.content, list) else [self.content]
        return [choice["end"] for choice in choices]


def read(dialect: str, *, stream: bool, status: int, body: bytes) -> Transcript:
    """Read an answer to its end, be that a success or a failure.

    Raises:
        AssertionError, KeyError, IndexError, TypeError, ValueError: It is not a valid answer.
    """
    if status != 200:
        error = json.loads(body)["error"]
        assert error["message"]
        return Transcript(None, None, str(error["code"]))
    if dialect in ("chat", "completions"):
        return _choices_stream(dialect, body) if stream else _choices_body(dialect, body)
    if stream and b"\nevent: response.failed\n" in body:
        return _failed_response(body)
    answer = read_stream(dialect, body) if stream else read_body(dialect, body)
    content = {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "calls": [list(call) for call in answer.calls],
        "parts": answer.parts,
        "end": answer.end,
    }
    return Transcript(content, answer.usage, answer.end if answer.failed else None)


def _failed_response(body: bytes) -> Transcript:
    """A failure record of Responses; it may hold more of an open item than was streamed."""
    assert body.endswith(b"\n\n"), "a stream cut within a record"
    events = [
        json.loads(line.removeprefix("data: "))
        for line in body.decode().split("\n")
        if line.startswith("data: ")
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed = events[-1]
    assert failed["type"] == "response.failed", "something follows a failure"
    response = failed["response"]
    assert response["status"] == "failed"
    items = response["output"]
    content = {
        "text": _item_text(items, "message"),
        "reasoning": _item_text(items, "reasoning"),
        "calls": [[i["name"], i["arguments"]] for i in items if i["type"] == "function_call"],
    }
    return Transcript(content, response["usage"], str(response["error"]["code"]))


def _item_text(items: list[Any], kind: str) -> str:
    return "".join(part["text"] for i in items if i["type"] == kind for part in i["content"])


def _choices_body(dialect: str, body: bytes) -> Transcript:
    value = json.loads(body)
    choices = []
    for index, choice in enumerate(value["choices"]):
        assert choice["index"] == index
        said = choice["message"] if dialect == "chat" else choice
        choices.append(
            {
                "text": (said.get("content") if dialect == "chat" else said["text"]) or "",
                "reasoning": said.get("reasoning_content") or "",
                "calls": [
                    [call["function"]["name"], call["function"]["arguments"]]
                    for call in said.get("tool_calls") or ()
                ],
                "end": choice["finish_reason"],
                "tokens": _tokens(choice.get("logprobs")),
            }
        )
    return Transcript(choices, value["usage"])


def _choices_stream(dialect: str, body: bytes) -> Transcript:
    records = _records(body)
    if "error" in records[-1]:
        assert all("error" not in record for record in records[:-1])
        return Transcript(_joined(dialect, records[:-1]), None, str(records[-1]["error"]["code"]))
    assert records.pop() == "[DONE]", "neither an end nor a failure"
    assert not any("error" in record for record in records)
    usage = None
    if not records[-1]["choices"]:
        usage = records.pop()["usage"]
    choices = _joined(dialect, records)
    assert all(choice["end"] for choice in choices), "a choice without an end"
    return Transcript(choices, usage)


def _records(body: bytes) -> list[Any]:
    text = body.decode()  # strictly: half a character is an error
    assert text.endswith("\n\n"), "a stream cut within a record"
    records: list[Any] = []
    for record in text[:-2].split("\n\n"):
        if record == KEEP_ALIVE:
            continue
        assert record.startswith("data: ")
        value = record.removeprefix("data: ")
        records.append(value if value == "[DONE]" else json.loads(value))
    return records


def _joined(dialect: str, records: list[Any]) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    assert len({record["id"] for record in records}) <= 1, "an answer changed its id"
    for record in records:
        for choice in record["choices"]:
            joined = choices.setdefault(
                choice["index"],
                {"text": "", "reasoning": "", "calls": [], "end": None, "tokens": []},
            )
            assert joined["end"] is None, "a choice went on after its end"
            if dialect == "chat":
                _grow(joined, choice["delta"])
            else:
                joined["text"] += choice["text"]
            joined["tokens"] += _tokens(choice.get("logprobs"))
            joined["end"] = choice["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def _grow(joined: dict[str, Any], delta: Any) -> None:
    joined["text"] += delta.get("content") or ""
    joined["reasoning"] += delta.get("reasoning_content") or ""
    for fragment in delta.get("tool_calls") or ():
        function = fragment["function"]
        if fragment["index"] == len(joined["calls"]):
            assert fragment["id"]
            joined["calls"].append([function["name"], ""])
        assert fragment["index"] == len(joined["calls"]) - 1, "a call that is over grew"
        joined["calls"][-1][1] += function.get("arguments") or ""


def _tokens(logprobs: Any) -> list[str]:
    """Texts of the tokens whose log probabilities are told; the figures are those of a machine."""
    if not logprobs:
        return []
    if "content" in logprobs:
        return [entry["token"] for entry in logprobs["content"] or ()]
    return [str(token) for token in logprobs["tokens"]]
