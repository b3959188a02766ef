"""Where a client reaches this service, for links that it is to follow.

What the deployment says comes first. Without that it is what the request tells: the host that a
proxy names, else the one that the client asked for. Who lies there is sent astray alone, so nobody
needs to be trusted; what could not be a host is not repeated, though.

Source: wire reference of the batch APIs, `results_url`; RFC 9110, section 7.2.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request

_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def public_url(request: Request, configured: str | None) -> str:
    """The service's URL as this client knows it, without a slash at the end."""
    if configured is not None:
        return configured
    headers = request.headers
    scheme = _first(headers.get("x-forwarded-proto")).lower()
    if scheme not in ("http", "https"):
        scheme = request.scope["scheme"]
    for host in (_first(headers.get("x-forwarded-host")), headers.get("host", "")):
        if _HOST.fullmatch(host):
            return f"{scheme}://{host}"
    address, port = request.scope["server"]
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"


def _first(values: str | None) -> str:
    """What the outermost of several proxies has said."""
    return (values or "").partition(",")[0].strip()
