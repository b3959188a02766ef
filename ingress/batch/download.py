"""Sending the content of a file: from the blob store to the socket, never held as a whole.

The status line leaves with the first piece, so whatever keeps the content from being read at all
still has a status of its own. What goes wrong later breaks the connection before the length that
was promised, which every client sees. The reader of the blob is closed whatever the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ingress.auth import Principal
from ingress.batch.upload import no_contents
from ingress.disconnect import while_connected
from ingress.services import Services
from ingress.transfers import Transfer, transferring
from schemas.blobs.base import BlobMissing, BlobStoreUnavailable
from schemas.errors import ClientClosedRequest, InternalError, RequestError, ServingError

_PIECE_BYTES: Final = 1 << 16
"""A reader who is slow but steady is seen to take something as often as that much is written."""


class Download(Response):
    """The response that is one blob.

    Args:
        file_id: For the log.
        size: Of the blob in bytes, as far as it is known.
        missing: Makes the error for a blob that is not there.
    """

    def __init__(
        self,
        services: Services,
        principal: Principal,
        *,
        blob: str,
        file_id: str,
        size: int | None,
        headers: Mapping[str, str],
        missing: Callable[[], RequestError],
    ) -> None:
        self.background = None
        self.status_code = 200
        length = {} if size is None else {"content-length": str(size)}
        self.init_headers({**headers, **length})
        self._services = services
        self._principal = principal
        self._blob = blob
        self._file_id = file_id
        self._missing = missing
        self._size = size
        self._begun = False

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Those given and no others: there is no body here to take a length from."""
        self.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send(self._head())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        request_id = scope["state"]["request_id"]
        try:
            async with transferring(
                self._services, "download", request_id=request_id, principal=self._principal
            ) as transfer:
                transfer.file_id = self._file_id
                await while_connected(receive, self._carry(send, transfer))
        except ServingError:
            if not self._begun:
                raise

    def _head(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }

    async def _carry(self, send: Send, transfer: Transfer) -> None:
        assert self._services.blobs is not None
        pieces = self._services.blobs.read(self._blob)
        async with contextlib.aclosing(pieces):
            piece = await self._next(pieces)
            self._begun = True
            await self._write(send, self._head())
            while piece is not None:
                for at in range(0, len(piece), _PIECE_BYTES):
                    part = piece[at : at + _PIECE_BYTES]
                    self._check(transfer.size + len(part), whole=False)
                    body = {"type": "http.response.body", "body": part, "more_body": True}
                    await self._write(send, body)
                    transfer.size += len(part)
                piece = await self._next(pieces)
            self._check(transfer.size, whole=True)
            await self._write(send, {"type": "http.response.body", "body": b"", "more_body": False})

    def _check(self, size: int, *, whole: bool) -> None:
        """Refuse to send a content of another length than was promised."""
        if self._size is not None and (size > self._size or (whole and size < self._size)):
            raise InternalError("The content of the file is not what was stored.")

    async def _next(self, pieces: AsyncGenerator[bytes, None]) -> bytes | None:
        try:
            return await anext(pieces, None)
        except BlobMissing:
            raise self._missing() from None
        except BlobStoreUnavailable as error:
            raise no_contents(error) from None

    async def _write(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._services.settings.limits.write_s):
                await send(message)
        except TimeoutError:
            raise ClientClosedRequest("The client stopped reading.") from None
        except OSError:
            raise ClientClosedRequest("The client went away.") from None
