"""Deltas -> text completion records, or one text completion.

On the path of every text Delta nothing is built but the bytes themselves, unless the request asked
for more than text. A record has the log probabilities of the tokens that its text completes, and
the ids that were sampled since the last record of its choice.

Source: Tokenized completions, sections 4 (response) and 5 (streaming); failures, sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingress.dialects import envelope, sse, wire_json
from ingress.dialects.base import Frame, Stamp
from ingress.dialects.completions_logprobs import NativeLogprobs, OfficialLogprobs
from ingress.dialects.completions_request import CompletionRequest
from schemas.delta import (
    Completed,
    Delta,
    Failed,
    Finished,
    FinishReason,
    InternalsDelta,
    PromptDelta,
    Started,
    TextDelta,
    TokensDelta,
    Usage,
)
from schemas.errors import ErrorInfo, ProtocolViolation
from schemas.job import Job, TokenPrompt

_NO_FRAMES: tuple[Frame, ...] = ()

_TEXT_END = b',"logprobs":null,"finish_reason":null,"matched_stop":null}'

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTENT_FILTER: "content_filter",
}


class _Choice:
    """What has become of one choice so far.

    Attributes:
        head: How a record of this choice begins, up to the value of `text`.
        official, native: Its log probabilities, in the shapes that were asked for.
        unsent_ids: Sampled ids that no record has had yet.
        told: A record of this choice was sent.
    """

    __slots__ = (
        "finish_reason",
        "head",
        "index",
        "internals",
        "matched",
        "native",
        "official",
        "prompt_ids",
        "texts",
        "token_ids",
        "told",
        "unsent_ids",
    )

    def __init__(
        self,
        index: int,
        head: bytes,
        prompt_ids: Sequence[int],
        official: OfficialLogprobs | None,
        native: NativeLogprobs | None,
    ) -> None:
        self.index = index
        self.head = head + b'{"index":%d,"text":' % index
        self.prompt_ids = prompt_ids
        self.official = official
        self.native = native
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.unsent_ids: list[int] = []
        self.told = False
        self.internals: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.matched: str | int | None = None


class CompletionEncoder:
    """One reply in the text completions dialect.

    Args:
        request: What the records have to tell.
        job: How many choices there are.
        stamp: Ids and clock.
    """

    def __init__(self, request: CompletionRequest, job: Job, stamp: Stamp) -> None:
        assert isinstance(job.prompt, TokenPrompt), "text completions have prompts of token ids"
        options = request.stream_options
        self._stamp = stamp
        self._echoes_logprobs = request.echo and request.logprobs is not None
        self._with_ids = request.return_token_ids
        self._sends_usage = options is not None and options.include_usage
        self._counts_on = options is not None and options.continuous_usage_stats
        self._only_text = not (job.sampling.logprobs or self._with_ids or self._counts_on)
        self._usage = Usage()
        self._complete = False

        # Everything up to the first choice: the object without its brace, and the open array.
        self._head = sse.DATA + wire_json.encode(self._fields())[:-1] + b',"choices":['
        self._end = b'],"usage":null}' + sse.END if self._sends_usage else b"]}" + sse.END
        self._text_end = _TEXT_END + self._end
        position = job.sampling.prompt_logprobs_from or 0
        self._choices = [
            _Choice(
                index,
                self._head,
                job.prompt.prompts[index // job.sampling.n],
                None if request.logprobs is None else OfficialLogprobs(request.logprobs),
                NativeLogprobs(request, position) if request.native_logprobs else None,
            )
            for index in range(job.choices)
        ]

    def _fields(self) -> dict[str, Any]:
        stamp = self._stamp
        return {
            "id": stamp.response_id,
            "object": "text_completion",
            "created": stamp.created,
            "model": stamp.model,
        }

    def open(self) -> Sequence[Frame]:
        return _NO_FRAMES

    def keep_alive(self) -> Sequence[Frame]:
        return (sse.KEEP_ALIVE,)

    def fail(self, error: ErrorInfo, usage: Usage | None = None) -> Sequence[Frame]:
        return (envelope.error_record(error, self._stamp.request_id),)

    def feed(self, delta: Delta) -> Sequence[Frame]:
        match delta:
            case TextDelta():
                return self._text(delta)
            case TokensDelta():
                self._sampled(delta)
            case PromptDelta():
                return self._prompt(delta)
            case InternalsDelta():
                self._internals(delta)
            case Finished():
                return self._finished(delta)
            case Started(input_tokens=input_tokens, cached_tokens=cached_tokens):
                self._usage = Usage(input_tokens, cached_tokens)
            case Completed(usage=usage):
                return self._completed(usage)
            case Failed(error=error):
                return self.fail(error)
            case _:
                pass
        return _NO_FRAMES

    def _text(self, delta: TextDelta) -> Sequence[Frame]:
        choice, text = self._choices[delta.choice], delta.text
        if self._only_text:
            if not text:
                return _NO_FRAMES
            choice.texts.append(text)
            return (choice.head + wire_json.encode_text(text) + self._text_end,)
        official = choice.official.output(text, delta.logprobs) if choice.official else None
        native = choice.native.output(delta.logprobs) if choice.native else None
        return self._record(choice, text, official, native)

    def _prompt(self, delta: PromptDelta) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        tokens = delta.logprobs if self._echoes_logprobs else ()
        official = choice.official.prompt(delta.text, tokens) if choice.official else None
        native = choice.native.prompt(delta.logprobs) if choice.native else None
        return self._record(choice, delta.text, official, native)

    def _sampled(self, delta: TokensDelta) -> None:
        choice = self._choices[delta.choice]
        produced = self._usage.output_tokens + len(delta.token_ids)
        self._usage = msgspec.structs.replace(self._usage, output_tokens=produced)
        if self._with_ids:
            choice.token_ids += delta.token_ids
            choice.unsent_ids += delta.token_ids

    def _internals(self, delta: InternalsDelta) -> None:
        internals = self._choices[delta.choice].internals
        if delta.hidden_states is not None:
            internals["hidden_states"] = delta.hidden_states
        if delta.routed_experts is not None:
            internals["sglext"] = {"routed_experts": delta.routed_experts}

    def _record(
        self,
        choice: _Choice,
        text: str,
        official: Mapping[str, Any] | None,
        native: Mapping[str, Any] | None,
    ) -> Sequence[Frame]:
        if not (text or official or native):
            return _NO_FRAMES
        choice.texts.append(text)
        further: dict[str, Any] = {"meta_info": native} if native else {}
        return (self._frame(choice, text, official, further),)

    def _frame(
        self,
        choice: _Choice,
        text: str,
        official: Mapping[str, Any] | None,
        further: dict[str, Any],
    ) -> Frame:
        ending = {"finish_reason": choice.finish_reason, "matched_stop": choice.matched}
        if self._with_ids:
            further["token_ids"], choice.unsent_ids = choice.unsent_ids, []
            if not choice.told:
                further["prompt_token_ids"] = choice.prompt_ids
        choice.told = True
        end = self._end
        if self._counts_on:
            usage = wire_json.encode(_usage_object(self._usage))
            end = b'],"usage":' + usage + b"}" + sse.END
        rest = wire_json.encode({"logprobs": official, **ending, **further})[1:]
        return choice.head + wire_json.encode_text(text) + b"," + rest + end

    # --- Ends ------------------------------------------------------------------------------------

    def _finished(self, delta: Finished) -> Sequence[Frame]:
        choice = self._choices[delta.choice]
        if (reason := _REASONS.get(delta.reason)) is None:
            raise ProtocolViolation(
                "The answer was cut short.", diagnostic=f"a choice that ended by {delta.reason}"
            )
        choice.finish_reason, choice.matched = reason, delta.matched
        return (self._frame(choice, "", None, {**choice.internals}),)

    def _completed(self, usage: Usage) -> Sequence[Frame]:
        self._usage, self._complete = usage, True
        if not self._sends_usage:
            return (sse.DONE,)
        figures = wire_json.encode(_usage_object(usage))
        return (self._head + b'],"usage":' + figures + b"}" + sse.END, sse.DONE)

    def body(self) -> bytes:
        if not self._complete:
            raise RuntimeError("a body was asked for before the reply was complete")
        return wire_json.encode(
            {
                **self._fields(),
                "choices": [self._choice_object(choice) for choice in self._choices],
                "usage": _usage_object(self._usage),
            }
        )

    def _choice_object(self, choice: _Choice) -> dict[str, Any]:
        official, native = choice.official, choice.native
        whole: dict[str, Any] = {
            "index": choice.index,
            "text": "".join(choice.texts),
            "logprobs": official.shown(official.whole) if official else None,
            "finish_reason": choice.finish_reason,
            "matched_stop": choice.matched,
        }
        if native is not None:
            whole["meta_info"] = native.whole
        if self._with_ids:
            whole["token_ids"] = choice.token_ids
            whole["prompt_token_ids"] = choice.prompt_ids
        return {**whole, **choice.internals}


def _usage_object(usage: Usage) -> dict[str, Any]:
    """The usage of completions and, where the documents show it, the reasoning tokens once more."""
    return {**envelope.usage_object(usage), "reasoning_tokens": usage.reasoning_tokens}
