"""Deltas as text completion records and as one body."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ingress.dialects.base import Stamp
from ingress.dialects.completions import Completions
from ingress.dialects.completions_encoder import CompletionEncoder
from schemas.delta import (
    Accepted,
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    InternalsDelta,
    PromptDelta,
    PromptLogprob,
    Started,
    TextDelta,
    TokenLogprob,
    TokensDelta,
    TopLogprob,
    Usage,
)
from schemas.errors import GenerationFailed, ProtocolViolation
from tests.unit.dialects.test_completions_request import card
from tests.unit.dialects.transcripts import CONTEXT

STAMP = Stamp(response_id="ab" * 16, created=1770000000, model="GLM-5.1", request_id="req_1")
HEAD = {
    "id": "ab" * 16,
    "object": "text_completion",
    "created": 1770000000,
    "model": "GLM-5.1",
}
MODEL = card(hidden_states=("last", "all"), routed_experts=True)


def encoder_for(**fields: Any) -> CompletionEncoder:
    completions = Completions()
    request = completions.parse({"model": "m", "prompt": [9703], **fields})
    return completions.encoder(request, completions.normalise(request, MODEL, CONTEXT).job, STAMP)


def play(*said: Delta, **fields: Any) -> tuple[list[Any], Any]:
    """The records of a stream, and the body."""
    encoder = encoder_for(**fields)
    deltas = (Accepted("w", 1), Started("w", 1, 0), *said, Completed(Usage(1, 0, 1, 0)))
    frames = [*encoder.open(), *(frame for delta in deltas for frame in encoder.feed(delta))]
    records = []
    for frame in frames:
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        data = frame[6:-2]
        records.append(data.decode() if data == b"[DONE]" else orjson.loads(data))
    return records, orjson.loads(encoder.body())


def record(index: int, text: str, **fields: Any) -> dict[str, Any]:
    choice = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None,
        "matched_stop": None,
        **fields,
    }
    return {**HEAD, "choices": [choice]}


def token(text: str, logprob: float = -1.0, *top: tuple[str, float]) -> TokenLogprob:
    others = tuple(TopLogprob(9, name, name.encode(), value) for name, value in top)
    asked = (TopLogprob(7, "?", b"?", -9.0),)
    return TokenLogprob(5, text, text.encode(), logprob, others, asked)


def prompt_token(text: str, logprob: float | None) -> PromptLogprob:
    top = () if logprob is None else (TopLogprob(8, "alt", b"alt", -0.5),)
    return PromptLogprob(4, text, text.encode(), logprob, top)


STOP = Finished(0, FinishReason.STOP)
USAGE = {
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "total_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
    "reasoning_tokens": 0,
}


@pytest.mark.rule("completions.body", "completions.usage")
def test_the_body_is_the_documented_one() -> None:
    _, body = play(TextDelta(0, "A"), STOP)
    choice = {
        "index": 0,
        "text": "A",
        "logprobs": None,
        "finish_reason": "stop",
        "matched_stop": None,
    }
    assert body == {**HEAD, "choices": [choice], "usage": USAGE}


@pytest.mark.rule("completions.records", "completions.usage-record")
def test_the_stream_has_one_choice_per_record_and_no_usage_uninvited() -> None:
    records, _ = play(TextDelta(0, "A"), TextDelta(0, " B"), STOP)
    assert records == [
        record(0, "A"),
        record(0, " B"),
        record(0, "", finish_reason="stop"),
        "[DONE]",
    ]


@pytest.mark.rule("completions.usage-record")
def test_a_last_record_with_usage_on_request() -> None:
    records, _ = play(TextDelta(0, "A"), STOP, stream_options={"include_usage": True})
    assert [r["usage"] for r in records[:-2]] == [None, None]
    assert records[-2:] == [{**HEAD, "choices": [], "usage": USAGE}, "[DONE]"]


@pytest.mark.rule("completions.usage-record")
def test_usage_on_every_record_on_request() -> None:
    records, _ = play(
        TokensDelta(0, (1, 2)),
        TextDelta(0, "A"),
        TokensDelta(0, (3,)),
        STOP,
        stream=True,
        stream_options={"continuous_usage_stats": True},
    )
    figures = [(r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]) for r in records[:-1]]
    assert figures == [(1, 2), (1, 3)]
    assert "token_ids" not in records[0]["choices"][0]


@pytest.mark.rule("completions.index", "completions.records")
def test_choices_interleave_by_index() -> None:
    said = (
        TextDelta(3, "d"),
        TextDelta(0, "a"),
        Finished(3, FinishReason.LENGTH),
        TextDelta(1, "b"),
        *(Finished(index, FinishReason.STOP) for index in range(3)),
    )
    records, body = play(*said, prompt=[[1], [2]], n=2)
    assert [r["choices"][0]["index"] for r in records[:-1]] == [3, 0, 3, 1, 0, 1, 2]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "stop"),
        (2, "", "stop"),
        (3, "d", "length"),
    ]


@pytest.mark.parametrize("matched", [None, "END", "x{2}", 151_645])
@pytest.mark.rule("completions.matched-stop")
def test_what_ended_the_text(matched: str | int | None) -> None:
    records, body = play(Finished(0, FinishReason.STOP, matched))
    assert records[0] == record(0, "", finish_reason="stop", matched_stop=matched)
    assert body["choices"][0]["matched_stop"] == matched


@pytest.mark.rule("completions.finish-reason")
def test_reasons() -> None:
    for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
        assert play(Finished(0, reason))[1]["choices"][0]["finish_reason"] == reason.value
    for reason in (FinishReason.CANCELLED, FinishReason.TOOL_CALLS):
        with pytest.raises(ProtocolViolation):
            play(Finished(0, reason))


@pytest.mark.rule("completions.logprobs", "completions.echo")
def test_official_log_probabilities_count_over_the_echo() -> None:
    said = (
        PromptDelta(0, "Hé 🧪", (prompt_token("H", None), prompt_token("é", -2.0))),
        PromptDelta(0, "", (prompt_token(" 🧪", -3.0),)),
        TextDelta(0, "ab", (token("a", -0.1, ("a", -0.1), ("x", -2.0)), token("b"))),
        STOP,
    )
    records, body = play(*said, prompt=[1, 2, 3], echo=True, logprobs=1)
    whole = {
        "tokens": ["H", "é", " 🧪", "a", "b"],
        "token_logprobs": [None, -2.0, -3.0, -0.1, -1.0],
        "top_logprobs": [
            None,
            {"alt": -0.5, "é": -2.0},
            {"alt": -0.5, " 🧪": -3.0},
            {"a": -0.1},
            {"b": -1.0},
        ],
        "text_offset": [0, 1, 2, 4, 5],
    }
    assert body["choices"][0]["text"] == "Hé 🧪ab"
    assert body["choices"][0]["logprobs"] == whole
    assert [r["choices"][0]["text"] for r in records[:-1]] == ["Hé 🧪", "", "ab", ""]
    parts = [r["choices"][0]["logprobs"] for r in records[:-2]]
    assert {name: [value for part in parts for value in part[name]] for name in whole} == whole
    assert records[-2]["choices"][0]["logprobs"] is None


@pytest.mark.rule("completions.logprobs", "completions.echo")
def test_what_no_prompt_token_accounts_for_is_not_taken_for_the_answer() -> None:
    said = (
        PromptDelta(0, "ab ", (prompt_token("a", None), prompt_token("b", -2.0))),
        TextDelta(0, " ", (token(" "),)),
        STOP,
    )
    _, body = play(*said, prompt=[1, 2], echo=True, logprobs=0)
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 1, 3]


@pytest.mark.rule("completions.logprobs")
def test_without_alternatives_there_is_no_list_of_them() -> None:
    records, body = play(TextDelta(0, "a", (token("a", -0.1, ("a", -0.1)),)), STOP, logprobs=0)
    for choice in (records[0]["choices"][0], body["choices"][0]):
        assert choice["logprobs"] == {
            "tokens": ["a"],
            "token_logprobs": [-0.1],
            "top_logprobs": None,
            "text_offset": [0],
        }
        assert "meta_info" not in choice


@pytest.mark.rule("completions.logprobs")
def test_no_number_is_missing_from_json() -> None:
    _, body = play(TextDelta(0, "a", (token("a", float("-inf")),)), STOP, logprobs=1)
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


def test_an_answer_without_tokens_has_empty_log_probabilities() -> None:
    _, body = play(STOP, logprobs=2)
    assert body["choices"][0]["logprobs"] == {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }


@pytest.mark.rule("completions.echo")
def test_echo_alone() -> None:
    records, body = play(PromptDelta(0, "Once"), TextDelta(0, " more"), STOP, echo=True)
    assert [r["choices"][0]["text"] for r in records[:-1]] == ["Once", " more", ""]
    assert body["choices"][0]["text"] == "Once more"
    assert body["choices"][0]["logprobs"] is None


@pytest.mark.rule(
    "completions.return-logprob",
    "completions.logprob-start-len",
    "completions.top-logprobs-num",
    "completions.token-ids-logprob",
    "completions.return-text-in-logprobs",
)
def test_log_probabilities_in_the_engines_shape() -> None:
    said = (
        PromptDelta(0, "", (prompt_token("p", -2.0), prompt_token("q", -3.0))),
        TextDelta(0, "ab", (token("ab", -0.1, ("ab", -0.1), ("x", -2.0)),)),
        STOP,
    )
    asked: dict[str, Any] = {
        "prompt": [1, 2, 3],
        "logprob_start_len": 1,
        "top_logprobs_num": 1,
        "token_ids_logprob": [7],
    }
    records, body = play(*said, **asked)
    assert body["choices"][0]["logprobs"] is None
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["meta_info"] == {
        "input_token_logprobs": [[-2.0, 4, None], [-3.0, 4, None]],
        "input_top_logprobs": [[[-0.5, 8, None]], [[-0.5, 8, None]]],
        "input_token_ids_logprobs": [[], []],
        "output_token_logprobs": [[-0.1, 5, None]],
        "output_top_logprobs": [[[-0.1, 9, None]]],
        "output_token_ids_logprobs": [[[-9.0, 7, None]]],
    }
    assert records[0]["choices"][0]["text"] == ""
    assert set(records[0]["choices"][0]["meta_info"]) == {
        "input_token_logprobs",
        "input_top_logprobs",
        "input_token_ids_logprobs",
    }
    assert "meta_info" not in records[2]["choices"][0]
    with_text = play(*said, **asked, return_text_in_logprobs=True)[1]["choices"][0]["meta_info"]
    assert with_text["output_token_logprobs"] == [[-0.1, 5, "ab"]]
    assert with_text["output_top_logprobs"] == [[[-0.1, 9, "ab"]]]
    plain = play(*said, prompt=[1, 2, 3], return_logprob=True)[1]["choices"][0]["meta_info"]
    assert plain == {"input_token_logprobs": [], "output_token_logprobs": [[-0.1, 5, None]]}


@pytest.mark.rule("completions.logprob-start-len", "completions.echo")
def test_both_shapes_begin_where_each_was_asked_to() -> None:
    prompt = (prompt_token("a", None), prompt_token("b", -1.0), prompt_token("c", -2.0))
    said = (PromptDelta(0, "ab", prompt[:1]), PromptDelta(0, "", prompt[1:]), STOP)
    fields: dict[str, Any] = {"prompt": [1, 2, 3], "echo": True, "logprobs": 0}
    choice = play(*said, **fields, logprob_start_len=2)[1]["choices"][0]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["meta_info"]["input_token_logprobs"] == [[-2.0, 4, None]]
    choice = play(*said, **fields, return_logprob=True)[1]["choices"][0]
    assert choice["meta_info"]["input_token_logprobs"] == []
    only = {"prompt": [1, 2, 3], "logprobs": 0, "logprob_start_len": 0}
    choice = play(PromptDelta(0, "", prompt), STOP, **only)[1]["choices"][0]
    assert choice["logprobs"]["tokens"] == []
    assert choice["meta_info"]["input_token_logprobs"][0] == [None, 4, None]


@pytest.mark.rule("completions.return-token-ids")
def test_token_ids() -> None:
    said = (
        TokensDelta(0, (11,)),  # half a character
        TokensDelta(0, (12, 13)),
        TextDelta(0, "🧪!"),
        TokensDelta(0, (2,)),
        STOP,
    )
    records, body = play(*said, prompt=[5, 6], return_token_ids=True)
    first, last = records[0]["choices"][0], records[1]["choices"][0]
    assert (first["token_ids"], first["prompt_token_ids"]) == ([11, 12, 13], [5, 6])
    assert last["token_ids"] == [2]
    assert "prompt_token_ids" not in last
    choice = body["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([11, 12, 13, 2], [5, 6])
    assert "token_ids" not in play(*said)[1]["choices"][0]


@pytest.mark.rule("completions.return-hidden-states", "completions.return-routed-experts")
def test_the_models_inside() -> None:
    said = (TextDelta(0, "a"), InternalsDelta(0, [0.5, 1.0], "AAEC"), STOP)
    fields = {"return_hidden_states": "last", "return_routed_experts": True}
    records, body = play(*said, **fields)
    for choice in (records[1]["choices"][0], body["choices"][0]):
        assert choice["hidden_states"] == [0.5, 1.0]
        assert choice["sglext"] == {"routed_experts": "AAEC"}
    assert "hidden_states" not in records[0]["choices"][0]


@pytest.mark.rule("completions.failure")
def test_a_failure_is_no_success() -> None:
    error = GenerationFailed("The model failed to answer.").info()
    for fail in (lambda e: e.fail(error), lambda e: e.feed(Failed(error))):
        encoder = encoder_for()
        encoder.feed(Started("w", 1, 0))
        encoder.feed(TextDelta(0, "a"))
        (frame,) = fail(encoder)
        assert orjson.loads(frame[6:]) == {
            "error": {
                "message": "The model failed to answer.",
                "type": "api_error",
                "param": None,
                "code": "generation_failed",
                "request_id": "req_1",
            }
        }
        with pytest.raises(RuntimeError):
            encoder.body()


def test_signs_of_life_are_comments() -> None:
    assert encoder_for().keep_alive() == (b": keep-alive\n\n",)
    assert not encoder_for().open()
