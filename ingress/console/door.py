"""Who may look at the console.

With a key: who has it. It is typed once into a form and answered with a cookie that no script can
read and no other site's page makes a browser send; so neither a fault of the page nor a foreign one
gives it away, which a key kept by the page could not promise. In the cookie is not the key but a
date with a seal, which every pod that has the key can check. Programs send the key itself as
`Authorization: Bearer`.

Without one: who sits at the machine that the service listens on, and nobody else. A request that
was passed on by a proxy, or whose host is another name for this machine, is not believed to come
from there: another site's page could have its own name point here.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from http.cookies import Morsel, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from ingress.public_url import public_url

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SESSION_S: Final = 12 * 3600


def is_loopback(host: str) -> bool:
    """Whether what listens there can be reached from this machine alone."""
    return host in _LOOPBACK


def is_local(request: Request) -> bool:
    """Whether a request was made on this machine, by somebody who meant this machine."""
    headers = request.headers
    # No browser speaks HTTP/1.0, but some proxies do that add no header of their own.
    if any(name in headers for name in _FORWARDED) or request.scope["http_version"] == "1.0":
        return False
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host.endswith(".localhost")


def from_elsewhere(request: Request) -> bool:
    """Whether a browser says that another site's page made this request."""
    return request.headers.get("sec-fetch-site") == "cross-site"


class Door:
    """Knows who may look.

    Args:
        key: None: only people on this machine.
        clock: Gives Unix seconds.
    """

    def __init__(
        self,
        key: str | None,
        *,
        configured_url: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = None if key is None else key.encode()
        self._configured_url = configured_url
        self._clock = clock

    @property
    def locked(self) -> bool:
        """Whether there is a key."""
        return self._key is not None

    def admits(self, request: Request) -> bool:
        """Whether who made this request may look."""
        # A link there may be followed; in a frame the page shows nothing.
        if from_elsewhere(request) and request.headers.get("sec-fetch-mode") != "navigate":
            return False
        if self._key is None:
            return is_local(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.opens(token.strip())
        return self._is_valid(request.cookies.get(self._cookie_name(request), ""))

    def opens(self, key: str) -> bool:
        """Whether this is the key."""
        digests = [hashlib.sha256(one).digest() for one in (key.encode(), self._key or b"")]
        return self._key is not None and hmac.compare_digest(*digests)

    def pass_for(self, request: Request) -> str:
        """The header that lets a browser in."""
        expires_at = int(self._clock()) + _SESSION_S
        return self._cookie(request, f"{expires_at}.{self._seal(expires_at)}", _SESSION_S)

    def no_pass_for(self, request: Request) -> str:
        """The header that lets it out."""
        return self._cookie(request, "", 0)

    def _cookie(self, request: Request, value: str, age_s: int) -> str:
        name = self._cookie_name(request)
        cookie: SimpleCookie = SimpleCookie({name: value})
        morsel: Morsel[str] = cookie[name]
        morsel["path"], morsel["max-age"] = "/", age_s
        morsel["samesite"], morsel["httponly"] = "Strict", True
        morsel["secure"] = self._is_secure(request)
        return morsel.OutputString()

    def _cookie_name(self, request: Request) -> str:
        """Different for different keys: all ports of a machine share their cookies."""
        assert self._key is not None
        of_key = hmac.new(self._key, b"name", hashlib.sha256).hexdigest()[:8]
        prefix = "__Host-" if self._is_secure(request) else ""
        return f"{prefix}headrace-console-{of_key}"

    def _is_secure(self, request: Request) -> bool:
        return public_url(request, self._configured_url).startswith("https://")

    def _is_valid(self, value: str) -> bool:
        expires, _, seal = value.partition(".")
        if not (expires.isascii() and expires.isdecimal() and len(expires) < 12):
            return False
        right = hmac.compare_digest(seal.encode(), self._seal(int(expires)).encode())
        return right and self._clock() < int(expires)

    def _seal(self, expires_at: int) -> str:
        assert self._key is not None
        return hmac.new(self._key, f"console until {expires_at}".encode(), "sha256").hexdigest()
