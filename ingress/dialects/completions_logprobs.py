"""Log probabilities of text completions, in the two shapes that clients ask for.

The official one (`logprobs`) has four parallel lists and says where in the text each token begins.
The engine's own (`meta_info`) has entries of (log probability, token id, text or null), and knows
the prompt's positions but no text. Both are what a run of tokens adds: lists to be joined.

Source: Tokenized completions, sections 3 (pass-through fields) and 4 (response).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ingress.dialects.completions_request import CompletionRequest
from ingress.dialects.logprobs import finite
from ingress.dialects.text_offsets import TextOffsets
from schemas.delta import PromptLogprob, TokenLogprob, TopLogprob

Tokens: TypeAlias = Sequence[TokenLogprob] | Sequence[PromptLogprob]
Lists: TypeAlias = dict[str, list[Any]]


class OfficialLogprobs:
    """The official shape of one choice.

    Args:
        top: How many alternatives were asked for.

    Attributes:
        whole: All that was added so far.
    """

    __slots__ = ("_in_prompt", "_offsets", "_top", "whole")

    def __init__(self, top: int) -> None:
        self._top = top
        self._offsets = TextOffsets()
        self._in_prompt = False
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        self.whole: Lists = {name: [] for name in names}

    def prompt(self, text: str, tokens: Sequence[PromptLogprob]) -> Mapping[str, Any] | None:
        """What a piece of the echo adds."""
        self._in_prompt = True
        return self._add(text, tokens)

    def output(self, text: str, tokens: Sequence[TokenLogprob]) -> Mapping[str, Any] | None:
        """What generated text adds."""
        if self._in_prompt:
            self._offsets.settle()
            self._in_prompt = False
        return self._add(text, tokens)

    def _add(self, text: str, tokens: Tokens) -> Mapping[str, Any] | None:
        self._offsets.text(text)
        if not tokens:
            return None
        added: Lists = {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [self._offsets.token(token.token_bytes) for token in tokens],
        }
        for name, values in added.items():
            self.whole[name] += values
        return self.shown(added)

    def shown(self, lists: Lists) -> Mapping[str, Any]:
        """Without the list of alternatives where none were asked for."""
        return lists if self._top else {**lists, "top_logprobs": None}

    def _alternatives(self, token: TokenLogprob | PromptLogprob) -> dict[str, float] | None:
        """By text, so of several tokens with one text the likeliest; the token itself is added."""
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        for other in token.top[: self._top]:
            found.setdefault(other.token, finite(other.logprob))
        found.setdefault(token.token, finite(token.logprob))
        return found


class NativeLogprobs:
    """The engine's shape of one choice.

    Args:
        request: Which lists were asked for.
        position: Prompt position of the first prompt token that will be told.

    Attributes:
        whole: All that was added so far.
    """

    __slots__ = ("_asked", "_position", "_start", "_text", "_top", "whole")

    def __init__(self, request: CompletionRequest, position: int) -> None:
        self._top = request.top_logprobs_num or 0
        self._asked = bool(request.token_ids_logprob)
        self._start = request.native_start
        self._text = request.return_text_in_logprobs
        self._position = position
        self.whole: Lists = {"input_token_logprobs": [], "output_token_logprobs": []}

    def prompt(self, tokens: Sequence[PromptLogprob]) -> Lists | None:
        """What prompt tokens add."""
        skipped = len(tokens) if self._start is None else max(self._start - self._position, 0)
        self._position += len(tokens)
        return self._add("input", tokens[skipped:])

    def output(self, tokens: Sequence[TokenLogprob]) -> Lists | None:
        """What generated tokens add."""
        return self._add("output", tokens)

    def _add(self, side: str, tokens: Tokens) -> Lists | None:
        if not tokens:
            return None
        added: Lists = {f"{side}_token_logprobs": [self._entry(token) for token in tokens]}
        if self._top:
            added[f"{side}_top_logprobs"] = [
                self._entries(token, token.top[: self._top]) for token in tokens
            ]
        if self._asked:
            added[f"{side}_token_ids_logprobs"] = [
                self._entries(token, token.asked) for token in tokens
            ]
        for name, values in added.items():
            self.whole.setdefault(name, []).extend(values)
        return added

    def _entries(
        self, token: TokenLogprob | PromptLogprob, others: Sequence[TopLogprob]
    ) -> list[Any] | None:
        return None if token.logprob is None else [self._entry(other) for other in others]

    def _entry(self, token: TokenLogprob | PromptLogprob | TopLogprob) -> list[Any]:
        text = token.token if self._text else None
        return [_finite(token.logprob), token.token_id, text]


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else finite(logprob)
