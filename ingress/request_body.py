"""The body of a request as it comes, within bounds of time and size.

It must not know what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request

from schemas.errors import ClientClosedRequest, RequestBodyTimeout, UnsupportedMediaType


def media_type_of(request: Request) -> str:
    """What the body says that it is, in lower case and without parameters; empty if nothing."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_uncompressed(request: Request) -> None:
    """Refuses a compressed body: its size would say nothing.

    Raises:
        UnsupportedMediaType: It is compressed.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The request body must not be compressed.")


async def body_pieces(
    request: Request, *, idle_s: float, upload_s: float
) -> AsyncGenerator[bytes, None]:
    """The body in pieces, none of them empty. Nothing is read ahead of who takes them.

    Raises:
        RequestBodyTimeout: Nothing came for `idle_s` seconds, or not all within `upload_s`.
        ClientClosedRequest: The client left during the upload.
    """
    stream = request.stream()
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + upload_s
    while True:
        try:
            async with asyncio.timeout_at(min(loop.time() + idle_s, ends_at)):
                piece = await anext(stream, None)
        except TimeoutError:
            raise RequestBodyTimeout("The request body did not arrive in time.") from None
        except ClientDisconnect:
            raise ClientClosedRequest("The client went away.") from None
        if piece is None:
            return
        if piece:
            yield piece
