"""API key to Principal.

Keys are compared as digests of their bytes, in constant time; neither a key nor its digest is ever
logged or shown. One rule on every endpoint: a key may come as `Authorization: Bearer` or as
`x-api-key`; a request that carries two different ones is refused, so that nobody is served, or
billed, by chance.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import msgspec

from ingress.accounts.account import UNLIMITED, Account
from schemas.errors import InvalidApiKey, MissingApiKey

_INVALID = "The API key is not valid."


class Principal(msgspec.Struct, frozen=True):
    """Whom a key names.

    Attributes:
        name: The public id of the key, for logs and records.
        terms: Of its account.
    """

    name: str
    terms: Account = UNLIMITED

    @property
    def account(self) -> str:
        """Whose files and batches it sees."""
        return self.terms.account_id


ANONYMOUS = Principal("anonymous")


class Authenticator:
    """Knows the accepted keys; with none, everybody is `ANONYMOUS`."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def authenticate(self, headers: Sequence[tuple[bytes, bytes]]) -> Principal:
        """The principal of a request.

        Args:
            headers: Raw pairs of lower-case name and value.

        Raises:
            MissingApiKey: No credentials.
            InvalidApiKey: Unknown, malformed, or two different ones.
        """
        if not self._digests:
            return ANONYMOUS
        presented = _presented(headers)
        if not presented:
            raise MissingApiKey(
                "No API key was sent. Send `Authorization: Bearer <key>` or `x-api-key: <key>`."
            )
        if len(presented) > 1:
            raise InvalidApiKey(_INVALID)
        digest = hashlib.sha256(presented.pop()).digest()
        found = 0
        for number, known in enumerate(self._digests, start=1):
            if hmac.compare_digest(digest, known):
                found = number
        if not found:
            raise InvalidApiKey(_INVALID)
        return Principal(f"key-{found}", Account(account_id=_account(digest)))


def _account(digest: bytes) -> str:
    """The account of a key that stands for itself: the same wherever it is in the list of keys."""
    return hashlib.sha256(b"headrace account\0" + digest).hexdigest()[:24]


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    keys: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key":
            keys.add(value.strip())
        elif name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                # A credential that we do not know must not pass unnoticed beside one that we do.
                raise InvalidApiKey(_INVALID)
            keys.add(token.strip())
    return keys
