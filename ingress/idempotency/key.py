"""`Idempotency-Key`: what may be one, and what of it and of its request is kept.

Of both there are only digests. That of a short body could be undone by guessing bodies; so the
key, which is written down nowhere, is the secret that the body's digest is made with: whoever has
the digests would have to guess both at once, and a client's keys are random.

Equal requests have equal digests however their JSON is written. No header takes part: none that
changes an answer can come with a key, since zero data retention (`Wafer-ZDR`) turns keys off.

Source: none of the public API's documents; the Idempotency-Key HTTP header field, an IETF draft.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final

import msgspec
import orjson
from starlette.requests import Request

from schemas.errors import UnsupportedValue

HEADER: Final = "Idempotency-Key"

_MAX_LENGTH: Final = 255


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request that has a key, as far as it is kept.

    Attributes:
        account: Whose.
        key: Digest of the key, of this account.
        digest: Of the request.
    """

    account: str
    key: bytes
    digest: bytes


def key_of(request: Request) -> str | None:
    """The key that a request has.

    Raises:
        UnsupportedValue: It cannot be one, or there are several.
    """
    keys = {value.strip(" \t") for value in request.headers.getlist(HEADER)}
    if not keys:
        return None
    key = keys.pop()
    if keys or not 1 <= len(key) <= _MAX_LENGTH or not (key.isascii() and key.isprintable()):
        raise UnsupportedValue(
            f"The header `{HEADER}` must have 1 to {_MAX_LENGTH} printable ASCII characters.",
            param=HEADER,
        )
    return key


def keyed(key: str, account: str, endpoint: str, body: Any) -> KeyedRequest:
    """What is kept of a request with a key; `body` is its decoded JSON."""
    digest = RequestDigest(key, account, endpoint)
    digest.add(body)
    text = b"headrace idempotency key\0" + account.encode() + b"\0" + key.encode()
    return KeyedRequest(account, hashlib.sha256(text).digest(), digest.digest())


class RequestDigest:
    """The digest of a request whose body may come in parts."""

    def __init__(self, key: str, account: str, endpoint: str) -> None:
        self._mac = hmac.new(key.encode(), f"{account}\0{endpoint}\0".encode(), hashlib.sha256)

    def add(self, part: Any) -> None:
        """Add decoded JSON: the whole body, or the next part of it."""
        self._mac.update(orjson.dumps(part, option=orjson.OPT_SORT_KEYS) + b"\n")

    def digest(self) -> bytes:
        return self._mac.digest()
