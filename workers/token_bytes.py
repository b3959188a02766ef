"""The bytes a token stands for, by itself.

A token is bytes, not text: one character can be several tokens. Decoding a single id loses the
bytes of a cut character, so they are read from the vocabulary. Three kinds of vocabulary are known:
byte-level (a printable letter per byte), byte fallback (`<0xE2>`), and plain text with U+2581 for
spaces.

Must not know any engine.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _byte_letters() -> dict[str, int]:
    """The letter that byte-level vocabularies write for each byte.

    Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on, in
    order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    letters.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return letters


class TokenBytes:
    """Looks up the bytes of token ids.

    Args:
        tokenizer: A Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, str] = {
            index: text for text, index in tokenizer.get_added_vocab().items()
        }
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if (added := self._added.get(token_id)) is not None:
            return added.encode()
        token: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # the output layer may be wider than the vocabulary
            return b""
        if self._byte_level:
            letters = _byte_letters()
            return bytes(letters[letter] for letter in token if letter in letters)
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes((int(byte[1], 16),))
        return token.replace("\u2581", " ").encode()
