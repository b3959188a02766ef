"""What the upstream's wire means, without a network."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.delta import ArgumentsDelta, ReasoningDelta, TextDelta, ToolCallStarted
from schemas.errors import (
    ContextLengthExceeded,
    GenerationFailed,
    ModelOverloaded,
    ModelRequestRejected,
    ServingError,
    UnsupportedParameter,
)
from schemas.job import ChatPrompt, Effort, Job, Prompt, Reasoning, TokenPrompt
from schemas.message import ImagePart, Message, TextPart, ToolCall, ToolChoice, ToolSpec
from schemas.sampling import (
    JsonObject,
    JsonSchema,
    OutputLimit,
    Regex,
    SamplingParams,
    StopConditions,
)
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.sse_reader import SseReader
from workers.engines.upstream_errors import refusal
from workers.engines.upstream_reply import ReplyReader
from workers.engines.upstream_request import request_body
from workers.parsing.base import PartDelta


def user(text: str) -> Message:
    return Message(role="user", parts=(TextPart(text=text),))


def request(
    prompt: Prompt | None = None, *, choice: int = 0, max_tokens: int = 64, **sampling: Any
) -> EngineRequest:
    job = Job(
        job_id="j",
        model="m",
        prompt=prompt or ChatPrompt(messages=(user("hi"),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=max_tokens), **sampling),
        created_at=0.0,
        deadline=1e12,
        queue_deadline=1e12,
    )
    return EngineRequest(engine_request_id="j.1.0", job=job, choice=choice, max_tokens=max_tokens)


def thinking(effort: Effort = "high", *, visible: bool = True) -> ChatPrompt:
    return ChatPrompt(messages=(user("hi"),), reasoning=Reasoning(effort=effort, visible=visible))


class TestRequest:
    def test_least(self) -> None:
        assert request_body(request(), "up/model") == {
            "model": "up/model",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 64,
        }

    def test_conversation_with_tools_and_images(self) -> None:
        prompt = ChatPrompt(
            messages=(
                Message(role="system", parts=(TextPart(text="Be "), TextPart(text="brief."))),
                Message(
                    role="user",
                    parts=(TextPart(text="See"), ImagePart(media_type="image/png", data=b"\x89P")),
                ),
                Message(
                    role="assistant",
                    reasoning="I should look.",
                    tool_calls=(ToolCall(id="c1", name="look", arguments='{"at":1}'),),
                ),
                Message(role="tool", tool_call_id="c1", parts=(TextPart(text="a cat"),)),
            ),
            tools=(
                ToolSpec(
                    name="look", description="Looks", parameters={"type": "object"}, strict=True
                ),
                ToolSpec(name="stop"),
            ),
            tool_choice=ToolChoice(mode="named", name="look", parallel=False),
        )
        body = request_body(request(prompt), "m")
        assert body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVA="}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I should look.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at":1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        ]
        assert body["tools"] == [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks",
                    "parameters": {"type": "object"},
                    "strict": True,
                },
            },
            {"type": "function", "function": {"name": "stop"}},
        ]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}
        assert body["parallel_tool_calls"] is False

    @pytest.mark.parametrize(("mode", "sent"), [("none", "none"), ("required", "required")])
    def test_tool_choice(self, mode: Any, sent: str) -> None:
        prompt = ChatPrompt(
            messages=(user("hi"),), tools=(ToolSpec(name="t"),), tool_choice=ToolChoice(mode=mode)
        )
        assert request_body(request(prompt), "m")["tool_choice"] == sent

    def test_sampling_that_is_set(self) -> None:
        body = request_body(
            request(
                choice=2,
                temperature=0.0,
                top_p=0.9,
                top_k=5,
                frequency_penalty=0.5,
                seed=7,
                logit_bias=((5, -1.0),),
                logprobs=True,
                top_logprobs=3,
                stop=StopConditions(token_ids=(9,)),
            ),
            "m",
        )
        for field in ("model", "messages", "stream", "stream_options", "max_tokens"):
            del body[field]
        assert body == {
            "temperature": 0.0,
            "top_p": 0.9,
            "top_k": 5,
            "frequency_penalty": 0.5,
            "seed": 9,
            "logit_bias": {"5": -1.0},
            "logprobs": True,
            "top_logprobs": 3,
            "stop_token_ids": [9],
        }

    @pytest.mark.parametrize("effort", ["none", "high"])
    def test_effort_is_sent_even_when_it_is_off(self, effort: Any) -> None:
        assert request_body(request(thinking(effort)), "m")["reasoning_effort"] == effort

    def test_stop_strings_are_sent_only_where_they_cannot_act_in_reasoning(self) -> None:
        stop = StopConditions(strings=("a", "b", "c", "d", "e"))
        assert request_body(request(stop=stop), "m")["stop"] == ["a", "b", "c", "d"]
        assert "stop" not in request_body(request(thinking(), stop=stop), "m")

    def test_constraints(self) -> None:
        schema = {"type": "object"}
        sent = request_body(request(constraint=JsonSchema(schema=schema)), "m")
        assert sent["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
        sent = request_body(request(constraint=JsonObject()), "m")
        assert sent["response_format"] == {"type": "json_object"}
        with pytest.raises(UnsupportedParameter) as caught:
            request_body(request(constraint=Regex(pattern="a+")), "m")
        assert caught.value.param == "regex"

    def test_token_ids_cannot_be_sent(self) -> None:
        with pytest.raises(UnsupportedParameter):
            request_body(request(TokenPrompt(prompts=((1,),))), "m")


class TestSse:
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_line_ends_however_they_arrive(self, end: str) -> None:
        wire = end.join(["data: a", "", "data: b", "data: c", "", ": comment", "", ""]).encode()
        assert SseReader().feed(wire) == [b"a", b"b\nc"]
        sse = SseReader()
        assert [r for byte in wire for r in sse.feed(bytes([byte]))] == [b"a", b"b\nc"]
        assert sse.finish() == []

    def test_nothing_else_ends_a_line(self) -> None:
        wire = 'data: "a\u2028b\x85c\x0bd"\r\n\r\ndata:x\n: comment\nevent: e\nid: 1\n\n'
        assert SseReader().feed(wire.encode()) == ['"a\u2028b\x85c\x0bd"'.encode(), b"x"]

    def test_data_lines_of_one_record_are_joined(self) -> None:
        assert SseReader().feed(b"data: {\ndata: }\n\n\n\n") == [b"{\n}"]

    def test_last_record_need_not_be_terminated(self) -> None:
        sse = SseReader()
        assert sse.feed(b"data: a\n\ndata: b") == [b"a"]
        assert sse.finish() == [b"b"]
        assert sse.finish() == []

    def test_endless_line_is_an_error(self) -> None:
        sse = SseReader()
        sse.feed(b"data: " + b"x" * 1024)
        with pytest.raises(GenerationFailed):
            sse.feed(b"x" * 16 * 1024 * 1024)

    @given(cuts=st.lists(st.integers(1, 9), min_size=1))
    def test_chunk_boundaries_carry_no_meaning(self, cuts: list[int]) -> None:
        wire = 'data: "ok 🧪! ď"\r\n\r\ndata: b\ndata: c\n\ndata: [DONE]\n\n'.encode()
        sse, records, at, turn = SseReader(), list[bytes](), 0, 0
        while at < len(wire):
            size = cuts[turn % len(cuts)]
            records += sse.feed(wire[at : at + size])
            at, turn = at + size, turn + 1
        assert records == SseReader().feed(wire)
        assert records == ['"ok 🧪! ď"'.encode(), b"b\nc", b"[DONE]"]

    @pytest.mark.parametrize("cut", range(8))
    def test_a_byte_order_mark_at_the_start_is_no_part_of_a_field(self, cut: int) -> None:
        wire = "\ufeffdata: a\n\n\ufeffdata: b\n\ndata: c\n\n".encode()
        sse = SseReader()
        assert [*sse.feed(wire[:cut]), *sse.feed(wire[cut:])] == [b"a", b"c"]


def record(delta: Any = None, finish: str | None = None, **extra: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    choice |= {key: extra.pop(key) for key in ("stop_reason", "matched_stop") if key in extra}
    return msgspec.json.encode({"choices": [choice], **extra})


def call(
    index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", args)) if v is not None}
    fields = (("index", index), ("id", id), ("function", function))
    return {"tool_calls": [{k: v for k, v in fields if v is not None}]}


def read(
    *records: bytes, request: EngineRequest | None = None
) -> tuple[list[PartDelta], EngineChunk]:
    """All Deltas, and the last chunk."""
    reply = ReplyReader(request or REQUEST)
    deltas: list[PartDelta] = []
    for data in records:
        reply.feed(data)
        if chunk := reply.take():
            deltas += chunk.deltas
    last = reply.last()
    return [*deltas, *last.deltas], last


REQUEST = request()


class TestText:
    def test_text_reasoning_finish_and_usage(self) -> None:
        usage = {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        deltas, last = read(
            record({"role": "assistant", "content": ""}),
            record({"reasoning_content": "hm"}),
            record({"reasoning": "!"}),
            record({"content": "Hi", "reasoning_content": None}),
            record(finish="stop"),
            msgspec.json.encode({"choices": [], "usage": usage}),
            b"[DONE]",
            request=request(thinking()),
        )
        assert deltas == [ReasoningDelta(0, "hm"), ReasoningDelta(0, "!"), TextDelta(0, "Hi")]
        assert last.finish == EngineFinish(reason="stop")
        assert (last.input_tokens, last.cached_tokens, last.reasoning_tokens) == (9, 4, 2)
        assert last.output_tokens == 5 - 3  # three had been counted as they came

    def test_counts_stand_in_for_missing_usage(self) -> None:
        _, last = read(
            record({"reasoning": "a"}), record({"content": "b"}), record(finish="length")
        )
        assert (last.output_tokens, last.input_tokens, last.reasoning_tokens) == (0, None, 1)

    def test_text_sent_under_both_names_counts_once(self) -> None:
        deltas, _ = read(
            record({"reasoning": "a", "reasoning_content": "a"}), record(finish="stop")
        )
        assert deltas == [ReasoningDelta(0, "a")]

    def test_invisible_reasoning_is_dropped_and_not_counted_as_reasoning(self) -> None:
        usage = {"completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}}
        deltas, last = read(
            record({"reasoning": "a"}),
            record({"content": "b"}),
            record(finish="stop", usage=usage),
            request=request(thinking(visible=False)),
        )
        assert deltas == [TextDelta(0, "b")]
        assert last.reasoning_tokens == 0

    def test_deltas_are_of_the_choice_asked_for(self) -> None:
        deltas, _ = read(record({"content": "x"}), record(finish="stop"), request=request(choice=2))
        assert deltas == [TextDelta(2, "x")]

    def test_logprobs(self) -> None:
        top = {"token": "Ho", "logprob": -2.0, "bytes": None}
        entry = {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": [top]}
        data = msgspec.json.encode(
            {"choices": [{"delta": {"content": "H"}, "logprobs": {"content": [entry]}}]}
        )
        reply = ReplyReader(REQUEST)
        reply.feed(data)
        chunk = reply.take()
        assert chunk is not None
        (token,) = chunk.logprobs
        assert (token.token, token.token_bytes, token.logprob) == ("H", b"H", -0.5)
        assert (token.top[0].token, token.top[0].token_bytes) == ("Ho", b"Ho")


class TestStopStrings:
    ASKED = request(thinking(), stop=StopConditions(strings=("7",)))

    def test_end_the_choice_in_the_answer_only(self) -> None:
        reply = ReplyReader(self.ASKED)
        reply.feed(record({"reasoning": "5+2 is 7"}))
        assert not reply.stopped
        reply.feed(record({"content": "It is 7, "}))
        assert reply.stopped
        reply.feed(record({"content": "really"}))
        last = reply.last()
        assert last.deltas == (ReasoningDelta(0, "5+2 is 7"), TextDelta(0, "It is "))
        assert last.finish == EngineFinish(reason="stop", matched="7")

    def test_held_text_is_flushed_before_a_call_and_at_the_end(self) -> None:
        asked = request(stop=StopConditions(strings=("END",)))
        deltas, _ = read(
            record({"content": "EN"}),
            record(call(0, "c", "f", "{}")),
            record({"content": "E"}),
            record(finish="stop"),
            request=asked,
        )
        assert deltas == [
            TextDelta(0, "EN"),
            ToolCallStarted(0, 0, "f"),
            ArgumentsDelta(0, 0, "{}"),
            TextDelta(0, "E"),
        ]

    @pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
    def test_match_the_upstream_tells(self, field: str) -> None:
        stop = StopConditions(strings=("7",), token_ids=(5,))
        for told, matched in (("7", "7"), (5, 5), (151645, None), (None, None)):
            _, last = read(
                record({"content": "x"}),
                record(finish="stop", **{field: told}),
                request=request(stop=stop),
            )
            assert last.finish == EngineFinish(reason="stop", matched=matched)


class TestToolCalls:
    TWO = (
        ToolCallStarted(0, 0, "a"),
        ArgumentsDelta(0, 0, '{"x":1}'),
        ToolCallStarted(0, 1, "b"),
        ArgumentsDelta(0, 1, '{"y":2}'),
    )

    @staticmethod
    def joined(deltas: list[PartDelta]) -> tuple[PartDelta, ...]:
        out: list[PartDelta] = []
        for delta in deltas:
            before = out[-1] if out else None
            if isinstance(delta, ArgumentsDelta) and isinstance(before, ArgumentsDelta):
                assert delta.call == before.call
                out[-1] = ArgumentsDelta(0, delta.call, before.text + delta.text)
            else:
                out.append(delta)
        return tuple(out)

    @pytest.mark.parametrize(
        "fragments",
        [
            pytest.param(
                [
                    call(0, "c0", "a", ""),
                    call(0, args='{"x"'),
                    call(0, args=":1}"),
                    call(1, "c1", "b", ""),
                    call(1, args='{"y":2}'),
                ],
                id="as documented",
            ),
            pytest.param(
                [
                    call(0, "c0", "a", '{"x"'),
                    call(0, "c0", "a", ":1}"),
                    call(1, "c1", "b", '{"y":'),
                    call(1, "c1", "b", "2}"),
                ],
                id="id and name repeated",
            ),
            pytest.param(
                [call(0, "c0", "a", '{"x"'), call(0, "", "", ":1}"), call(1, "c1", "b", '{"y":2}')],
                id="id and name repeated empty",
            ),
            pytest.param(
                [
                    call(None, "c0", "a", '{"x":'),
                    call(args="1}"),
                    call(None, "c1", "b", '{"y":2}'),
                ],
                id="no index",
            ),
            pytest.param(
                [call(0, "c0", "a", '{"x":1}'), call(0, "c1", "b", '{"y":2}')],
                id="every call at index 0",
            ),
            pytest.param(
                [call(name="a", args='{"x":1}'), call(name="b", args='{"y":2}')],
                id="neither index nor id",
            ),
            pytest.param(
                [
                    call(0, None, "a", ""),
                    call(0, None, "a", '{"x":'),
                    call(0, "", "", "1}"),
                    call(0, "", "b", '{"y":2}'),
                ],
                id="every call at index 0 without id",
            ),
            pytest.param(
                [call(0, "c0", "a", {"x": 1}), call(1, "c1", "b", {"y": 2})],
                id="arguments as an object",
            ),
            pytest.param(
                [
                    call(0, "c0", "a", '{"x":'),
                    call(1, "c1", "b", '{"y":'),
                    call(0, args="1}"),
                    call(1, args="2}"),
                ],
                id="interleaved",
            ),
        ],
    )
    def test_two_calls(self, fragments: list[dict[str, Any]]) -> None:
        deltas, last = read(*map(record, fragments), record(finish="tool_calls"))
        assert self.joined(deltas) == self.TWO
        assert last.finish == EngineFinish(reason="tool_calls")

    def test_two_calls_of_one_tool_without_index_or_id(self) -> None:
        deltas, _ = read(
            record(call(name="a", args="{}")),
            record(call(name="a", args="{}")),
            record(finish="stop"),
        )
        assert [d.call for d in deltas if isinstance(d, ToolCallStarted)] == [0, 1]

    def test_empty_object_as_arguments(self) -> None:
        deltas, _ = read(record(call(0, "c", "a", {})), record(finish="stop"))
        assert deltas == [ToolCallStarted(0, 0, "a"), ArgumentsDelta(0, 0, "{}")]

    def test_arguments_stream_as_they_come(self) -> None:
        reply = ReplyReader(REQUEST)
        reply.feed(record(call(0, "c", "a", '{"x')))
        chunk = reply.take()
        assert chunk is not None
        assert chunk.deltas == (ToolCallStarted(0, 0, "a"), ArgumentsDelta(0, 0, '{"x'))

    def test_text_amid_a_call_waits_for_its_end(self) -> None:
        deltas, _ = read(
            record(call(0, "c0", "a", '{"x":')),
            record({"content": "\n"}),
            record({"reasoning_content": "Hm."}),
            record({"content": "Then."}),
            record(call(0, args="1}")),
            record({"content": " Done."}),
            record(call(1, "c1", "b", "{}")),
            record(finish="tool_calls"),
        )
        assert deltas == [
            ToolCallStarted(0, 0, "a"),
            ArgumentsDelta(0, 0, '{"x":'),
            ArgumentsDelta(0, 0, "1}"),
            TextDelta(0, "\n"),
            ReasoningDelta(0, "Hm."),
            TextDelta(0, "Then."),
            TextDelta(0, " Done."),
            ToolCallStarted(0, 1, "b"),
            ArgumentsDelta(0, 1, "{}"),
        ]

    def test_text_after_a_call_without_arguments_is_not_lost(self) -> None:
        deltas, _ = read(
            record(call(0, "c0", "a", "")), record({"content": "Done."}), record(finish="stop")
        )
        assert deltas == [ToolCallStarted(0, 0, "a"), TextDelta(0, "Done.")]

    def test_a_call_that_text_has_followed_is_over(self) -> None:
        whole = record(call(0, "c0", "a", "{}"))
        text = record({"content": "Done."})
        deltas, _ = read(whole, text, record(call(0, args="\n")), record(finish="stop"))
        assert deltas[-1] == TextDelta(0, "Done.")
        with pytest.raises(GenerationFailed):
            read(whole, text, record(call(0, args="{}")), record(finish="stop"))

    def test_call_behind_an_incomplete_one_comes_at_the_end(self) -> None:
        deltas, _ = read(
            record(call(0, "c0", "a", '{"x')),
            record(call(1, "c1", "b", "{}")),
            record(finish="length"),
        )
        assert deltas == [
            ToolCallStarted(0, 0, "a"),
            ArgumentsDelta(0, 0, '{"x'),
            ToolCallStarted(0, 1, "b"),
            ArgumentsDelta(0, 1, "{}"),
        ]

    @pytest.mark.parametrize(
        ("told", "calls", "reason"),
        [
            ("stop", True, "tool_calls"),
            ("tool_calls", True, "tool_calls"),
            ("tool_calls", False, "stop"),
            ("length", True, "length"),
            ("function_call", True, "tool_calls"),
            ("eos", False, "stop"),
            ("eos_token", True, "tool_calls"),
            ("stop_sequence", False, "stop"),
            ("model_length", False, "length"),
        ],
    )
    def test_finish_says_whether_there_are_calls(self, told: str, calls: bool, reason: str) -> None:
        part = record(call(0, "c", "a", "{}")) if calls else record({"content": "x"})
        _, last = read(part, record(finish=told))
        assert last.finish is not None
        assert last.finish.reason == reason

    @pytest.mark.parametrize(
        "fragments",
        [
            [call(0, args="{}")],
            [call(0, "c", "a", "{}"), call(1, "d", "b", "{}"), call(0, args='{"x":1}')],
        ],
        ids=["no name", "goes on after the next began"],
    )
    def test_what_cannot_be_a_call_fails(self, fragments: list[dict[str, Any]]) -> None:
        with pytest.raises(GenerationFailed):
            read(*map(record, fragments), record(finish="stop"))


class TestFailures:
    @pytest.mark.parametrize(
        "records",
        [
            [],
            [record({"content": "half"})],
            [record({"content": "half"}), b"[DONE]"],
            [b"<html>"],
            [b'{"choices":[{"delta":{"content":5}}]}'],
            [b"\xff\xfe"],
            [record({"content": "x"}), record(finish="insufficient_system_resource")],
        ],
    )
    def test_never_end_as_success(self, records: list[bytes]) -> None:
        with pytest.raises(GenerationFailed):
            read(*records)

    @pytest.mark.parametrize(
        ("body", "error"),
        [
            ({"error": {"message": "secret", "type": "Bad", "code": 400}}, ModelRequestRejected),
            ({"error": {"message": "secret", "code": "503"}}, ModelOverloaded),
            ({"error": {"code": "context_length_exceeded"}}, ContextLengthExceeded),
            ({"error": "secret"}, GenerationFailed),
            ({"error": {"message": "secret", "code": None}}, GenerationFailed),
            ({"object": "error", "message": "secret", "code": 400}, ModelRequestRejected),
            (
                {"object": "error", "code": 400, "message": "secret: maximum context length is 9"},
                ContextLengthExceeded,
            ),
            (
                {"error": {"code": 400, "type": "exceed_context_size_error"}},
                ContextLengthExceeded,
            ),
        ],
    )  # fmt: skip
    def test_error_records(self, body: Any, error: type[ServingError]) -> None:
        with pytest.raises(error) as caught:
            read(record({"content": "x"}), msgspec.json.encode(body))
        assert "secret" not in f"{caught.value.message} {caught.value.diagnostic}"

    def test_abort_by_the_upstream_is_told(self) -> None:
        _, last = read(record({"content": "x"}), record(finish="abort"))
        assert last.finish == EngineFinish(reason="abort")

    def test_garbage_after_the_end_is_ignored(self) -> None:
        deltas, _ = read(record({"content": "x"}), record(finish="stop"), b'{"usa')
        assert deltas == [TextDelta(0, "x")]

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (400, ModelRequestRejected),
            (401, GenerationFailed),
            (403, GenerationFailed),
            (404, GenerationFailed),
            (422, ModelRequestRejected),
            (429, ModelOverloaded),
            (500, GenerationFailed),
            (503, ModelOverloaded),
        ],
    )
    def test_http_errors(self, status: int, error: type[ServingError]) -> None:
        assert type(refusal(status, b"nginx")) is error

    def test_diagnostic_has_the_upstreams_identifiers_and_none_of_its_sentences(self) -> None:
        body = b'{"error":{"message":"You said: secret","type":"bad_thing","param":"messages[0]"}}'
        error = refusal(400, body)
        assert error.diagnostic == (
            "upstream answered 400 {'type': 'bad_thing', 'param': 'messages[0]'}"
        )
        assert "secret" not in str(error)

    def test_retry_after_is_passed_on(self) -> None:
        assert refusal(429, b"", "7").retry_after_s == 7
        assert refusal(429, b"", "Wed, 21 Oct 2015 07:28:00 GMT").retry_after_s == 5
