"""SGLang's outputs for one choice as chunks of ours, and those of a choice it goes on with.

Source: `sglang.srt.managers.tokenizer_manager` and `detokenizer_manager`, version 0.5.23.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, Final

from schemas.delta import PromptLogprob, TokenLogprob, TopLogprob
from schemas.errors import GenerationFailed
from workers.engines.base import EngineChunk, EngineFinish, EngineRequest
from workers.engines.sglang_request import ModelFacts, shows_special
from workers.engines.sglang_text import REPLACEMENT, IncrementalText
from workers.token_bytes import TokenBytes

_LEAST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class Choice:
    """Turns SGLang's outputs for one choice into chunks.

    Args:
        end_ids: The model's natural ends.

    Attributes:
        told: Tokens that SGLang has told of, those of the prefix included.
    """

    def __init__(
        self,
        request: EngineRequest,
        facts: ModelFacts,
        tokenizer: Any,
        token_bytes: TokenBytes,
        end_ids: Collection[int] = (),
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._bytes = token_bytes
        self._end_ids = end_ids
        self._shows_special = shows_special(request.job, facts)
        stop = request.job.sampling.stop
        self._stop_ids = frozenset(stop.token_ids)
        # With `ignore_eos` SGLang ignores the caller's stop ids, too.
        self._watched = self._stop_ids if stop.ignore_eos else frozenset()
        self._ids: list[int] = []
        self._sent = 0
        self._recent: tuple[int, ...] = ()
        self._begun = False
        self._own_text: IncrementalText | None = None
        self.told = len(request.prefix_ids)

    def replay(self) -> list[EngineChunk]:
        """The chunks of the prefix. What comes afterwards joins them."""
        from sglang.utils import find_printable_text

        prefix = self._request.prefix_ids
        own = IncrementalText(self._decode, self._request.prompt_ids, find_printable_text)
        texts = [own.add((token_id,)) for token_id in prefix[:-1]]
        if prefix:
            self._recent = prefix[-5:]
            if (finish := self.ended()) is None:
                texts.append(own.add(prefix[-1:]))
            else:
                matched = prefix[-1] if finish.reason == "stop" else None
                hidden = matched is not None and not self._keeps_stop_ids
                text = own.finish(prefix[-1:], without_last=hidden)
                texts.append(self._last_text(text, {"matched": matched}))
        self._own_text = own
        self._ids, self._sent = list(prefix), sum(map(len, texts))
        return [
            EngineChunk(text=text, token_ids=(token_id,), output_tokens=1, replayed=True)
            for token_id, text in zip(prefix, texts, strict=True)
        ]

    def ended(self) -> EngineFinish | None:
        """How the prefix ends the choice, if it does: then there is nothing to go on with."""
        request = self._request
        if not request.prefix_ids:
            return None
        last, stop = request.prefix_ids[-1], request.job.sampling.stop
        if last in self._stop_ids:
            return EngineFinish(reason="stop", matched=last)
        # A constraint is over with its end token, whether or not that is ignored.
        if last in self._end_ids and (request.constraint is not None or not stop.ignore_eos):
            return EngineFinish(reason="stop")
        if len(request.prefix_ids) >= request.max_tokens:
            return EngineFinish(reason="length")
        return None

    def chunk(self, output: Mapping[str, Any]) -> EngineChunk:
        """The chunk of one output.

        Raises:
            GenerationFailed: It is not a number, or not of what was asked for.
        """
        ids: tuple[int, ...] = tuple(output["output_ids"])
        meta = output["meta_info"]
        finish = self._finish(meta["finish_reason"])
        self.told += len(ids)
        if self._request.prefix_ids and meta["completion_tokens"] != self.told:
            raise GenerationFailed("The model failed to answer.", diagnostic="sglang began anew")
        text = self._text(output, ids, finish)
        if self._watched:
            text, ids, finish = self._stop_at_id(text, ids, finish)
        self._recent = (*self._recent, *ids)[-5:]
        if finish is not None:
            text = self._last_text(text, meta["finish_reason"])
        return EngineChunk(
            text=text,
            token_ids=ids,
            logprobs=self._logprobs(meta, len(ids)),
            prompt_logprobs=self._prompt_logprobs(meta),
            output_tokens=len(ids),
            input_tokens=meta["prompt_tokens"],
            cached_tokens=min(meta["cached_tokens"], meta["prompt_tokens"]),
            hidden_states=self._hidden_states(meta) if finish is not None else None,
            routed_experts=meta.get("routed_experts") if finish is not None else None,
            finish=finish,
        )

    def _text(
        self, output: Mapping[str, Any], ids: tuple[int, ...], finish: EngineFinish | None
    ) -> str:
        if self._own_text is None:
            text: str = output["text"]
            return text
        if finish is None:
            return self._own_text.add(ids)
        matched = output["meta_info"]["finish_reason"].get("matched")
        return self._own_text.finish(
            ids,
            without_last=isinstance(matched, int) and not self._keeps_stop_ids,
            stop_string=matched if isinstance(matched, str) else None,
        )

    @property
    def _keeps_stop_ids(self) -> bool:
        """SGLang's `no_stop_trim`, which keeps stop tokens as well as stop strings."""
        include = self._request.job.sampling.stop.include_in_text
        return include or bool(self._request.stop_strings)

    def _finish(self, reason: Mapping[str, Any] | None) -> EngineFinish | None:
        if reason is None:
            return None
        matched = reason.get("matched")
        if isinstance(matched, str) and matched not in self._request.stop_strings:
            # This is how SGLang reports that the model's output was not a number.
            raise GenerationFailed("The model failed to answer.", diagnostic="invalid logits")
        if isinstance(matched, int) and matched not in self._stop_ids:
            matched = None
        return EngineFinish(reason=reason["type"], matched=matched)

    def _stop_at_id(
        self, text: str, ids: tuple[int, ...], finish: EngineFinish | None
    ) -> tuple[str, tuple[int, ...], EngineFinish | None]:
        """Cut a chunk after the first watched id, if it has one."""
        end = next((at for at, token_id in enumerate(ids) if token_id in self._watched), None)
        if end is None:
            self._ids += ids
            self._sent += len(text)
            return text, ids, finish
        whole = self._decode([*self._ids, *ids[:end]])
        return whole[self._sent :], ids[: end + 1], EngineFinish(reason="stop", matched=ids[end])

    def _last_text(self, text: str, reason: Mapping[str, Any] | None) -> str:
        """The last increment without the text of a stop token and without half a character."""
        recent = self._recent
        if isinstance(matched := (reason or {}).get("matched"), int):
            recent = recent[:-1]
            if self._request.stop_strings and not self._request.job.sampling.stop.include_in_text:
                text = text.removesuffix(self._decode([matched]))
        if text.endswith(REPLACEMENT):
            tail = b"".join(self._bytes[token_id] for token_id in recent)
            if not tail.endswith(REPLACEMENT.encode()):
                text = text[:-1]
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids),
            skip_special_tokens=not self._shows_special,
            spaces_between_special_tokens=self._request.job.sampling.spaces_between_special_tokens,
        )
        return text

    def _logprobs(self, meta: Mapping[str, Any], count: int) -> tuple[TokenLogprob, ...]:
        if not self._request.job.sampling.logprobs:
            return ()
        return tuple(
            TokenLogprob(
                token_id,
                self._bytes[token_id].decode(errors="replace"),
                self._bytes[token_id],
                max(logprob, _LEAST_LOGPROB),
                tuple(self._top(*entry) for entry in top or ()),
                tuple(self._top(*entry) for entry in asked or ()),
            )
            for (logprob, token_id, _), top, asked in islice(_positions(meta, "output"), count)
        )

    def _prompt_logprobs(self, meta: Mapping[str, Any]) -> tuple[PromptLogprob, ...]:
        """All of them, on the first output; SGLang repeats them on every one."""
        begun, self._begun = self._begun, True
        sampling = self._request.job.sampling
        if begun or not sampling.logprobs or sampling.prompt_logprobs_from is None:
            return ()
        return tuple(
            PromptLogprob(
                token_id,
                self._bytes[token_id].decode(errors="replace"),
                self._bytes[token_id],
                None if logprob is None else max(logprob, _LEAST_LOGPROB),
                tuple(self._top(*entry) for entry in top or ()),
                tuple(self._top(*entry) for entry in asked or ()),
            )
            for (logprob, token_id, _), top, asked in islice(
                _positions(meta, "input"), int(sampling.prompt_logprobs_from > 0), None
            )
        )

    def _hidden_states(self, meta: Mapping[str, Any]) -> list[Any] | None:
        wanted = self._request.job.sampling.engine.hidden_states
        states: list[Any] | None = meta.get("hidden_states")
        if wanted != "last" or not states:
            return states
        return states[-1] if isinstance(states[-1], list) else states

    def _top(self, logprob: float, token_id: int, _: Any) -> TopLogprob:
        token_bytes = self._bytes[token_id]
        return TopLogprob(
            token_id,
            token_bytes.decode(errors="replace"),
            token_bytes,
            max(logprob, _LEAST_LOGPROB),
        )


def _positions(meta: Mapping[str, Any], side: str) -> Iterator[tuple[Any, Any, Any]]:
    """Per token of one side: itself, its best alternatives, those that were asked about."""
    tokens = meta.get(f"{side}_token_logprobs") or ()
    top = meta.get(f"{side}_top_logprobs") or ()
    asked = meta.get(f"{side}_token_ids_logprobs") or ()
    return islice(zip_longest(tokens, top, asked), len(tokens))
