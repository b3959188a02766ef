"""API keys: how one is made, what names it, and what is kept of it.

A key is `hr_`, 8 characters that name it, `_`, and 43 random characters: 256 bits, so that its bare
digest is as good as the key is long, and a slow hash would only slow every request. Programs that
look for secrets know it by its beginning.

Whatever bytes a client sends as a key are digested whole and looked up: one that is malformed, far
too long or not ASCII is unknown like any other, and takes no other way.
"""

from __future__ import annotations

import hashlib
import secrets
import string
from typing import Final

import msgspec

PREFIX: Final = "hr"
_NAMED: Final = "key_"

_ALPHABET: Final = string.ascii_letters + string.digits
_ID_LENGTH: Final = 8
_SECRET_LENGTH: Final = 43


class NewKey(msgspec.Struct, frozen=True):
    """A key that has just been made.

    Attributes:
        text: The key itself. It is shown once, and kept nowhere.
        key_id: Names it in lists, logs and records.
        digest: What is kept of it.
    """

    text: str
    key_id: str
    digest: bytes

    def __repr__(self) -> str:
        """Without the key: a stray log line must not have it."""
        return f"NewKey({self.key_id})"


def new_key() -> NewKey:
    """A key that nobody has had before."""
    name = _random(_ID_LENGTH)
    text = f"{PREFIX}_{name}_{_random(_SECRET_LENGTH)}"
    return NewKey(text, f"{_NAMED}{name}", digest_of(text.encode()))


def key_id_in(text: str) -> str | None:
    """The name of the key that a text is; None if it cannot be one."""
    prefix, _, rest = text.partition("_")
    name, underscore, _ = rest.partition("_")
    if prefix != PREFIX or not underscore or len(name) != _ID_LENGTH:
        return None
    return f"{_NAMED}{name}" if all(letter in _ALPHABET for letter in name) else None


def digest_of(key: bytes) -> bytes:
    """What a key is known by."""
    return hashlib.sha256(key).digest()


def own_account(digest: bytes) -> str:
    """The id of the account that a key without one stands for: the same wherever the key is listed.

    It tells nothing of the digest.
    """
    return hashlib.sha256(b"headrace account\0" + digest).hexdigest()[:24]


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
