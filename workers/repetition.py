"""Notices that a model has begun to repeat itself without end.

A choice whose last tokens are nothing but one short sequence over and over is going nowhere; it is
ended as if it had reached its limit. Judges by token ids only.

Source: Chat Completions, "Response": `length` also means that generation was stopped because the
model started repeating itself. The figures are ours.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec

from workers.engines.base import EngineChunk, EngineFinish

_LONGEST: Final = 256
"""Tokens of a sequence that counts as repeated; longer ones are too much like real text."""

_EVERY: Final = 64
"""Looks once in so many tokens, so that it costs next to nothing for each."""


class RepetitionGuard:
    """Watches one choice.

    Args:
        window: How many tokens the repetition must fill, several times the sequence's own length.
    """

    __slots__ = ("_ids", "_next_look", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._ids = array("I")
        self._next_look = window

    def feed(self, token_ids: tuple[int, ...]) -> bool:
        """Take the next tokens; returns whether the choice repeats itself.

        Where it looks does not depend on how many come at once.
        """
        taken = 0
        while len(token_ids) - taken >= (missing := self._next_look - len(self._ids)):
            self._ids.extend(token_ids[taken : taken + missing])
            taken += missing
            del self._ids[: -self._window]
            self._next_look = self._window + _EVERY
            if self._repeats():
                return True
        self._ids.extend(token_ids[taken:])
        return False

    def _repeats(self) -> bool:
        """Whether the window has a period of at most `_LONGEST` tokens."""
        raw, size = self._ids.tobytes(), self._ids.itemsize
        longest = min(_LONGEST, self._window // 4) * size
        last = raw[-longest:]
        # The latest earlier place of the last tokens gives the period, if there is one. It is found
        # in bytes, where it may also stand across two tokens: that is no period and not looked at.
        at = raw.rfind(last, 0, len(raw) - 1)
        while at >= 0:
            period = len(raw) - longest - at
            if period > longest:
                return False
            if period % size == 0:
                return raw[period:] == raw[:-period]
            at = raw.rfind(last, 0, at + longest - 1)
        return False


async def until_repeating(
    chunks: AsyncIterator[EngineChunk], window: int, prefix_ids: tuple[int, ...] = ()
) -> AsyncGenerator[EngineChunk, None]:
    """What an engine yields for a choice, ended by `length` where it begins to repeat itself.

    The engine is stopped by closing its iterator.

    Args:
        chunks: Of the engine, from its generator.
        window: See `RepetitionGuard`.
        prefix_ids: What the choice goes on after.
    """
    guard = RepetitionGuard(window)
    guard.feed(prefix_ids)
    async with aclosing(chunks) as source:  # type: ignore[type-var]  # engines yield from generators
        async for chunk in source:
            if chunk.finish is None and guard.feed(chunk.token_ids):
                yield msgspec.structs.replace(chunk, finish=EngineFinish(reason="length"))
                return
            yield chunk
