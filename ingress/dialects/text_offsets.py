"""Where tokens begin in a text (pure).

Tokens come as bytes and text as characters, each in pieces that do not match: one character can be
several tokens, the text of a token may come later than the token or in parts, and some tokens have
no text, such as special tokens that are skipped and stop strings that are cut off.

It knows no dialect. Offsets count characters, as Python and the official clients do.
"""

from __future__ import annotations

from typing import Final

_WINDOW: Final = 256
"""How many bytes a token may lie ahead, when text came that no token accounts for."""


class TextOffsets:
    """Follows one text and its tokens.

    Feed text before the tokens that complete it.
    """

    __slots__ = ("_begun", "_owed", "_rest")

    def __init__(self) -> None:
        self._begun = 0  # characters that tokens have begun
        self._rest = b""  # text that no token has accounted for yet
        self._owed = b""  # what of the last tokens has not come as text yet

    def text(self, text: str) -> None:
        """More text."""
        added = text.encode()
        if self._owed:
            if added.startswith(self._owed):
                added = self._take(added, len(self._owed))
                self._owed = b""
            elif self._owed.startswith(added):
                self._owed = self._owed[len(added) :]
                added = self._take(added, len(added))
            else:
                self._owed = b""  # its text will not come
        self._rest += added

    def token(self, token: bytes) -> int:
        """The offset of the next token."""
        rest = self._rest
        if rest and not self._begun and token[:1] == b" " != rest[:1]:
            token = token[1:]  # some tokenizers drop the space before the first word
        if rest and not rest.startswith(token) and not token.startswith(rest):
            ahead = rest.find(token, 0, _WINDOW) if token else -1
            if ahead < 0:
                return self._here(token)
            rest = self._rest = self._take(rest, ahead)
        offset = self._here(token)
        if rest.startswith(token):
            self._rest = self._take(rest, len(token))
        else:
            self._rest = self._take(rest, len(rest))
            self._owed += token[len(rest) :]
        return offset

    def settle(self) -> None:
        """Text and tokens so far belong together; what follows begins anew."""
        self._rest = self._take(self._rest, len(self._rest))
        self._owed = b""

    def _here(self, token: bytes) -> int:
        """The character that the next byte belongs to."""
        begun = self._begun + _characters(self._owed)
        ahead = self._rest or token
        inside = bool(ahead) and ahead[0] & 0xC0 == 0x80
        return max(0, begun - inside)

    def _take(self, data: bytes, size: int) -> bytes:
        self._begun += _characters(data[:size])
        return data[size:]


def _characters(data: bytes) -> int:
    """How many characters begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in data)
