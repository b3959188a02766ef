"""API key to Principal.

Keys are looked up by the digest of their bytes, so that how long that takes says nothing of them;
neither a key nor its digest is ever logged or shown, and every key that does not fit gets the same
answer. One rule on every endpoint: a key may come as `Authorization: Bearer` or as `x-api-key`; a
request that carries two different ones is refused, so that nobody is served, or billed, by chance.

Source: error catalogue, "Authentication, access, account".
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from ingress.accounts.directory import AccountDirectory
from ingress.accounts.keys import digest_of
from ingress.accounts.principal import ANONYMOUS, Principal
from ingress.stores.base import StoreUnavailable
from schemas.errors import InvalidApiKey, MissingApiKey

__all__ = ["ANONYMOUS", "AdminKey", "Authenticator", "Principal"]

Headers = Sequence[tuple[bytes, bytes]]

_INVALID: Final = "The API key is not valid."
_MISSING: Final = "No API key was sent. Send `Authorization: Bearer <key>` or `x-api-key: <key>`."


class Authenticator:
    """Knows the accepted keys; where there are neither keys nor accounts, all are `ANONYMOUS`."""

    def __init__(self, directory: AccountDirectory) -> None:
        self._directory = directory

    @property
    def required(self) -> bool:
        return self._directory.required

    def authenticate(self, headers: Headers) -> Principal:
        """The principal of a request, whose account is enabled.

        Args:
            headers: Raw pairs of lower-case name and value.

        Raises:
            MissingApiKey: No credentials.
            InvalidApiKey: Unknown, malformed, revoked, expired, or two different ones.
            AccountDisabled: The account is suspended.
            StoreUnavailable: It may be one of those that nobody could read yet.
        """
        directory = self._directory
        if not directory.required:
            return ANONYMOUS
        principal = directory.find(digest_of(presented(headers)))
        if principal is None:
            if not directory.complete:
                raise StoreUnavailable(
                    "API keys cannot be checked now; try again.",
                    diagnostic="the accounts have not been read since this process started",
                )
            raise InvalidApiKey(_INVALID)
        principal.terms.require_enabled()
        return principal


class AdminKey:
    """The one key of those who change accounts. No client's key is one, nor the other way round."""

    def __init__(self, key: str) -> None:
        self._digest = digest_of(key.encode())

    def require(self, headers: Headers) -> None:
        """Check that a request carries it.

        Raises:
            MissingApiKey: It carries none.
            InvalidApiKey: It carries something else.
        """
        if not hmac.compare_digest(digest_of(presented(headers)), self._digest):
            raise InvalidApiKey(_INVALID)


def presented(headers: Headers) -> bytes:
    """The one key that a request carries.

    Raises:
        MissingApiKey: None.
        InvalidApiKey: An empty one, two different ones, or credentials of another kind.
    """
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
    if not keys:
        raise MissingApiKey(_MISSING)
    key = keys.pop()
    if keys or not key:
        raise InvalidApiKey(_INVALID)
    return key
