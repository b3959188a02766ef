"""Storing a file that a client sends: from the socket to the blob store, never held as a whole.

    length -> authenticate -> form and file as they come -> blob -> record

The fields of the form may follow the file, so all is checked before the last byte is handed on: of
an upload that is refused nothing was stored.

Source: wire reference of the batch APIs, "Files".
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator

import structlog
from starlette.requests import Request

from ingress.batch.access import Stores, check_batch_zdr, stores_of
from ingress.batch.file_object import UploadFields
from ingress.multipart import MAX_FORM_BYTES, FileForm, too_large
from ingress.request_body import body_pieces, check_uncompressed, media_type_of
from ingress.services import Services
from ingress.settings import IngressSettings
from ingress.stores.base import StoreUnavailable
from ingress.transfers import Transfer, transferring
from schemas.batch import StoredFile
from schemas.blobs.base import BlobStoreUnavailable
from schemas.errors import UnsupportedParameter

log = structlog.get_logger()

_RAW_HEADER = "x-wafer-purpose"


async def upload(request: Request, services: Services) -> StoredFile:
    """The file that was sent, stored.

    Raises:
        ServingError: It was not stored.
    """
    settings = services.settings
    _check_length(request, settings)
    principal = services.authenticator.authenticate(request.scope["headers"])
    stores = stores_of(services)
    check_batch_zdr(request, principal.terms)
    if media_type_of(request) != "multipart/form-data" and _RAW_HEADER in request.headers:
        raise UnsupportedParameter(
            "Media files cannot be uploaded here; files for batches come as multipart/form-data.",
            param="X-Wafer-Purpose",
        )
    check_uncompressed(request)
    reading = _Reading(request, settings)
    async with transferring(
        services, "upload", request_id=request.state.request_id, principal=principal
    ) as transfer:
        file_id = transfer.file_id = f"file-{secrets.token_hex(12)}"
        blob = f"files/{file_id}"
        try:
            size = await stores.blobs.write(blob, reading.file(transfer))
        except BlobStoreUnavailable as error:
            raise no_contents(error) from None
        now = int(time.time())
        file = StoredFile(
            file_id=file_id,
            account=principal.account,
            filename=reading.form.filename or "",
            purpose="batch",
            size=size,
            created_at=now,
            expires_at=now + reading.fields.expiry_s(),
            blob=blob,
        )
        try:
            await stores.records.add_file(file)
        except BaseException:
            await drop_blob(stores, file)
            raise
        return file


async def drop_blob(stores: Stores, file: StoredFile) -> None:
    """Delete the content of a file that has no record; if that fails it is for the sweeper."""
    try:
        await stores.blobs.delete(file.blob)
    except BlobStoreUnavailable:
        log.warning("file.left_behind", file_id=file.file_id)


def no_contents(error: BlobStoreUnavailable) -> StoreUnavailable:
    """The error of a client who came while the blob store is away."""
    return StoreUnavailable(
        "The contents of files cannot be reached now; try again.", diagnostic=str(error)
    )


def _check_length(request: Request, settings: IngressSettings) -> None:
    """Refuses what is too large by its own account; nothing of it has been read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_file_bytes + MAX_FORM_BYTES:
        raise too_large(settings.max_file_bytes)


class _Reading:
    """The body of one upload.

    Raises:
        ServingError: It is no form.
    """

    def __init__(self, request: Request, settings: IngressSettings) -> None:
        self.fields = UploadFields()
        self.form = FileForm(
            request.headers.get("content-type", "").encode("latin-1"),
            file_field="file",
            max_file_bytes=settings.max_file_bytes,
            on_field=self.fields.take,
        )
        limits = settings.limits
        self._body = body_pieces(request, idle_s=limits.body_s, upload_s=limits.file_upload_s)

    async def file(self, transfer: Transfer) -> AsyncIterator[bytes]:
        """The file in pieces. It does not end before the whole form has been found good.

        Raises:
            ServingError: The upload is refused.
        """
        async with contextlib.aclosing(self._body):
            async for data in self._body:
                for piece in self.form.feed(data):
                    transfer.size += len(piece)
                    yield piece
        self.form.finish()
        self.fields.expiry_s()
