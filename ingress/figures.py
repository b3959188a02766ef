"""What one request used, over all its attempts. Pure.

A later attempt reads the prompt again, but what the client is told, and pays, is the first reading:
the figures of the prompt are those of the first attempt that began to answer.
"""

from __future__ import annotations

from schemas.delta import Usage


class Figures:
    """The figures of one request.

    Attributes:
        input_tokens: Of the prompt, as far as told.
        final: All of them, once a worker has told the end.
    """

    __slots__ = ("_cached_tokens", "_told_by", "final", "input_tokens")

    def __init__(self) -> None:
        self.input_tokens = 0
        self.final: Usage | None = None
        self._cached_tokens = 0
        self._told_by = 0  # the attempt whose figures of the prompt count; 0: none has begun

    def accepted(self, input_tokens: int) -> None:
        """A worker has the prompt."""
        if not self._told_by:
            self.input_tokens = input_tokens

    def started(self, attempt: int, input_tokens: int, cached_tokens: int) -> None:
        """A worker has read the prompt."""
        if not self._told_by:
            self._told_by = attempt
            self.input_tokens = input_tokens
            self._cached_tokens = cached_tokens

    def so_far(self, output_tokens: int) -> Usage:
        """The final figures; until then what has been told, and what has arrived."""
        return self.final or Usage(self.input_tokens, self._cached_tokens, output_tokens, 0)

    def complete(self, attempt: int, usage: Usage) -> Usage:
        """An attempt has told the end of the answer: the final figures."""
        if self._told_by not in (0, attempt):
            usage = Usage(
                self.input_tokens, self._cached_tokens, usage.output_tokens, usage.reasoning_tokens
            )
        self.final = usage
        return usage

    def broke_off(self, attempt: int, usage: Usage, output_tokens: int) -> None:
        """An attempt has told the end of what will be no whole answer.

        Field by field the larger counts: a worker's own count may lag behind, or be missing.
        """
        seen = self.so_far(output_tokens)
        larger = Usage(
            max(seen.input_tokens, usage.input_tokens),
            max(seen.cached_tokens, usage.cached_tokens),
            max(seen.output_tokens, usage.output_tokens),
            max(seen.reasoning_tokens, usage.reasoning_tokens),
        )
        self.complete(attempt, larger)
