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

from schemas.errors import IdempotencyKeyReused, UnsupportedValue

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


def keyed_request(request: Request, account: str, endpoint: str, body: Any) -> KeyedRequest | None:
    """What is kept of a request with this decoded JSON body; None if it has no key.

    Raises:
        UnsupportedValue: It has none that can be one.
    """
    digest = request_digest(request, account, endpoint)
    if digest is None:
        return None
    digest.add(body)
    text = f"headrace idempotency key\0{account}\0{digest.key}"
    return KeyedRequest(account, hashlib.sha256(text.encode()).digest(), digest.value())


def request_digest(request: Request, account: str, endpoint: str) -> RequestDigest | None:
    """The digest of a request whose body comes in parts; None if it has no key.

    Raises:
        UnsupportedValue: It has none that can be one.
    """
    key = _key_of(request)
    return None if key is None else RequestDigest(key, account, endpoint)


class RequestDigest:
    """Digests a request, part by part.

    Attributes:
        key: That the request came with.
    """

    def __init__(self, key: str, account: str, endpoint: str) -> None:
        self.key = key
        self._mac = hmac.new(key.encode(), f"{account}\0{endpoint}\0".encode(), hashlib.sha256)

    def add(self, part: Any) -> None:
        """Add decoded JSON: the whole body, or the next part of it."""
        self._mac.update(orjson.dumps(part, option=orjson.OPT_SORT_KEYS) + b"\n")

    def value(self) -> bytes:
        """The digest of what was added."""
        return self._mac.digest()


def _key_of(request: Request) -> str | None:
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


def reused() -> IdempotencyKeyReused:
    """What a client is told whose key belongs to another request."""
    return IdempotencyKeyReused(
        f"The header `{HEADER}` was used before, for another request.", param=HEADER
    )
