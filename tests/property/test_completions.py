"""Laws of the text completions encoder: a stream folds to the body, however the reply was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types import Completion

from schemas.delta import (
    Accepted,
    Completed,
    Delta,
    Finished,
    FinishReason,
    PromptDelta,
    PromptLogprob,
    Started,
    TextDelta,
    TokenLogprob,
    TokensDelta,
    TopLogprob,
    Usage,
)
from schemas.reply import ReplyChecker
from tests.unit.dialects.test_completions_encoder import encoder_for

# Tokens as bytes of a text: some end inside a character, and some stand for no text.
texts = st.text(st.sampled_from('aé🧪 \n"\\\u2028\x85'), max_size=10)
values = st.floats(-50, 0)

Token = tuple[bytes, float]


@st.composite
def tokens_of(draw: st.DrawFn, text: str) -> list[Token]:
    whole = text.encode()
    inner = st.integers(1, max(1, len(whole) - 1))
    edges = sorted({0, len(whole), *(e for e in draw(st.sets(inner)) if e < len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    return [(piece, draw(values)) for piece in pieces]


class Told:
    """What one choice says, before it is cut into Deltas."""

    def __init__(self, prompt: list[Token], said: list[Token], end: Finished) -> None:
        self.prompt, self.said, self.end = prompt, said, end


@st.composite
def choices(draw: st.DrawFn, index: int) -> Told:
    prompt = draw(texts.filter(bool).flatmap(tokens_of))
    said = draw(texts.flatmap(tokens_of))
    matched = draw(st.none() | st.just("x") | st.just(7))
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    return Told(prompt, said, Finished(index, reason, matched))


def logprob(kind: type, token: Token) -> Any:
    data, value = token
    text = data.decode(errors="replace")
    top = (TopLogprob(1, text, data, value), TopLogprob(2, "other", b"other", value - 1))
    return kind(len(data), text, data, value, top, top[:1])


@st.composite
def cut(draw: st.DrawFn, index: int, told: Told) -> list[Delta]:
    """The choice as a worker could send it: tokens go with the text that completes them."""
    reported = [logprob(PromptLogprob, token) for token in told.prompt]
    reported[0] = PromptLogprob(reported[0].token_id, *_first(reported[0]))
    at = draw(st.integers(1, len(reported)))
    prompt = b"".join(data for data, _ in told.prompt).decode()
    deltas: list[Delta] = [PromptDelta(index, prompt, tuple(reported[:at]))]
    if reported[at:]:
        deltas.append(PromptDelta(index, "", tuple(reported[at:])))
    pending: list[TokenLogprob] = []
    data, sent = b"", 0
    for token in told.said:
        data += token[0]
        pending.append(logprob(TokenLogprob, token))
        deltas.append(TokensDelta(index, (len(token[0]),)))
        whole = data.decode(errors="ignore")
        if whole[sent:] and draw(st.booleans()):
            deltas.append(TextDelta(index, whole[sent:], tuple(pending)))
            pending, sent = [], len(whole)
    rest = data.decode()[sent:]
    if rest or pending:
        deltas.append(TextDelta(index, rest, tuple(pending)))
    return [*deltas, told.end]


def _first(token: PromptLogprob) -> tuple[str, bytes, None]:
    return token.token, token.token_bytes, None


@st.composite
def interleaved(draw: st.DrawFn, all_told: Sequence[Told]) -> list[Delta]:
    queues = [draw(cut(index, told)) for index, told in enumerate(all_told)]
    deltas: list[Delta] = [Accepted("w", 3), Started("w", 3, 1)]
    while waiting := [queue for queue in queues if queue]:
        deltas.append(draw(st.sampled_from(waiting)).pop(0))
    produced = sum(len(told.said) for told in all_told)
    return [*deltas, Completed(Usage(3, 1, produced, 0))]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"echo": True},
    {"logprobs": 0},
    {"echo": True, "logprobs": 2, "return_token_ids": True},
    {"top_logprobs_num": 1, "logprob_start_len": 1, "token_ids_logprob": [1]},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True},
]


def encode(deltas: Sequence[Delta], count: int, **fields: Any) -> tuple[list[bytes], Any]:
    encoder = encoder_for(prompt=[[1, 2]] * count, **fields)
    checker, frames = ReplyChecker(count), [*encoder.open()]
    echoed = fields.get("echo", False)
    for delta in deltas:
        if isinstance(delta, PromptDelta) and not echoed:
            delta = PromptDelta(delta.choice, "", delta.logprobs)
        checker.feed(delta)
        frames += encoder.feed(delta)
    return frames, orjson.loads(encoder.body())


def fold(frames: Sequence[bytes]) -> dict[int, dict[str, Any]]:
    """What a client makes of the records, read with the official client's own reader."""
    events = list(SSEDecoder().iter_bytes(iter([b"".join(frames)])))
    assert events.pop().data == "[DONE]"
    folded: dict[int, dict[str, Any]] = {}
    for event in events:
        record = event.json()
        # As the client does: in its types `finish_reason` is never null, and it does not check.
        assert Completion.construct(**record).id == record["id"]
        for choice in record["choices"]:
            whole = folded.setdefault(choice["index"], {"text": "", "finish_reason": None})
            assert whole["finish_reason"] is None, "nothing follows the end of a choice"
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            whole["matched_stop"] = choice["matched_stop"]
            for name in ("logprobs", "meta_info"):
                for key, added in (choice.get(name) or {}).items():
                    lists = whole.setdefault(name, {})
                    lists[key] = added if added is None else [*lists.get(key, []), *added]
            for name in ("token_ids", "prompt_token_ids"):
                whole[name] = [*whole.get(name, []), *choice.get(name, [])]
    return folded


def essence(choice: dict[str, Any]) -> dict[str, Any]:
    """Lists without entries are the same as none."""
    lists = {
        name: {key: value for key, value in (choice.get(name) or {}).items() if value}
        for name in ("logprobs", "meta_info")
    }
    ids = {name: choice.get(name) or [] for name in ("token_ids", "prompt_token_ids")}
    plain = {name: choice[name] for name in ("text", "finish_reason", "matched_stop")}
    return {**plain, **lists, **ids}


@given(st.data(), st.integers(1, 3), st.sampled_from(OPTIONS))
def test_a_stream_folds_to_the_body_however_it_was_cut(
    data: st.DataObject, count: int, options: dict[str, Any]
) -> None:
    told = [data.draw(choices(index)) for index in range(count)]
    first = encode(data.draw(interleaved(told)), count, **options)
    second = encode(data.draw(interleaved(told)), count, **options)
    assert first[1] == second[1]
    for frames, body in (first, second):
        folded = fold(frames)
        assert sorted(folded) == list(range(count))
        for choice in body["choices"]:
            assert essence(folded[choice["index"]]) == essence(choice)


@given(st.data())
def test_offsets_are_where_the_tokens_begin(data: st.DataObject) -> None:
    told = data.draw(choices(0))
    _, body = encode(data.draw(interleaved([told])), 1, echo=True, logprobs=1)
    choice = body["choices"][0]
    whole = b"".join(piece for piece, _ in (*told.prompt, *told.said))
    starts, at = [], 0
    for piece, _ in (*told.prompt, *told.said):
        starts.append(len(whole[:at].decode(errors="ignore")))
        at += len(piece)
    assert choice["text"] == whole.decode()
    assert choice["logprobs"]["text_offset"] == starts
    assert len(choice["logprobs"]["tokens"]) == len(starts)
    assert choice["logprobs"]["token_logprobs"][0] is None


@given(st.data(), st.sampled_from(OPTIONS))
def test_a_record_is_one_line(data: st.DataObject, options: dict[str, Any]) -> None:
    frames, _ = encode(data.draw(interleaved([data.draw(choices(0))])), 1, **options)
    for frame in frames:
        line, blank = frame.decode().splitlines()  # splits on all that any reader splits on
        assert blank == ""
        assert line.startswith("data: ")
