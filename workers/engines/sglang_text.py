"""Text of generated ids, cut into increments exactly where SGLang's detokenizer cuts it.

A choice that goes on after ids of another engine is decoded here from its first id: SGLang would
begin anew in the middle of a word or even of a character.

Source: `sglang.srt.managers.detokenizer_manager`, version 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

REPLACEMENT: Final = "\ufffd"

_CONTEXT_TOKENS: Final = 5
"""How many ids of the prompt are decoded along with the first one of the answer."""


class IncrementalText:
    """Decodes one choice.

    Args:
        decode: Text of ids.
        prompt_ids: (prompt_len,) what comes before the choice.
        printable: The part of a text with half a character at its end that can be shown.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt_ids: Sequence[int],
        printable: Callable[[str], str],
    ) -> None:
        self._decode = decode
        self._printable = printable
        self._context = list(prompt_ids[-_CONTEXT_TOKENS:])  # decoded before, next to what is new
        self._new: list[int] = []
        self._whole: list[str] = []
        self._early = 0  # characters of `_new` that were shown although it ends in half a one

    def add(self, ids: Sequence[int]) -> str:
        """The next increment. Never ends in half a character."""
        self._new += ids
        text = self._text(self._new)
        if text and not text.endswith(REPLACEMENT):
            self._whole.append(text)
            self._context, self._new = self._new, []
            shown, self._early = text[self._early :], 0
            return shown
        text = self._printable(text)
        shown, self._early = text[self._early :], len(text)
        return shown

    def finish(
        self, ids: Sequence[int], *, without_last: bool = False, stop_string: str | None = None
    ) -> str:
        """The last increment; may end in half a character.

        Args:
            ids: What came last.
            without_last: The last id is no text.
            stop_string: Ends the text where it first occurs; is part of it.
        """
        self._new += ids
        text = self._text(self._new[:-1] if without_last else self._new)
        if stop_string is not None:
            before = "".join(self._whole)
            at = (before + text).find(stop_string)
            if at >= 0:
                text = (before + text)[: at + len(stop_string)][len(before) :]
        return text[self._early :]

    def _text(self, ids: list[int]) -> str:
        context = self._decode(self._context)
        return self._decode([*self._context, *ids])[len(context) :]
