"""Brings log probabilities together with the text of their tokens, which a parser may hold back.

It takes what came of one choice and knows neither the parser nor the engine.

Source: Chat Completions, section 2 (`logprobs`); Tokenized completions, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.delta import TextDelta, TokenLogprob
from workers.parsing.base import PartDelta


class PendingLogprobs:
    """Log probabilities of tokens whose text is still held back by the parser."""

    def __init__(self) -> None:
        self._pending: list[TokenLogprob] = []

    def __len__(self) -> int:
        return len(self._pending)

    def attach(
        self,
        tokens: Sequence[TokenLogprob],
        parts: Sequence[PartDelta],
        *,
        in_answer: bool,
        kept_back: int = 0,
    ) -> Sequence[PartDelta]:
        """Hand the pending ones, and these, to the first text among `parts`.

        Tokens of reasoning, of calls and of their markers are left out: `in_answer` tells of these
        tokens, and what was pending before them was a marker then. Those at the end of whose text
        nothing was passed on stay pending: `kept_back` tells how many characters were not.
        """
        if not in_answer:
            self._pending.clear()
            return parts
        self._pending += tokens
        end = len(self._pending)
        while end and (size := len(self._pending[end - 1].token)) <= kept_back and kept_back:
            kept_back -= size
            end -= 1
        if not end:
            return parts
        for index, part in enumerate(parts):
            if isinstance(part, TextDelta):
                carrying = TextDelta(part.choice, part.text, tuple(self._pending[:end]))
                del self._pending[:end]
                return (*parts[:index], carrying, *parts[index + 1 :])
        return parts

    def rest(self, choice: int) -> Sequence[PartDelta]:
        """Those of tokens that were cut off before their text was whole."""
        if not self._pending:
            return ()
        rest = TextDelta(choice, "", tuple(self._pending))
        self._pending.clear()
        return (rest,)
